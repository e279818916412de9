"""What hiding could gain, from the times of a program: the formulas of `overlap.timing.model`, and the simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...timing import model
from ...timing.simulate import Machine, Options, Program, SimulatedTransfer, predict
from .matching import Matched, RankCalls
from .records import Site

SLICES = (4, 16, 64)  # if the user names none
DEPTH = 16
AWAIT_S = 12e-6  # what a slice program costs per await, in Python
_UNIT_BPS = 1e9  # simulated messages are measured by their time, as if the link were this fast


@dataclass(frozen=True)
class RankTimes:
    """How one rank spends the time of its repeated calls and of the computing before them, in seconds.

    Attributes
    ----------
    computing_s : float
        C: outside of MPI.
    transferring_s : float
        T: in MPI, after all ranks had come for which the calls wait.
    waiting_s : float
        In MPI, before that.
    near_s : float
        The part of T among ranks of one host, which their cores spend copying.
    covered_s : float
        Computing while requests are under way: communication that the program hides already.
    calls : int
        Calls that transfer something.
    """

    computing_s: float
    transferring_s: float
    waiting_s: float
    near_s: float
    covered_s: float
    calls: int

    @property
    def wall_s(self) -> float:
        """Return the time of everything."""
        return self.computing_s + self.transferring_s + self.waiting_s


@dataclass(frozen=True)
class Estimate:
    """Times with a number of slices, of the slowest rank, in seconds.

    Attributes
    ----------
    slices : int
    block_s, poll_s : float
        The formulas for a communicator that takes a core, and for one that sleeps.
    simulated_s : float
        The runtime's schedule, of a communicator that sleeps.
    """

    slices: int
    block_s: float
    poll_s: float
    simulated_s: float


@dataclass(frozen=True)
class Estimates:
    """What hiding could gain.

    Attributes
    ----------
    times : list of RankTimes
        One per rank.
    startup_s : float
        Time of the first call at each place and of the computing before it, which the times do not contain; mean.
    now_s : float
        Time of the slowest rank without hiding.
    idle_s : float
        The part of the waiting for a rank that computes longer, which hiding does not shorten; mean.
    bound_s : float
        Time with everything hidden that can be.
    rows : list of Estimate
    """

    times: list[RankTimes]
    startup_s: float
    now_s: float
    idle_s: float
    bound_s: float
    rows: list[Estimate]

    @property
    def bound(self) -> float:
        """Return the largest gain."""
        return self.now_s / self.bound_s if self.bound_s else 1.0


def counted(calls: RankCalls) -> np.ndarray:
    """Return which calls of a rank are counted: those at places that have been called before, or all if none has."""
    return calls.again if calls.again.any() else np.ones_like(calls.again)


def times_of(calls: RankCalls) -> RankTimes:
    """Sum up the counted calls of one rank."""
    own = counted(calls)
    inside = calls.end_s - calls.start_s
    waiting = np.nan_to_num(calls.waiting_s)
    transferring = inside - waiting
    return RankTimes(
        float(calls.computing_s[own].sum()),
        float(transferring[own].sum()),
        float(waiting[own].sum()),
        float((transferring * calls.near)[own].sum()),
        float(calls.covered_s[own].sum()),
        int(np.count_nonzero(own & (calls.near + calls.nbytes > 0))),
    )


def estimate(
    matched: Matched, slices: Sequence[int] = SLICES, workers: int = 1, machine: Machine | None = None
) -> Estimates:
    """Estimate the time with hidden communication.

    A rank that computes less than the slowest one goes on waiting for it. Waiting beyond this changes from call to
    call, and slices in flight hide it as they hide transfers, so it is added to T. The slowest rank counts.

    Parameters
    ----------
    matched : Matched
    slices : sequence of int
        Numbers of independent slices into which the work between two exchanges can be cut.
    workers : int
        Threads per rank.
    machine : Machine, optional
        The machine's costs of messages, and the bandwidth of its links: a link that idles while the program computes
        may pass a burst afterwards, so that T is shorter than with a link that never idles. By default communication
        between hosts takes no core time.

    Returns
    -------
    Estimates
    """
    times = [times_of(calls) for calls in matched.ranks]
    longest_s = max(each.computing_s for each in times)
    # Without overlap, too, the cores take this time, so that it is a part of T.
    core_s = [
        min(each.near_s + _network_core_s(calls, machine), each.transferring_s)
        for each, calls in zip(times, matched.ranks)
    ]
    # What is left of a rank's time is C and T; T contains the waiting that is not for the slowest rank's computing.
    idle_s = [min(each.waiting_s, longest_s - each.computing_s) for each in times]
    pairs = [
        (each.computing_s, max(each.wall_s - each.computing_s - idle, _link_s(calls, matched.sites, machine)))
        for each, idle, calls in zip(times, idle_s, matched.ranks)
    ]
    bounds_s = [
        idle + model.poll_s(*pair, workers=workers, core_s=core) for idle, pair, core in zip(idle_s, pairs, core_s)
    ]
    rows = []
    for count in slices:
        polled = [
            idle + model.poll_s(*pair, slices=count, workers=workers, core_s=core)
            for idle, pair, core in zip(idle_s, pairs, core_s)
        ]
        blocked = [idle + model.block_s(*pair, workers, slices=count) for idle, pair in zip(idle_s, pairs)]
        simulated = max(
            idle_s[rank]
            + _simulated_s(*pairs[rank], core_s[rank], times[rank].calls, count, len(times), workers, machine)
            for rank in {int(np.argmax(polled)), int(np.argmax(bounds_s))}  # which is slowest depends on the slices
        )
        rows.append(Estimate(count, max(blocked), max(polled), simulated))
    begun = [float((calls.end_s - calls.start_s + calls.computing_s)[~counted(calls)].sum()) for calls in matched.ranks]
    now_s = max(each.wall_s for each in times)
    return Estimates(times, float(np.mean(begun)), now_s, float(np.mean(idle_s)), max(bounds_s), rows)


def _network_core_s(calls: RankCalls, machine: Machine | None) -> float:
    """Return the core time of messages between hosts, which the machine's description knows."""
    if machine is None:
        return 0.0
    far = (calls.nbytes * (1 - calls.near))[counted(calls)]
    return float(far.sum() * machine.byte_s + np.count_nonzero(far) * machine.message_s)


def _link_s(calls: RankCalls, sites: Sequence[Site], machine: Machine | None) -> float:
    """Return the least time in which a rank's bytes leave its host."""
    if machine is None:
        return 0.0
    leaving = np.array([_leaving(site.operation.lower()) for site in sites])[calls.site]
    far = (calls.nbytes * (1 - calls.near) * leaving)[counted(calls)]
    return float(far.sum()) * machine.ranks_per_node / machine.bandwidth_Bps


def _leaving(operation: str) -> float:
    """Return the least share of an operation's bytes that a rank sends to others."""
    if "recv" in operation and "send" not in operation:
        return 0.0
    return 0.5 if "alltoall" in operation else 1.0


def _simulated_s(
    compute_s: float,
    communication_s: float,
    core_s: float,
    calls: int,
    slices: int,
    ranks: int,
    workers: int,
    machine: Machine | None,
) -> float:
    """Simulate pipelines whose slices make one exchange each: as many exchanges as the program makes now, or one
    pipeline of `slices` if it makes fewer. The ranks agree on the first slice's exchanges, by two messages each, of
    which the second one waits behind the exchange. The simulated cores forget what the last exchanges cost them, after
    which nothing is computed, so the time is not less than with everything hidden."""
    if not calls or ranks == 1:
        return compute_s + communication_s
    parts = max(calls, slices)
    link = replace(
        machine or Machine(name="", fft_flops=1, copy_Bps=1, latency_s=0, bandwidth_Bps=1),
        operation_s=AWAIT_S,
        latency_s=0.0,
        bandwidth_Bps=_UNIT_BPS,
        burst_nbytes=0.0,
        eager_nbytes=0.0,
        ranks_per_node=1,
        message_s=0.0,
        byte_s=core_s / communication_s / _UNIT_BPS if communication_s else 0.0,
        jitter=0.0,
    )
    transfer = SimulatedTransfer(communication_s / parts * _UNIT_BPS, 1)
    program = Program.alike(slices, (workers * compute_s / parts, 0.0), (transfer,))
    options = Options(ranks=ranks, workers=workers, depth=min(slices, DEPTH))
    agreeing_s = 0.0 if machine is None else 2 * (machine.latency_s + machine.message_s) + communication_s / parts
    simulated_s = parts / slices * (predict(program, link, options).wall_s + agreeing_s)
    return max(simulated_s, model.poll_s(compute_s, communication_s, workers=workers, core_s=core_s))
