"""The header and the agreement of a call that compiled code makes.

The ranks exchange the same messages as with `Coordinator.synchronize` and with `Agreements` at the end of a pipeline's
call, so ranks that come to either by Python are understood. On one node the words go over the board of `Rendezvous`.
"""

from __future__ import annotations

from ...compiled import njit
from ...compiled.memory import (
    Words,
    call_mpi,
    clock_ns,
    load_int,
    sched_yield,
    store_release,
    usleep,
    words,
)
from ...ranks.rendezvous import enter_round, read_round
from ...ranks.wait import LONGEST_SLEEP_S, SHORTEST_SLEEP_S
from . import words as w

SHORTEST_SLEEP_US, LONGEST_SLEEP_US = int(SHORTEST_SLEEP_S * 1e6), int(LONGEST_SLEEP_S * 1e6)


@njit
def now_ns(tables: int) -> int:
    """Return the time in nanoseconds, in the calling thread."""
    return clock_ns(w.table(tables, w.STATE) + 8 * w.CLOCK)


@njit
def met(tables: int) -> int:
    """Reduce the headers of all ranks; return OVER if no rank has failed and all make this call."""
    state: Words = words(w.table(tables, w.STATE))
    if state[w.ALONE]:
        return w.OVER
    mpi: Words = words(w.table(tables, w.MPI))
    if not state[w.REDUCES]:
        for place in range(3):
            state[w.NUMBERS + place] = mpi[w.REDUCED + place]
    outcome = _reduced(tables, w.MEETING, w.NUMBERS, mpi[w.SIGNED], mpi[w.MIN])
    if outcome != w.OVER:
        return outcome
    return w.OVER if state[w.NUMBERS] and state[w.NUMBERS + 1] == -state[w.NUMBERS + 2] else w.UNLIKE


@njit
def agreed(tables: int) -> int:
    """Make the agreement at the end; return OVER if no rank has failed and all have issued the same operations."""
    state: Words = words(w.table(tables, w.STATE))
    if state[w.ALONE]:
        return w.DISAGREED if state[w.FAILED] else w.OVER
    mpi: Words = words(w.table(tables, w.MPI))
    if not state[w.REDUCES]:
        for place in range(3):
            state[w.SUMS + place] = mpi[w.REDUCED + 3 + place]
        state[w.SUMS] = state[w.FAILED]
    outcome = _reduced(tables, w.WAITING, w.SUMS, mpi[w.UNSIGNED], mpi[w.SUM])
    if outcome != w.OVER:
        return outcome
    return w.DISAGREED if state[w.SUMS] or state[w.SUMS + 1] else w.OVER


@njit
def _reduced(tables: int, waits: int, numbers: int, kind: int, operation: int) -> int:
    """Reduce three numbers of the state over all ranks: the minimum of headers, the sum of agreements.

    Returns OVER; BROKEN: MPI has failed; TICK: Python is to run, and then this function again.
    """
    address = w.table(tables, w.STATE)
    state: Words = words(address)
    mpi: Words = words(w.table(tables, w.MPI))
    begin_wait(tables, waits, w.NONE)
    outcome = w.OVER
    begins, state[w.REDUCES] = not state[w.REDUCES], 1
    reduced, headers = address + 8 * numbers, waits == w.MEETING
    if mpi[w.RENDEZVOUS]:
        if begins:
            enter_round(mpi[w.RENDEZVOUS], reduced, headers)
        while outcome == w.OVER and not read_round(mpi[w.RENDEZVOUS], reduced, headers):
            # Messages sent to the user's code may need an MPI call of this rank to progress.
            flag = address + 8 * w.FLAG
            state[w.ERROR] = call_mpi(
                mpi[w.IPROBE], (mpi[w.ANY_SOURCE], mpi[w.ANY_TAG], mpi[w.CONTROL_COMM], flag, flag + 8)
            )
            if state[w.ERROR]:
                outcome = w.BROKEN
            elif rest(tables):
                outcome = w.TICK
    elif headers or state[w.POLLED]:  # headers are nonblocking, as those of `Rendezvous`
        if begins:
            given = mpi[w.IN_PLACE], reduced, 3, kind, operation, mpi[w.CONTROL_COMM]
            state[w.ERROR] = call_mpi(mpi[w.IALLREDUCE], given + (address + 8 * w.AGREEMENT_REQUEST,))
        outcome = w.BROKEN if state[w.ERROR] else _completed(tables)
    else:
        given = mpi[w.IN_PLACE], reduced, 3, kind, operation, mpi[w.CONTROL_COMM]
        state[w.ERROR] = call_mpi(mpi[w.ALLREDUCE], given)
        outcome = w.BROKEN if state[w.ERROR] else w.OVER
    if outcome != w.TICK:  # after a tick the same wait goes on, and its deadline does, too
        end_wait(tables)
        state[w.REDUCES] = 0
    return outcome


@njit
def _completed(tables: int) -> int:
    """Wait for the request of an agreement; return OVER, BROKEN or TICK."""
    address = w.table(tables, w.STATE)
    state: Words = words(address)
    mpi: Words = words(w.table(tables, w.MPI))
    flag = address + 8 * w.FLAG
    while True:
        state[w.ERROR] = call_mpi(mpi[w.TEST], (address + 8 * w.AGREEMENT_REQUEST, flag, flag + 8))
        if state[w.ERROR]:
            return w.BROKEN
        if load_int(flag):
            return w.OVER
        if rest(tables):
            return w.TICK


@njit
def begin_wait(tables: int, waits: int, about: int) -> None:
    """Note that the calling thread has nothing to compute, and for what it waits."""
    state: Words = words(w.table(tables, w.STATE))
    if not state[w.SINCE]:
        state[w.SLEEP] = SHORTEST_SLEEP_US
        state[w.SINCE] = state[w.PROGRESS_AT] = now_ns(tables)
    state[w.ABOUT] = about
    store_release(w.table(tables, w.STATE) + 8 * w.WAITS, waits)


@njit
def end_wait(tables: int) -> None:
    """Note that the calling thread goes on."""
    state: Words = words(w.table(tables, w.STATE))
    if state[w.SINCE]:
        state[w.WAITED] += now_ns(tables) - state[w.SINCE]
        state[w.SINCE] = state[w.WAITS] = 0


@njit
def rest(tables: int) -> bool:
    """Let other threads run for a moment; return whether it is time to let Python run.

    Shortly after the last progress that is a yield, later a sleep that gets longer and longer.
    """
    state: Words = words(w.table(tables, w.STATE))
    mpi: Words = words(w.table(tables, w.MPI))
    now = now_ns(tables)
    if now < state[w.PROGRESS_AT] + mpi[w.HOT_NS]:
        sched_yield()
        state[w.SLEEP] = SHORTEST_SLEEP_US
    else:
        usleep(state[w.SLEEP])
        state[w.SLEEP] = min(2 * state[w.SLEEP], LONGEST_SLEEP_US)
    return now - state[w.ENTERED_AT] > w.TICK_NS
