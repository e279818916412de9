"""What a script written for mpi4py-fft gains by its import alone: both libraries, the same calls.

    python bench/drop_in.py [--rounds 5] [--quick] [--out FILE.md]

Each of `CASES` is planned by both with the same arguments and defaults, and called as their manual
does: ``plan.forward(u, uh)``, ``plan.backward(uh, u)``, scaled. Rounds alternate, after those in which our plans
choose their settings; results are compared.
"""

import argparse
import sys
import time
from statistics import median

from overlap import files
from overlap.tools import launch
from overlap.tools.bench.table import markdown

LINKS = None, "2gbit"
CASES = {
    "256^3, c2c": dict(shape=(256, 256, 256), dtype="D"),
    "256^3, r2c": dict(shape=(256, 256, 256), dtype="d"),
    "64 x 512 x 512, axes (1, 2), grid (1, -1), c2c": dict(shape=(64, 512, 512), axes=(1, 2), grid=(1, -1), dtype="D"),
    "64 x 512 x 512, axes (1, 2), grid (1, -1), r2c": dict(shape=(64, 512, 512), axes=(1, 2), grid=(1, -1), dtype="d"),
}


SETTLING = 90  # first calls, in which our plans compare settings


def measure(rounds, quick):
    """Time all cases on this rank."""
    import mpi4py_fft
    import numpy as np
    from mpi4py import MPI

    from overlap.compat import mpi4py_fft as ours

    comm = MPI.COMM_WORLD
    for name, options in CASES.items():
        if quick:
            options = options | {"shape": tuple(max(length // 8, 8) for length in options["shape"])}
        columns, results = {}, {}
        for library, module in (("overlap", ours), ("mpi4py-fft", mpi4py_fft)):
            plan = module.PFFT(comm, **options)
            u = module.newDistArray(plan, False)
            uh = module.newDistArray(plan, True)
            whole = np.random.default_rng(1).random(options["shape"])
            u[...] = whole[plan.local_slice(False)]
            results[library] = plan, u, uh, np.array(u)
            columns[library, "forward"] = lambda plan=plan, u=u, uh=uh: plan.forward(u, uh)
            columns[library, "backward"] = lambda plan=plan, u=u, uh=uh: plan.backward(uh, u)
        seconds = {key: [] for key in columns}
        for (library, _), run in columns.items():
            for _ in range(SETTLING if library == "overlap" else 1):
                run()
        for _ in range(rounds):
            for key, run in columns.items():
                comm.Barrier()
                started = time.perf_counter()
                run()
                seconds[key].append(comm.allreduce(time.perf_counter() - started, MPI.MAX))
        for _, u, _, before in results.values():
            assert comm.allreduce(np.abs(np.asarray(u) - before).max(), MPI.MAX) < 1e-13
        spectra = [np.asarray(results[library][2]) for library in results]
        assert comm.allreduce(np.abs(spectra[0] - spectra[1]).max(), MPI.MAX) < 1e-13
        for plan, *_ in results.values():
            plan.destroy()
        if comm.rank == 0:
            launch.tell({name: {f"{library}, {way}": median(values) for (library, way), values in seconds.items()}})


def launched(link, options):
    """The times of all cases on two ranks of a link."""
    found = {}
    command = [sys.executable, __file__, "--rank", "--rounds", str(options.rounds)]
    if launch.run_ranks(
        command + ["--quick"] * options.quick,
        ranks=2,
        link=link,
        deadline_s=500,
        on_line=launch.listening(found.update),
    ):
        raise SystemExit("the ranks failed")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="small: only to see it work")
    parser.add_argument("--out", metavar="FILE.md", help="default: print it")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        measure(options.rounds, options.quick)
        return
    rows = []
    for link in LINKS:
        for name, times in launched(link, options).items():
            cells = []
            for way in ("forward", "backward"):
                theirs, here = times[f"mpi4py-fft, {way}"], times[f"overlap, {way}"]
                cells.append(f"{1e3 * theirs:.0f}, {1e3 * here:.0f}: {theirs / here:.2f}x")
            rows.append((name, link or "shared memory", *cells))
    text = (
        markdown(("plan", "between the ranks", "forward: mpi4py-fft, overlap", "backward: mpi4py-fft, overlap"), rows)
        + "\n"
    )
    if options.out:
        files.write(options.out, text)
    print(text)


if __name__ == "__main__":
    main()
