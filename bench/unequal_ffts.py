"""FFT2 and FFT3 on ranks of unequal speeds: how near to what all the speeds together allow.

    overlap links --hosts 1 --ranks 2 --speeds 7 4 -- python bench/unequal_ffts.py --weights 7 4
    overlap links --rate 2gbit --speeds 7 4 -- python bench/unequal_ffts.py --weights 7 4
    overlap links --hosts 1 --ranks 2 --speeds 1 1 -- python bench/unequal_ffts.py --balance

Prints a table in Markdown, ms, medians of rounds in which all columns take turns. Without weights, plans of even
shares are balanced again and again, and run beside ones that are not. A rank's speed is its share over the time that it
computes, measured while all ranks compute; "C" is the time of the whole work at the sum of the speeds, "T" that of the
exchanges alone.
"""

import sys
from functools import partial
from math import prod
from statistics import median

import overlap
from overlap.tools.bench.pages import Page
from overlap.tools.bench.rounds import timed, turns
from overlap.tools.bench.table import markdown

CASES = {"FFT2 64 x 512^2": (overlap.FFT2, (64, 512, 512)), "FFT3 256^3": (overlap.FFT3, (256, 256, 256))}


def computed(comm, runtime, run):
    """Seconds in which this rank computed, and those of the slowest rank in all."""
    before = runtime.load.computing_s
    whole_s = timed(comm, run)
    return runtime.load.computing_s - before, whole_s


def arrays(plan):
    """A field of ones and a spectrum, by which the plan has settled."""
    u, out = plan.real.empty(), plan.spectrum.empty()
    u[...] = 1.0
    plan.forward.settle(u, out=out)
    return u, out


def weighted(comm, name, given):
    """The record of plans with even and with weighted shares."""
    kind, shape = CASES[name]
    with kind(comm, shape, complex) as even, kind(comm, shape, complex, layout={"weights": given.weights}) as plan:
        (u, out), (even_u, even_out) = arrays(plan), arrays(even)
        runs = {
            "even": (even, partial(even.forward, even_u, out=even_out)),
            "t": (plan, partial(plan.forward, u, out=out)),
            "C": (plan, partial(plan.forward.compute, u, out=out)),
            "T": (plan, partial(plan.forward.communicate, u, out=out)),
        }
        measured = {column: partial(computed, comm, one.runtime, run) for column, (one, run) in runs.items()}
        found = turns(measured, given.rounds, warm=2)  # the first is a look at the machine
        share = prod(plan.real.shape) / comm.allreduce(prod(plan.real.shape))
        computing_s = comm.allgather(median(mine for mine, _ in found["C"]))
        seconds = {column: median(all_s for _, all_s in values) for column, values in found.items()}
        together_s = 1 / comm.allreduce(share / computing_s[comm.rank])
        settings = str(plan.forward.settings)
    return {"case": name, "seconds": seconds, "C_s": together_s, "computing_s": computing_s, "settings": settings}


def balanced(comm, name, given):
    """The record of a plan that is balanced before each round, beside one that is not."""
    kind, shape = CASES[name]
    with kind(comm, shape, complex) as even, kind(comm, shape, complex) as plan:
        held = {"even": (even, *arrays(even)), "t": (plan, *arrays(plan))}
        # The same settings, or their difference is measured.
        plan.forward.configure(even.forward.settings)
        found, changes, speeds = {"even": [], "t": []}, 0, []
        for _ in range(given.rounds):
            balance = plan.balance()
            changes += balance.changed
            speeds.append(min(balance.speeds))
            if balance.changed:
                held["t"] = plan, plan.real.empty(), plan.spectrum.empty()
                held["t"][1][...] = 1.0
            runs = {key: partial(timed, comm, partial(one.forward, u, out=out)) for key, (one, u, out) in held.items()}
            for key, values in turns(runs, 3).items():
                found[key] += values
    seconds = {column: median(values) for column, values in found.items()}
    return {"case": name, "seconds": seconds, "changes": changes, "speed": min(speeds)}


def measure(comm, given):
    """The records of the cases."""
    for name in given.only:
        yield (balanced if given.balance else weighted)(comm, name, given)


def text(records, given):
    """The table."""
    rows = []
    for record in records:
        even_s, plan_s = (record["seconds"][column] for column in ("even", "t"))
        row = [record["case"], f"{1e3 * even_s:.1f}", f"{1e3 * plan_s:.1f}"]
        if given.balance:
            row += [f"{plan_s / even_s:.3f}", f"{record['changes']} of {given.rounds}", f"{record['speed']:.3f}"]
        else:
            shares = " : ".join(f"{1e3 * one:.1f}" for one in record["computing_s"])
            C, T = record["C_s"], record["seconds"]["T"]
            row += [f"{1e3 * C:.1f} ({shares})", f"{1e3 * T:.1f}", f"{plan_s / max(C, T):.3f}"]
            row += [f"{even_s / plan_s:.2f}", record["settings"]]
        rows.append(row)
    head = (
        " | even shares | balanced | balanced over even | shares changed | least speed found"
        if given.balance
        else " | even shares | weighted | C (each rank computing) | T | weighted over the larger of C and T | gain | "
        "settings"
    )
    return markdown(head, rows)


PAGE = Page(__doc__, measure, text=text, rounds=9)
WHAT = PAGE.parser.add_mutually_exclusive_group(required=True)
WHAT.add_argument("--weights", nargs="+", type=float)
WHAT.add_argument("--balance", action="store_true")
PAGE.add("--only", nargs="+", choices=CASES, default=list(CASES))

if __name__ == "__main__":
    sys.exit(PAGE.run())
