"""A simulated rank: the runtime's own code on a virtual clock.

`Job`, `Slot`, the rotation and the agreements of `Executor`, the ways to wait, the ready
steps and the core tokens are those of `overlap.runtime`. What is simulated is what they stand on: threads
(`Clock`), MPI (`Network`), and the time that computing and communicating take on the rank's cores.

Cores. A rank has one core per worker. Its workers compute on them; the communicator and the TCP
stack come on top, and what they use is taken from the workers where no core is idle: all of it is
charged for the share of time in which all cores were busy, to the step that ends next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from overlap.runtime.requests.agreement import weight
from overlap.runtime.requests.requests import Operation
from overlap.runtime.scheduling.executor import Executor
from overlap.runtime.scheduling.host import Host
from overlap.runtime.scheduling.job import Job
from overlap.runtime.scheduling.polling import POLLS_PER_EXCHANGE
from overlap.runtime.scheduling.ready_steps import CoreTokens, ReadySteps
from overlap.timing.simulate.machine import Machine
from overlap.timing.simulate.run_options import Options
from overlap.timing.simulate.simulated_program import Program, SimulatedTransfer

from .clock import Clock, Queue, SimulatedWakeEvent
from .network import Network, Ticket


class VirtualOperation(Operation):
    """An exchange of one slice."""

    __slots__ = ("rank", "signature", "transfer")

    def __init__(self, rank: Rank, transfer: SimulatedTransfer, signature: tuple[int, int]) -> None:
        super().__init__(rank.comm, "Alltoall", (), {})
        self.rank = rank
        self.transfer = transfer
        self.signature = signature

    def make(self, blocking: bool) -> None:
        request = self.rank.issue(self)
        if blocking:
            request.Wait()
        self.requests.append(request)

    def on_scratch(self, resources: object = None) -> VirtualOperation:
        return self

    def collective_signature(self) -> tuple[int, int]:
        return self.signature

    def __str__(self) -> str:
        return f"exchange {self.signature}"


class _Comm:
    """The communicator of the exchanges."""

    number = 0

    def __init__(self, rank: int, ranks: int) -> None:
        self.weight = weight(rank, ranks)


class _Coordinator:
    """The runtime's coordinator: small sums over the simulated ranks."""

    def __init__(self, rank: Rank, ranks: int) -> None:
        self.rank, self.size = rank.number, ranks
        self._rank = rank
        self._reductions = 0

    def Iallreduce(self, _: object, values: np.ndarray, op: object) -> Ticket:
        self._reductions += 1
        return self._rank.network.reduction(self._reductions, self._rank, np.asarray(values))

    def Allreduce(self, _: object, values: np.ndarray, op: object) -> None:
        self.Iallreduce(_, values, op).Wait()


class Rank:
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
        self.number = number
        self.comm: Any = _Comm(number, network.simulated)
        self.clock = clock
        self.network = network
        self.machine = machine
        self.end_s: float | None = None
        self._issued = 0
        self._program = program
        self._settings = settings
        self._jitter: Iterator[float] | None = None
        if random is not None:
            count = sum(map(len, program.steps))  # factors of mean 1
            self._jitter = iter(random.lognormal(-(machine.jitter**2) / 2, machine.jitter, count).tolist())
        self._computing = 0  # threads
        self._debt_s = 0.0  # core time that others took and a worker still has to wait for
        self._busy_s = self._busy_since_s = 0.0  # time with all cores busy, up to a moment
        self._blocked: Callable[[], object] | None = None  # wakes the thread inside a blocking call
        self._interpreter = CoreTokens(1, partial(Queue, clock))
        self._wake_event: Any = None  # of the communicator
        self._polled = self.mark()
        clock.spawn(self._main)

    # ---- the threads ----

    def _main(self) -> None:
        settings = self._settings
        workers = None
        if settings.wait != "off":
            workers = ReadySteps(_fail, partial(Queue, self.clock))
            if settings.wait == "block":
                workers.core_tokens = CoreTokens(settings.workers, partial(Queue, self.clock))
            for _ in range(settings.workers):
                self.clock.spawn(workers.work)
        # To look takes no time on this clock: nothing is polled for without sleep.
        host = Host(self.clock, self._make_event, self._test_some, hot_s=0.0)
        coordinator = _Coordinator(self, self.network.simulated)
        executor = Executor(coordinator, [], {}, settings.agree_every, host)
        job = Job(
            range(len(self._program.steps)),
            self._slice,
            self._slice,
            [None] * settings.depth,
            settings.depth,
            workers,
            None,
            executor.lock,
        )
        waiting = executor.waiting(
            settings.wait, job, workers, settings.limit, POLLS_PER_EXCHANGE, here=workers is None
        )
        error = executor.run(job, waiting)
        if error is not None:
            raise error
        self.end_s = self.clock.now_s
        if workers is not None:
            for _ in range(settings.workers):
                workers.stop()

    def _make_event(self) -> SimulatedWakeEvent:
        self._wake_event = SimulatedWakeEvent(self.clock, self.wake_s)
        return self._wake_event

    def _test_some(self, tickets: Sequence[Ticket]) -> list[int]:
        """Look which exchanges are over, as `MPI.Request.Testsome`; a look takes its time."""
        poll_s = self.machine.poll_s
        if poll_s:
            self.charge(self._wake_event.skipped() * poll_s, self._polled)
            self.occupy(poll_s)
            self._polled = self.mark()
        done = [place for place, ticket in enumerate(tickets) if ticket.done]
        if not done:
            self._wake_event.between_polls(poll_s)
        return done

    async def _slice(self, key: int, resources: None) -> None:
        steps, transfers = self._program.steps[key], self._program.transfers[key]
        self.compute(steps[0])
        for place, transfer in enumerate(transfers):
            await VirtualOperation(self, transfer, (key, place))
            self.compute(steps[place + 1])

    # ---- what takes time ----

    def compute(self, seconds: float) -> None:
        """Compute on a core, and wait for what is taken from it meanwhile."""
        if self._jitter is not None:
            seconds *= next(self._jitter)
        if held_s := min(seconds, self.machine.interpreter_s):
            with self._interpreter:
                self._hold_core(held_s)
        self._hold_core(seconds - held_s)

    def _hold_core(self, seconds: float) -> None:
        self._change(1)
        while seconds > 0:
            self.clock.sleep(seconds)
            seconds, self._debt_s = self._debt_s, 0.0
        self._change(-1)

    def occupy(self, seconds: float) -> None:
        """Use a core in the communicator, at once."""
        if seconds > 0:
            mark = self.mark()
            self.clock.sleep(seconds)
            self.charge(seconds, mark)

    def wake_s(self) -> float:
        """Tell how late the communicator wakes, as the cores are now."""
        if self._computing >= self._settings.workers:
            return self.machine.busy_wake_s
        return self.machine.wake_s

    def mark(self) -> tuple[float, float]:
        """Now, and the time so far with all cores busy."""
        now_s = self.clock.now_s
        busy_s = self._busy_s
        if self._computing >= self._settings.workers:
            busy_s += now_s - self._busy_since_s
        return now_s, busy_s

    def charge(self, seconds: float, mark: tuple[float, float]) -> None:
        """Core time used since `mark` by others than the workers."""
        now_s, busy_s = self.mark()
        if now_s > mark[0]:
            self._debt_s += seconds * (busy_s - mark[1]) / (now_s - mark[0])

    def _change(self, more: int) -> None:
        """One thread more, or less, computes."""
        now_s, self._busy_s = self.mark()
        self._busy_since_s = now_s
        self._computing += more

    # ---- MPI ----

    def issue(self, operation: VirtualOperation) -> Ticket:
        """Start an exchange: MPI and the runtime take their time, then the network has it."""
        transfer, machine = operation.transfer, self.machine
        self._issued += 1
        local = (1 - self.network.remote) * transfer.nbytes
        self.occupy(machine.operation_s + machine.message_s * transfer.messages + local / machine.copy_Bps)
        return self.network.exchange(self._issued, self, transfer, operation.signature)

    def completed(self, ticket: Ticket) -> None:
        """Note that an exchange or a reduction is over."""
        if self.machine.byte_s:
            self.charge(self.machine.byte_s * ticket.nbytes, ticket.mark)
        if self._blocked is not None:
            waker, self._blocked = self._blocked, None
            self.clock.at(self.clock.now_s, waker)
        if self._wake_event is not None:
            self._wake_event.happened()

    def sleep_until_completion(self) -> None:
        """Be in a blocking call."""
        self._blocked = self.clock.waker()
        self.clock.suspend()


def _fail(error: BaseException) -> None:
    raise error
