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
    load_acquire,
    load_int,
    pause,
    sched_yield,
    store_release,
    usleep,
    words,
)
from ...ranks.rendezvous import BOARD, FLAG_BITS, FLAGS, LINE, NUMBER, RANK, SIZE, TAG, TAG_BITS, VALUE
from ...ranks.wait import LONGEST_SLEEP_S, SHORTEST_SLEEP_S
from . import words as w

SHORTEST_SLEEP_US, LONGEST_SLEEP_US = int(SHORTEST_SLEEP_S * 1e6), int(LONGEST_SLEEP_S * 1e6)
WORD = (1 << 64 - TAG_BITS) - 1
READS = 64  # reads of a rank's word between two calls of MPI


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
    if state[w.SEEN_RANKS] == w.NONE:
        for place in range(3):
            state[w.NUMBERS + place] = mpi[w.REDUCED + place]
    outcome = _reduced(tables, w.MEETING, mpi[w.HEADER_WORD], w.NUMBERS, mpi[w.SIGNED], mpi[w.MIN])
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
    if state[w.SEEN_RANKS] == w.NONE:
        for place in range(3):
            state[w.SUMS + place] = mpi[w.REDUCED + 3 + place]
        state[w.SUMS] = state[w.FAILED]
    outcome = _reduced(tables, w.WAITING, mpi[w.AGREEMENT_WORD] | state[w.FAILED], w.SUMS, mpi[w.UNSIGNED], mpi[w.SUM])
    if outcome != w.OVER:
        return outcome
    return w.DISAGREED if state[w.SUMS] or state[w.SUMS + 1] else w.OVER


@njit
def _reduced(tables: int, waits: int, word: int, numbers: int, kind: int, operation: int) -> int:
    """Reduce three numbers of the state over all ranks: the minimum of headers, the sum of agreements.

    Returns
    -------
    int
        OVER; BROKEN: MPI has failed; TICK: Python is to run, and then this function again.
    """
    address = w.table(tables, w.STATE)
    state: Words = words(address)
    mpi: Words = words(w.table(tables, w.MPI))
    begin_wait(tables, waits, w.NONE)
    outcome = w.OVER
    if mpi[w.RENDEZVOUS]:
        rendezvous: Words = words(mpi[w.RENDEZVOUS])
        if state[w.SEEN_RANKS] == w.NONE:
            state[w.SEEN_RANKS] = 0
            if waits == w.WAITING:
                state[numbers] = state[numbers + 1] = state[numbers + 2] = 0
            rendezvous[NUMBER] += 1
            number = rendezvous[NUMBER]
            place = rendezvous[BOARD] + LINE * rendezvous[RANK] + 8 * (number & 1)
            store_release(place, word << TAG_BITS | (number & TAG))
        while outcome == w.OVER and state[w.SEEN_RANKS] < rendezvous[SIZE]:
            outcome = _awaited(tables, state[w.SEEN_RANKS])
            if outcome == w.OVER:
                place = rendezvous[BOARD] + LINE * state[w.SEEN_RANKS] + 8 * (rendezvous[NUMBER] & 1)
                received = (load_acquire(place) >> TAG_BITS) & WORD
                if waits == w.MEETING:
                    state[numbers] = min(state[numbers], received & FLAGS)
                    state[numbers + 1] = min(state[numbers + 1], received >> FLAG_BITS)
                    state[numbers + 2] = min(state[numbers + 2], -(received >> FLAG_BITS))
                else:
                    state[numbers] += received & 1
                    state[numbers + 1] = (state[numbers + 1] + (received >> FLAG_BITS)) & VALUE
                    state[numbers + 2] += (received & FLAGS) >> 1
                state[w.SEEN_RANKS] += 1
    elif waits == w.MEETING or state[w.POLLED]:  # headers are nonblocking, as those of `Rendezvous`
        if state[w.SEEN_RANKS] == w.NONE:
            state[w.SEEN_RANKS] = 0
            given = mpi[w.IN_PLACE], address + 8 * numbers, 3, kind, operation, mpi[w.CONTROL_COMM]
            state[w.ERROR] = call_mpi(mpi[w.IALLREDUCE], given + (address + 8 * w.AGREEMENT_REQUEST,))
        outcome = w.BROKEN if state[w.ERROR] else _completed(tables)
    else:
        given = mpi[w.IN_PLACE], address + 8 * numbers, 3, kind, operation, mpi[w.CONTROL_COMM]
        state[w.ERROR] = call_mpi(mpi[w.ALLREDUCE], given)
        outcome = w.BROKEN if state[w.ERROR] else w.OVER
    if outcome != w.TICK:  # after a tick the same wait goes on, and its deadline does, too
        end_wait(tables)
        state[w.SEEN_RANKS] = w.NONE
    return outcome


@njit
def _awaited(tables: int, rank: int) -> int:
    """Wait for a rank's word of this round; return OVER, BROKEN or TICK."""
    address = w.table(tables, w.STATE)
    state: Words = words(address)
    mpi: Words = words(w.table(tables, w.MPI))
    rendezvous: Words = words(mpi[w.RENDEZVOUS])
    place = rendezvous[BOARD] + LINE * rank + 8 * (rendezvous[NUMBER] & 1)
    reads = 0
    while load_acquire(place) & TAG != rendezvous[NUMBER] & TAG:
        reads += 1
        if reads < READS:
            pause()
            continue
        # Messages sent to the user's code may need an MPI call of this rank to progress.
        flag = address + 8 * w.FLAG
        state[w.ERROR] = call_mpi(
            mpi[w.IPROBE], (mpi[w.ANY_SOURCE], mpi[w.ANY_TAG], mpi[w.CONTROL_COMM], flag, flag + 8)
        )
        if state[w.ERROR]:
            return w.BROKEN
        if rest(tables):
            return w.TICK
    return w.OVER


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
