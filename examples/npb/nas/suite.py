"""Measures a kernel with even shares and with shares that follow the ranks' speeds."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

from mpi4py import MPI

from .conjugate_gradient import CG
from .embarrassingly_parallel import EP
from .fourier_transform import FT
from .integer_sort import IS
from .kernel import DRAWN, Advance, Check, Kernel, Weights
from .multigrid import MG

POWERS = 1.0, 1.2, 1.5, 2.0  # powers of the speeds that are tried as weights

KERNELS: dict[str, type[Kernel]] = {kernel.name: kernel for kernel in (EP, IS, CG, FT, MG)}


@dataclass(frozen=True)
class Run:
    """Records one measured run, the same on all ranks.

    Attributes
    ----------
    how : str
        "plain" (even, nothing hidden), "even", "weights" or "balanced".
    seconds : float
        Time of the slowest rank.
    mops : float
        Millions of operations per second, of all ranks.
    checks : list of Check
    messages : int
        Messages of the rank that sent the most.
    weights : list of float or None
    shares : list of int
        Units of each rank.
    waited_s : list of float
        Seconds in which each rank waited for others, or moved data.
    """

    how: str
    seconds: float
    mops: float
    checks: list[Check]
    messages: int
    weights: list[float] | None
    shares: list[int]
    waited_s: list[float]

    @property
    def verified(self) -> bool:
        """Return whether all checks have passed."""
        return all(check.passed for check in self.checks)

    @property
    def speeds(self) -> tuple[float, ...]:
        """Return the units per second of computing of each rank, relative to the fastest."""
        found = [share / max(self.seconds - waited, 1e-9) for share, waited in zip(self.shares, self.waited_s)]
        return tuple(max(speed / max(found), 1e-3) for speed in found)


@dataclass(frozen=True)
class Case:
    """Describes a job: a kernel's name, the letter of a class, and the number of runs, of which the one with the median
    time is reported."""

    name: str
    letter: str
    repeat: int = 1


def runs(
    comm: MPI.Intracomm,
    case: Case,
    advance: Advance,
    *,
    weights: Weights = None,
    balance: bool = False,
    plain: bool = False,
) -> tuple[list[Run], Kernel]:
    """Measure a kernel with even shares, and with given weights or weights from the speeds of even runs (collective).

    The cost of moving data to a slow rank does not shrink with its share, so a smaller share may be better: powers of
    the speeds are tried as weights, too. With `plain` a run with even shares that hides nothing comes first. All
    variants take turns, so that other work of the machine affects all of them. The kernel of the last ones, though
    closed, can still be described.
    """
    with ExitStack() as stack:
        found: dict[str, tuple[Kernel, Weights, list[Run]]] = {}

        def add(how: str, asked: Weights) -> Kernel:
            kernel = stack.enter_context(KERNELS[case.name](comm, case.letter, asked, advance, how != "plain"))
            found[how] = kernel, asked, []
            return kernel

        if plain:
            add("plain", None)
        kernel = add("even", None)
        if weights is not None:
            kernel = add("weights", weights)
        elif balance:
            asked: Weights = DRAWN
            if case.name != "ep":
                speeds = _typical([_timed(comm, "even", kernel, None) for _ in range(case.repeat)]).speeds
                tried = {}
                for power in POWERS:
                    one = tuple(speed**power for speed in speeds)
                    with KERNELS[case.name](comm, case.letter, one, advance) as kernel:
                        tried[one] = _typical(
                            [_timed(comm, "balanced", kernel, one) for _ in range(case.repeat)]
                        ).seconds
                asked = min(tried, key=tried.__getitem__)
            kernel = add("balanced", asked)
        for _ in range(case.repeat):
            for how, (each, shares, of) in found.items():
                of.append(_timed(comm, how, each, shares))
    return [_typical(of) for _, _, of in found.values()], kernel


def _timed(comm, how, kernel, weights):
    """Run a kernel once without timing and once with it."""
    kernel.warm_up()
    comm.Barrier()
    started = perf_counter()
    kernel.run()
    seconds = comm.allreduce(perf_counter() - started, MPI.MAX)
    shares, waited = zip(*comm.allgather((kernel.share, kernel.waited_s)))
    messages = comm.allreduce(kernel.messages, MPI.MAX)
    asked = None if weights is None or weights == DRAWN else list(weights)
    return Run(how, seconds, kernel.mop / seconds, kernel.checks(), messages, asked, list(shares), list(waited))


def _typical(found):
    """Return the run with the median time; a failed run comes before all others."""
    failed = [run for run in found if not run.verified]
    return (failed or sorted(found, key=lambda run: run.seconds)[(len(found) - 1) // 2 :])[0]


def figures(runs: list[Run], kernel: Kernel) -> dict[str, Any]:
    """Return the content of the file that ``--json`` writes."""
    last, of = runs[-1], {run.how: run for run in runs}
    return {
        "kernel": kernel.name,
        "class": kernel.letter,
        "ranks": kernel.comm.size,
        "seconds": last.seconds,
        "mops": last.mops,
        "verified": all(run.verified for run in runs),
        "messages": last.messages,
        "even_mops": of["even"].mops,
        "even_messages": of["even"].messages,
        "plain_mops": of["plain"].mops if "plain" in of else None,
        "balanced_mops": last.mops if last.how != "even" else None,
        "runs": [
            asdict(run)
            | {"checks": [{"name": check.name, "error": check.error, "passed": check.passed} for check in run.checks]}
            for run in runs
        ],
    }
