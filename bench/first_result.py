"""From `import overlap` to the first result of a plan, in fresh processes with warm caches.

    python bench/first_result.py [--effort measure] [--shape 64 512 512] [--rounds N] [--json FILE]

Each round is a process of its own, on one core: import, MPI's start, the plan, its first call. The first process fills
the cache of settings and FFTW's wisdom and is told apart, ``cold_s``; of the others medians, in seconds. Compiled code
is that of earlier plans.
``first_result_s`` is the whole from the first line of the program on, ``process_s`` with Python's own start.
"""

import json
import os
import subprocess
import sys
import tempfile
from time import perf_counter

from overlap.tools.bench.pages import Page
from overlap.tools.bench.rounds import medians

PROGRAM = """
from time import perf_counter
begun = perf_counter()
import json, sys
import overlap
imported = perf_counter()
from mpi4py import MPI
started = perf_counter()
effort, shape = json.loads(sys.argv[1])
with overlap.FFT2(MPI.COMM_WORLD, shape, settings={"effort": effort}) as plan:
    planned = perf_counter()
    u = plan.real.empty()
    u[...] = 1.0
    filled = perf_counter()
    plan.forward(u)
    ended = perf_counter()
print(json.dumps({"import_s": imported - begun, "mpi_s": started - imported, "plan_s": planned - started,
                  "call_s": ended - filled, "first_result_s": ended - begun - (filled - planned)}))
"""


def run(given, cache):
    """One process: its record."""
    core = min(os.sched_getaffinity(0))
    started_s = perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([None if given.effort == "none" else given.effort, given.shape])],
        capture_output=True,
        text=True,
        check=True,
        env={name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        | {"OVERLAP_CACHE": cache},
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )
    return json.loads(done.stdout) | {"process_s": perf_counter() - started_s}


def here(given):
    """The record."""
    with tempfile.TemporaryDirectory() as cache:
        cold = run(given, cache)
        warm = [run(given, cache) for _ in range(given.rounds)]
    yield {
        "case": f"FFT2 {' x '.join(map(str, given.shape))}, effort {given.effort}",
        "cold_s": cold["first_result_s"],
        "cold_plan_s": cold["plan_s"],
        **medians({name: [one[name] for one in warm] for name in warm[0]}),
    }


PAGE = Page(__doc__, here=here, rounds=5)
PAGE.add("--effort", default="measure", choices=("none", "estimate", "measure", "patient"))
PAGE.add("--shape", type=int, nargs="+", default=[64, 512, 512])

if __name__ == "__main__":
    sys.exit(PAGE.run())
