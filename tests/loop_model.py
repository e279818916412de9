"""A model of memory and threads, on which the compiled loop runs in random order.

What runs is the source of `overlap.runtime.loop`, as Python, with other functions in the place of loads, stores, MPI
and sleep. The threads take turns at each atomic access. Memory is as on x86: what a thread stores goes to its store
buffer, from there to the memory in order, some time later; an exchange, an addition or a compare-and-swap waits until
the buffer is empty. A thread sleeps until it is woken, and a call's tables are gone when the call has ended. To touch
them then is a violation, as are rows that run twice, too early or not at all, exchanges in another order, and a call
that never ends.
"""

import inspect
import random
import re
from itertools import pairwise
from types import SimpleNamespace

import greenlet

from overlap.runtime.loop import loop, rule, words

CONTROL, CALLS, CALL = 1 << 20, 1 << 30, 1 << 24  # addresses: the control; the memory of every call
STEPS = 200_000  # after so many the call never ends


class Violation(AssertionError):
    """Something that must not happen in any order."""


def sources(changes=()):
    """The functions of the loop in plain Python, with a few lines changed: pairs (old, new)."""
    texts = []
    for module in (words, rule, loop):
        text = inspect.getsource(module)
        text = re.sub(r"^from \S+ import (\([^)]*\)|[^\n]*)\n", "", text, flags=re.M)
        text = re.sub(r"^import [^\n]*\n", "", text, flags=re.M)
        texts.append(re.sub(r"\bw\.", "", text) if module is not words else text)
    joined = "\n".join(texts)
    for old, new in changes:
        assert joined.count(old) == 1, (old, joined.count(old))
        joined = joined.replace(old, new)
    return compile("from __future__ import annotations\n" + joined, "the loop, as the model runs it", "exec")


class Plan:
    """A plan's schedule: for every slice its items, as (kind, first, last), on `depth` slots."""

    def __init__(self, slices, depth, rows, exchanges):
        self.depth, self.count = depth, len(slices)
        self.rows, self.exchanges = rows, exchanges
        slots = [[item for items in slices[slot::depth] for item in items] for slot in range(depth)]
        turns = [sum(item[0] in (words.EXCHANGE, words.TURN) for item in items) for items in slots]
        self.visits = [slot for turn in range(max(turns)) for slot in range(depth) if turn < turns[slot]]
        self.items = [item for items in slots for item in items]
        ends = [sum(map(len, slots[:slot])) for slot in range(depth + 1)]
        self.bounds = list(pairwise(ends))
        # What must have been done before a row runs: rows of its slice and of slices that it waits for; exchanges.
        self.before = {}
        self.rows_of = [[row for item in items for row in _rows(item)] for items in slices]
        for items in slices:
            needed = set()
            for item in items:
                for row in _rows(item):
                    self.before[row] = frozenset(needed)
                if item[0] == words.WAIT:
                    needed.update(("row", row) for number in range(*item[1:]) for row in self.rows_of[number])
                elif item[0] == words.EXCHANGE:
                    needed.add(("exchange", item[1]))
                needed.update(("row", row) for row in _rows(item))
        # The exchanges in the order in which they must be issued.
        listed = [[item for item in items if item[0] in (words.EXCHANGE, words.TURN)] for items in slots]
        taken = [iter(items) for items in listed]
        self.order = [item[1] for item in (next(taken[slot]) for slot in self.visits) if item[0] == words.EXCHANGE]


def _rows(item):
    """The rows of an item."""
    return {words.RUN: range(item[1], item[1] + 1), words.SPLIT: range(*item[1:])}.get(item[0], ())


class Machine:
    """Threads of one rank: a calling thread, and a crew.

    Parameters
    ----------
    plans : list of Plan
        A call of each, one after the other.
    workers : int
    seed : int
        Draws the order.
    polled : bool
    code : code object
        What `sources` gives.
    """

    def __init__(self, plans, workers, seed, polled, code):
        self.plans, self.polled, self.chance = plans, polled, random.Random(seed)
        self.memory, self.clock, self.steps = {}, 0, 0
        self.freed = set()  # calls that have ended
        self.ran, self.issued = [], []
        self.sleeping = {}  # thread -> address
        self.buffers = {}
        space = {
            "__name__": "model",
            "njit": lambda function: function,
            "np": SimpleNamespace(empty=lambda count, kind: [0] * count, int64=None),
            "words": lambda address: Pointer(self, address),
            "load_acquire": lambda address: self.turn() or self.load(address),
            "store_release": lambda address, value: self.turn() or self.store(address, value),
            "exchange_word": lambda address, value: self.change(address, lambda word: value),
            "add_word": lambda address, value: self.change(address, lambda word: word + value),
            "replace_word": self.replace,
            "pause": self.turn,
            "sched_yield": self.turn,
            "usleep": lambda microseconds: self.turn(),
            "sleep_while": self.sleep,
            "wake": self.wake,
            "clock_ns": lambda place: self.now(),
            "now_ns": lambda tables: self.now(),
            "call_mpi": self.call_mpi,
            "load_int": self.load,
            "met": lambda tables: words.OVER,
            "agreed": lambda tables: words.OVER,
            "rest": lambda tables: self.turn() and False,
            "begin_wait": lambda tables, waits, about: None,
            "end_wait": lambda tables: None,
            "WIDTH": 1,
            "SHORTEST_SLEEP_US": 20,
            "LONGEST_SLEEP_US": 500,
            "CALLS": 0,
            "WALL_NS": 1,
            "COMPUTING_NS": 2,
            "THREADS_NS": 3,
        }
        exec(code, space)
        space["_run_row"] = self.run_row
        space["SPINS"] = 2  # so that threads come to sleep in few steps
        self.functions = SimpleNamespace(**space)
        self.threads = [greenlet.greenlet(self.caller)]
        self.threads += [greenlet.greenlet(lambda worker=worker: self.crew(worker)) for worker in range(1, workers)]
        self.names = {thread: number for number, thread in enumerate(self.threads)}
        self.workers = workers

    # ---- what the threads do -----------------------------------------------------------------------

    def caller(self):
        w = words
        for number, plan in enumerate(self.plans):
            base = CALLS + CALL * number
            tables = self.place(base, plan)
            self.ran, self.issued, self.plan = [], [], plan
            outcome = self.functions.run(tables, base)
            if outcome != w.OVER:
                raise Violation(f"call {number} has ended with {outcome}")
            if sorted(row for row, _ in self.ran) != list(range(plan.rows)):
                raise Violation(f"rows that ran: {sorted(row for row, _ in self.ran)}")
            if self.issued != plan.order:
                raise Violation(f"exchanges were issued in the order {self.issued}, expected {plan.order}")
            self.drain_all()
            self.freed.add(number)
        self.functions.dismiss(CONTROL)

    def crew(self, worker):
        if self.functions.serve(CONTROL, worker, words.NONE) != words.LEFT:
            raise Violation("a thread of the crew has returned for a Python function that is not there")

    def place(self, base, plan):
        """Write a call's tables to memory; return their address."""
        w, at = words, base + 8 * 100
        listed = [(0, 0)] * w.TABLES

        def table(which, values, count):
            nonlocal at
            listed[which] = at, count
            for place, value in enumerate(values):
                self.memory[at + 8 * place] = value
            at += 8 * max(1, len(values))

        table(w.ITEMS, [word for item in plan.items for word in item], len(plan.items))
        table(w.BOUNDS, [word for pair in plan.bounds for word in pair], plan.depth)
        table(w.VISITS, plan.visits, len(plan.visits))
        table(w.ROWS, [0] * w.ROW_WORDS * plan.rows, plan.rows)
        table(w.EXCHANGES, [0] * w.EXCHANGE_WORDS * max(1, plan.exchanges), plan.exchanges)
        for number in range(plan.exchanges):
            # The address of the communicator's word, which lies in the call's memory, too.
            self.memory[listed[w.EXCHANGES][0] + 8 * (w.EXCHANGE_WORDS * number + w.COMM)] = base
            self.memory[listed[w.EXCHANGES][0] + 8 * (w.EXCHANGE_WORDS * number + w.COUNTS_SENT)] = number
            self.memory[listed[w.EXCHANGES][0] + 8 * (w.EXCHANGE_WORDS * number + w.SENT)] = w.FIXED
            self.memory[listed[w.EXCHANGES][0] + 8 * (w.EXCHANGE_WORDS * number + w.RECEIVED)] = w.FIXED
        table(w.MPI, [0] * w.MPI_WORDS, 1)
        mpi = listed[w.MPI][0]
        for name in (w.ALLTOALLV, w.IALLTOALLV, w.TEST):
            self.memory[mpi + 8 * name] = name
        state = [0] * w.STATE_WORDS
        state[w.DEPTH], state[w.LIMIT], state[w.POLLED], state[w.ALONE] = plan.depth, plan.depth, self.polled, 1
        state[w.COMPUTES_TOO] = state[w.EXCHANGES_TOO] = 1
        state[w.CONTROL], state[w.CREW], state[w.COMPUTED] = CONTROL, self.workers - 1, 10**9
        table(w.STATE, state, 1)
        self._slots = at
        table(w.SLOTS, [0] * w.SLOT_WORDS * plan.depth, plan.depth)
        table(w.ENDED, [0] * plan.count, plan.count)
        tables = at
        for place, pair in enumerate(listed):
            self.memory[tables + 16 * place], self.memory[tables + 16 * place + 8] = pair
        self.memory[base] = 0
        return tables

    def run_row(self, tables, number, worker, bases):
        self.turn()
        done = {("row", row) for row, _ in self.ran} | {("exchange", exchange) for exchange in self.issued}
        if missing := self.plan.before[number] - done:
            raise Violation(f"row {number} ran before {sorted(missing)}")
        self.ran.append((number, worker))

    def call_mpi(self, function, given):
        w = words
        if function == w.TEST:
            self.store(given[1], int(self.chance.random() < 0.3))
        else:
            self.issued.append(given[1])
        return 0

    # ---- memory --------------------------------------------------------------------------------------

    @property
    def buffer(self):
        return self.buffers.setdefault(greenlet.getcurrent(), [])

    def check(self, address):
        if address >= CALLS and (address - CALLS) // CALL in self.freed:
            raise Violation(f"thread {self.names[greenlet.getcurrent()]} touches a call that has ended")

    def load(self, address):
        self.check(address)
        for stored_at, value in reversed(self.buffer):
            if stored_at == address:
                return value
        return self.memory.get(address, 0)

    def store(self, address, value):
        self.check(address)
        self.buffer.append((address, int(value)))

    def change(self, address, function):
        self.turn()
        self.check(address)
        self.drain(self.buffer, len(self.buffer))
        before = self.memory.get(address, 0)
        self.memory[address] = int(function(before))
        return before

    def replace(self, address, expected, value):
        return self.change(address, lambda word: value if word == expected else word) == expected

    def drain(self, buffer, count):
        for address, value in buffer[:count]:
            self.memory[address] = value
        del buffer[:count]

    def drain_all(self):
        for buffer in self.buffers.values():
            self.drain(buffer, len(buffer))

    def now(self):
        self.clock += 1_000
        return self.clock

    # ---- turns ---------------------------------------------------------------------------------------

    def turn(self):
        """Let any thread go on."""
        self.main.switch()

    def sleep(self, address, word):
        self.turn()
        self.drain(self.buffer, len(self.buffer))
        if self.memory.get(address, 0) == word:
            self.sleeping[greenlet.getcurrent()] = address
            self.turn()

    def wake(self, address, count):
        self.turn()
        for thread in [thread for thread, at in self.sleeping.items() if at == address][:count]:
            del self.sleeping[thread]

    def run(self):
        """Run all threads to their end, in an order drawn at random."""
        self.main = greenlet.getcurrent()
        while True:
            going = [thread for thread in self.threads if not thread.dead]
            if not going:
                return
            ready = [thread for thread in going if thread not in self.sleeping]
            if not ready:
                raise Violation(f"threads {[self.names[thread] for thread in going]} sleep for ever")
            self.steps += 1
            if self.steps > STEPS:
                raise Violation("a call never ends")
            for buffer in self.buffers.values():
                if buffer and self.chance.random() < 0.2:
                    self.drain(buffer, self.chance.randint(1, len(buffer)))
            # A thread goes on for a while, so that others stand still meanwhile, in the middle of anything.
            thread = self.chance.choice(ready)
            for _ in range(self.chance.choice((1, 1, 2, 5, 20))):
                thread.switch()
                if thread.dead or thread in self.sleeping:
                    break


class Pointer:
    """Words at an address."""

    def __init__(self, machine, address):
        self._machine, self._address = machine, address

    def __getitem__(self, place):
        return self._machine.load(self._address + 8 * place)

    def __setitem__(self, place, value):
        self._machine.store(self._address + 8 * place, value)


def drawn_plan(chance):
    """Draw a plan: slices that compute, share, exchange, take turns and wait for earlier ones."""
    w, rows, exchanges, slices = words, 0, 0, []
    for number in range(chance.randint(1, 5)):
        items = []
        for _ in range(chance.randint(0, 2)):
            if chance.random() < 0.3:
                count = chance.randint(1, 3)
                items.append((w.SPLIT, rows, rows + count))
                rows += count
            else:
                items.append((w.RUN, rows, 0))
                rows += 1
        if chance.random() < 0.8:
            items.append((w.EXCHANGE, exchanges, 0))
            exchanges += 1
        else:
            items.append((w.TURN, 0, 0))
        if number and chance.random() < 0.4:
            first = chance.randrange(number)
            items.append((w.WAIT, first, chance.randint(first, number)))
        for _ in range(chance.randint(0, 2)):
            items.append((w.RUN, rows, 0))
            rows += 1
        items.append((w.END, number, 0))
        slices.append(items)
    return Plan(slices, chance.randint(1, len(slices)), rows, exchanges)


def shared_items(chance):
    """Draw a plan of one slice, which comes from one shared item of a single part to the next."""
    rows = chance.randint(3, 8)
    items = [(words.SPLIT, row, row + 1) for row in range(rows)]
    return Plan([[*items, (words.TURN, 0, 0), (words.END, 0, 0)]], 1, rows, 0)


def explore(seed, changes=(), count=1, draw=drawn_plan):
    """Run drawn programs of a few calls, in drawn orders; raise a `Violation` if one goes wrong."""
    code = sources(changes)
    for number in range(count):
        chance = random.Random(f"{seed} {number}")
        plans = [draw(chance) for _ in range(chance.randint(1, 3))]
        Machine(plans, chance.randint(1, 4), chance.random(), chance.random() < 0.7, code).run()
