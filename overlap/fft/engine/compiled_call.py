"""Schedules in compiled code: sequences of steps that compute, and whole calls including MPI operations.

A schedule's steps are rows of words. A row that *runs* a program has the program and its bases, each as an offset from
the beginning of one of the call's arrays or as an address. A row that *issues* an exchange has its buffers in the same
form, and the address of the other arguments of MPI. A call passes only the addresses of its arrays, so a recorded
schedule serves all arrays of one kind.

Whole calls on several ranks begin with a header and end with an agreement (`overlap.runtime.scheduling.whole_call`);
the ranks exchange the same messages as in a pipeline's call. No Python runs in between, so signal handlers run after
the call and cannot interrupt it. The watchdog reads from the call's state what it waits for, and since when. If MPI
rejects an operation, compiled code returns with the number of the row.
"""

from __future__ import annotations

import numpy as np

from ...compiled import njit
from ...lowlevel.copy_table import WIDTH
from ...lowlevel.memory import (
    address_of,
    call_mpi,
    carray,
    clock_ns,
    exchange_word,
    load_acquire,
    load_int,
    pause,
    sched_yield,
    store_release,
    usleep,
    words,
)
from ...runtime.coordinator.rendezvous import BOARD, FLAG_BITS, FLAGS, LINE, NUMBER, RANK, SIZE, TAG, TAG_BITS, VALUE
from ...runtime.load import CALLS, COMPUTING_NS, THREADS_NS, WALL_NS
from ...runtime.scheduling.whole_call import (
    AGREEMENT_WORD,
    AGREES,
    ALLREDUCE,
    ALLTOALLV,
    ANY_SOURCE,
    ANY_TAG,
    BEGAN,
    BUSY,
    BUSY_ELSEWHERE,
    CLOCK,
    CODE,
    CONTROL,
    ENDED,
    ENTERING,
    FAILED,
    FLAG,
    HEADER_WORD,
    HOT_NS,
    IALLREDUCE,
    IALLTOALLV,
    IDLE,
    IN_PLACE,
    IPROBE,
    LOADS,
    LONGEST_SLEEP_US,
    MIN,
    NUMBERS,
    OUTCOME,
    OVER,
    PHASE,
    POLLS,
    REDUCED,
    REFUSED,
    RENDEZVOUS,
    REQUEST,
    SHORTEST_SLEEP_US,
    SIGNED,
    SINCE,
    STAMPS,
    STARTED,
    STEP,
    SUM,
    SUMS,
    TEST,
    UNLIKE,
    UNSIGNED,
    WAITED,
    WAITING,
)
from .execute import execute
from .program import BASES, RECEIVE, SCRATCH, SEND

PROGRAM, STOP, EXCHANGE, BASE = range(4)  # words of a row: begin and end of its program, or the number of its exchange
FIXED = -1  # instead of an array's number: an address follows
ROW_WORDS = BASE + 2 * BASES
# Words of an exchange.
COUNTS_SENT, STARTS_SENT, COUNTS_RECEIVED, STARTS_RECEIVED, TYPE, COMM, EXCHANGE_WORDS = range(7)
NO_EXCHANGE = -1
WORD = (1 << 64 - TAG_BITS) - 1
READS = 64  # reads of a rank's word between two calls of MPI


@njit
def execute_rows(tables: int, first: int, stop: int, arrays: int, scratch: int) -> None:
    """Execute some computing rows of a schedule.

    Parameters
    ----------
    tables : int
        Address of the list of the tables' addresses and lengths; passing arrays would take longer than everything else.
    first, stop : int
        The rows.
    arrays : int
        Address of the list of addresses of the call's arrays.
    scratch : int
        Address of memory that no other thread uses meanwhile.
    """
    listed = words(tables)
    code = carray(words(listed[0]), (listed[1], WIDTH))
    rows = carray(words(listed[2]), (listed[3], ROW_WORDS))
    bases = np.empty(BASES, np.int64)
    for number in range(first, stop):
        _locate(rows[number], arrays, scratch, bases)
        execute(code[rows[number, PROGRAM] : rows[number, STOP]], bases)


@njit
def _locate(row: np.ndarray, arrays: int, scratch: int, bases: np.ndarray) -> None:
    """Find the addresses of a row's bases."""
    addresses = words(arrays)
    for base in range(BASES):
        bases[base] = row[BASE + 2 * base + 1]
        if row[BASE + 2 * base] != FIXED:
            bases[base] += addresses[row[BASE + 2 * base]]
    bases[SCRATCH] = scratch


@njit
def execute_call(tables: int, arrays: int, scratch: int) -> int:
    """Make a whole call, including its MPI operations.

    Parameters
    ----------
    tables, arrays, scratch : int
        See `execute_rows`.

    Returns
    -------
    int
        OVER, or the reason for which it has stopped.
    """
    listed = words(tables)
    code = carray(words(listed[0]), (listed[1], WIDTH))
    rows = carray(words(listed[2]), (listed[3], ROW_WORDS))
    exchanges = carray(words(listed[4]), (listed[5], EXCHANGE_WORDS))
    mpi = carray(words(listed[6]), (listed[7],))
    state = carray(words(listed[8]), (listed[9],))
    if exchange_word(address_of(state) + 8 * BUSY, 1):
        return BUSY_ELSEWHERE
    outcome = OVER
    if state[AGREES]:
        state[NUMBERS : SUMS + 3] = mpi[REDUCED : REDUCED + 6]
        outcome = _header(mpi, state)
    if outcome == OVER:
        state[BEGAN] = clock_ns(address_of(state) + 8 * CLOCK)
        state[WAITED] = 0
        outcome = _run(code, rows, exchanges, mpi, state, arrays, scratch)
        if outcome == OVER and state[AGREES]:
            outcome = _agreed(mpi, state, len(rows))
        state[ENDED] = clock_ns(address_of(state) + 8 * CLOCK)
        if outcome == OVER:
            _count(state, state[LOADS])
            _count(state, state[LOADS + 1])
    state[OUTCOME] = outcome
    exchange_word(address_of(state) + 8 * BUSY, 0)
    return outcome


@njit
def _count(state: np.ndarray, load: int) -> None:
    """Count a call, made by one thread, in a load."""
    if load:
        took_ns, counted = state[ENDED] - state[BEGAN], words(load)
        counted[CALLS] += 1
        counted[WALL_NS] += took_ns
        counted[COMPUTING_NS] += took_ns - state[WAITED]
        counted[THREADS_NS] += took_ns


@njit
def _run(
    code: np.ndarray,
    rows: np.ndarray,
    exchanges: np.ndarray,
    mpi: np.ndarray,
    state: np.ndarray,
    arrays: int,
    scratch: int,
) -> int:
    bases = np.empty(BASES, np.int64)
    for number in range(len(rows)):
        row = rows[number]
        _locate(row, arrays, scratch, bases)
        if row[EXCHANGE] == NO_EXCHANGE:
            execute(code[row[PROGRAM] : row[STOP]], bases)
        elif _exchanged(mpi, state, exchanges[row[EXCHANGE]], bases, number):
            return REFUSED
        if state[STAMPS]:
            words(state[STAMPS])[number] = clock_ns(address_of(state) + 8 * CLOCK)
    return OVER


@njit
def _header(mpi: np.ndarray, state: np.ndarray) -> int:
    """Reduce the headers of all ranks; return OVER if no rank has failed and all make this call."""
    _begin(state, ENTERING, 0)
    if mpi[RENDEZVOUS]:
        _send(mpi, mpi[HEADER_WORD])
        for rank in range(words(mpi[RENDEZVOUS])[SIZE]):
            word = _received(mpi, state, rank)
            state[NUMBERS] = min(state[NUMBERS], word & FLAGS)
            state[NUMBERS + 1] = min(state[NUMBERS + 1], word >> FLAG_BITS)
            state[NUMBERS + 2] = min(state[NUMBERS + 2], -(word >> FLAG_BITS))
    else:
        numbers = address_of(state) + 8 * NUMBERS
        state[CODE] = call_mpi(mpi[ALLREDUCE], (mpi[IN_PLACE], numbers, 3, mpi[SIGNED], mpi[MIN], mpi[CONTROL]))
    if state[CODE]:
        return UNLIKE
    state[PHASE] = IDLE
    if state[NUMBERS] and state[NUMBERS + 1] == -state[NUMBERS + 2]:
        return OVER
    return UNLIKE


@njit
def _agreed(mpi: np.ndarray, state: np.ndarray, rows: int) -> int:
    """Make the agreement at the end: this rank has not failed, and has issued the call's operations."""
    _begin(state, WAITING, rows)
    call_arguments = mpi[IN_PLACE], address_of(state) + 8 * SUMS, 3, mpi[UNSIGNED], mpi[SUM], mpi[CONTROL]
    if mpi[RENDEZVOUS]:
        _send(mpi, mpi[AGREEMENT_WORD])
        state[SUMS : SUMS + 3] = 0
        for rank in range(words(mpi[RENDEZVOUS])[SIZE]):
            word = _received(mpi, state, rank)
            state[SUMS] += word & 1
            state[SUMS + 1] = (state[SUMS + 1] + (word >> FLAG_BITS)) & VALUE
            state[SUMS + 2] += (word & FLAGS) >> 1
    elif mpi[POLLS]:
        state[CODE] = call_mpi(mpi[IALLREDUCE], call_arguments + (address_of(state) + 8 * REQUEST,))
        if state[CODE] == 0:
            _complete(mpi, state)
    else:
        state[CODE] = call_mpi(mpi[ALLREDUCE], call_arguments)
    _end(state)
    if state[CODE]:
        return REFUSED
    return FAILED if state[SUMS] or state[SUMS + 1] else OVER


@njit
def _send(mpi: np.ndarray, word: int) -> None:
    """Write a word of this rank on the board, for the next round."""
    rendezvous = words(mpi[RENDEZVOUS])
    rendezvous[NUMBER] += 1
    number = rendezvous[NUMBER]
    store_release(rendezvous[BOARD] + LINE * rendezvous[RANK] + 8 * (number & 1), word << TAG_BITS | (number & TAG))


@njit
def _received(mpi: np.ndarray, state: np.ndarray, rank: int) -> int:
    """Wait for a rank's word of this round: poll without sleep at first, then with longer and longer sleeps."""
    rendezvous = words(mpi[RENDEZVOUS])
    place = rendezvous[BOARD] + LINE * rank + 8 * (rendezvous[NUMBER] & 1)
    flag, sleep, reads = address_of(state) + 8 * FLAG, SHORTEST_SLEEP_US, 0
    while True:
        word = load_acquire(place)
        if word & TAG == rendezvous[NUMBER] & TAG:
            return (word >> TAG_BITS) & WORD
        reads += 1
        if reads < READS:
            pause()
            continue
        # Messages sent to the user's code may need an MPI call of this rank to progress.
        state[CODE] = call_mpi(mpi[IPROBE], (mpi[ANY_SOURCE], mpi[ANY_TAG], mpi[CONTROL], flag, flag + 8))
        if state[CODE]:
            return 0
        sleep = _rested(mpi, state, sleep)


@njit
def _rested(mpi: np.ndarray, state: np.ndarray, sleep: int) -> int:
    """Yield the core; after HOT_NS, sleep for `sleep` microseconds instead. Return the length of the next sleep."""
    if clock_ns(address_of(state) + 8 * CLOCK) < state[SINCE] + mpi[HOT_NS]:
        sched_yield()
        return sleep
    usleep(sleep)
    return min(2 * sleep, LONGEST_SLEEP_US)


@njit
def _exchanged(mpi: np.ndarray, state: np.ndarray, exchange: np.ndarray, bases: np.ndarray, number: int) -> int:
    """Make an exchange; return MPI's error code, 0 for success."""
    _begin(state, WAITING, number)
    call_arguments = (
        bases[SEND],
        exchange[COUNTS_SENT],
        exchange[STARTS_SENT],
        exchange[TYPE],
        bases[RECEIVE],
        exchange[COUNTS_RECEIVED],
        exchange[STARTS_RECEIVED],
        exchange[TYPE],
        words(exchange[COMM])[0],
    )
    if mpi[POLLS]:
        state[CODE] = call_mpi(mpi[IALLTOALLV], call_arguments + (address_of(state) + 8 * REQUEST,))
        if state[CODE] == 0:
            state[STARTED] = 1
            _complete(mpi, state)
    else:
        state[CODE] = call_mpi(mpi[ALLTOALLV], call_arguments)
    _end(state)
    return state[CODE]


@njit
def _begin(state: np.ndarray, phase: int, number: int) -> None:
    """Note that the call waits for MPI from now on."""
    state[STEP] = number
    state[STARTED] = state[CODE] = 0
    state[SINCE] = clock_ns(address_of(state) + 8 * CLOCK)
    state[PHASE] = phase


@njit
def _end(state: np.ndarray) -> None:
    state[PHASE] = IDLE
    state[WAITED] += clock_ns(address_of(state) + 8 * CLOCK) - state[SINCE]


@njit
def _complete(mpi: np.ndarray, state: np.ndarray) -> None:
    """Wait for the request: poll without sleep at first, then with longer and longer sleeps."""
    request, flag = address_of(state) + 8 * REQUEST, address_of(state) + 8 * FLAG
    sleep = SHORTEST_SLEEP_US
    while True:
        state[CODE] = call_mpi(mpi[TEST], (request, flag, flag + 8))
        if state[CODE] or load_int(flag):
            return
        sleep = _rested(mpi, state, sleep)
