"""Whole calls as one call of compiled code: the steps of a schedule, those that talk to MPI included.

A step is a row of words. One that *runs* something says which program, and where its bases are: so far after the
source's address, the target's, or at an address. One that *issues* an exchange says between which buffers, likewise,
and where the other arguments of MPI stand. A call has only two addresses to tell; so what was recorded once serves all
arrays of one kind.

Calls on several ranks begin with a header and end with an agreement (`overlap.runtime.scheduling.whole_call`): what is
sent is what a pipeline's call would send. No Python runs in between. So signal handlers run after the call, and nothing
can be torn; the watchdog reads in the call's state what it waits for, and since when. Whatever MPI refuses ends the
call of compiled code with the number of the step.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from ...compiled import njit
from ...lowlevel.memory import address_of, call_mpi, carray, clock_ns, load_int, sched_yield, usleep, words
from ...lowlevel.mpi import handle_of
from ...runtime.scheduling.whole_call import (
    AGREES,
    ALLREDUCE,
    ALLTOALLV,
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
    HOT_NS,
    IALLREDUCE,
    IALLTOALLV,
    IDLE,
    IN_PLACE,
    LONGEST_SLEEP_US,
    MIN,
    NUMBERS,
    OVER,
    PHASE,
    POLLS,
    REFUSED,
    REQUEST,
    SHORTEST_SLEEP_US,
    SIGNED,
    SINCE,
    STARTED,
    STEP,
    SUM,
    SUMS,
    TEST,
    UNLIKE,
    UNSIGNED,
    WAITED,
    WAITING,
    WholeCall,
)
from .buffers import Buffers, Located
from .execute import WIDTH, exchange_word, execute
from .fftw import REQUIRED_ALIGNMENT
from .fftw import address_of as place_of
from .program import BASES, RECEIVE, SEND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...runtime.pipeline import Pipeline
    from ...runtime.requests.requests import AsyncComm
    from .schedule import Task
    from .staged import StagedTransform

PROGRAM, STOP, EXCHANGE, BASE = range(4)  # words of a step: where its program begins and ends, or its exchange's number
COUNTS_SENT, STARTS_SENT, COUNTS_RECEIVED, STARTS_RECEIVED, TYPE, COMM = range(6)  # words of an exchange
STEP_WORDS = BASE + 3 * BASES
EXCHANGE_WORDS = 6
NO_EXCHANGE = -1
KINDS = 8  # of arrays whose calls are kept


@njit
def execute_call(tables, source, target):
    """Make a call.

    Parameters
    ----------
    tables : int
        The address of the five addresses and lengths of `listed`: to hand over arrays would take longer than the rest.
    source, target : int
        Addresses.

    Returns
    -------
    int
        OVER, or why it has stopped.
    """
    listed = words(tables)
    code = carray(words(listed[0]), (listed[1], WIDTH))
    steps = carray(words(listed[2]), (listed[3], STEP_WORDS))
    exchanges = carray(words(listed[4]), (listed[5], EXCHANGE_WORDS))
    mpi = carray(words(listed[6]), (listed[7],))
    state = carray(words(listed[8]), (listed[9],))
    if exchange_word(address_of(state) + 8 * BUSY, 1):
        return BUSY_ELSEWHERE
    found = OVER
    if state[AGREES]:
        found = _met(mpi, state)
    if found == OVER:
        state[BEGAN] = clock_ns(address_of(state) + 8 * CLOCK)
        state[WAITED] = 0
        found = _run(code, steps, exchanges, mpi, state, source, target)
        if found == OVER and state[AGREES]:
            found = _agreed(mpi, state, len(steps))
        state[ENDED] = clock_ns(address_of(state) + 8 * CLOCK)
    exchange_word(address_of(state) + 8 * BUSY, 0)
    return found


@njit
def _run(code, steps, exchanges, mpi, state, source, target):
    bases = np.empty(BASES, np.int64)
    for number in range(len(steps)):
        step = steps[number]
        for base in range(BASES):
            bases[base] = (
                step[BASE + base] * source + step[BASE + BASES + base] * target + step[BASE + 2 * BASES + base]
            )
        if step[EXCHANGE] == NO_EXCHANGE:
            execute(code[step[PROGRAM] : step[STOP]], bases)
        elif _exchanged(mpi, state, exchanges[step[EXCHANGE]], bases, number):
            return REFUSED
    return OVER


@njit
def _met(mpi, state):
    """Meet all ranks at the header."""
    _begin(state, ENTERING, 0)
    numbers = address_of(state) + 8 * NUMBERS
    state[CODE] = call_mpi(mpi[ALLREDUCE], (mpi[IN_PLACE], numbers, 3, mpi[SIGNED], mpi[MIN], mpi[CONTROL]))
    if state[CODE]:
        return UNLIKE
    state[PHASE] = IDLE
    if state[NUMBERS] and state[NUMBERS + 1] == -state[NUMBERS + 2]:
        return OVER
    return UNLIKE


@njit
def _agreed(mpi, state, steps):
    """Tell all ranks at the end that all is well here, and what was issued."""
    _begin(state, WAITING, steps)
    sums, request = address_of(state) + 8 * SUMS, address_of(state) + 8 * REQUEST
    if mpi[POLLS]:
        state[CODE] = call_mpi(
            mpi[IALLREDUCE], (mpi[IN_PLACE], sums, 3, mpi[UNSIGNED], mpi[SUM], mpi[CONTROL], request)
        )
        if state[CODE] == 0:
            _complete(mpi, state)
    else:
        state[CODE] = call_mpi(mpi[ALLREDUCE], (mpi[IN_PLACE], sums, 3, mpi[UNSIGNED], mpi[SUM], mpi[CONTROL]))
    _end(state)
    if state[CODE]:
        return REFUSED
    return FAILED if state[SUMS] or state[SUMS + 1] else OVER


@njit
def _exchanged(mpi, state, exchange, bases, number):
    """Make an exchange; return the code of MPI, 0 if all is well."""
    _begin(state, WAITING, number)
    if mpi[POLLS]:
        state[CODE] = call_mpi(
            mpi[IALLTOALLV],
            (
                bases[SEND],
                exchange[COUNTS_SENT],
                exchange[STARTS_SENT],
                exchange[TYPE],
                bases[RECEIVE],
                exchange[COUNTS_RECEIVED],
                exchange[STARTS_RECEIVED],
                exchange[TYPE],
                words(exchange[COMM])[0],
                address_of(state) + 8 * REQUEST,
            ),
        )
        if state[CODE] == 0:
            state[STARTED] = 1
            _complete(mpi, state)
    else:
        state[CODE] = call_mpi(
            mpi[ALLTOALLV],
            (
                bases[SEND],
                exchange[COUNTS_SENT],
                exchange[STARTS_SENT],
                exchange[TYPE],
                bases[RECEIVE],
                exchange[COUNTS_RECEIVED],
                exchange[STARTS_RECEIVED],
                exchange[TYPE],
                words(exchange[COMM])[0],
            ),
        )
    _end(state)
    return state[CODE]


@njit
def _begin(state, phase, number):
    """Note that the call waits for MPI from now on."""
    state[STEP] = number
    state[STARTED] = 0
    state[SINCE] = clock_ns(address_of(state) + 8 * CLOCK)
    state[PHASE] = phase


@njit
def _end(state):
    state[PHASE] = IDLE
    state[WAITED] += clock_ns(address_of(state) + 8 * CLOCK) - state[SINCE]


@njit
def _complete(mpi, state):
    """Wait for the request: hot at first, then with longer and longer sleeps."""
    request, flag = address_of(state) + 8 * REQUEST, address_of(state) + 8 * FLAG
    hot, sleep = state[SINCE] + HOT_NS, SHORTEST_SLEEP_US
    while True:
        state[CODE] = call_mpi(mpi[TEST], (request, flag, flag + 8))
        if state[CODE] or load_int(flag):
            return
        if clock_ns(address_of(state) + 8 * CLOCK) < hot:
            sched_yield()
        else:
            usleep(sleep)
            sleep = min(2 * sleep, LONGEST_SLEEP_US)


class WholeCalls:
    """The short calls of a staged transform: each kind of arrays is recorded once.

    Parameters
    ----------
    staged : StagedTransform
    tasks : list of Task
    slot : Buffers
    pipeline : Pipeline
        Makes what the tasks do, where a call is not made here.
    comms : sequence of AsyncComm or None
        As of `StagedTransform.run`.
    """

    def __init__(
        self,
        staged: StagedTransform,
        tasks: list[Task],
        slot: Buffers,
        pipeline: Pipeline,
        comms: Sequence[AsyncComm] | None,
    ) -> None:
        self._staged, self._tasks, self._slot, self._pipeline, self._comms = staged, tasks, slot, pipeline, comms
        self._recorded: dict[Any, tuple[WholeCall, int] | None] = {}

    def call(self, sources: list[np.ndarray], targets: list[np.ndarray], scale: float) -> Callable[[], None] | None:
        """Make a function without arguments of the call for some fields, which whoever calls it keeps alive.

        Parameters
        ----------
        sources, targets : list of ndarray
            As of `StagedTransform.arrays`.
        scale : float
            What the source is multiplied with.

        Returns
        -------
        callable or None
            None: it is the pipeline's.
        """
        arrays = self._staged.arrays(sources, targets)
        source, target = arrays[0][0], arrays[-1][0]
        kind = scale, source.kind, target.kind, source.address % REQUIRED_ALIGNMENT, target.address % REQUIRED_ALIGNMENT
        if kind not in self._recorded:
            if len(self._recorded) >= KINDS:
                del self._recorded[next(iter(self._recorded))]
            self._recorded[kind] = self._record(arrays, sources, targets, scale)
        recorded = self._recorded[kind]
        if recorded is None:
            return None
        call, tables = recorded
        return partial(self._pipeline.make, call, execute_call, (tables, source.address, target.address))

    def _record(
        self, arrays: list[list[Located]], sources: list[np.ndarray], targets: list[np.ndarray], scale: float
    ) -> tuple[WholeCall, int] | None:
        """Write down the call, and the address of the tables of what it does."""
        bounds = [
            (side, min(low for low, _ in spans), max(high for _, high in spans), first)
            for side, spans, first in (
                (0, list(map(byte_bounds, sources)), arrays[0][0].address),
                (1, list(map(byte_bounds, targets)), arrays[-1][0].address),
            )
        ]
        codes, begun = [np.zeros((0, WIDTH), np.int64)], 0
        steps: list[np.ndarray] = []
        exchanges: list[tuple[list[np.ndarray], list[int]]] = []
        operations: list[tuple[int, Any, Any]] = []
        for task, step in self._staged.steps(self._tasks, arrays, self._slot, scale, self._comms):
            row = np.zeros(STEP_WORDS, np.int64)
            row[EXCHANGE] = NO_EXCHANGE
            if isinstance(step, tuple):
                code, bases = step
                if not len(code):
                    continue
                codes.append(code)
                row[PROGRAM], row[STOP] = begun, begun + len(code)
                begun += len(code)
            else:
                (send, *sent), (receive, *received) = step.args
                own = [np.array(values, np.intc) for values in (*sent[:2], *received[:2])]
                exchanges.append((own, [*map(place_of, own), handle_of(sent[2]), step.comm.word.buffer_info()[0]]))
                bases = np.zeros(BASES, np.int64)
                bases[SEND], bases[RECEIVE] = place_of(send), place_of(receive)
                row[EXCHANGE] = len(exchanges) - 1
                operations.append((len(steps), task, step.on_scratch()))
            for base, address in enumerate(bases.tolist()):
                side, first = next(
                    ((side, first) for side, low, high, first in bounds if low <= address < high), (None, 0)
                )
                if side is not None:
                    row[BASE + side * BASES + base] = 1
                row[BASE + 2 * BASES + base] = address - first
            steps.append(row)
        call = self._pipeline.whole_call(len(self._tasks), operations)
        if call is None:
            return None
        table = np.array([row for _, row in exchanges], np.uint64).reshape(-1, EXCHANGE_WORDS).view(np.int64)
        tables = (
            np.concatenate(codes),
            np.array(steps, np.int64).reshape(-1, STEP_WORDS),
            table,
            call.mpi,
            call.state,
        )
        listed = _listed(tables)
        call.kept = [own for own, _ in exchanges], tables, listed  # MPI and compiled code read them
        # Compiled code is loaded here: what fails now on one rank leaves nobody alone.
        empty = [np.zeros_like(call.state) if some is call.state else some[:0] for some in tables]
        nothing = _listed(empty)
        execute_call(place_of(nothing), 0, 0)
        return call, place_of(listed)


def _listed(tables: Sequence[np.ndarray]) -> np.ndarray:
    """List the addresses and lengths of tables, for `execute_call`."""
    return np.array([(place_of(some), len(some)) for some in tables], np.int64)
