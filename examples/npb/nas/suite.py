"""Measuring a kernel with even shares and with shares that follow the ranks' speeds."""

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

POWERS = 1.0, 1.2, 1.5, 2.0  # of the speeds, as weights that are tried

KERNELS: dict[str, type[Kernel]] = {kernel.name: kernel for kernel in (EP, IS, CG, FT, MG)}


@dataclass(frozen=True)
class Run:
    """One measured run, the same on all ranks.

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
        Those of the rank that sent the most.
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
        """Whether all checks are passed."""
        return all(check.passed for check in self.checks)

    @property
    def speeds(self) -> tuple[float, ...]:
        """Units per second of computing of each rank, in proportion to the fastest."""
        found = [share / max(self.seconds - waited, 1e-9) for share, waited in zip(self.shares, self.waited_s)]
        return tuple(max(speed / max(found), 1e-3) for speed in found)


@dataclass(frozen=True)
class Case:
    """What is run: a kernel's name, the letter of a class, and how often; the run of the median time is told."""

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
    """Measure a kernel with even shares, and with those of weights, or those that the speeds of even runs before ask
    for (collective).

    What moving data costs a slow rank does not shrink with its share, so that less than its speed's share may be
    better: shares after powers of the speeds are tried, too. Where it is asked for, a plain run comes first: even
    shares, and nothing hidden. They take turns, so that what else the machine does hits all of them. The kernel of the
    last ones, though closed, can still be described.
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
    """Run a kernel, untimed and timed."""
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
    """The run of the median time; one that failed counts before all that did not."""
    failed = [run for run in found if not run.verified]
    return (failed or sorted(found, key=lambda run: run.seconds)[(len(found) - 1) // 2 :])[0]


def figures(runs: list[Run], kernel: Kernel) -> dict[str, Any]:
    """What ``--json`` writes."""
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
