"""What a lost rank costs, and what it costs to be prepared: from the kill to the next step, and saves in a time loop.

    python bench/losses.py --launcher "mpiexec --with-ft ulfm" [--ranks 3] [--rounds N] [--json FILE]
    python bench/losses.py --link 2gbit [--rounds N] [--json FILE]

Needs Open MPI 5; with ``--link``, where only saves are timed, MPICH.

* ``recovery_s``: 64 planes of 512 x 512 are transformed back and forth, step by step, and a rank kills itself in the
  middle of a step; seconds until the ranks that are left have completed the next step, with runtime, plan and fields
  made anew on them, and kept anew. Median over jobs. ``notice_s``: until the last of them has raised `RankLost`.
* ``loop_s``, ``saving_s``: steps of the Navier-Stokes example, 8 planes of 512 x 512, without saves, and with one every
  tenth step that travels while the others compute, in turns; ``cost`` is the median of the rounds' quotients less 1.
  ``save_s``: one save that is waited for; ``start_s``: the part of a save for which the loop waits.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from functools import partial
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter, sleep

import numpy as np

import overlap
from overlap.tools import launch
from overlap.tools.bench.pages import Page
from overlap.tools.bench.rounds import medians, timed, turns

EVERY, STEPS = 10, 20  # steps between two saves, and of a loop
SHAPE = 64, 512, 512


# ---- on the ranks --------------------------------------------------------------------------------


def step(plan, spectrum):
    """Go to real space and back."""
    spectrum[...] = plan.forward(plan.backward(spectrum))


def started(comm, shape, on_loss):
    """A plan on a runtime, a field, and what keeps it."""
    runtime = overlap.Runtime(comm, on_loss=on_loss)
    plan = overlap.FFT2(runtime, shape, "f8", norm="forward", settings={"effort": "estimate", "wait": "off"})
    spectrum = plan.spectrum.empty()
    spectrum[...] = 1.0
    return plan, spectrum, overlap.Protected(spectrum)


def kill(comm, folder):
    """Lose the last rank in a step; every other one writes when it has noticed, and when the next step was over."""
    plan, spectrum, protected = started(comm, SHAPE, "raise")
    for _ in range(3):
        step(plan, spectrum)
    protected.save(0)
    began = perf_counter()
    step(plan, spectrum)
    step_s = perf_counter() - began
    comm.Barrier()

    def die():
        sleep(1.5 * step_s)
        Path(folder, "killed").write_text(repr(monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)

    if comm.rank == comm.size - 1:
        threading.Thread(target=die, daemon=True).start()
    try:
        while True:
            step(plan, spectrum)
    except overlap.RankLost as loss:
        noticed = monotonic()
        runtime = loss.survivors()
        plan = plan.on(runtime)
        _, (spectrum,) = protected.restore(runtime, like=[plan.spectrum])
        protected = overlap.Protected(spectrum, copies=min(1, runtime.comm.size - 1))
        protected.save(0)
        step(plan, spectrum)
        Path(folder, f"rank{runtime.coordinator.rank}").write_text(json.dumps([noticed, monotonic(), step_s]))
        protected.close()
        plan.close()
        runtime.close()


def saves(comm, rounds):
    """Time loops with and without saves in turns, and saves alone."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
    from navier_stokes_2d import NavierStokes, random_vorticity

    plan, spectrum, protected = started(comm, (8, *SHAPE[1:]), None)
    flow = NavierStokes(plan, 1e-4)
    spectrum[...] = random_vorticity(flow, plan, np.full(8, 6.0))

    def loop(saving):
        for number in range(STEPS):
            if saving and number % EVERY == 0:
                began = perf_counter()
                protected.start(number)
                found["start_s"].append(perf_counter() - began)
            spectrum[...] = flow.step(spectrum, 1e-3)

    found = {"start_s": []}
    runs = {"loop_s": partial(loop, False), "saving_s": partial(loop, True), "save_s": partial(protected.save, 0)}
    found |= turns({name: partial(timed, comm, run) for name, run in runs.items()}, rounds)
    protected.close()
    plan.close()
    return found


def measure(comm, given):
    """The times of saves, or, in files, those of a loss."""
    if given.part == "kill":
        kill(comm, given.folder)
    else:
        yield saves(comm, given.rounds)


# ---- here ----------------------------------------------------------------------------------------


def ask(given, part, ranks, folder):
    """Run a job with Open MPI's launcher; what its ranks tell."""
    told = []
    command = [*shlex.split(given.launcher), "-n", str(ranks), sys.executable, os.path.abspath(sys.argv[0])]
    command += ["--part", part, "--folder", folder, "--rounds", str(given.rounds), "--on", "shm"]
    done = subprocess.run(command, check=part != "kill", stdout=subprocess.PIPE, text=True, timeout=300,
                          stderr=subprocess.DEVNULL if part == "kill" else None)  # fmt: skip
    for line in done.stdout.splitlines():
        launch.listening(told.append)(line)
    return told


def recovery(given):
    """Kill a rank, job after job; the record."""
    found = {"recovery_s": [], "notice_s": [], "step_s": []}
    for _ in range(given.rounds):
        with tempfile.TemporaryDirectory() as folder:
            ask(given, "kill", given.ranks, folder)
            times = {path.name: json.loads(path.read_text()) for path in Path(folder).iterdir()}
        killed = times.pop("killed")
        if len(times) != given.ranks - 1:
            sys.exit(f"a job went wrong: {len(times)} of {given.ranks - 1} ranks went on")
        noticed, ended, step_s = map(max, zip(*times.values()))
        found["recovery_s"].append(ended - killed)
        found["notice_s"].append(noticed - killed)
        found["step_s"].append(step_s)
    case = f"a step back and forth, {given.ranks} ranks, one killed"
    return {"case": case, "slowest_recovery_s": max(found["recovery_s"])} | medians(found)


def cost(given):
    """Time loops with and without saves; the record."""
    (link,) = given.links
    with tempfile.TemporaryDirectory() as folder:
        (found,) = PAGE.ask("--part", "saves", ranks=2, link=link) if link != "shm" else ask(given, "saves", 2, folder)
    times = medians({name: found[name] for name in ("loop_s", "saving_s", "save_s", "start_s")})
    where = "shared memory" if link == "shm" else link
    return {
        "case": f"Navier-Stokes, 2 ranks, {STEPS} steps, a save every {EVERY}, {where}",
        **times,
        "cost": median(saving / loop - 1 for saving, loop in zip(found["saving_s"], found["loop_s"])),
    }


def here(given):
    """The records."""
    if list(given.links) == ["shm"]:
        yield recovery(given)
    yield cost(given)


PAGE = Page(__doc__, measure, here=here, ranks=3, rounds=7)
PAGE.add("--launcher", default="mpiexec --with-ft ulfm")
PAGE.add("--folder", help="where ranks write what they have seen when one is killed")

if __name__ == "__main__":
    sys.exit(PAGE.run())
