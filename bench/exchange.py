"""Forward transforms whose exchanges are in double and in single precision, in turns, on links.

    python bench/exchange.py [--links 2gbit shm] [--rounds N] [--json FILE]

Of each plan the call as it settles by itself (`t`), without overlap (`off`), its computing and its exchanges alone
(C and T). Medians over the rounds of the slowest rank, and the largest error against NumPy. ``ratios`` are those of a
plan that exchanges doubles over those of one with ``exchange="f4"``: the medians over the rounds of the ratio within a
round.
"""

import sys
from contextlib import ExitStack
from functools import partial
from statistics import median

import overlap
from overlap.tools.bench.jobs import JOBS, Case, max_rel_error
from overlap.tools.bench.pages import Page
from overlap.tools.bench.rounds import medians, seconds_of

EXCHANGES = None, "f4"
CASES = (
    {"workload": "fft2", "slices": 64, "shape": (512, 512)},
    {"workload": "fft3", "slices": 1, "shape": (256, 256, 256)},
)


def measure(comm, given):
    """The records of the cases, each with every kind of exchange."""
    for sizes in CASES:
        columns, errors, chosen = {}, {}, {}
        with ExitStack() as stack:
            runtime = stack.enter_context(overlap.Runtime(comm))
            for exchange in EXCHANGES:
                case = Case(**sizes, exchange=exchange)
                kind = JOBS[case.workload]
                plans = [stack.enter_context(kind.plan(runtime, case, wait=wait)) for wait in ("auto", "off")]
                job = kind(case, plans[0])
                auto, off = (job.transform(plan) for plan in plans)
                out = plans[0].spectrum.empty()
                auto.settle(*job.inputs, out=out)
                errors[str(exchange)] = max_rel_error(comm, job, case, plans[0].spectrum.local_slice, out)
                chosen[str(exchange)] = str(auto.settings)
                for name, run in (("t", auto), ("off", off), ("C", auto.compute), ("T", auto.communicate)):
                    columns[f"{name}, {exchange}"] = partial(run, *job.inputs, out=out)
            seconds = seconds_of(comm, columns, given.rounds)
        ratios = {
            name: [one / other for one, other in zip(seconds[f"{name}, None"], seconds[f"{name}, f4"])]
            for name in ("t", "off", "C", "T")
        }
        yield {
            "case": f"{case.workload} {case.global_shape} {case.dtype}",
            "medians_s": medians(seconds),
            "ratios": {name: [median(values), min(values), max(values)] for name, values in ratios.items()},
            "max_rel_error": errors,
            "settings": chosen,
        }


PAGE = Page(__doc__, measure, links=("2gbit", "shm"), rounds=9)

if __name__ == "__main__":
    sys.exit(PAGE.run())
