"""One rank of a schedule: what the runtime does there, the programs it is given, and what must hold."""

from functools import partial

import numpy as np

from overlap.errors import SliceError, formatted

from . import threads
from .network import NO_LIMIT, Violation

ISSUED = ("op", "start", "finish", "turn")  # steps that are alike in a program and in its skeleton


class Injected(Exception):
    """What the programs raise."""


class Unspeakable(Exception):
    """An exception that cannot be shown."""

    def __str__(self):
        raise KeyError("no text")

    def __getattr__(self, name):
        raise KeyError(name)


class Key:
    """What a slice is called; its text is its number, or none."""

    def __init__(self, number, shown):
        self.number = number
        self._shown = shown

    def __str__(self):
        if not self._shown:
            raise KeyError(self.number)
        return str(self.number)


class Held:
    """Counts how many of its kind live: what a slice, or a call, holds."""

    def __init__(self, living):
        self._living = living
        living[0] += 1

    def __del__(self):
        self._living[0] -= 1


class Aborted(Exception):
    """The runtime gave the job up."""


class Payload(np.ndarray):
    """A buffer that knows whose it is. Copies of it do not, as on scratch."""

    identity = None  # (call, slice, step)
    genuine = False  # the program's, not the skeleton's


def payload(identity, genuine):
    buffer = np.ndarray.__new__(Payload, 1, np.int64)
    buffer.identity = identity
    buffer.genuine = genuine
    return buffer


class Rank:
    """One rank: the thread that calls, its workers and its communicator, on the schedule's clock."""

    def __init__(self, world, number):
        self.world = world
        self.number = number
        self.network = world.network
        self.point = world.clock.point
        self.outcomes = []
        self.issued = []  # per call, (slice, step) of the operations
        self.steps = None  # (slice, step), as they were begun
        self.logs = []
        self.kept = []  # per call, whether something holds what the program was given
        self.ended = None
        self.doing = "its start"
        world.clock.start(self._main, f"rank {number}")

    # ---- what `Runtime` does ----

    def _main(self):
        try:
            self._run_all()
        except threads.Stuck:
            raise
        except BaseException as error:
            self._abort(error)

    def _run_all(self):
        world, runtime, plan = self.world, self.world.runtime, self.world.plan
        wrapped = []
        self.tokens = runtime.ready_steps.CoreTokens(plan.workers, threads.SimpleQueue)
        self.source = world.sources[self.number]
        self.comm = runtime.requests.AsyncComm(self.source, 0, None, False)
        wrapped.append(self.comm)
        self.executor = runtime.executor.Executor(world.coordinator[self.number], wrapped, {}, plan.agree_every)
        self.pools = {}  # placement -> its workers
        for index, call in enumerate(plan.calls):
            self.doing = f"call {index}"
            self._call(index, call)
        for placement, pool in self.pools.items():
            for _ in self._indices(placement):
                pool.stop()
        self.doing = None

    def _indices(self, placement):
        """The numbers of a placement's workers."""
        return range(placement == "helped", self.world.plan.workers)

    def _workers(self, placement, wait):
        """A placement's workers; started when they are first needed."""
        if placement == "alone":
            return None
        if placement not in self.pools:
            pool = self.pools[placement] = self.world.runtime.ready_steps.ReadySteps(self._abort, threads.SimpleQueue)
            for index in self._indices(placement):
                self.world.clock.start(pool.work, f"rank {self.number} worker {index}, {placement}")
        self.pools[placement].core_tokens = self.tokens if wait == "block" and placement == "threads" else None
        return self.pools[placement]

    def _placement(self, call):
        """Which threads run a call here; see `overlap.runtime.threads.placement`."""
        if call.wait == "off":
            return "alone"
        placement = call.placements[self.number] if call.placements else "threads"
        if len(call.steps) == 1:
            placement = "helped"
        return "alone" if placement == "helped" and self.world.plan.workers == 1 else placement

    def _call(self, index, call):
        runtime, network, number = self.world.runtime, self.network, self.number
        placement = self._placement(call)
        pool = self._workers(placement, call.wait)
        network.cores[number] = self.world.plan.workers if call.wait == "block" else NO_LIMIT
        starts = max((sum(step[0] == "start" for step in steps) for steps in call.steps), default=0)
        parked = any(("barrier",) in steps for steps in call.steps)  # slices of all slots come to wait there
        network.limits[number] = starts * (len(call.steps) if parked else call.depth) + (
            call.in_flight if call.wait == "poll" else 1
        )
        self.log, self.ended, self.arrived, self.living = [], set(), {}, [0]
        self.logs.append(self.log)
        self.kept.append([0])
        resources = [set() if call.buffers else None for _ in range(call.depth)]
        handle = self.source.latest
        keys = [Key(number, call.shown) for number in range(len(call.steps))]
        program = self._program(index, call)

        self.job = runtime.job.Job(
            keys,
            program,
            self._skeleton(index, call) if call.skeleton is True else call.skeleton or None,
            resources,
            call.depth,
            pool,
            None,
            self.executor.lock,
        )
        waiting = self.executor.waiting(call.wait, self.job, pool, call.in_flight, 8, placement != "threads")
        before = len(network.issued[number])
        self._arm(index, call)
        error = self.executor.run(self.job, waiting)
        del waiting
        self.issued.append([identity[1:] if identity else None for _, identity in network.issued[number][before:]])
        self.outcomes.append(error and (error.rank, error.slice, error.summary, error.traceback_text))
        if not isinstance(error, SliceError | None):
            network.violated(f"rank {number}: the outcome is {error!r}")
        self._check_call(index, call, error, handle)
        network.testsome.pop(number, None)
        self.job = program = None
        if len(self.outcomes) == min(len(rank.outcomes) for rank in self.world.ranks):
            self.world.check(index)

    def _arm(self, index, call):
        self.faults = {}
        for fault in call.faults:
            kind, rank, number, step = fault
            if rank != self.number:
                continue
            if kind in ("argument", "type", "network", "after"):
                self.network.faults[rank, (index, number, step), kind] = index, fault
            elif kind == "testsome":
                self.network.testsome[rank] = index, fault
            elif kind == "signal":
                self.world.clock.start(partial(self._signal, index, fault), f"rank {rank} signal")
            else:
                self.faults[kind, number, step] = index, fault

    def _signal(self, index, fault):
        """Ctrl-C at some moment of the call, if it is not over: the handler fails the job."""
        job = self.job
        if job is not None and len(self.outcomes) == index:
            self.network.fire((index, fault))
            job.fail(None, KeyboardInterrupt())

    def _abort(self, error):
        if not isinstance(error, threads.Stuck | Violation):
            error = Aborted(f"rank {self.number} gave up: {formatted(error)[1]}")
        self.world.clock.halt(error)

    # ---- programs ----

    def _program(self, index, call):
        table, network = call.steps, self.network
        held = Held(self.kept[index])

        async def program(number, occupants):
            alive = Held(self.living)
            if occupants is not None:
                if occupants:
                    network.violated(f"slices {occupants} and {number} in one slot")
                occupants.add(number)
            steps, started = table[number], []
            for step, request in enumerate(steps):
                self._compute(number, step)
                await self._request(index, call, number, step, request, started)
            self._compute(number, len(steps))
            if occupants is not None:
                occupants.discard(number)
            self.ended.add(number)
            del alive

        def coroutine(key, occupants, held=held):
            return program(key.number, occupants)

        return coroutine

    def _compute(self, number, step):
        self.log.append((number, step))
        network = self.network
        network.occupy(self.number)
        if self.point():
            threads.preempt()
        network.vacate(self.number)
        if self.faults and (fault := self.faults.pop(("compute", number, step), None)):
            network.fire(fault)
            raise Injected(f"slice {number}, step {step}, rank {self.number}")
        if self.faults and (fault := self.faults.pop(("unspeakable", number, step), None)):
            network.fire(fault)
            raise Unspeakable

    async def _request(self, index, call, number, step, request, started):
        requests = self.world.runtime.requests
        kind = request[0]
        if kind in ISSUED:
            await self._issued((index, number, step), request, started, True)
        elif kind == "barrier":
            await self._barrier(call, number, step)
        elif kind == "parallel":
            await self._parallel(number, step, request[1])
        elif kind == "wait":
            await requests.wait_for_slices(request[2], request[1])
            missing = set(range(request[1], request[2])) - self.ended
            if missing and not self._stopping():
                self.network.violated(f"rank {self.number}: slice {number} did not wait for slices {missing}")

    def _stopping(self):
        return self.job.stopping

    async def _barrier(self, call, number, step):
        place = sum(entry == ("barrier",) for entry in call.steps[number][:step])
        self.arrived.setdefault(place, set()).add(number)
        await self.world.runtime.requests.barrier()
        missing = set(range(len(call.steps))) - self.arrived[place] - self.ended
        if missing and not self._stopping():
            self.network.violated(f"rank {self.number}: slice {number} passed a barrier before slices {missing} came")

    async def _parallel(self, number, step, count):
        done = []

        def part(place):
            self.network.occupy(self.number)
            if self.point():
                threads.preempt()
            self.network.vacate(self.number)
            if self.faults and (fault := self.faults.pop(("parallel", number, step), None)):
                self.network.fire(fault)
                raise Injected(f"slice {number}, part {place}, rank {self.number}")
            done.append(place)

        await self.world.runtime.requests.parallel(part, range(count))
        if sorted(done) != list(range(count)) and not self._stopping():
            self.network.violated(f"rank {self.number}: slice {number} went on with parts {done} of {count}")

    async def _issued(self, identity, request, started, genuine):
        """A step that takes its turn in the issue order, of a program or of its skeleton."""
        kind, runtime = request[0], self.world.runtime
        if kind == "op":
            await self._operation(identity, request, genuine)
        elif kind == "start":
            started.append(await runtime.operations.start(self._operation(identity, request, genuine)))
        elif kind == "finish":
            await started[request[1]]
        else:
            await runtime.requests.take_turn()

    def _operation(self, identity, request, genuine):
        """An operation of a program, or of its skeleton."""
        _, name, argument = request
        comm, size = self.comm, self.world.plan.ranks
        if name == "Barrier":
            return comm.Barrier()
        buffer = payload(identity, genuine)
        if name == "Bcast":
            return comm.Bcast(buffer, root=argument)
        if name == "Gather":
            return comm.Gather(buffer, np.empty(size, np.int64), root=argument)
        if name == "Sendrecv":
            return comm.Sendrecv(
                buffer,
                dest=(self.number + argument) % size,
                sendtag=argument,
                recvbuf=np.empty(1, np.int64),
                source=(self.number - argument) % size,
                recvtag=argument,
            )
        return getattr(comm, name)(buffer, np.empty(size, np.int64))

    def _skeleton(self, index, call):
        requests = self.world.runtime.requests

        async def skeleton(key, occupants):
            number, started = key.number, []
            for step, request in enumerate(call.steps[number]):
                kind = request[0]
                if kind in ISSUED:
                    await self._issued((index, number, step), request, started, False)
                elif kind == "barrier":
                    await requests.barrier()
                elif kind == "wait":
                    await requests.wait_for_slices(request[2], request[1])

        return skeleton

    # ---- what must hold ----

    def _check_call(self, index, call, error, handle):
        """A call has ended on this rank."""
        network, number = self.network, self.number
        renewed = self.source.latest is not handle
        if renewed:
            network.forget(number)
        if network.in_flight[number]:
            network.violated(
                f"rank {number}: {network.in_flight[number]} operations are still under way at the end of a call"
            )
        if error is None and self.living[0]:
            network.violated(f"rank {number}: {self.living[0]} slices that have ended still live")
        begun = set()
        for entry in self.log:
            if entry in begun or (entry[1] and (entry[0], entry[1] - 1) not in begun):
                network.violated(f"rank {number}: step {entry} came twice or too early")
            begun.add(entry)

    def check_steps(self, index, call):
        """A call without failures has taken every step."""
        every = {(number, step) for number, steps in enumerate(call.steps) for step in range(len(steps) + 1)}
        if set(self.logs[index]) != every:
            raise Violation(f"rank {self.number}: call {index} left out {sorted(every - set(self.logs[index]))}")

    def check_end(self):
        """All threads of the schedule have ended."""
        network = self.network
        for index, kept in enumerate(self.kept):
            if kept[0] and self.outcomes[index] is None:
                raise Violation(f"rank {self.number}: call {index} is over, but what it was given still lives")
        if self.tokens._free.qsize() != self.world.plan.workers:
            raise Violation(
                f"rank {self.number}: {self.tokens._free.qsize()} core tokens at the "
                f"end, expected {self.world.plan.workers}"
            )
        if network.open:
            raise Violation(f"{len(network.open)} requests were never collected")
        current = {rank.source.latest.group.number for rank in self.world.ranks}
        spoilt = {group.number for group in network.groups} - current - {0, 1}
        if lines := network.leftovers(spoilt):
            raise Violation("left over: " + "; ".join(lines))
