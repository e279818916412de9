"""FFT2 and FFT3 on ranks of unequal speeds: how near to what all the speeds together allow.

    overlap links --hosts 1 --ranks 2 --speeds 7 4 -- python bench/unequal_ffts.py --weights 7 4
    overlap links --rate 2gbit --speeds 7 4 -- python bench/unequal_ffts.py --weights 7 4
    overlap links --hosts 1 --ranks 2 --speeds 1 1 -- python bench/unequal_ffts.py --balance

Prints a table in Markdown, ms, medians of rounds in which all columns are run in turn. Without weights, plans of even
shares are balanced again and again, and run beside ones that are not. A rank's speed is its share over the time that it
computes, measured while all ranks compute; "C" is the time of the whole work at the sum of the speeds, "T" that of the
exchanges alone.
"""

from __future__ import annotations

import argparse
import math
from statistics import median
from time import perf_counter

import mpi4py

mpi4py.rc.thread_level = "serialized"
from mpi4py import MPI

import overlap

CASES = {"FFT2 64 x 512^2": (overlap.FFT2, (64, 512, 512)), "FFT3 256^3": (overlap.FFT3, (256, 256, 256))}


def timed(comm: MPI.Intracomm, runtime: overlap.Runtime, run) -> tuple[float, float]:
    """Seconds in which this rank computed, and those of the slowest rank in all (collective)."""
    comm.Barrier()
    before, begun = runtime.load.computing_s, perf_counter()
    run()
    whole_s = perf_counter() - begun
    return runtime.load.computing_s - before, comm.allreduce(whole_s, MPI.MAX)


def row(comm: MPI.Intracomm, name: str, weights: list[float], rounds: int) -> str:
    """A row of the table."""
    kind, shape = CASES[name]
    with kind(comm, shape, complex) as even, kind(comm, shape, complex, layout={"weights": weights}) as plan:
        runs = {}
        for column, one in (("even", even), ("t", plan)):
            u, out = one.real.empty(), one.spectrum.empty()
            u[...] = 1.0
            runs[column] = lambda one=one, u=u, out=out: one.forward(u, out=out)
            one.forward.settle(u, out=out)
        runs["C"] = lambda: plan.forward.compute(u, out=out)
        runs["T"] = lambda: plan.forward.communicate(u, out=out)
        found: dict[str, list[tuple[float, float]]] = {column: [] for column in runs}
        for number in range(rounds + 2):
            for column, run in runs.items():
                seconds = timed(comm, (even if column == "even" else plan).runtime, run)
                if number > 1:  # after a look at the machine
                    found[column].append(seconds)
        share = math.prod(plan.real.shape) / comm.allreduce(math.prod(plan.real.shape))
        computing_s = comm.allgather(median(mine for mine, _ in found["C"]))
        speed = comm.allreduce(share / computing_s[comm.rank])
        even_s, plan_s, together_s, moving_s = (
            median(all_s for _, all_s in found["even"]),
            median(all_s for _, all_s in found["t"]),
            1 / speed,
            median(all_s for _, all_s in found["T"]),
        )
        bound_s = max(together_s, moving_s)
        shares = " : ".join(f"{1e3 * one:.1f}" for one in computing_s)
        return (
            f"| {name} | {1e3 * even_s:.1f} | {1e3 * plan_s:.1f} | {1e3 * together_s:.1f} ({shares}) | "
            f"{1e3 * moving_s:.1f} | "
            f"{plan_s / bound_s:.3f} | {even_s / plan_s:.2f} | {plan.forward.settings} |"
        )


def balanced_row(comm: MPI.Intracomm, name: str, rounds: int) -> str:
    """A row of the table of a plan that is balanced before each round, beside one that is not."""
    kind, shape = CASES[name]
    with kind(comm, shape, complex) as even, kind(comm, shape, complex) as plan:
        arrays = {}
        for one in (even, plan):
            arrays[one] = one.real.empty(), one.spectrum.empty()
            arrays[one][0][...] = 1.0
            one.forward.settle(arrays[one][0], out=arrays[one][1])
        # The same settings, or their difference is measured.
        plan.forward.configure(even.forward.settings)
        found: dict[overlap.FFT2 | overlap.FFT3, list[float]] = {even: [], plan: []}
        changes, speeds = 0, []
        for _ in range(rounds):
            balance = plan.balance()
            changes += balance.changed
            speeds.append(min(balance.speeds))
            if balance.changed:
                arrays[plan] = plan.real.empty(), plan.spectrum.empty()
                arrays[plan][0][...] = 1.0
            for one, (u, out) in arrays.items():
                one.forward(u, out=out)
            for _ in range(3):
                for one, (u, out) in arrays.items():
                    found[one].append(timed(comm, one.runtime, lambda: one.forward(u, out=out))[1])
        even_s, plan_s = (1e3 * median(times) for times in found.values())
        times = f"{even_s:.1f} | {plan_s:.1f} | {plan_s / even_s:.3f}"
        return f"| {name} | {times} | {changes} of {rounds} | {min(speeds):.3f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--weights", nargs="+", type=float)
    what.add_argument("--balance", action="store_true")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    given = parser.parse_args()
    comm = MPI.COMM_WORLD
    if given.balance:
        told = [
            "| | even shares | balanced | balanced over even | shares changed | least speed found |",
            "|" + "---|" * 6,
        ]
        told += [balanced_row(comm, name, given.rounds) for name in given.only]
    else:
        told = [
            "| | even shares | weighted | C (each rank computing) | T | weighted over the larger of C and T | gain | "
            "settings |",
            "|" + "---|" * 8,
        ]
        told += [row(comm, name, given.weights, given.rounds) for name in given.only]
    if comm.rank == 0:
        print("\n".join(told))


if __name__ == "__main__":
    main()
