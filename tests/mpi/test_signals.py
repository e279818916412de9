"""Signals, Ctrl-C among them, at every moment of a call."""

import contextlib
import os
import signal
import sys
import threading
import time
from itertools import product
from unittest.mock import patch

import numpy as np
import test_edges
from everywhere import outcome, raised, same_error, same_everywhere
from marks import exhaustive, on_ranks
from mpi4py import MPI
from test_edges import SLICES, WAITS, Boom, Sums, handling
from test_errors import PATIENCE_S

import overlap
from overlap.fft.planning import tournament
from overlap.runtime.scheduling.executor import Executor
from overlap.runtime.scheduling.job import Failure, Job

# ---- signals ---------------------------------------------------------------------------------


def alarms(comm, wait, moments=40):
    """A handler that raises, at many moments of a call: every job ends before it is raised."""

    def raising(number, frame):
        raise Boom("alarm")

    def too_late(hook, printed=sys.unraisablehook):
        """Between calls Python drops what a handler raises in a ``__del__``."""
        if not isinstance(hook.exc_value, Boom):
            printed(hook)

    rng = np.random.default_rng(7)
    hits = 0
    with overlap.Runtime(comm, workers=2, depth=3, wait=wait, deadline_s=20) as rt:
        sums = Sums(rt)
        sums.check()
        with handling(signal.SIGALRM, raising), patch.object(sys, "unraisablehook", too_late):
            for delay in rng.uniform(1e-6, 3e-3, moments):
                if comm.rank == 0:
                    sums.hook = lambda z: z or signal.setitimer(signal.ITIMER_REAL, delay)
                error = None
                with contextlib.suppress(Boom):  # it may come right after the call
                    error = outcome(sums.pipeline, range(SLICES))
                    signal.setitimer(signal.ITIMER_REAL, 0)
                if comm.rank == 0 and isinstance(error, Boom):
                    error = error.__cause__  # None: it came too late for the others to hear of it
                    hits += error is not None
                errors = comm.allgather(None if error is None else str(error))
                assert len(set(errors)) == 1, errors
                assert error is None or (type(error) is overlap.SliceError and "alarm" in str(error))
                sums.check()
    assert comm.rank or hits, "no alarm came in time"


def terminated(comm, wait):
    """sys.exit in a handler of SIGTERM: SystemExit there, a SliceError elsewhere."""
    with overlap.Runtime(comm, depth=3, wait=wait, deadline_s=20) as rt:
        sums = Sums(rt)
        for number in (0, 4):
            sent, handled = threading.Event(), threading.Event()

            def leave(*_):
                handled.set()
                sys.exit(3)

            def kill(z):
                if comm.rank == comm.size - 1 and z == number and not sent.is_set():
                    sent.set()
                    os.kill(os.getpid(), signal.SIGTERM)
                    # A thread that was about to sleep learns of a signal some time later: the slice lasts until then.
                    assert threading.current_thread() is threading.main_thread() or handled.wait(5)

            with handling(signal.SIGTERM, leave):
                sums.hook = kill
                error = outcome(sums.pipeline, range(SLICES))
                if comm.rank == comm.size - 1:
                    assert type(error) is SystemExit and error.code == 3, repr(error)
                    error = error.__cause__
                same_error(comm, error, overlap.SliceError, "SystemExit")
                sums.check()


@on_ranks("openmpi-3")
def test_edges_under_open_mpi(comm):
    test_edges.test_collectives(comm)
    test_edges.test_collective_section(comm)
    test_interrupted_together(comm)
    alarms(comm, wait="poll")
    terminated(comm, wait="poll")


def quiet_handlers(comm, wait):
    """A handler that does not raise changes nothing, and runs while the call is under way."""
    with overlap.Runtime(comm, depth=3, wait=wait, deadline_s=20) as rt:
        sums = Sums(rt)
        seen = []
        with handling(signal.SIGUSR1, lambda *_: seen.append(rt.coordinator.running)):
            for _ in range(3):
                sums.hook = lambda z: z == 3 and os.kill(os.getpid(), signal.SIGUSR1)
                sums.pipeline(range(SLICES))
                sums.check()
        assert len(seen) == 3 and any(seen), seen


@on_ranks(1, exhaustive(2), 3)
def test_interrupted_together(comm):
    """Ctrl-C in the middle of planning: KeyboardInterrupt there, one RankError elsewhere."""
    with overlap.Runtime(comm, wait="poll", deadline_s=20) as rt:
        sums = Sums(rt)
        for moment in range(3):
            freed = []
            reached = []

            def plan():
                with rt.collective_section("planning", lambda: freed.append(True)):
                    for step in range(3):
                        if comm.rank == 0 and step == moment:
                            signal.raise_signal(signal.SIGINT)
                        reached.append(step)  # held back until the ranks meet
                        if step == 1:
                            sums.check()
                        rt.coordinator.maximum(step)

            error = outcome(plan)
            assert freed == [True] and reached[-1] == moment, (freed, reached)
            if comm.rank == 0:
                assert type(error) is KeyboardInterrupt, repr(error)
                error = error.__cause__
            same_error(comm, error, type(error), "KeyboardInterrupt")
            assert isinstance(error, overlap.RankError)
            sums.check()


# ---- Ctrl-C ----------------------------------------------------------------------------------


@on_ranks(1, 2, "openmpi-2")
def test_interrupted(comm):
    """SIGINT on one rank in mid-pipeline: KeyboardInterrupt there, SliceError elsewhere."""
    noticed = threading.Event()
    original = Job.fail

    def fail(job, key, error):
        original(job, key, error)
        noticed.set()

    Job.fail = fail
    for wait, bad, rank in product(WAITS, (0, 7), {0, comm.size - 1}):
        handler = signal.getsignal(signal.SIGINT)
        with overlap.Runtime(comm, workers=2, depth=3, wait=wait, deadline_s=10) as rt:
            noticed.clear()

            @rt.pipelined
            async def program(z, bad):
                await rt.comm.Allreduce(MPI.IN_PLACE, np.ones(1))
                if z == bad:
                    os.kill(os.getpid(), signal.SIGINT)
                    assert noticed.wait(PATIENCE_S)
                await rt.comm.Allreduce(MPI.IN_PLACE, np.ones(1))

            kind = KeyboardInterrupt if comm.rank == rank else overlap.SliceError
            error = raised(kind, program, range(12), bad if comm.rank == rank else -1)
            if comm.rank == rank:
                error = error.__cause__
                assert isinstance(error, overlap.SliceError)
            same_everywhere(comm, str(error))
            assert "KeyboardInterrupt" in str(error) and error.rank == rank
            assert signal.getsignal(signal.SIGINT) is handler
            program(range(12), -1)
    Job.fail = original


@on_ranks(1, 2)
def test_interrupted_at_the_end(comm):
    """A Ctrl-C that comes when the outcome is already known is not swallowed."""
    original = Executor._outcome
    for wait in ("off", "poll"):
        with overlap.Runtime(comm, wait=wait, deadline_s=5) as rt:

            @rt.pipelined
            async def program(z):
                await rt.comm.Allreduce(MPI.IN_PLACE, np.ones(1))

            def outcome(communicator, problem):
                result = original(communicator, problem)
                if comm.rank == 0:
                    os.kill(os.getpid(), signal.SIGINT)
                    end = time.monotonic() + PATIENCE_S
                    while communicator._job.failure is None and time.monotonic() < end:
                        time.sleep(1e-3)
                return result

            Executor._outcome = outcome
            try:
                if comm.rank == 0:
                    raised(KeyboardInterrupt, program, range(4))
                else:
                    program(range(4))
            finally:
                Executor._outcome = original
            program(range(4))


@on_ranks(1)
def test_interrupted_while_failing(comm):
    """Ctrl-C while a failure is being noted down on the same thread does not lock up."""
    original = Failure.__init__

    def interrupting(failure, key, error):
        if isinstance(error, Boom):
            signal.raise_signal(signal.SIGINT)
        original(failure, key, error)

    Failure.__init__ = interrupting
    with overlap.Runtime(comm, wait="off", deadline_s=5) as rt:

        @rt.pipelined
        async def program(z):
            await rt.comm.Allreduce(MPI.IN_PLACE, np.ones(1))
            raise Boom

        raised((overlap.SliceError, KeyboardInterrupt), program, range(4))
    Failure.__init__ = original


@on_ranks(1, 2)
def test_interrupted_in_preflight(comm):
    """Ctrl-C while a rank waits for the others' input: the others are not left alone either."""
    with overlap.Runtime(comm, wait="poll", deadline_s=5) as rt:
        original = rt.coordinator.enter

        @rt.pipelined
        async def program(z):
            await rt.comm.Allreduce(MPI.IN_PLACE, np.ones(1))

        def enter(*args, **kwargs):
            original(*args, **kwargs)
            if comm.rank == 0:
                signal.raise_signal(signal.SIGINT)  # as if it had come inside MPI_Allreduce

        rt.coordinator.enter = enter
        kind = KeyboardInterrupt if comm.rank == 0 else overlap.SliceError
        raised(kind, program, range(5))
        rt.coordinator.enter = original
        program(range(5))


@on_ranks(2)
def test_interrupted_in_first_calls(comm):
    """Ctrl-C between two things that one of a plan's first calls does on all ranks: told to the others."""
    # Every call is compared, and no order is ever significant.
    endless = patch.multiple(tournament, SHARE=np.inf, LEAD=1000, ROUNDS=1000, HOPELESS=(1e9, 1e9))
    with endless, overlap.FFT2(comm, (4, 8, 8)) as plan:
        u = plan.real.empty()
        u[...] = np.random.default_rng(comm.rank).random(u.shape)
        expected = plan.forward(u).copy()
        for moment in range(1, 7):  # of the clock's looks, before and after the call that is compared
            assert plan.forward.refinement is not None
            looks = 0

            def clock():
                nonlocal looks
                looks += 1
                if looks == moment and comm.rank == 0:
                    signal.raise_signal(signal.SIGINT)
                return time.perf_counter()

            def calls():
                for _ in range(4):  # of which at least two are compared
                    plan.forward(u)

            with patch.object(tournament, "perf_counter", clock):
                error = outcome(calls)
            assert type(error) is (overlap.RankError if comm.rank else KeyboardInterrupt), (moment, error)
            np.testing.assert_allclose(plan.forward(u), expected)
