"""The loop that runs the calls of plans, in compiled code: `run` in the calling thread, `serve` in those of the crew.

`run` makes a whole call: the header, all items of all slots, the agreement. It returns to Python where Python is
needed, and goes on where it has stopped when it is entered again: for an item that calls a Python function, for an
error of MPI, and every 10 ms, so that signal handlers run. If `run` waits it looks at what is under way, computes items
of any slot that is ready, and rests only if there is none.

The threads of the crew sleep until the calling thread calls them (`TICKET`). They take slots that come to computing
items, and never call MPI. The calling thread ends a call by clearing `ACTIVE`, and waits until no thread of the crew is
`INSIDE`. A thread enters by adding to `INSIDE` and reads `ACTIVE` afterwards. Both are done in one order that all
threads see, so either the thread finds no call, or the calling thread finds the thread.

A rank that has failed clears `COMPUTES`. Then it skips what computes and goes on exchanging what the other ranks wait
for, up to the agreement, which tells them.
"""

from __future__ import annotations

import numpy as np

from ...compiled import njit
from ...compiled.copy_table import WIDTH
from ...compiled.memory import (
    Words,
    add_word,
    address_of,
    call_function,
    call_mpi,
    clock_ns,
    exchange_word,
    load_acquire,
    load_int,
    pause,
    sched_yield,
    sleep_while,
    store_release,
    usleep,
    wake,
    words,
)
from ..load import CALLS, COMPUTING_NS, THREADS_NS, WALL_NS
from . import words as w
from .ranks import LONGEST_SLEEP_US, SHORTEST_SLEEP_US, agreed, begin_wait, end_wait, met, now_ns, rest
from .rule import (
    all_ended,
    begin_slots,
    comes_to,
    end_part,
    give_back,
    may_issue,
    pass_item,
    share,
    take,
    take_part,
    take_ready,
)

SHARE_NS = 10_000  # computing of a call for which one thread is worth while
SPIN_NS = 20_000  # for so long an idle thread of the crew looks for the next call without sleep
HOT_NS = 50_000  # for so long a thread of the crew that finds nothing ready looks without sleep
SPINS = 100  # looks between two yields
TEST_NS = 2_000  # between two tests of what is under way, while there is something to compute
PROGRESS_NS = 2_000  # a test that takes longer has made progress


@njit
def run(tables: int, arrays: int) -> int:
    """Make a call, or go on with one; return OVER, or why Python is needed.

    Given are the addresses of the list of its tables (see `words`) and of the list of addresses of its arrays; the
    latter is 0 if the call goes on.
    """
    state: Words = words(w.table(tables, w.STATE))
    if arrays:
        if exchange_word(state[w.CONTROL] + 8 * w.BUSY, 1):
            return w.BUSY_ELSEWHERE
        _begin(state, arrays)
    else:
        _go_on(tables, state)
    state[w.ENTERED_AT] = now_ns(tables)
    outcome = _run(tables, state)
    state[w.DOOR] = outcome
    if outcome in (w.OVER, w.UNLIKE, w.DISAGREED):
        state[w.STAGE] = w.IDLE
        exchange_word(state[w.CONTROL] + 8 * w.BUSY, 0)
    return outcome


@njit
def _begin(state: Words, arrays: int) -> None:
    state[w.STAGE], state[w.ARRAYS] = w.ENTERING, arrays
    state[w.COMPUTES] = state[w.COMPUTES_TOO]
    state[w.FAILED] = state[w.VISIT] = state[w.FLYING] = state[w.TOOK_PART] = state[w.REDUCES] = 0
    state[w.WAITED] = state[w.CREW_COMPUTED] = state[w.SINCE] = state[w.TESTED_AT] = 0
    state[w.HELD] = w.NONE


@njit
def _go_on(tables: int, state: Words) -> None:
    """Let the slot go on because of which Python was needed: what it came to has been done."""
    if state[w.DOOR] == w.CALLS_PYTHON:
        pass_item(tables, state[w.AT])
    elif state[w.DOOR] == w.NOT_ISSUED:
        pass_item(tables, state[w.AT])
        give_back(tables, state[w.AT])
        state[w.VISIT] += 1


@njit
def _run(tables: int, state: Words) -> int:
    if state[w.STAGE] == w.ENTERING:
        outcome = met(tables)
        if outcome != w.OVER:
            return outcome
        state[w.BEGAN], state[w.WAITED], state[w.STAGE] = now_ns(tables), 0, w.RUNNING
        begin_slots(tables)
        if state[w.CREW]:
            _call_crew(tables, state)
    if state[w.STAGE] == w.RUNNING:
        outcome = _run_items(tables, state)
        if outcome != w.OVER:
            return outcome
        if state[w.CREW]:
            _dismiss_crew(state)
        state[w.STAGE] = w.AGREEING
    outcome = agreed(tables)
    if outcome == w.OVER:
        _count(tables, state)
    return outcome


@njit
def _count(tables: int, state: Words) -> None:
    """Count a call that has ended without an error."""
    state[w.ENDED_AT] = now_ns(tables)
    took_ns = state[w.ENDED_AT] - state[w.BEGAN]
    state[w.COMPUTED] = took_ns - state[w.WAITED] + state[w.CREW_COMPUTED]
    for place in (w.LOADS, w.OTHER_LOAD):
        if state[place]:
            load: Words = words(state[place])
            load[CALLS] += 1
            load[WALL_NS] += took_ns
            load[COMPUTING_NS] += state[w.COMPUTED]
            load[THREADS_NS] += (1 + state[w.TOOK_PART]) * took_ns


# ---- the calling thread --------------------------------------------------------------------------


@njit
def _run_items(tables: int, state: Words) -> int:
    """Run all items of all slots; return OVER, or why Python is needed."""
    visits: Words = words(w.table(tables, w.VISITS))
    count = words(tables)[w.ENTRY * w.VISITS + 1]
    bases = np.empty(w.BASES, np.int64)
    while True:
        visited = visits[state[w.VISIT]] if state[w.VISIT] < count else w.NONE
        if visited != w.NONE and visited != state[w.HELD] and take(tables, visited):
            kind = comes_to(tables, visited)
            if may_issue(tables, kind):
                if state[w.SINCE]:
                    end_wait(tables)
                if not _issued(tables, state, visited):
                    state[w.AT] = visited
                    return w.NOT_ISSUED
                state[w.VISIT] += 1
                continue
            if kind <= w.CALL and state[w.HELD] == w.NONE:
                state[w.HELD] = visited
            else:
                give_back(tables, visited)
        if state[w.HELD] == w.NONE:
            state[w.HELD] = take_ready(tables, max(visited, 0))
        computed = False
        if state[w.HELD] != w.NONE:
            computed = True
            if state[w.SINCE]:
                end_wait(tables)
            kind = _compute(tables, state[w.HELD], 0, bases, state[w.TOOK_PART] > 0)
            if kind == w.CALL:
                state[w.AT] = state[w.HELD]
                return w.CALLS_PYTHON
            if kind != w.RUN:
                state[w.HELD] = w.NONE
        elif state[w.TOOK_PART] and _shared(tables, max(visited, 0), 0, bases):
            computed = True
            if state[w.SINCE]:
                end_wait(tables)
        if state[w.FLYING]:
            if not _tested(tables, state, computed):
                return w.NOT_COMPLETED
        elif not computed and visited == w.NONE and all_ended(tables):
            end_wait(tables)
            return w.OVER
        if computed:
            if now_ns(tables) - state[w.ENTERED_AT] > w.TICK_NS:
                return w.TICK
        elif not state[w.SINCE]:  # the first time that there is nothing to compute
            begin_wait(tables, w.WAITING if state[w.FLYING] else 0, _oldest(tables, state))
        elif _rested(tables, state):
            return w.TICK


@njit
def _rested(tables: int, state: Words) -> bool:
    """Rest, with nothing to compute; return whether it is time to let Python run."""
    if state[w.FLYING] or not state[w.TOOK_PART]:
        return rest(tables)
    # The crew computes what this thread waits for.
    for _ in range(SPINS):
        pause()
    sched_yield()
    return now_ns(tables) - state[w.ENTERED_AT] > w.TICK_NS


@njit
def _oldest(tables: int, state: Words) -> int:
    """Return an exchange that is under way, or NONE."""
    for slot in range(state[w.DEPTH]):
        place: Words = words(w.slot_at(tables, slot))
        if place[w.UNDER_WAY]:
            item: Words = words(w.item_at(tables, slot) - 8 * w.ITEM_WORDS)
            return item[w.FIRST]
    return w.NONE


@njit
def _issued(tables: int, state: Words, slot: int) -> bool:
    """Issue what an owned slot comes to, and give the slot back; return False if MPI has rejected it."""
    item: Words = words(w.item_at(tables, slot))
    if item[w.KIND] == w.EXCHANGE and state[w.EXCHANGES_TOO]:
        address = w.slot_at(tables, slot)
        exchange: Words = words(w.table(tables, w.EXCHANGES) + 8 * w.EXCHANGE_WORDS * item[w.FIRST])
        mpi: Words = words(w.table(tables, w.MPI))
        given = (
            _located(exchange[w.SENT], exchange[w.SENT + 1], state[w.ARRAYS]),
            exchange[w.COUNTS_SENT],
            exchange[w.STARTS_SENT],
            exchange[w.TYPE],
            _located(exchange[w.RECEIVED], exchange[w.RECEIVED + 1], state[w.ARRAYS]),
            exchange[w.COUNTS_RECEIVED],
            exchange[w.STARTS_RECEIVED],
            exchange[w.TYPE],
            words(exchange[w.COMM])[0],
        )
        if state[w.STAMPS]:
            _stamp(tables, state, words(tables)[w.ENTRY * w.ROWS + 1] + item[w.FIRST], w.FROM, now_ns(tables), w.NONE)
        if state[w.POLLED]:
            state[w.ERROR] = call_mpi(mpi[w.IALLTOALLV], given + (address + 8 * w.REQUEST,))
            if state[w.ERROR]:
                return False
            words(address)[w.UNDER_WAY] = 1
            state[w.FLYING] += 1
        else:
            begin_wait(tables, w.WAITING, item[w.FIRST])
            state[w.ERROR] = call_mpi(mpi[w.ALLTOALLV], given)
            end_wait(tables)
            if state[w.ERROR]:
                return False
            if state[w.STAMPS]:
                _stamp(tables, state, words(tables)[w.ENTRY * w.ROWS + 1] + item[w.FIRST], w.TO, now_ns(tables), w.NONE)
    pass_item(tables, slot)
    give_back(tables, slot)
    return True


@njit
def _tested(tables: int, state: Words, computed: bool) -> bool:
    """Test the exchanges under way; return False if one has failed."""
    began = now_ns(tables)
    if computed and began - state[w.TESTED_AT] < TEST_NS:
        return True
    mpi: Words = words(w.table(tables, w.MPI))
    flag, done = w.table(tables, w.STATE) + 8 * w.FLAG, False
    for slot in range(state[w.DEPTH]):
        place: Words = words(w.slot_at(tables, slot))
        if place[w.UNDER_WAY]:
            state[w.ERROR] = call_mpi(mpi[w.TEST], (w.slot_at(tables, slot) + 8 * w.REQUEST, flag, flag + 8))
            if state[w.ERROR] or load_int(flag):
                done = True
                state[w.FLYING] -= 1
                if state[w.STAMPS]:
                    number = words(w.item_at(tables, slot) - 8 * w.ITEM_WORDS)[w.FIRST]
                    _stamp(tables, state, words(tables)[w.ENTRY * w.ROWS + 1] + number, w.TO, now_ns(tables), w.NONE)
                store_release(w.slot_at(tables, slot) + 8 * w.UNDER_WAY, 0)
                if state[w.ERROR]:
                    state[w.AT] = slot
                    return False
    ended = state[w.TESTED_AT] = now_ns(tables)
    # MPI copies long messages within the tests: a test that takes long has made progress, and others will.
    if done or ended - began > PROGRESS_NS:
        state[w.PROGRESS_AT] = ended
    return True


@njit
def _call_crew(tables: int, state: Words) -> None:
    """Call as many threads of the crew as the last call's computing is worth."""
    state[w.TOOK_PART] = max(0, min(state[w.CREW], state[w.COMPUTED] // SHARE_NS - 1))
    if state[w.TOOK_PART]:
        control = state[w.CONTROL]
        store_release(control + 8 * w.SEATS, state[w.TOOK_PART])
        exchange_word(control + 8 * w.ACTIVE, tables)
        add_word(control + 8 * w.TICKET, 1)
        if load_acquire(control + 8 * w.SLEEPERS):
            wake(control + 8 * w.TICKET, state[w.TOOK_PART])


@njit
def _dismiss_crew(state: Words) -> None:
    """End the crew's part in the call, and wait until no thread is in it."""
    exchange_word(state[w.CONTROL] + 8 * w.ACTIVE, 0)
    looks = 0
    while load_acquire(state[w.CONTROL] + 8 * w.INSIDE):
        looks += 1
        if looks % SPINS:
            pause()
        else:
            sched_yield()


@njit
def abandon(tables: int) -> None:
    """End a call that cannot go on; what is under way in MPI stays there."""
    state: Words = words(w.table(tables, w.STATE))
    if state[w.STAGE] != w.IDLE:
        exchange_word(w.table(tables, w.STATE) + 8 * w.COMPUTES, 0)
        if state[w.STAGE] == w.RUNNING and state[w.CREW]:
            _dismiss_crew(state)
        state[w.STAGE] = w.IDLE
        end_wait(tables)
        exchange_word(state[w.CONTROL] + 8 * w.BUSY, 0)


# ---- items, in any thread ------------------------------------------------------------------------


@njit
def _compute(tables: int, slot: int, worker: int, bases: np.ndarray, shared: bool) -> int:
    """Run the computing item to which an owned slot comes; `worker` is the thread's number.

    If the call is `shared`, other threads take part in it. Returns RUN if the thread still owns the slot, or CALL if it
    does and the item is a Python function, which was not called. Else the thread has given the slot back.
    """
    kind = comes_to(tables, slot)
    item: Words = words(w.item_at(tables, slot))
    if kind == w.RUN:
        _run_row(tables, item[w.FIRST], worker, bases)
        pass_item(tables, slot)
    elif kind == w.SPLIT and not shared:
        for row in range(item[w.FIRST], item[w.LAST]):
            _run_row(tables, row, worker, bases)
        pass_item(tables, slot)
        kind = w.RUN
    elif kind == w.SPLIT:
        share(tables, slot)
    elif kind != w.CALL:
        give_back(tables, slot)
    return kind


@njit
def _shared(tables: int, first: int, worker: int, bases: np.ndarray) -> bool:
    """Run a part of a shared item, of the first slot in the rotation that has one; return whether there was one."""
    depth = words(w.table(tables, w.STATE))[w.DEPTH]
    for step in range(depth):
        slot = (first + step) % depth
        row = take_part(tables, slot)
        if row != w.NONE:
            if load_acquire(w.table(tables, w.STATE) + 8 * w.COMPUTES):
                _run_row(tables, row, worker, bases)
            end_part(tables, slot)
            return True
    return False


@njit
def _run_row(tables: int, number: int, worker: int, bases: np.ndarray) -> None:
    state: Words = words(w.table(tables, w.STATE))
    row: Words = words(w.table(tables, w.ROWS) + 8 * w.ROW_WORDS * number)
    for base in range(w.BASES):
        bases[base] = _located(row[w.BASE + 2 * base], row[w.BASE + 2 * base + 1], state[w.ARRAYS])
    bases[w.SCRATCH] = words(w.table(tables, w.WORKSPACES))[worker]
    program = w.table(tables, w.CODE) + 8 * WIDTH * row[w.PROGRAM]
    count, stamped = row[w.STOP] - row[w.PROGRAM], state[w.STAMPS] != 0
    clock = state[w.CONTROL] + 8 * (w.WORKERS + w.LINE_WORDS * worker + w.WORKER_CLOCK)
    if stamped:
        _stamp(tables, state, number, w.FROM, clock_ns(clock), worker)
    call_function(state[w.EXECUTE], program, count, address_of(bases), 0)
    if stamped:
        _stamp(tables, state, number, w.TO, clock_ns(clock), worker)


@njit
def _located(which: int, offset: int, arrays: int) -> int:
    """Return the address of a base."""
    return offset if which == w.FIXED else words(arrays)[which] + offset


@njit
def _stamp(tables: int, state: Words, number: int, which: int, time_ns: int, worker: int) -> None:
    """Note when a row or an exchange began or ended, and in which thread."""
    stamp: Words = words(state[w.STAMPS] + 8 * w.STAMP_WORDS * number)
    stamp[which], stamp[w.THREAD] = time_ns, worker


# ---- the crew ------------------------------------------------------------------------------------


@njit
def serve(control: int, worker: int, slot: int) -> int:
    """Take part in calls until the runtime is closed, in the crew's thread number `worker`, from 1.

    `control` is the address of the runtime's control. `slot` is the slot whose Python function this thread has called;
    NONE: it is in no call. Returns the slot that comes to a Python function, which this thread is to call; or LEFT.
    """
    line = control + 8 * (w.WORKERS + w.LINE_WORDS * worker)
    mine: Words = words(line)
    bases = np.empty(w.BASES, np.int64)
    while True:
        if slot == w.NONE:
            if not _called(control, line):
                return w.LEFT
            add_word(control + 8 * w.INSIDE, 1)
            mine[w.IDLE_NS], mine[w.JOINED_AT] = 0, clock_ns(line + 8 * w.WORKER_CLOCK)
        tables = add_word(control + 8 * w.ACTIVE, 0)
        if tables:
            if slot != w.NONE:
                pass_item(tables, slot)
            slot = _take_part(tables, control, worker, slot, bases)
            if slot != w.NONE:
                return slot
            took_ns = clock_ns(line + 8 * w.WORKER_CLOCK) - mine[w.JOINED_AT]
            add_word(w.table(tables, w.STATE) + 8 * w.CREW_COMPUTED, took_ns - mine[w.IDLE_NS])
        slot = w.NONE
        add_word(control + 8 * w.INSIDE, -1)


@njit
def _called(control: int, line: int) -> bool:
    """Wait until this thread is called, or may look again in a call that it has left; False: the runtime is closed."""
    mine: Words = words(line)
    while True:
        since = clock_ns(line + 8 * w.WORKER_CLOCK)
        while load_acquire(control + 8 * w.TICKET) == mine[w.TICKET_SEEN]:
            if mine[w.NAP] and load_acquire(control + 8 * w.ACTIVE):
                usleep(mine[w.NAP])
                mine[w.NAP] = min(2 * mine[w.NAP], LONGEST_SLEEP_US)
                return True
            for _ in range(SPINS):
                pause()
            if clock_ns(line + 8 * w.WORKER_CLOCK) - since > SPIN_NS:
                add_word(control + 8 * w.SLEEPERS, 1)
                sleep_while(control + 8 * w.TICKET, mine[w.TICKET_SEEN])
                add_word(control + 8 * w.SLEEPERS, -1)
        mine[w.TICKET_SEEN] = load_acquire(control + 8 * w.TICKET)
        if load_acquire(control + 8 * w.MODE) == w.QUIT:
            return False
        mine[w.NAP] = 0
        if add_word(control + 8 * w.SEATS, -1) > 0:
            return True


@njit
def _take_part(tables: int, control: int, worker: int, held: int, bases: np.ndarray) -> int:
    """Compute in a call until it ends or nothing has been ready for a while.

    Returns NONE, or the owned slot that comes to a Python function.
    """
    line = control + 8 * (w.WORKERS + w.LINE_WORDS * worker)
    mine: Words = words(line)
    visits: Words = words(w.table(tables, w.VISITS))
    count = words(tables)[w.ENTRY * w.VISITS + 1]
    looks, since = 0, 0
    while load_acquire(control + 8 * w.ACTIVE) == tables:
        visit = load_acquire(w.table(tables, w.STATE) + 8 * w.VISIT)
        first = visits[visit] if visit < count else 0
        if held == w.NONE:
            held = take_ready(tables, first)
        if held != w.NONE or _shared(tables, first, worker, bases):
            if since:
                mine[w.IDLE_NS] += clock_ns(line + 8 * w.WORKER_CLOCK) - since
                looks = since = mine[w.NAP] = 0
            if held != w.NONE:
                kind = _compute(tables, held, worker, bases, True)
                if kind == w.CALL:
                    return held
                if kind != w.RUN:
                    held = w.NONE
            continue
        now = clock_ns(line + 8 * w.WORKER_CLOCK)
        if not since:
            since = now
        if now - since > HOT_NS:
            # The thread sleeps outside of the call, whose end need not wait for it then.
            mine[w.NAP] = max(mine[w.NAP], SHORTEST_SLEEP_US)
            break
        looks += 1
        if looks % SPINS:
            pause()
        else:
            sched_yield()
    if since:
        mine[w.IDLE_NS] += clock_ns(line + 8 * w.WORKER_CLOCK) - since
    if held != w.NONE:
        give_back(tables, held)
    return w.NONE


@njit
def dismiss(control: int) -> None:
    """Let the threads of the crew leave `serve`, for good."""
    store_release(control + 8 * w.MODE, w.QUIT)
    add_word(control + 8 * w.TICKET, 1)
    wake(control + 8 * w.TICKET, 2**30)
