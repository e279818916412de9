"""A simulated rank: the source of the runtime's loop on a virtual clock.

`run` and `serve` of `overlap.runtime.loop.loop` and their rule run unchanged, as `loop_model` takes them from the
source. What is simulated is what they stand on: threads (`Clock`), MPI (`Network`), and the time that computing and
communicating take on the rank's cores.

Cores. A rank has one core per thread. The TCP stack comes on top: what it uses is charged for the share of time in
which all cores computed, to the step that ends next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import loop_model
import numpy as np
from loop_model import CALLS, CONTROL, words

from overlap.timing.simulate.machine import Machine, Options
from overlap.timing.simulate.simulated_program import Program

from .clock import Clock
from .network import Network, Ticket

NEVER_NS = 1 << 60
CODE = loop_model.sources()


class Rank(loop_model.Machine):
    """One rank and its threads.

    Parameters
    ----------
    number : int
    clock : Clock
    network : Network
    machine : Machine
    program : Program
    settings : Options
    random : numpy.random.Generator or None
        For jitter.
    """

    def __init__(
        self,
        number: int,
        clock: Clock,
        network: Network,
        machine: Machine,
        program: Program,
        settings: Options,
        random: np.random.Generator | None = None,
    ) -> None:
        self._threads = 1 if settings.wait == "off" else settings.workers
        self._limit = settings.limit
        plan = self._plan(program, settings.depth)
        super().__init__([plan], self._threads, 0, settings.wait == "poll", CODE)
        self.plan, self.number, self.clock, self.network, self.machine = plan, number, clock, network, machine
        self.end_s: float | None = None
        self._jitter: Iterator[float] | None = None
        if random is not None:
            count = sum(map(len, program.steps))  # factors of mean 1
            self._jitter = iter(random.lognormal(-(machine.jitter**2) / 2, machine.jitter, count).tolist())
        self._computing = 0  # threads
        self._debt_s = 0.0  # core time that others took and a thread still has to wait for
        self._busy_s = self._busy_since_s = 0.0  # time with all cores computing, up to a moment
        self._blocked: Callable[[], object] | None = None  # wakes the thread inside a blocking call
        self._resting: dict[int, Callable[[], object]] = {}  # by thread: what wakes it
        self._asleep: list[Callable[[], object]] = []  # threads of the crew that no call has woken
        self._lock: deque[Callable[[], object]] = deque()  # who waits for the interpreter
        self._locked = self._sweeps = self._found = False
        self._number: dict[object, int] = {}  # of a thread
        self._issued = 0
        self._tickets: dict[int, Ticket] = {}
        self._given_back: dict[int, tuple[int, int]] = {}
        self._stand_in()
        clock.spawn(self._main)
        for worker in range(1, self._threads):
            clock.spawn(lambda worker=worker: self._crew(worker))  # type: ignore[misc]

    def _plan(self, program: Program, depth: int) -> loop_model.Plan:
        self._seconds, self._transfers, slices = [], [], []  # type: list[float], list[object], list[object]
        self._signatures: list[tuple[int, int]] = []
        for key, (steps, transfers) in enumerate(zip(program.steps, program.transfers)):
            items = []
            for place, seconds in enumerate(steps):
                items.append((words.RUN, len(self._seconds), 0))
                self._seconds.append(seconds)
                if place < len(transfers):
                    items.append((words.EXCHANGE, len(self._transfers), 0))
                    self._transfers.append(transfers[place])
                    self._signatures.append((key, place))
            slices.append([*items, (words.END, key, 0)])
        return loop_model.Plan(slices, depth, len(self._seconds), len(self._transfers))

    def _stand_in(self) -> None:
        """Put this clock, this network and these cores in the place of what the loop stands on."""
        space = self.functions.run.__globals__
        tested = space["_tested"]
        space |= {
            "HOT_NS": NEVER_NS,
            "TICK_NS": NEVER_NS,
            "SPIN_NS": -1,
            "SPINS": 1,
            "pause": lambda: None,
            "sched_yield": self.rest,
            "rest": lambda tables: self.rest(),
            "exchange_word": lambda address, value: self.changed(address, lambda word: value),
            "add_word": lambda address, value: self.changed(address, lambda word: word + value),
            "begin_wait": lambda tables, waits, about: self.since(tables, 1),
            "end_wait": lambda tables: self.since(tables, 0),
            "agreed": lambda tables: self.agree(),
            "_tested": lambda *given: self.sweep() or tested(*given),
        }

    # ---- the threads ----

    def _main(self) -> None:
        self._number[self.clock.thread()] = 0
        tables = self.place(CALLS, self.plans[0])
        state = self.memory[tables + 16 * words.STATE]
        self.memory[state + 8 * words.LIMIT] = self._limit
        outcome = self.functions.run(tables, CALLS)
        assert outcome == words.OVER, outcome
        self.end_s = self.clock.now_s

    def _crew(self, worker: int) -> None:
        self._number[self.clock.thread()] = worker
        self.functions.serve(CONTROL, worker, words.NONE)

    def turn(self) -> None:
        """Go on: threads give way where they compute, wait or rest."""

    def rest(self) -> bool:
        """Wait until something has changed: an exchange has ended, or another thread has given a slot back."""
        if self._found and self._number[self.clock.thread()] == 0:
            self._found = False
            return False
        self._resting[self._number[self.clock.thread()]] = self.clock.waker()
        self.clock.suspend()
        return False

    def wake_all(self) -> None:
        """Let all resting threads look again."""
        for number in sorted(self._resting):
            self.clock.at(self.clock.now_s, self._resting.pop(number))

    def sleep(self, address: int, word: int) -> None:
        if self.memory.get(address, 0) == word:
            self._asleep.append(self.clock.waker())
            self.clock.suspend()

    def wake(self, address: int, count: int) -> None:
        for waker in self._asleep[:count]:
            self.clock.at(self.clock.now_s, waker)
        del self._asleep[:count]

    # ---- memory ----

    def store(self, address: int, value: int) -> None:
        self.memory[address] = int(value)
        slot, word = divmod(address - self._slots, 8 * words.SLOT_WORDS)
        if 0 <= slot < self.plan.depth and word in (8 * words.OWNER, 8 * words.UNDER_WAY) and not value:
            # What a slot comes to may be another thing than when it was last given back.
            now = self.memory[address - word + 8 * words.POSITION], word
            if self._given_back.get(slot) != now:
                self._given_back[slot] = now
                self.wake_all()
            self._found |= word == 8 * words.UNDER_WAY

    def changed(self, address: int, function: Callable[[int], int]) -> int:
        """Change a word of the control, which other threads wait for."""
        before = self.change(address, function)
        self.wake_all()
        return before

    def now(self) -> int:
        return int(1e9 * self.clock.now_s)

    def since(self, tables: int, value: int) -> None:
        """Note that the calling thread has nothing to compute, or that it has."""
        self.memory[self.memory[tables + 16 * words.STATE] + 8 * words.SINCE] = value

    # ---- what takes time ----

    def run_row(self, tables: int, number: int, worker: int, bases: object) -> None:
        """Compute on a core, and wait for what is taken from it meanwhile."""
        seconds = self._seconds[number]
        if self._jitter is not None:
            seconds *= next(self._jitter)
        if held_s := min(seconds, self.machine.interpreter_s):
            if self._locked:
                self._lock.append(self.clock.waker())
                self.clock.suspend()
            self._locked = True
            self._hold_core(held_s)
            self._locked = False
            if self._lock:
                self._locked = True
                self.clock.at(self.clock.now_s, self._lock.popleft())
        self._hold_core(seconds - held_s)

    def _hold_core(self, seconds: float) -> None:
        self._change(1)
        while seconds > 0:
            self.clock.sleep(seconds)
            seconds, self._debt_s = self._debt_s, 0.0
        self._change(-1)

    def mark(self) -> tuple[float, float]:
        """Now, and the time so far with all cores computing."""
        now_s = self.clock.now_s
        busy_s = self._busy_s
        if self._computing >= self._threads:
            busy_s += now_s - self._busy_since_s
        return now_s, busy_s

    def _charge(self, seconds: float, mark: tuple[float, float]) -> None:
        """Core time used since `mark` by the kernel."""
        now_s, busy_s = self.mark()
        if now_s > mark[0]:
            self._debt_s += seconds * (busy_s - mark[1]) / (now_s - mark[0])

    def _change(self, more: int) -> None:
        """One thread more, or less, computes."""
        now_s, self._busy_s = self.mark()
        self._busy_since_s = now_s
        self._computing += more

    # ---- MPI ----

    def call_mpi(self, function: int, given: tuple[int, ...]) -> int:
        if function == words.TEST:
            if self._sweeps and self.machine.poll_s:
                self.clock.sleep(self.machine.poll_s)
            self._sweeps = False
            self.memory[given[1]] = int(self._tickets[given[0]].done)
            return 0
        number = given[1]
        transfer, machine = self._transfers[number], self.machine
        local = (1 - self.network.remote) * transfer.nbytes
        seconds = machine.operation_s + machine.message_s * transfer.messages + local / machine.copy_Bps
        if seconds > 0:
            self.clock.sleep(seconds)
        self._issued += 1
        ticket = self.network.exchange(self._issued, self, transfer, self._signatures[number])
        if function == words.IALLTOALLV:
            self._tickets[given[-1]] = ticket
        else:
            ticket.Wait()
        return 0

    def sweep(self) -> None:
        """Begin a look at all that is under way, which takes its time once."""
        self._sweeps, self._found = True, False

    def agree(self) -> int:
        """Add up a small number over all ranks, at the end of the call."""
        self.network.reduction(1, self, np.zeros(1)).Wait()
        return words.OVER

    def completed(self, ticket: Ticket) -> None:
        """Note that an exchange or a reduction is over."""
        if self.machine.byte_s:
            self._charge(self.machine.byte_s * ticket.nbytes, ticket.mark)
        if self._blocked is not None:
            waker, self._blocked = self._blocked, None
            self.clock.at(self.clock.now_s, waker)
        elif 0 in self._resting:
            self.clock.at(self.clock.now_s + self.machine.wake_s, self._resting.pop(0))

    def sleep_until_completion(self) -> None:
        """Be in a blocking call."""
        self._blocked = self.clock.waker()
        self.clock.suspend()
