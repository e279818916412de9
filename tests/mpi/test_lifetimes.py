"""Runtimes that are nested and closed, and what they leave."""

import gc
import os
import signal
import threading
import time
import warnings
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import threadpoolctl
from everywhere import outcome
from marks import exhaustive, on_ranks
from mpi4py import MPI
from test_edges import Boom, handling
from test_runtime import WAITS, Spy

import overlap
from overlap.fft.transform import Transform
from overlap.ranks.coordinator import Coordinator
from overlap.ranks.watchdog import Watchdog
from overlap.runtime.threads.threads import Threads

# ---- nesting, closing ------------------------------------------------------------------------


@on_ranks(2)
def test_second_pipeline_while_one_is_running(comm):
    """A pipeline started inside another one's slice is refused, on all ranks, without a hang."""
    for wait in WAITS:
        with overlap.Runtime(comm, workers=2, depth=2, wait=wait, deadline_s=5) as rt:

            async def quiet(z):
                await rt.comm.Allreduce(MPI.IN_PLACE, np.ones(1))

            inner = rt.pipelined(quiet)
            threads = set()
            rt.comm._handle = Spy(rt.comm._handle, threads)

            @rt.pipelined
            async def outer(z):
                await rt.comm.Allreduce(MPI.IN_PLACE, np.ones(1))
                if z == 5:
                    inner(range(2))
                await rt.comm.Allreduce(MPI.IN_PLACE, np.ones(1))

            try:
                outer(range(8))
            except overlap.SliceError as error:
                assert "one at a time" in str(error), error
                assert isinstance(error.__cause__, RuntimeError)
            else:
                raise AssertionError("a pipeline inside a pipeline was accepted")
            assert not [name for name in threads if "worker" in name], threads
            inner(range(3))


def _ours():
    return [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]


@on_ranks(1, exhaustive(2), 3, exhaustive(4), exhaustive("openmpi-2"))
def test_threads_end(comm):
    """Closing joins the threads, however the `with` block is left."""

    async def program(z):
        await target.Allreduce(MPI.IN_PLACE, np.ones(1))

    for wait in WAITS:
        assert not _ours()
        with overlap.Runtime(comm, workers=3, wait=wait) as rt:
            target = rt.comm
            pipeline = rt.pipelined(program)
            pipeline(range(4))
            assert len(_ours()) == (1 if wait == "off" else 5), _ours()
        assert not _ours(), _ours()
        assert rt.closed
        rt.close()
        try:
            with overlap.Runtime(comm, wait=wait) as rt:
                target = rt.comm
                rt.pipelined(program)(range(3))
                raise KeyError("mine")
        except KeyError:
            pass
        assert rt.closed and not _ours()


@on_ranks(1, exhaustive(2), 3, exhaustive(4), exhaustive("openmpi-2"))
def test_closing_goes_on(comm):
    """A step of closing that raises on one rank, or in a signal's handler, raises there, after all others were made."""

    def raising(*_):
        raise Boom("in the middle")

    def failing(step):
        def fail(*args):
            step(*args)
            os.kill(os.getpid(), signal.SIGUSR1) if with_signal else raising()

        return fail

    for with_signal, (owner, name) in product(  # noqa: B007 (in `failing`)
        (False, True), ((Transform, "release"), (Threads, "close"), (Coordinator, "free"), (Watchdog, "close"))
    ):
        plan = overlap.FFT2(comm, (2, 4, 4), settings={"wait": "poll", "effort": "estimate"})
        plan.forward(plan.real.empty())
        with patch.object(owner, name, failing(getattr(owner, name))) if comm.rank == 0 else nullcontext():
            with handling(signal.SIGUSR1, raising):
                error = outcome(plan.close)
        assert isinstance(error, Boom) if comm.rank == 0 else error is None, (owner, name, error)
        assert plan.closed and plan.runtime.closed and not _ours(), (owner, name, _ours())
        del plan, error


@on_ranks(1, exhaustive(2), 3, exhaustive(4), exhaustive("openmpi-2"))
def test_paused(comm):
    """A paused runtime holds no thread pools, goes on when it is resumed, and is dropped without a warning."""
    runtime = overlap.Runtime(comm, workers=2, wait="poll")

    async def program(z, target):
        await target.Allreduce(MPI.IN_PLACE, np.ones(1))

    def pools():
        return {pool["num_threads"] for pool in threadpoolctl.threadpool_info()}

    runtime.pause()
    with threadpoolctl.threadpool_limits(limits=2):
        for _ in range(2):
            runtime.resume(30)
            pipeline = runtime.pipelined(program)
            pipeline(range(4), runtime.comm)
            assert runtime.deadline_s == 30 and len(_ours()) == 4 and pools() == {1}
            runtime.pause()
            assert pools() == {2}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del runtime, pipeline
        gc.collect()
    with overlap.Runtime(comm):  # frees the communicators of the other one
        pass


@on_ranks(1, exhaustive(2), 3, exhaustive(4), exhaustive("openmpi-2"))
def test_nested_runtimes(comm):
    """Two open runtimes do not meet; one inside the other's lifetime, each with its own tags."""
    with overlap.Runtime(comm, workers=2, depth=2, wait="poll") as outer:
        totals = {}

        async def program(z, runtime):
            total = np.array([float(z)])
            await runtime.comm.Allreduce(MPI.IN_PLACE, total)
            totals[z] = total[0]

        first = outer.pipelined(program)
        first(range(5), outer)
        with overlap.Runtime(comm, workers=1, depth=3, wait="block") as inner:
            inner.pipelined(program)(range(5, 9), inner)
            first(range(9, 12), outer)
        first(range(12, 15), outer)
    assert totals == {z: float(comm.size * z) for z in range(15)}


@on_ranks(1, exhaustive(2), 3, exhaustive(4), exhaustive("openmpi-2"))
def test_thread_pools_restored(comm):
    """BLAS and OpenMP pools have one thread while any runtime is open, then what they had."""

    def pools():
        return [(pool["filepath"], pool["num_threads"]) for pool in threadpoolctl.threadpool_info()]

    with threadpoolctl.threadpool_limits(limits=2):
        before = pools()
        assert before and all(threads == 2 for _, threads in before), before
        with overlap.Runtime(comm) as outer:
            assert all(threads == 1 for _, threads in pools())
            with overlap.Runtime(comm):
                pass
            assert all(threads == 1 for _, threads in pools())
            inside = []

            @outer.pipelined
            async def program(z):
                inside.extend(threads for _, threads in pools())

            program(range(3))
            assert set(inside) == {1}
        assert pools() == before
        try:
            with overlap.Runtime(comm):
                raise KeyError
        except KeyError:
            assert pools() == before


@on_ranks(1, fresh=True)
@pytest.mark.parametrize("already", [exhaustive(0), 5, exhaustive(18)])
def test_workers_are_nicer_than_the_process(comm, already):
    """Workers yield to the communicator: their nice value is above the process's, never below."""
    already = os.nice(already)  # of a process that may have been niced before
    values = []
    for wait in ("block", "poll"):
        with overlap.Runtime(comm, workers=2, wait=wait, nice=3) as rt:

            @rt.pipelined
            async def program(z):
                values.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

            program(range(4))
    assert set(values) == {min(19, already + 3)}, values


@on_ranks(2)
def test_timers_are_exact_for_polls_only(comm):
    """Only a communicator that polls has exact timers, which would make MPI's own sleeps last no time."""

    def slack_ns(thread):
        return int(Path(f"/proc/{thread}/timerslack_ns").read_text())

    with overlap.Runtime(comm, workers=1) as rt:

        async def program(z):
            time.sleep(2e-3)
            await rt.comm.Allreduce(MPI.IN_PLACE, np.ones(1))

        for wait in ("poll", "block", "poll"):
            rt.pipelined(program, wait=wait)(range(8))
            found = [slack_ns(thread.native_id) for thread in threading.enumerate() if thread.name == "communicator"]
            assert found == [1 if wait == "poll" else slack_ns(os.getpid())], (wait, found)
