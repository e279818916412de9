"""All ranks of a simulation, stepped together in compiled code, by the rule of the runtime's own loop.

Every simulated rank has the tables of a call (`overlap.runtime.loop.words`): items, slots, state. What a slot comes to,
who takes it and which slot is next is decided by the functions of `overlap.runtime.loop.rule`, which the loop calls,
too. What is simulated here is what the loop stands on: threads that compute for a time, exchanges, and one clock for
all ranks. When a thread computes, waits or rests, its state is kept, and it goes on at an event of the clock. Events at
the same time happen in the order in which they were entered, so that a simulation is reproducible. The tests run the
source of the loop on a virtual clock (`tests/virtual`); both must give the same times.

Cores. A rank has one core per thread. The TCP stack needs core time, too. It costs the threads time only if no core is
idle: it is multiplied by the share of time in which all cores computed, and added to the step that ends next.

Network. All ranks take part in an exchange. Because all issue in the same order, and a slot has one exchange at a time,
an exchange is identified by its slot. Bytes leave a node through its one network card in the order of requests: the
card is a token bucket of rate W, which lets a burst through after a pause. The exchange ends on all ranks one latency
after the last node has sent its share. A message may be sent before its receiver is ready only if it is small
(`Machine.eager_nbytes`). Between ranks of one node an exchange is a copy, made by the ranks' own cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, log2
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...compiled import njit
from ...compiled.memory import words
from ...runtime.loop import words as w
from ...runtime.loop.loop import TEST_NS
from ...runtime.loop.rule import all_ended, begin_slots, comes_to, give_back, may_issue, pass_item, take, take_ready
from .machine import Machine, Options
from .simulated_program import Program


def _record(seconds: str, numbers: str) -> np.dtype[Any]:
    """Make a record type from the names of its floats and of its integers."""
    return np.dtype([*((name, "f8") for name in seconds.split()), *((name, "i8") for name in numbers.split())])


MACHINE = _record(
    "latency_s message_s byte_s copy_Bps eager_nbytes operation_s interpreter_s poll_s wake_s s_per_byte burst_s "
    "tree_s remote",
    "threads depth per_node weight",
)
# `busy_s` is the time with all cores computing up to `busy_since_s`; `debt_s` is core time that the kernel took, for
# which a thread still has to wait.
RANK = _record("busy_s busy_since_s debt_s end_s scale", "computing drawn program lock waiting")
# `computed`: the calling thread has computed since it last tested; `idle`: it has found nothing to compute since;
# `resting`: the thread goes on when something has changed; `waits`: its turn at Python's interpreter lock, or 0.
THREAD = _record("left_s rest_s", "state slot computed idle resting waits")
# The marks: the time at which the slot's exchange was issued.
SLOT = _record("mark_s mark_busy_s", "exchange done")
EVENT = np.dtype([("at_s", "f8"), ("number", "i8"), ("who", "i8"), ("kind", "i8")])

GOES_ON, COMPLETED = range(2)  # kinds of events: a thread goes on; an exchange has ended
# States of a thread: of all; of the calling one.
LOOK, GOT, LOCK, COMPUTE, COMPUTING, STEPPED = range(6)
SEND, INSIDE, TEST, TESTED, AGREEING, OVER = range(6, 12)


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
def _push(events: Any, heap: Any, at_s: float, who: int, kind: int) -> None:
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
    event["at_s"], event["number"], event["who"], event["kind"] = at_s, number, who, kind


@njit
def _copy(events: Any, source: int, target: int) -> None:
    from_event, to_event = events[source], events[target]
    to_event["at_s"], to_event["number"] = from_event["at_s"], from_event["number"]
    to_event["who"], to_event["kind"] = from_event["who"], from_event["kind"]


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
def _busy(rank: Any, now_s: float, threads: int) -> float:
    """Return the time so far with all cores busy."""
    busy_s: float = rank["busy_s"]
    if rank["computing"] >= threads:
        busy_s += now_s - rank["busy_since_s"]
    return busy_s


@njit
def _charge(rank: Any, now_s: float, threads: int, seconds: float, since_s: float, since_busy_s: float) -> None:
    """Charge core time that the kernel has used since `since_s`."""
    if now_s > since_s:
        rank["debt_s"] += seconds * (_busy(rank, now_s, threads) - since_busy_s) / (now_s - since_s)


@njit
def _change(rank: Any, now_s: float, threads: int, more: int) -> None:
    """Change the number of computing threads by `more`."""
    rank["busy_s"] = _busy(rank, now_s, threads)
    rank["busy_since_s"] = now_s
    rank["computing"] += more


@njit
def _send(free_s: float, start_s: float, nbytes: float, machine: Any) -> float:
    """Send bytes through a card; return the time at which its bucket will be full, minus its depth."""
    return max(free_s, start_s - machine["burst_s"]) + nbytes * machine["s_per_byte"]


@njit
def _wake(threads: Any, first: int, now_s: float, events: Any, heap: Any) -> None:
    """Let the resting threads of a rank look again; ``first`` is the number of its first one."""
    for other in range(len(threads)):
        if threads[other]["resting"]:
            threads[other]["resting"] = 0
            _push(events, heap, now_s, first + other, GOES_ON)


@njit
def _unlock(threads: Any, first: int, now_s: float, rank: Any, events: Any, heap: Any) -> None:
    """Give Python's interpreter lock to the thread that has waited longest."""
    rank["lock"] = 0
    longest = -1
    for other in range(len(threads)):
        if threads[other]["waits"] and (longest < 0 or threads[other]["waits"] < threads[longest]["waits"]):
            longest = other
    if longest >= 0:
        threads[longest]["waits"], rank["lock"] = 0, 1
        _push(events, heap, now_s, first + longest, GOES_ON)


@njit
def _run(
    machine: Any,
    steps: NDArray[np.float64],
    nbytes: NDArray[np.float64],
    messages: NDArray[np.float64],
    whose: NDArray[np.int64],
    visits: NDArray[np.int64],
    calls: NDArray[np.int64],
    factors: NDArray[np.float64],
    ranks: Any,
    threads: Any,
    slots: Any,
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
    """Process all events of all ranks.

    Rows and exchanges are numbered as they follow each other in the slices; `whose` has the slice and the index of
    each, and `calls` the address of each rank's tables.
    """
    cores, depth, poll_s = machine["threads"], machine["depth"], machine["poll_s"]
    simulated, per_rank = threads.shape
    shown = 0
    events = np.empty(4 * simulated * (per_rank + depth) + 64, EVENT)
    heap = np.zeros(2, np.int64)
    for number in range(simulated):
        begin_slots(calls[number])
        for own in range(per_rank):
            _push(events, heap, 0.0, number * per_rank + own, GOES_ON)
    while heap[0]:
        if heap[0] + 2 * simulated * per_rank + depth + 8 > len(events):
            more = np.empty(2 * len(events), EVENT)
            more[: len(events)] = events
            events = more
        now_s, who, kind = events[0]["at_s"], events[0]["who"], events[0]["kind"]
        _drop_first(events, heap)
        if kind == COMPLETED:
            for turn in range(simulated):
                number = arrivals[who, turn]
                rank, first = ranks[number], number * per_rank
                caller = threads[number, 0]
                if who == depth:  # the agreement
                    rank["end_s"], caller["state"] = now_s, OVER
                    continue
                slot = slots[number, who]
                slot["done"] = 1
                if machine["byte_s"]:
                    seconds = machine["byte_s"] * machine["remote"] * nbytes[rank["program"], slot["exchange"]]
                    _charge(rank, now_s, cores, seconds, slot["mark_s"], slot["mark_busy_s"])
                if number == 0:
                    exchanges_s[whose[1, slot["exchange"], 0], whose[1, slot["exchange"], 1], 1] = now_s
                if caller["state"] == INSIDE:
                    _push(events, heap, now_s, first, GOES_ON)
                elif caller["resting"]:
                    caller["resting"] = 0
                    _push(events, heap, now_s + machine["wake_s"], first, GOES_ON)
            continue
        number, own = who // per_rank, who % per_rank
        first = number * per_rank
        rank, thread, siblings = ranks[number], threads[number, own], threads[number]
        program, tables = rank["program"], calls[number]
        state = words(w.table(tables, w.STATE))
        while True:  # until the thread must wait
            doing = thread["state"]

            # ---- what to do next ----
            if doing == LOOK:
                visited = visits[state[w.VISIT]] if state[w.VISIT] < len(visits) else w.NONE
                if own == 0 and visited != w.NONE and visited != thread["slot"] and take(tables, visited):
                    comes = comes_to(tables, visited)
                    if may_issue(tables, comes):
                        exchange = words(w.item_at(tables, visited))[w.FIRST]
                        slots[number, visited]["exchange"] = exchange
                        transfer = nbytes[program, exchange]
                        local = (1 - machine["remote"]) * transfer
                        copy_s = local / machine["copy_Bps"]
                        seconds = machine["operation_s"] + machine["message_s"] * messages[program, exchange] + copy_s
                        thread["idle"], thread["state"] = 0, SEND
                        if seconds > 0:
                            _push(events, heap, now_s + seconds, who, GOES_ON)
                            break
                        continue
                    if comes <= w.CALL and thread["slot"] == w.NONE:
                        thread["slot"] = visited
                    else:
                        give_back(tables, visited)
                if thread["slot"] == w.NONE:
                    thread["slot"] = take_ready(tables, max(visited, 0))
                if thread["slot"] != w.NONE:
                    thread["computed"], thread["idle"] = 1, 0
                    if comes_to(tables, thread["slot"]) == w.RUN:
                        thread["state"] = GOT
                        continue
                    give_back(tables, thread["slot"])
                    thread["slot"] = w.NONE
                    _wake(siblings, first, now_s, events, heap)
                    thread["state"] = TEST if own == 0 else LOOK
                elif own == 0:
                    thread["state"] = TEST
                else:
                    thread["resting"] = 1
                    break

            # ---- a step of a slice ----
            elif doing == GOT:
                row = words(w.item_at(tables, thread["slot"]))[w.FIRST]
                seconds = rank["scale"] * steps[program, row]
                if factors.shape[1]:
                    seconds *= factors[number, rank["drawn"]]
                    rank["drawn"] += 1
                if number == 0:
                    steps_s[whose[0, row, 0], whose[0, row, 1], 0] = now_s
                held_s = min(seconds, machine["interpreter_s"])
                thread["left_s"], thread["rest_s"] = held_s, seconds - held_s
                thread["state"] = COMPUTE
                if held_s:
                    thread["state"] = LOCK
                    if rank["lock"]:
                        rank["waiting"] += 1
                        thread["waits"] = rank["waiting"]
                        break
                    rank["lock"] = 1
                else:
                    thread["left_s"], thread["rest_s"] = seconds, -1.0
                    _change(rank, now_s, cores, 1)
            elif doing == LOCK:
                _change(rank, now_s, cores, 1)
                thread["state"] = COMPUTE
            elif doing == COMPUTE:
                if thread["left_s"] > 0:
                    thread["state"] = COMPUTING
                    _push(events, heap, now_s + thread["left_s"], who, GOES_ON)
                    break
                if thread["rest_s"] >= 0:
                    _unlock(siblings, first, now_s, rank, events, heap)
                    thread["left_s"], thread["rest_s"] = thread["rest_s"], -1.0
                    continue
                _change(rank, now_s, cores, -1)
                thread["state"] = STEPPED
            elif doing == COMPUTING:
                thread["left_s"], rank["debt_s"] = rank["debt_s"], 0.0
                thread["state"] = COMPUTE
            elif doing == STEPPED:
                if number == 0:
                    row = words(w.item_at(tables, thread["slot"]))[w.FIRST]
                    steps_s[whose[0, row, 0], whose[0, row, 1], 1] = now_s
                pass_item(tables, thread["slot"])
                thread["state"] = TEST if own == 0 else LOOK

            # ---- exchanges, in the calling thread ----
            elif doing == SEND:
                index = visits[state[w.VISIT]]
                slot = slots[number, index]
                exchange = slot["exchange"]
                transfer, partners = nbytes[program, exchange], messages[program, exchange]
                leaving = machine["remote"] * transfer * machine["weight"]
                node = number // machine["per_node"]
                if number == 0:
                    order[shown] = whose[1, exchange]
                    shown += 1
                    exchanges_s[whose[1, exchange, 0], whose[1, exchange, 1], 0] = now_s
                if arrived[index] == 0:
                    sent_s[index], large[index] = 0.0, 0
                    outgoing[index] = 0.0
                if transfer > machine["eager_nbytes"] * partners:
                    large[index] = 1
                    outgoing[index, node] += leaving
                elif leaving:
                    cards_s[node] = _send(cards_s[node], now_s, leaving, machine)
                    sent_s[index] = max(sent_s[index], cards_s[node], now_s)
                slot["done"], slot["mark_s"], slot["mark_busy_s"] = 0, now_s, _busy(rank, now_s, cores)
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
                thread["state"] = INSIDE
                if state[w.POLLED]:
                    words(w.slot_at(tables, index))[w.UNDER_WAY] = 1
                    state[w.FLYING] += 1
            elif doing == INSIDE:
                index = visits[state[w.VISIT]]
                if not state[w.POLLED] and not slots[number, index]["done"]:
                    break
                pass_item(tables, index)
                give_back(tables, index)
                state[w.VISIT] += 1
                _wake(siblings, first, now_s, events, heap)
                thread["state"] = LOOK
            elif doing == TEST:
                computed, thread["computed"] = thread["computed"], 0
                if state[w.FLYING]:
                    now_ns = int(1e9 * now_s)
                    if computed and now_ns - state[w.TESTED_AT] < TEST_NS:
                        thread["state"] = LOOK
                        continue
                    thread["computed"], thread["state"] = computed, TESTED
                    if poll_s > 0:
                        _push(events, heap, now_s + poll_s, who, GOES_ON)
                        break
                    continue
                if computed:
                    thread["state"] = LOOK
                elif state[w.VISIT] == len(visits) and all_ended(tables):
                    thread["state"] = AGREEING
                    arrivals[depth, arrived[depth]] = number
                    arrived[depth] += 1
                    if arrived[depth] == simulated:
                        _push(events, heap, now_s + machine["tree_s"], depth, COMPLETED)
                    break
                else:
                    thread["state"] = LOOK
                    if thread["idle"]:
                        thread["resting"] = 1
                        break
                    thread["idle"] = 1
            elif doing == TESTED:
                computed, thread["computed"] = thread["computed"], 0
                found = False
                for index in range(depth):
                    if words(w.slot_at(tables, index))[w.UNDER_WAY] and slots[number, index]["done"]:
                        words(w.slot_at(tables, index))[w.UNDER_WAY] = 0
                        state[w.FLYING] -= 1
                        found = True
                state[w.TESTED_AT] = int(1e9 * now_s)
                thread["state"] = LOOK
                if found:
                    _wake(siblings, first, now_s, events, heap)
                if not computed:
                    if thread["idle"] and not found:
                        thread["resting"] = 1
                        break
                    thread["idle"] = 1
            else:
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
    simulated = len(programs)
    different = list({id(program): program for program in programs}.values())
    number_of = {id(program): number for number, program in enumerate(different)}
    counts = [len(transfers) for transfers in different[0].transfers]
    slices, most = len(counts), max(counts, default=0)
    whose = np.zeros((2, sum(counts) + slices, 2), np.int64)
    for which, more in enumerate((1, 0)):  # of rows, then of exchanges
        places = [(key, index) for key, count in enumerate(counts) for index in range(count + more)]
        whose[which, : len(places)] = np.reshape(places, (-1, 2))
    steps = np.array([np.concatenate([(), *program.steps]) for program in different])
    sent = [[transfer for transfers in program.transfers for transfer in transfers] for program in different]
    nbytes = np.array([[transfer.nbytes for transfer in transfers] for transfers in sent], np.float64)
    messages = np.array([[transfer.messages for transfer in transfers] for transfers in sent], np.float64)
    ranks = np.zeros(simulated, RANK)
    ranks["program"] = [number_of[id(program)] for program in programs]
    ranks["scale"] = [1 / speed for speed in speeds]
    ranks["end_s"] = -1
    depth, per_rank = options.depth, 1 if options.wait == "off" else options.workers
    tables = _Tables(counts, options, simulated)
    threads = np.zeros((simulated, per_rank), THREAD)
    threads["slot"] = w.NONE
    of_all = _numbers(machine, options, simulated, per_rank)
    nodes = ceil(simulated / of_all["per_node"])
    order = np.zeros((sum(counts), 2), np.int64)
    steps_s, exchanges_s = np.zeros((slices, most + 1, 2)), np.zeros((slices, most, 2))
    _run(
        of_all,
        *(steps, nbytes, messages, whose, tables.visits, tables.calls, factors),
        *(ranks, threads, np.zeros((simulated, depth), SLOT)),
        *(np.zeros((depth + 1, simulated), np.int64), np.zeros(depth + 1, np.int64)),
        *(np.zeros(depth), np.zeros(depth, np.int64), np.zeros((depth, nodes)), np.full(nodes, -np.inf)),
        *(order, steps_s, exchanges_s),
    )
    return SimulatedRun(ranks["end_s"], order, steps_s, exchanges_s)


class _Tables:
    """The tables of a call for each simulated rank, with those parts that the rule reads.

    Parameters
    ----------
    counts : sequence of int
        Exchanges of each slice.
    options : Options
    simulated : int

    Attributes
    ----------
    visits : ndarray of int64
    calls : ndarray of int64
        The address of each rank's list of tables.
    """

    def __init__(self, counts: Sequence[int], options: Options, simulated: int) -> None:
        depth = options.depth
        slots: list[list[tuple[int, int, int]]] = [[] for _ in range(depth)]
        row = exchange = 0
        for key, count in enumerate(counts):
            items = slots[key % depth]
            items.append((w.RUN, row, 0))
            for place in range(count):
                items += [(w.EXCHANGE, exchange + place, 0), (w.RUN, row + place + 1, 0)]
            items.append((w.END, key, 0))
            row, exchange = row + count + 1, exchange + count
        turns = [sum(counts[slot::depth]) for slot in range(depth)]
        self.visits = np.array(
            [slot for turn in range(max(turns)) for slot in range(depth) if turn < turns[slot]], np.int64
        )
        self._items = np.array([item for items in slots for item in items], np.int64).reshape(-1, w.ITEM_WORDS)
        ends = np.cumsum([0, *map(len, slots)])
        self._bounds = np.array(list(pairwise(ends)), np.int64)
        sizes = {w.STATE: w.STATE_WORDS, w.SLOTS: w.SLOT_WORDS * depth, w.ENDED: len(counts)}
        self._words = np.zeros((simulated, w.ENTRY * w.TABLES + sum(sizes.values())), np.int64)
        own = self._words.strides[0] * np.arange(simulated) + self._words.ctypes.data
        self.calls, begin = own, w.ENTRY * w.TABLES
        for which, table in ((w.ITEMS, self._items), (w.BOUNDS, self._bounds)):
            self._words[:, w.ENTRY * which] = table.ctypes.data
        for which, count in sizes.items():
            self._words[:, w.ENTRY * which] = own + 8 * begin
            self._words[:, w.ENTRY * which + 1] = len(counts) if which == w.ENDED else depth
            if which == w.STATE:
                state = self._words[:, begin : begin + count]
                state[:, w.DEPTH], state[:, w.LIMIT], state[:, w.COMPUTES] = depth, options.limit, 1
                state[:, w.POLLED], state[:, w.HELD] = options.wait == "poll", w.NONE
            begin += count


def _numbers(machine: Machine, options: Options, simulated: int, threads: int) -> Any:
    """Return the record of values that are the same on all ranks."""
    per_node = min(options.ranks, machine.ranks_per_node)
    numbers = np.zeros((), MACHINE)
    for name in MACHINE.names or ():
        if hasattr(machine, name) and name != "threads":
            numbers[name] = getattr(machine, name)
    numbers["s_per_byte"], numbers["burst_s"] = 1 / machine.bandwidth_Bps, machine.burst_nbytes / machine.bandwidth_Bps
    numbers["tree_s"] = ceil(log2(options.ranks)) * (machine.latency_s + machine.message_s)
    numbers["remote"] = (options.ranks - per_node) / (options.ranks - 1) if options.ranks > 1 else 0.0
    numbers["weight"] = per_node if simulated < options.ranks else 1  # ranks of a node that one rank represents
    numbers["per_node"], numbers["threads"], numbers["depth"] = per_node, threads, options.depth
    return numbers[()]
