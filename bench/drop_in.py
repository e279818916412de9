"""What a script written for mpi4py-fft gains by its import alone: both libraries, the same calls.

    python bench/drop_in.py [--rounds 5] [--quick] [--out FILE.md]

Each of `CASES` is planned by both with the same arguments and defaults, and called as their manual
does: ``plan.forward(u, uh)``, ``plan.backward(uh, u)``, scaled. Rounds alternate, after those in which our plans
choose their settings; results are compared.
"""

import sys
from functools import partial

import numpy as np

from overlap.compat import mpi4py_fft as ours
from overlap.tools.bench.pages import Page
from overlap.tools.bench.rounds import alike, medians, seconds_of
from overlap.tools.bench.table import place

CASES = {
    f"{words}, {kind}": {**options, "dtype": dtype}
    for words, options in {
        "256^3": dict(shape=(256, 256, 256)),
        "64 x 512 x 512, axes (1, 2), grid (1, -1)": dict(shape=(64, 512, 512), axes=(1, 2), grid=(1, -1)),
    }.items()
    for kind, dtype in (("c2c", "D"), ("r2c", "d"))
}
SETTLING = 90  # first calls, in which our plans compare settings


def measure(comm, given):
    """The records of all cases."""
    import mpi4py_fft as theirs

    for name, options in CASES.items():
        if given.quick:
            options = options | {"shape": tuple(max(length // 8, 8) for length in options["shape"])}
        runs, plans, fields, spectra = {}, [], {}, {}
        for library, module in (("overlap", ours), ("mpi4py-fft", theirs)):
            plan = module.PFFT(comm, **options)
            plans.append(plan)
            u, uh = module.newDistArray(plan, False), module.newDistArray(plan, True)
            u[...] = np.random.default_rng(1).random(options["shape"])[plan.local_slice(False)]
            fields |= {"given": fields.get("given", np.array(u)), library: u}
            spectra[library] = uh
            runs[f"{library}, forward"] = partial(plan.forward, u, uh)
            runs[f"{library}, backward"] = partial(plan.backward, uh, u)
        for _ in range(SETTLING):
            for run in list(runs.values())[:2]:
                run()
        seconds = seconds_of(comm, runs, given.rounds)
        plans[0].forward(fields["overlap"], spectra["overlap"])
        plans[1].forward(fields["mpi4py-fft"], spectra["mpi4py-fft"])
        alike(comm, fields, 1e-13)
        alike(comm, spectra, 1e-13)
        for plan in plans:
            plan.destroy()
        yield {"case": name, "seconds": medians(seconds)}


def row(record):
    """A record as a row of the table."""

    def cell(way):
        theirs_s, ours_s = (record["seconds"][f"{library}, {way}"] for library in ("mpi4py-fft", "overlap"))
        return f"{1e3 * theirs_s:.0f}, {1e3 * ours_s:.0f}: {theirs_s / ours_s:.2f}x"

    return (record["case"], place(record), cell("forward"), cell("backward"))


HEAD = "plan | between the ranks | forward: mpi4py-fft, overlap | backward: mpi4py-fft, overlap"
PAGE = Page(__doc__, measure, row=row, head=HEAD, links=("shm", "2gbit"), rounds=5, quick={})

if __name__ == "__main__":
    sys.exit(PAGE.run())
