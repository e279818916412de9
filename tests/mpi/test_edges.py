"""User threads, failures of one rank, dropped runtimes, plans."""

import gc
import pickle
import signal
import threading
import warnings
from contextlib import contextmanager, nullcontext
from itertools import count
from unittest import mock

import jobs
import numpy as np
import pytest
from communicators import few_left
from everywhere import outcome, raises_everywhere, same_error
from marks import exhaustive, on_ranks
from mpi4py import MPI

import overlap
from overlap.fft.transform import Transform
from overlap.ranks import holding
from overlap.ranks.door import close_doors

WAITS = ("off", "block", "poll")


class Boom(Exception):
    """The user's own exception."""


@contextmanager
def handling(number, handler):
    """With a signal handler of the user's."""
    before = signal.signal(number, handler)
    try:
        yield
        assert signal.getsignal(number) is handler, "the user's handler was not put back"
    finally:
        signal.signal(number, before)


class Sums:
    """A slice program with two reductions, whose results are known."""

    def __init__(self, rt):
        self.rt = rt
        self.out = np.zeros(SLICES)
        self.hook = lambda z: None
        self.pipeline = rt.pipelined(self.run)

    async def run(self, z):
        total = np.array([float(z)])
        await self.rt.comm.Allreduce(MPI.IN_PLACE, total)
        self.hook(z)
        await self.rt.comm.Allreduce(MPI.IN_PLACE, total)
        self.out[z] = total[0]

    def check(self):
        """A whole run gives the right answer."""
        self.hook = lambda z: None
        self.out[:] = -1
        self.pipeline(range(SLICES))
        np.testing.assert_array_equal(self.out, np.arange(SLICES) * self.rt.comm.size**2)


SLICES = 9


# ---- user threads ----------------------------------------------------------------------------


def user_threads(comm):
    """A second thread is refused at once, or let in where MPI allows it and the runtime is another.

    The other runtime is of one rank: where ranks have one core each, a slice that holds it may keep the
    other rank's slice from its hook, so no slice here may wait for what another rank does.
    """
    several = MPI.Query_thread() == MPI.THREAD_MULTIPLE
    for wait in WAITS:
        with (
            overlap.Runtime(comm, depth=2, wait=wait, deadline_s=20) as first,
            overlap.Runtime(MPI.COMM_SELF, depth=2, wait=wait, deadline_s=20) as second,
        ):
            here, others = Sums(first), Sums(second)
            inside, leave = threading.Event(), threading.Event()

            def hold(z):
                inside.set()
                assert leave.wait(20)

            here.hook = hold
            found = []
            thread = threading.Thread(target=lambda: found.append(outcome(here.pipeline, range(SLICES))), name="mine")
            thread.start()
            assert inside.wait(20)
            refused = [
                outcome(here.pipeline, range(3)),
                outcome(first.preflight),
                outcome(first.wrap, comm),
                outcome(first.coordinator.barrier),
                outcome(first.close),
            ]
            if several:
                others.check()
            else:
                refused += [outcome(others.pipeline, range(3)), outcome(second.preflight), outcome(second.close)]
            leave.set()
            thread.join()
            assert found == [None], found
            for error in refused:
                assert type(error) is overlap.BusyError, repr(error)
                assert "'mine'" in str(error) and "'MainThread'" in str(error), error
                assert "one at a time" in str(error) and "Sums.run" in str(error), error
            here.check()
            others.check()


# ---- what all ranks do together --------------------------------------------------------------


@on_ranks(1, exhaustive(2), 3)
def test_collective_section(comm):
    """An exception on some rank is one exception on all, wherever the others are by then."""
    bad = comm.rank == comm.size - 1
    with overlap.Runtime(comm, depth=2, wait="poll", deadline_s=20) as rt:
        sums = Sums(rt)

        def plan(raised, step, freed):
            with rt.collective_section("planning", lambda: freed.append("outer")):
                for number in range(5):
                    if number == step and bad:
                        raise raised
                    if number == 0:
                        assert rt.coordinator.allgather(rt.comm.rank) == list(range(comm.size))
                    elif number == 1:
                        sums.check()
                    elif number == 2:
                        with rt.collective_section("a part", lambda: freed.append("inner")):
                            rt.coordinator.barrier()
                            if step == 2.5 and bad:
                                raise raised
                    elif number == 3:
                        rt.preflight(None)

        for step in (0, 1, 2, 2.5, 3, 4):
            for raised, kind in (
                (MemoryError("none left"), overlap.RankError),
                (overlap.InputError("my file is bad"), overlap.InputError),
                (Boom("mine"), overlap.RankError),
                (SystemExit(4), overlap.RankError),
            ):
                freed = []
                error = outcome(plan, raised, step, freed)
                assert "outer" in freed and (not bad or freed.count("inner") == (step == 2.5))
                if bad and isinstance(raised, SystemExit):
                    assert error is raised
                    error = error.__cause__
                elif bad:
                    assert error.__cause__ is raised
                same_error(comm, error, kind, f"rank {comm.size - 1}", str(raised))
                sums.check()
        freed = []
        plan(None, 9, freed)
        assert not freed

        # What a pipeline raised is known to all ranks already.
        def failing():
            with rt.collective_section("planning"):
                sums.hook = fail
                sums.pipeline(range(SLICES))

        def fail(z):
            if bad:
                raise Boom("slice")

        raises_everywhere(comm, overlap.SliceError, "slice", failing)
        sums.check()


@on_ranks(2)
def test_different_calls(comm):
    """Ranks that are about to do different things are told what each of them is about to do."""
    with overlap.Runtime(comm, depth=2, wait="poll", deadline_s=20) as rt:
        sums, coordinator = Sums(rt), rt.coordinator
        calls = (
            lambda: coordinator.allgather(1),
            coordinator.barrier,
            lambda: coordinator.maximum(1.0),
            lambda: coordinator.maximum(np.ones(3)),
            lambda: coordinator.bcast(1),
            lambda: coordinator.bcast(1, comm.size - 1),
            lambda: coordinator.gather(3),
            lambda: sums.pipeline(range(3)),
            lambda: rt.preflight(shape=3),
            lambda: rt.collective_section("planning").__enter__(),
        )
        for one in calls:
            for other in calls:
                if one is not other:
                    call = one if comm.rank else other
                    raises_everywhere(comm, overlap.InputError, ("(rank 0)", "(rank 1)"), call)
        sums.check()


@on_ranks(1, exhaustive(2), 3)
def test_collectives(comm):
    """The library's own collectives against what is known."""
    with overlap.Runtime(comm) as rt:
        coordinator, rank, size = rt.coordinator, comm.rank, comm.size
        assert (coordinator.rank, coordinator.size) == (rank, size)
        assert coordinator.allgather({"rank": rank}) == [{"rank": other} for other in range(size)]
        for root in range(size):
            assert coordinator.bcast(("from", rank), root) == ("from", root)
            found = coordinator.gather(rank**2, root)
            assert found == ([other**2 for other in range(size)] if rank == root else None)
        for value, most, least in ((rank, size - 1, 0), (rank / 2, (size - 1) / 2, 0.0)):
            assert coordinator.maximum(value) == most and type(coordinator.maximum(value)) is type(value)
            assert coordinator.minimum(value) == least and type(coordinator.minimum(value)) is type(value)
        array = np.array([[rank, -rank]], dtype=np.float32)
        np.testing.assert_array_equal(coordinator.maximum(array), [[size - 1, 0]])
        np.testing.assert_array_equal(coordinator.minimum(array), [[0, 1 - size]])
        assert coordinator.maximum(array).dtype == np.float32 and array[0, 0] == rank
        assert coordinator.alltoall_s(100) > 0
        assert coordinator.ranks_of(comm) == tuple(range(size)) and coordinator.ranks_of(None) is None
        half = comm.Split(rank % 2)
        assert coordinator.ranks_of(half) == tuple(range(rank % 2, size, 2))
        half.Free()
        words = ("rank 0", "pickle")
        raises_everywhere(comm, overlap.RankError, words, coordinator.allgather, lambda: None if rank else 1)


@on_ranks(1, exhaustive(2), 3)
def test_pickled_errors(comm):
    """What calls have raised can be pickled, with its attributes, and an exception of the user's, too."""
    odd = ValueError("one of mine")

    def raising(rt):
        @rt.pipelined
        async def program(z):
            await overlap.take_turn()
            raise odd

        program(range(2))

    last = comm.rank == comm.size - 1
    with overlap.Runtime(comm) as rt:
        calls = (
            (overlap.InputError, lambda: overlap.FFT2(rt, (8, 16, 16), dtype="i8")),
            (overlap.InputError, lambda: overlap.FFT3(rt, (8, 16, 16 + last))),
            (overlap.InputError, lambda: overlap.Halo(rt, "nothing")),
            (overlap.SliceError, lambda: raising(rt)),
        )
        for kind, call in calls[: 1 if comm.size == 1 else None]:
            error = outcome(call)
            assert isinstance(error, kind), error
            found = pickle.loads(pickle.dumps(error))
            assert type(found) is type(error) and found.args == error.args and str(found) == str(error)
            for name in ("disagreement", "rank", "slice", "summary", "traceback_text"):
                assert getattr(found, name, None) == getattr(error, name, None), name
    with pytest.raises(ValueError, match="one of mine"), overlap.Runtime(comm):
        raise odd
    assert pickle.loads(pickle.dumps(odd)).args == odd.args


# ---- runtimes that are dropped ---------------------------------------------------------------


def _ours():
    return [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]


@on_ranks(fresh=True)
@pytest.mark.parametrize("comm, count", [(3, 60), exhaustive(3, 200), (1, 1200)])  # more than MPI has communicators
def test_runtimes_dropped_on_some_ranks(comm, count):
    """Communicators are freed when all ranks have dropped the runtime, in whatever order."""
    held = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        for number in range(count):
            held.append(overlap.Runtime(comm, wait="off"))
            if len(held) > 20:
                del held[number % (comm.rank + 2)]
        held.clear()
        gc.collect()
        overlap.Runtime(comm, wait="off").close()
    close_doors()
    assert not holding._dropped and holding._open == 0, (holding._dropped, holding._open)


@on_ranks(2)
def test_crowded_ranks_seldom_look_for_dropped_objects(comm):
    """A look takes as long as making many objects."""
    with (
        overlap.Runtime(comm, wait="off"),
        mock.patch.object(holding, "MANY", 0),
        mock.patch.object(holding.gc, "collect") as collect,
    ):
        for _ in range(3 * holding.BETWEEN):
            overlap.Runtime(comm, wait="off").close()
    assert 2 <= collect.call_count <= 4, collect.call_count


@on_ranks(2)
def test_too_many_open_runtimes(comm):
    """Before MPI runs out of communicators there is one clear error; here at a tenth of the limit."""
    limits = holding.MANY, holding.MOST
    with few_left(comm, holding.MOST):
        pass  # MPI has more than the limit
    held = []
    error = None
    holding.MANY, holding.MOST = (limit // 10 for limit in limits)
    try:
        while error is None:
            error = outcome(lambda: held.append(overlap.Runtime(comm, wait="off", deadline_s=None)))
            assert len(held) < 100
    finally:
        holding.MANY, holding.MOST = limits
    same_error(comm, error, overlap.InputError, "communicators of open runtimes")
    for rt in held:
        rt.close()
    overlap.Runtime(comm).close()


# ---- plans -----------------------------------------------------------------------------------


@contextmanager
def out_of_memory(number):
    """The memory of the `number`-th pipeline or transform made from now on does not fit."""
    made = count(1)

    def failing(original):
        def function(*args, **kwargs):
            if next(made) == number:
                raise MemoryError("no room for slots")
            return original(*args, **kwargs)

        return function

    with (
        mock.patch.object(overlap.Runtime, "pipelined", failing(overlap.Runtime.pipelined)),
        mock.patch.object(Transform, "_allocate", failing(Transform._allocate)),
    ):
        yield


@on_ranks(2, fresh=True)
@pytest.mark.parametrize("numbers", [(1, 4, 12, 33), exhaustive((1, 2, 7, 20, 50))])
def test_plans_that_fail_on_one_rank(comm, numbers):
    """A plan that cannot be made, tuned or extended on one rank fails on all, and frees all it made."""

    def remade(kind, *shape, use=lambda plan: None):
        with getattr(overlap, kind)(comm, shape) as plan:
            use(plan)

    makers = {
        "FFT2": lambda: remade("FFT2", 8, 16, 16),
        "FFT3": lambda: remade("FFT3", 8, 16, 16),
        "Bracket": lambda: remade("Bracket", 4, 2, 5, 9),
        "pointwise": lambda: remade("FFT2", 8, 16, 16, use=lambda plan: plan.pointwise(lambda a, b: a * b)),
        "tune": lambda: remade("FFT2", 8, 16, 16, use=lambda plan: plan.tune(0.2)),
    }
    for name, make in makers.items():
        failures = 0
        for number in numbers:
            with out_of_memory(number) if comm.rank == 0 else nullcontext():
                error = outcome(make)
            if any(comm.allgather(error is not None)):
                same_error(comm, error, overlap.RankError, "MemoryError", "no room for slots")
                failures += 1
            gc.collect()
            assert not _ours(), (name, number, _ours())
            close_doors()
            assert holding._open == 0, (name, number, holding._open)
        assert failures, name


@pytest.mark.parametrize("level", ["serialized", "multiple"])
def test_user_threads(level):
    jobs.run_job("test_edges:user_threads", 2, env={"MPI4PY_RC_THREAD_LEVEL": level})
