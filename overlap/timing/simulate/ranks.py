"""All ranks of a simulation, stepped together in compiled code.

A rank has the threads of the runtime: one that issues operations in the fixed rotation of the slots, and workers that
take ready steps in the issue order. When a thread of the runtime would sleep, wait or queue, its state is kept here,
and it goes on at an event of the one clock that all ranks share. Events at the same time happen in the order in which
they were entered, so that a simulation is reproducible. The tests ensure that this is the runtime's schedule:
`tests/virtual` runs the runtime's own code on a virtual clock, and both must give the same times.

Cores. A rank has one core per worker, on which its workers compute. The communicator and the TCP stack need core time,
too. It costs the workers time only if no core is idle: it is multiplied by the share of time in which all cores were
busy, and added to the step that ends next.

Network. All ranks take part in an exchange. Because all issue in the same order, and a slot has one exchange at a time,
an exchange is identified by its slot. Bytes leave a node through its one network card in the order of requests: the
card is a token bucket of rate W, which lets a burst through after a pause. The exchange ends on all ranks one latency
after the last node has sent its share. A message may be sent before its receiver is ready only if it is small
(`Machine.eager_nbytes`). Between ranks of one node an exchange is a copy, made by the ranks' own cores.

Polls. A thread that polls, finds nothing and sleeps would repeat this until something has completed. Instead its sleep
lasts until the first of these polls that finds something.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...compiled import njit
from ...ranks.wait import LONGEST_SLEEP_S, SHORTEST_SLEEP_S
from ...runtime.scheduling.polling import POLLS_PER_EXCHANGE
from .machine import Machine
from .run_options import Options
from .simulated_program import Program


def _record(seconds: str, numbers: str) -> np.dtype[Any]:
    """Make a record type from the names of its floats and of its integers."""
    return np.dtype([*((name, "f8") for name in seconds.split()), *((name, "i4") for name in numbers.split())])


MACHINE = _record(
    "latency_s message_s byte_s copy_Bps eager_nbytes operation_s interpreter_s poll_s wake_s busy_wake_s "
    "s_per_byte burst_s tree_s remote",
    "off poll workers depth limit agree_every slices per_node weight",
)
# `busy_s` is the time with all cores busy up to `busy_since_s`; `debt_s` is core time that the communicator or the
# kernel took, for which a worker still has to wait. If `first_s` is not negative, the current sleep leaves out the
# polls from then on, one each `period_s`; if `between_s`, the time of one poll, is not negative, the next sleep will.
# `occupied` is the time at which the communicator began to use a core, `polled` that of its last poll: on the clock
# (`_s`), and in time with all cores busy (`_busy_s`).
RANK = _record(
    "busy_s busy_since_s debt_s sleep_s last_completion_s first_s period_s between_s polled_s polled_busy_s "
    "occupied_s occupied_busy_s agreement_sleep_s end_s scale",
    "computing running awaited rung asleep sleep skipped blocked issued visited kept rotating requests over ready "
    "agreeing agreed then drawn program",
)
THREAD = _record("left_s rest_s", "state back slot")
# The marks: the time at which the slot's exchange was issued.
SLOT = _record("mark_s mark_busy_s", "key next place item taken done")
EVENT = np.dtype([("at_s", "f8"), ("number", "i8"), ("who", "i4"), ("sleep", "i4")])

GOES_ON, COMPLETED = -1, -2  # instead of the number of the sleep that an event ends
NOTHING, EXCHANGE, END = 0, 1, 2  # a slot's item
READY, CORES, INTERPRETER = 0, 1, 2  # the queues of a rank: steps that are ready, core tokens, the interpreter's lock
# States of a thread: of a worker, of any thread that computes, of the issuing thread; and what it does after an
# agreement.
GET, CORE, ADVANCE, LOCK, COMPUTE, COMPUTING, POSTED = range(7)
BEGIN, VISIT, TAKE, TAKEN, ROOM, TOKEN, ISSUE, ISSUING, SEND, INSIDE, NEXT = range(7, 18)
POLL, POLLED, LOOK, PAUSE, AGREE, AGREEMENT_TOKEN, AGREEING, AGREED = range(18, 26)
GO_ON, LAST, END_JOB = range(3)


@dataclass(frozen=True)
class SimulatedRun:
    """The times and the issue order of all simulated ranks.

    Attributes
    ----------
    ends_s : ndarray
        The time at which each simulated rank has ended; -1: never.
    order : ndarray
        Slice, and index within the slice, of each exchange in the issue order.
    steps_s, exchanges_s : ndarray
        Begin and end of the first rank's steps and exchanges, (slices, indices, 2).
    """

    ends_s: NDArray[np.float64]
    order: NDArray[np.int64]
    steps_s: NDArray[np.float64]
    exchanges_s: NDArray[np.float64]


@njit
def _push(events: Any, heap: Any, at_s: float, who: int, sleep: int) -> None:
    """Add an event; ``heap`` counts the pending events and all events so far."""
    heap[1] += 1
    place, number = heap[0], heap[1]
    heap[0] += 1
    while place > 0:
        above = (place - 1) // 2
        if events[above]["at_s"] <= at_s:
            break
        _copy(events, above, place)
        place = above
    event = events[place]
    event["at_s"], event["number"], event["who"], event["sleep"] = at_s, number, who, sleep


@njit
def _copy(events: Any, source: int, target: int) -> None:
    from_event, to_event = events[source], events[target]
    to_event["at_s"], to_event["number"] = from_event["at_s"], from_event["number"]
    to_event["who"], to_event["sleep"] = from_event["who"], from_event["sleep"]


@njit
def _drop_first(events: Any, heap: Any) -> None:
    """Remove the first event from the heap."""
    heap[0] -= 1
    size, place = heap[0], 0
    at_s, number = events[size]["at_s"], events[size]["number"]
    while True:
        below = 2 * place + 1
        if below >= size:
            break
        if below + 1 < size:
            left, right = events[below], events[below + 1]
            if right["at_s"] < left["at_s"] or (right["at_s"] == left["at_s"] and right["number"] < left["number"]):
                below += 1
        if at_s < events[below]["at_s"] or (at_s == events[below]["at_s"] and number < events[below]["number"]):
            break
        _copy(events, below, place)
        place = below
    _copy(events, size, place)


@njit
def _busy(rank: Any, now_s: float, workers: int) -> float:
    """Return the time so far with all cores busy."""
    busy_s: float = rank["busy_s"]
    if rank["computing"] >= workers:
        busy_s += now_s - rank["busy_since_s"]
    return busy_s


@njit
def _charge(rank: Any, now_s: float, workers: int, seconds: float, since_s: float, since_busy_s: float) -> None:
    """Charge core time that threads other than the workers have used since `since_s`."""
    if now_s > since_s:
        rank["debt_s"] += seconds * (_busy(rank, now_s, workers) - since_busy_s) / (now_s - since_s)


@njit
def _change(rank: Any, now_s: float, workers: int, more: int) -> None:
    """Change the number of computing threads by `more`."""
    rank["busy_s"] = _busy(rank, now_s, workers)
    rank["busy_since_s"] = now_s
    rank["computing"] += more


@njit
def _periods(rank: Any, now_s: float) -> int:
    """Count the polls that a sleep has left out so far."""
    return max(0, ceil((now_s - rank["first_s"]) / rank["period_s"]))


@njit
def _wake(rank: Any, now_s: float, machine: Any) -> float:
    """End the sleep of the issuing thread; return the seconds for which it waits for a core."""
    if rank["period_s"] >= 0:
        rank["skipped"] += _periods(rank, now_s)
    rank["asleep"] = 0
    delay_s: float = machine["busy_wake_s"] if rank["computing"] >= machine["workers"] else machine["wake_s"]
    return delay_s


@njit
def _taken_from(queue: int, thread: int, free: Any, waiting: Any, waiters: Any) -> bool:
    """Take an item from a queue of a rank, or enter the thread as the last one that waits for it."""
    if free[queue]:
        free[queue] -= 1
        return True
    waiting[queue, waiters[queue]] = thread
    waiters[queue] += 1
    return False


@njit
def _put(queue: int, free: Any, waiting: Any, waiters: Any, now_s: float, first: int, events: Any, heap: Any) -> None:
    """Put an item into a queue, and wake the thread that has waited longest; another thread may take it before.

    ``first`` is the rank's first thread.
    """
    free[queue] += 1
    if waiters[queue]:
        _push(events, heap, now_s, first + waiting[queue, 0], GOES_ON)
        waiters[queue] -= 1
        for place in range(waiters[queue]):
            waiting[queue, place] = waiting[queue, place + 1]


@njit
def _send(free_s: float, start_s: float, nbytes: float, machine: Any) -> float:
    """Send bytes through a card; return the time at which its bucket will be full, minus its depth."""
    return max(free_s, start_s - machine["burst_s"]) + nbytes * machine["s_per_byte"]


@njit
def _begin_agreement(
    number: int,
    simulated: int,
    now_s: float,
    machine: Any,
    rank: Any,
    arrivals: Any,
    arrived: Any,
    events: Any,
    heap: Any,
) -> None:
    """Begin a rank's part in a small reduction, by a tree of messages."""
    last = len(arrived) - 1
    rank["agreeing"], rank["agreed"] = 1, 0
    arrivals[arrived[last]] = number
    arrived[last] += 1
    if arrived[last] == simulated:
        arrived[last] = 0
        _push(events, heap, now_s + machine["tree_s"], last, COMPLETED)


@njit
def _run(
    machine: Any,
    steps: NDArray[np.float64],
    nbytes: NDArray[np.float64],
    messages: NDArray[np.float64],
    counts: NDArray[np.int64],
    factors: NDArray[np.float64],
    ranks: Any,
    threads: Any,
    slots: Any,
    ready: NDArray[np.int64],
    in_flight: NDArray[np.int64],
    rotation: NDArray[np.int64],
    free: NDArray[np.int64],
    waiting: NDArray[np.int64],
    waiters: NDArray[np.int64],
    arrivals: NDArray[np.int64],
    arrived: NDArray[np.int64],
    sent_s: NDArray[np.float64],
    large: NDArray[np.int64],
    outgoing: NDArray[np.float64],
    cards_s: NDArray[np.float64],
    order: NDArray[np.int64],
    steps_s: NDArray[np.float64],
    exchanges_s: NDArray[np.float64],
) -> None:
    """Process all events of all ranks."""
    workers, depth, slices = machine["workers"], machine["depth"], machine["slices"]
    polling, off = machine["poll"] != 0, machine["off"] != 0
    blocking = not polling and not off
    simulated, per_rank = threads.shape
    shown = 0
    events = np.empty(4 * simulated * per_rank + 64, EVENT)
    heap = np.zeros(2, np.int64)
    for number in range(simulated):
        _push(events, heap, 0.0, number * per_rank, GOES_ON)
    while heap[0]:
        if heap[0] + 2 * simulated + depth + per_rank + 8 > len(events):
            more = np.empty(2 * len(events), EVENT)
            more[: len(events)] = events
            events = more
        now_s, who, sleep = events[0]["at_s"], events[0]["who"], events[0]["sleep"]
        _drop_first(events, heap)
        if sleep == COMPLETED:
            for turn in range(simulated):
                number = arrivals[who, turn]
                rank = ranks[number]
                if who == depth:
                    rank["agreed"] = 1
                else:
                    slot = slots[number, who]
                    slot["done"] = 1
                    rank["over"] += 1
                    if machine["byte_s"]:
                        sent = machine["remote"] * nbytes[rank["program"], slot["key"], slot["place"] - 1]
                        seconds = machine["byte_s"] * sent
                        _charge(rank, now_s, workers, seconds, slot["mark_s"], slot["mark_busy_s"])
                    if number == 0:
                        exchanges_s[slot["key"], slot["place"] - 1, 1] = now_s
                if rank["blocked"]:
                    rank["blocked"] = 0
                    _push(events, heap, now_s, number * per_rank, GOES_ON)
                if rank["asleep"] and rank["period_s"] >= 0:
                    at_s = rank["first_s"] + _periods(rank, now_s) * rank["period_s"]
                    _push(events, heap, at_s, number * per_rank, rank["sleep"])
            continue
        number = who // per_rank
        rank = ranks[number]
        if sleep != GOES_ON:
            if not rank["asleep"] or rank["sleep"] != sleep:
                continue
            delay_s = _wake(rank, now_s, machine)
            if delay_s:
                _push(events, heap, now_s + delay_s, who, GOES_ON)
                continue
        own = who % per_rank
        thread = threads[number, own]
        queues = free[number], waiting[number], waiters[number]
        program = rank["program"]
        while True:  # until the thread must wait
            state = thread["state"]

            # ---- a worker ----
            if state == GET:
                if not _taken_from(READY, own, *queues):
                    break
                least = 0
                for place in range(rank["ready"]):
                    index, first = ready[number, place], ready[number, least]
                    turn = slots[number, index]["taken"] * depth + index
                    if turn < slots[number, first]["taken"] * depth + first:
                        least = place
                thread["slot"] = ready[number, least]
                rank["ready"] -= 1
                ready[number, least] = ready[number, rank["ready"]]
                thread["state"] = CORE
            elif state == CORE:
                if blocking and not _taken_from(CORES, own, *queues):
                    break
                thread["state"] = ADVANCE

            # ---- a step of a slice, in a worker or, without overlap, in the issuing thread ----
            elif state == ADVANCE:
                slot = slots[number, thread["slot"]]
                if slot["key"] < 0:
                    if slot["next"] >= slices:
                        slot["item"] = END
                        thread["state"] = POSTED
                        continue
                    slot["key"], slot["place"] = slot["next"], 0
                    slot["next"] += depth
                seconds = rank["scale"] * steps[program, slot["key"], slot["place"]]
                if factors.shape[1]:
                    seconds *= factors[number, rank["drawn"]]
                    rank["drawn"] += 1
                if number == 0:
                    steps_s[slot["key"], slot["place"], 0] = now_s
                held_s = min(seconds, machine["interpreter_s"])
                thread["left_s"], thread["rest_s"] = held_s, seconds - held_s
                if held_s:
                    thread["state"] = LOCK
                else:
                    thread["left_s"], thread["rest_s"] = seconds, -1.0
                    _change(rank, now_s, workers, 1)
                    thread["state"] = COMPUTE
            elif state == LOCK:
                if not _taken_from(INTERPRETER, own, *queues):
                    break
                _change(rank, now_s, workers, 1)
                thread["state"] = COMPUTE
            elif state == COMPUTE:
                if thread["left_s"] > 0:
                    thread["state"] = COMPUTING
                    _push(events, heap, now_s + thread["left_s"], who, GOES_ON)
                    break
                _change(rank, now_s, workers, -1)
                if thread["rest_s"] >= 0:
                    _put(INTERPRETER, *queues, now_s, who - own, events, heap)
                    thread["left_s"], thread["rest_s"] = thread["rest_s"], -1.0
                    _change(rank, now_s, workers, 1)
                    continue
                slot = slots[number, thread["slot"]]
                if number == 0:
                    steps_s[slot["key"], slot["place"], 1] = now_s
                if slot["place"] < counts[slot["key"]]:
                    slot["place"] += 1
                    slot["item"] = EXCHANGE
                    thread["state"] = POSTED
                else:
                    slot["key"] = -1
                    thread["state"] = ADVANCE
            elif state == COMPUTING:
                thread["left_s"], rank["debt_s"] = rank["debt_s"], 0.0
                thread["state"] = COMPUTE
            elif state == POSTED:
                if off:
                    thread["state"] = TAKEN
                    continue
                rank["running"] -= 1
                if rank["awaited"] >= 0 and (rank["awaited"] == thread["slot"] or not rank["running"]):
                    if rank["asleep"]:
                        _push(events, heap, now_s + _wake(rank, now_s, machine), number * per_rank, GOES_ON)
                    else:
                        rank["rung"] = 1
                if blocking:
                    _put(CORES, *queues, now_s, who - own, events, heap)
                thread["state"] = GET

            # ---- the rotation, in the issuing thread ----
            elif state == BEGIN:
                for sibling in range(1, per_rank):
                    _push(events, heap, now_s, number * per_rank + sibling, GOES_ON)
                rank["rotating"] = min(depth, slices)
                for index in range(rank["rotating"]):
                    rotation[number, index] = index
                    if not off:
                        ready[number, index] = index
                        free[number, READY] += 1
                if not off:
                    rank["ready"] = rank["running"] = rank["rotating"]
                thread["state"] = VISIT
            elif state == VISIT:
                if rank["visited"] == rank["rotating"]:
                    rank["rotating"], rank["visited"], rank["kept"] = rank["kept"], 0, 0
                thread["state"] = TAKE
                if not rank["rotating"]:
                    rank["then"] = LAST
                    thread["state"] = AGREE
            elif state == TAKE:
                thread["slot"] = rotation[number, rank["visited"]]
                if off:
                    thread["state"] = ADVANCE
                    continue
                slot = slots[number, thread["slot"]]
                if slot["item"] != NOTHING:
                    rank["awaited"] = -1
                    thread["state"] = TAKEN
                else:
                    rank["awaited"] = thread["slot"]
                    thread["back"], thread["state"] = TAKE, POLL
            elif state == TAKEN:
                slot = slots[number, thread["slot"]]
                item, slot["item"] = slot["item"], NOTHING
                if item == END:
                    rank["visited"] += 1
                    thread["state"] = VISIT
                    continue
                rotation[number, rank["kept"]] = thread["slot"]
                rank["kept"] += 1
                slot["taken"] += 1
                rank["issued"] += 1
                thread["state"] = ROOM if polling else TOKEN
            elif state == ROOM:
                if rank["requests"] >= machine["limit"]:
                    thread["back"], thread["state"] = ROOM, POLL
                else:
                    thread["state"] = ISSUE
            elif state == TOKEN:
                if blocking and not _taken_from(CORES, own, *queues):
                    break
                thread["state"] = ISSUE
            elif state == ISSUE:
                slot = slots[number, thread["slot"]]
                transfer = nbytes[program, slot["key"], slot["place"] - 1]
                partners = messages[program, slot["key"], slot["place"] - 1]
                local = (1 - machine["remote"]) * transfer
                seconds = machine["operation_s"] + machine["message_s"] * partners + local / machine["copy_Bps"]
                thread["left_s"] = seconds
                if seconds > 0:
                    rank["occupied_s"], rank["occupied_busy_s"] = now_s, _busy(rank, now_s, workers)
                    _push(events, heap, now_s + seconds, who, GOES_ON)
                    thread["state"] = ISSUING
                    break
                thread["state"] = SEND
            elif state == ISSUING:
                _charge(rank, now_s, workers, thread["left_s"], rank["occupied_s"], rank["occupied_busy_s"])
                thread["state"] = SEND
            elif state == SEND:
                index = thread["slot"]
                slot = slots[number, index]
                transfer = nbytes[program, slot["key"], slot["place"] - 1]
                partners = messages[program, slot["key"], slot["place"] - 1]
                leaving = machine["remote"] * transfer * machine["weight"]
                node = number // machine["per_node"]
                if number == 0:
                    order[shown, 0], order[shown, 1] = slot["key"], slot["place"] - 1
                    shown += 1
                    exchanges_s[slot["key"], slot["place"] - 1, 0] = now_s
                if arrived[index] == 0:
                    sent_s[index], large[index] = 0.0, 0
                    outgoing[index] = 0.0
                if transfer > machine["eager_nbytes"] * partners:
                    large[index] = 1
                    outgoing[index, node] += leaving
                elif leaving:
                    cards_s[node] = _send(cards_s[node], now_s, leaving, machine)
                    sent_s[index] = max(sent_s[index], cards_s[node], now_s)
                slot["done"], slot["mark_s"], slot["mark_busy_s"] = 0, now_s, _busy(rank, now_s, workers)
                arrivals[index, arrived[index]] = number
                arrived[index] += 1
                if arrived[index] == simulated:
                    arrived[index] = 0
                    end_s = max(now_s, sent_s[index])
                    if large[index]:
                        for node in range(len(cards_s)):
                            cards_s[node] = _send(cards_s[node], now_s, outgoing[index, node], machine)
                            end_s = max(end_s, cards_s[node])
                    if machine["remote"]:
                        end_s += machine["latency_s"]
                    _push(events, heap, end_s, index, COMPLETED)
                if polling:
                    if not rank["requests"]:
                        rank["last_completion_s"] = now_s
                    in_flight[number, rank["requests"]] = index
                    rank["requests"] += 1
                    thread["state"] = NEXT
                else:
                    thread["state"] = INSIDE
            elif state == INSIDE:
                if not slots[number, thread["slot"]]["done"]:
                    rank["blocked"] = 1
                    break
                if blocking:
                    _put(CORES, *queues, now_s, who - own, events, heap)
                    rank["running"] += 1
                    ready[number, rank["ready"]] = thread["slot"]
                    rank["ready"] += 1
                    _put(READY, *queues, now_s, who - own, events, heap)
                thread["state"] = NEXT
            elif state == NEXT:
                rank["visited"] += 1
                thread["state"] = VISIT if rank["issued"] % machine["agree_every"] else AGREE

            # ---- between exchanges ----
            elif state == POLL:
                if not polling or not rank["requests"]:
                    thread["state"] = PAUSE
                    continue
                poll_s = machine["poll_s"]
                if not poll_s:
                    thread["state"] = LOOK
                    continue
                _charge(rank, now_s, workers, rank["skipped"] * poll_s, rank["polled_s"], rank["polled_busy_s"])
                rank["skipped"] = 0
                rank["occupied_s"], rank["occupied_busy_s"] = now_s, _busy(rank, now_s, workers)
                _push(events, heap, now_s + poll_s, who, GOES_ON)
                thread["state"] = POLLED
                break
            elif state == POLLED:
                _charge(rank, now_s, workers, machine["poll_s"], rank["occupied_s"], rank["occupied_busy_s"])
                rank["polled_s"], rank["polled_busy_s"] = now_s, _busy(rank, now_s, workers)
                thread["state"] = LOOK
            elif state == LOOK:
                done, rank["over"] = rank["over"], 0
                if not done:
                    rank["between_s"] = machine["poll_s"]
                    thread["state"] = PAUSE
                    continue
                interval_s = (now_s - rank["last_completion_s"]) / done
                rank["last_completion_s"] = now_s
                least_s = max(interval_s / POLLS_PER_EXCHANGE, 0.5 * rank["sleep_s"], SHORTEST_SLEEP_S)
                rank["sleep_s"] = min(least_s, 2 * rank["sleep_s"], LONGEST_SLEEP_S)
                left = 0
                for place in range(rank["requests"]):
                    index = in_flight[number, place]
                    if not slots[number, index]["done"]:
                        in_flight[number, left] = index
                        left += 1
                        continue
                    rank["running"] += 1
                    ready[number, rank["ready"]] = index
                    rank["ready"] += 1
                    _put(READY, *queues, now_s, who - own, events, heap)
                rank["requests"] = left
                thread["state"] = thread["back"]
            elif state == PAUSE:
                thread["state"] = thread["back"]
                seconds = rank["sleep_s"] if polling and rank["requests"] else -1.0
                if thread["back"] == AGREEING:
                    seconds = rank["agreement_sleep_s"]
                    rank["agreement_sleep_s"] = min(2 * seconds, LONGEST_SLEEP_S)
                between_s, rank["between_s"] = rank["between_s"], -1.0
                if rank["rung"]:
                    rank["rung"] = 0
                    continue
                rank["asleep"] = 1
                rank["sleep"] += 1
                rank["period_s"] = -1.0
                if between_s >= 0:
                    rank["period_s"] = seconds + between_s
                    rank["first_s"] = now_s + seconds
                elif seconds >= 0:
                    _push(events, heap, now_s + seconds, who, rank["sleep"])
                break

            # ---- agreements of all ranks ----
            elif state == AGREE:
                thread["state"] = AGREEMENT_TOKEN if rank["agreeing"] else AGREED
            elif state == AGREEMENT_TOKEN:
                if blocking and not _taken_from(CORES, own, *queues):
                    break
                if rank["then"] == END_JOB:  # a blocking call, which also begins the agreement
                    _begin_agreement(number, simulated, now_s, machine, rank, arrivals[depth], arrived, events, heap)
                rank["agreement_sleep_s"] = SHORTEST_SLEEP_S
                thread["state"] = AGREEING
            elif state == AGREEING:
                if not rank["agreed"]:
                    if polling:
                        thread["back"], thread["state"] = AGREEING, PAUSE
                        continue
                    rank["blocked"] = 1
                    break
                if blocking:
                    _put(CORES, *queues, now_s, who - own, events, heap)
                rank["agreeing"] = 0
                thread["state"] = AGREED
            elif rank["then"] == GO_ON:  # AGREED
                _begin_agreement(number, simulated, now_s, machine, rank, arrivals[depth], arrived, events, heap)
                thread["state"] = VISIT
            elif rank["then"] == LAST:
                rank["then"] = END_JOB
                thread["state"] = AGREEMENT_TOKEN
            else:
                rank["end_s"] = now_s
                break


def run(
    machine: Machine,
    programs: Sequence[Program],
    speeds: Sequence[float],
    options: Options,
    factors: NDArray[np.float64],
) -> SimulatedRun:
    """Simulate ranks.

    Parameters
    ----------
    machine : Machine
    programs : sequence of Program
        One per simulated rank: of all ranks, or of one that represents all if they are alike.
    speeds : sequence of float
        One per simulated rank.
    options : Options
    factors : ndarray
        Factors of the times of each rank's steps, in the order in which they begin, (ranks, steps); no columns: no
        factors.

    Returns
    -------
    SimulatedRun
    """
    simulated, workers = len(programs), 0 if options.wait == "off" else options.workers
    different = list({id(program): program for program in programs}.values())
    number_of = {id(program): number for number, program in enumerate(different)}
    counts = np.array([len(transfers) for transfers in different[0].transfers], np.int64)
    slices, most = len(counts), max(counts.tolist(), default=0)
    steps = np.zeros((len(different), slices, most + 1))
    nbytes, messages = np.zeros((2, len(different), slices, most))
    for number, program in enumerate(different):
        for key, transfers in enumerate(program.transfers):
            steps[number, key, : len(transfers) + 1] = program.steps[key]
            nbytes[number, key, : len(transfers)] = [transfer.nbytes for transfer in transfers]
            messages[number, key, : len(transfers)] = [transfer.messages for transfer in transfers]
    ranks = np.zeros(simulated, RANK)
    ranks["program"] = [number_of[id(program)] for program in programs]
    ranks["scale"] = [1 / speed for speed in speeds]
    ranks["sleep_s"] = SHORTEST_SLEEP_S
    for name in ("period_s", "between_s", "awaited", "end_s"):
        ranks[name] = -1
    depth, per_rank = options.depth, workers + 1
    threads = np.zeros((simulated, per_rank), THREAD)
    threads["state"][:, 0] = BEGIN
    slots = np.zeros((simulated, depth), SLOT)
    slots["key"], slots["next"] = -1, np.arange(depth)
    free = np.zeros((simulated, 3), np.int32)
    free[:, CORES], free[:, INTERPRETER] = options.workers, 1
    of_all = _numbers(machine, options, simulated, slices)
    nodes = ceil(simulated / of_all["per_node"])
    order = np.zeros((int(counts.sum()), 2), np.int64)
    steps_s, exchanges_s = np.zeros((slices, most + 1, 2)), np.zeros((slices, most, 2))
    _run(
        of_all,
        *(steps, nbytes, messages, counts, factors),
        *(ranks, threads, slots),
        *(np.zeros((simulated, depth), np.int32) for _ in ("ready", "in_flight", "rotation")),
        *(free, np.zeros((simulated, 3, per_rank), np.int32), np.zeros((simulated, 3), np.int32)),
        *(np.zeros((depth + 1, simulated), np.int32), np.zeros(depth + 1, np.int64)),
        *(np.zeros(depth), np.zeros(depth, np.int64), np.zeros((depth, nodes)), np.full(nodes, -np.inf)),
        *(order, steps_s, exchanges_s),
    )
    return SimulatedRun(ranks["end_s"], order, steps_s, exchanges_s)


def _numbers(machine: Machine, options: Options, simulated: int, slices: int) -> Any:
    """Return the record of values that are the same on all ranks."""
    per_node = min(options.ranks, machine.ranks_per_node)
    numbers = np.zeros((), MACHINE)
    for name in MACHINE.names or ():
        if hasattr(machine, name):
            numbers[name] = getattr(machine, name)
    numbers["s_per_byte"], numbers["burst_s"] = 1 / machine.bandwidth_Bps, machine.burst_nbytes / machine.bandwidth_Bps
    numbers["tree_s"] = ceil(log2(options.ranks)) * (machine.latency_s + machine.message_s)
    numbers["remote"] = (options.ranks - per_node) / (options.ranks - 1) if options.ranks > 1 else 0.0
    numbers["weight"] = per_node if simulated < options.ranks else 1  # ranks of a node that one rank represents
    numbers["per_node"] = per_node
    numbers["off"], numbers["poll"] = options.wait == "off", options.wait == "poll"
    numbers["workers"], numbers["depth"], numbers["limit"] = options.workers, options.depth, options.limit
    numbers["agree_every"], numbers["slices"] = options.agree_every, slices
    return numbers[()]
