"""What goes wrong in collectives by remote writes: input, interrupts, ranks that do not come."""

import os
import signal
import time
from traceback import walk_stack

import jobs
import numpy as np
import pytest
from marks import exhaustive, on_ranks

import overlap
from overlap import compiled
from overlap.collectives import Collectives, Op
from overlap.errors import ClosedError, InputError, RankError


@compiled.njit
def _compiled_call(fast, which, send, target):
    if which == 0:
        fast.Allreduce(send, target)
    elif which == 1:
        fast.Reduce(send, target, 0, 0)
    elif which == 2:
        fast.Scatter(send, target, 0)
    elif which == 3:
        fast.Gather(send, target, 0)
    else:
        fast.Allgather(send, target)


@on_ranks(exhaustive(1), 3)
def test_buffers_that_overlap(comm):
    """One array for both: halves beside each other and a piece at its own place work, anything else is one error."""
    size, rank = comm.size, comm.rank
    own = slice(rank * 8, rank * 8 + 8)
    for which, name in enumerate(("Allreduce", "Reduce", "Scatter", "Gather", "Allgather")):
        for do in (getattr(Collectives, name), lambda fast, *two, which=which: _compiled_call(fast, which, *two)):
            with Collectives(comm) as fast:
                for apart in (False, True):
                    room = np.zeros(8 * size + 8)
                    if which < 2:
                        send, target = room[:8], room[8:16] if apart else room[:8]
                        send[:] = rank + 1.0
                        expected = np.full(8, size * (size + 1) / 2)
                    else:
                        whole, piece = room[: 8 * size], room[8 * size :] if apart else room[own]
                        send, target = (whole, piece) if which == 2 else (piece, whole)
                        send[:] = np.arange(8 * size) if which == 2 else rank
                        expected = np.arange(8 * size)[own] if which == 2 else np.repeat(np.arange(size), 8)
                    do(fast, send, target)
                    if rank == 0 or which in (0, 2, 4):
                        assert (target == expected).all(), (name, apart, target)
            fast = Collectives(comm)
            room = np.zeros(8 * size + 8)
            for_one, for_all = room[own.start + 1 : own.stop + 1], room[: 8 * size]
            two = {0: (room[1:8], room[:7]), 1: (room[:7], room[1:8]), 2: (for_all, for_one)}.get(
                which, (for_one, for_all)
            )
            with pytest.raises(InputError, match="do not overlap"):
                do(fast, *two)
                fast.Barrier()
            fast.free()


def _read_only():
    array = np.zeros(4)
    array.flags.writeable = False
    return array


BAD_INPUT = {  # a call that is bad on the last rank, and what is said
    "size": (lambda fast, a, b, last: fast.Allreduce(a[:3] if last else a, b[:3] if last else b), "24 bytes"),
    "type": (lambda fast, a, b, last: fast.Allreduce(*(one.astype(int) if last else one for one in (a, b))), "int64"),
    "operation": (lambda fast, a, b, last: fast.Allreduce(a, b, Op.MAX if last else Op.SUM), "op=MAX"),
    "collective": (lambda fast, a, b, last: fast.Barrier() if last else fast.Allreduce(a, b), "Barrier"),
    "unlike": (lambda fast, a, b, last: fast.Allreduce(a, b[:2] if last else b), "32 bytes, received one of 16 bytes"),
    "contiguous": (lambda fast, a, b, last: fast.Allreduce(np.zeros(8)[::2] if last else a, b), "contiguous"),
    "read-only": (lambda fast, a, b, last: fast.Allreduce(a, _read_only() if last else b), "read-only"),
    "no such operation": (lambda fast, a, b, last: fast.Allreduce(a, b, Op.BAND if last else Op.SUM), "received BAND"),
    "no such type": (
        lambda fast, a, b, last: fast.Allreduce(*(one.astype("e" if last else "d") for one in (a, b))),
        "numeric",
    ),
    "an object": (lambda fast, a, b, last: fast.Allreduce(np.array([None]) if last else a, b), "numeric"),
    "root": (lambda fast, a, b, last: fast.Gather(a, np.zeros(12), 9 if last else 0) or fast.Barrier(), "root from 0"),
    "scalar": (lambda fast, a, b, last: fast.allreduce("1" if last else 1), "numeric type, received '1'"),
}


@on_ranks(3)
@pytest.mark.parametrize("case", list(BAD_INPUT))
def test_bad_input_is_told_on_all_ranks(comm, case):
    """One exception on all ranks, and the instance cannot be used any more."""
    call, text = BAD_INPUT[case]
    fast = Collectives(comm)
    for again in (call, lambda fast, *_: fast.allreduce(1.0)):
        with pytest.raises(InputError, match=text):
            again(fast, np.zeros(4), np.zeros(4), comm.rank == comm.size - 1)
    fast.free()


@on_ranks(2)
def test_bad_options(comm):
    for options in ({"max_nbytes": 0}, {"max_nbytes": "1"}, {"deadline_s": -1}, {"max_nbytes": 10 + comm.rank}):
        if comm.size > 1 or "max_nbytes" not in options or options["max_nbytes"] != 10:
            with pytest.raises(InputError):
                Collectives(comm, **options)
    with pytest.raises(InputError, match="intracommunicator"):
        Collectives(None)


@compiled.njit
def _loop_of_sums(fast, rounds):
    for _ in range(rounds):
        fast.allreduce(1.0)


def interrupted(comm, compiled):
    """Ctrl-C on the first rank; the others are told."""
    fast = Collectives(comm)
    fast.allreduce(1.0)
    _loop_of_sums(fast, 1)
    first = comm.bcast(os.getpid())
    if comm.rank:
        time.sleep(1.0)  # for the first one to wait
        os.kill(first, signal.SIGINT)
        time.sleep(0.2)
        with pytest.raises(RankError, match="rank 0"):
            for _ in range(3):
                fast.allreduce(1.0)
    else:
        with pytest.raises(KeyboardInterrupt):
            _loop_of_sums(fast, 10**9) if compiled else fast.allreduce(1.0)
        with pytest.raises(RankError, match="rank 0"):
            fast.Barrier()
    fast.free()


@on_ranks(2)
@pytest.mark.parametrize("compiled", [False, True])
def test_an_interrupt_ends_the_collective_on_all_ranks(comm, compiled):
    interrupted(comm, compiled=compiled)


@on_ranks(2, env={"MPIR_CVAR_NOLOCAL": "1"})
@pytest.mark.parametrize("compiled", [False, exhaustive(True)])
def test_an_interrupt_is_told_to_other_nodes(comm, compiled):
    interrupted(comm, compiled=compiled)


def left_while_others_wait_in_mpi(comm):
    with Collectives(comm, deadline_s=5):
        if comm.rank == 0:
            1 / 0  # noqa: B018
        comm.Barrier()


def never_comes(comm):
    Collectives(comm).close()  # compiles, which may take longer than the deadline of the next one
    fast = Collectives(comm, deadline_s=0.5)
    if comm.rank == 0:
        time.sleep(30)
    fast.Barrier()


def killed(comm):
    fast = Collectives(comm, deadline_s=10)
    fast.Barrier()
    if comm.rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    fast.Barrier()


class Interrupting:
    """A root whose conversion to a number is interrupted: a signal before compiled code is reached."""

    def __index__(self):
        os.kill(os.getpid(), signal.SIGINT)
        return 0


class Alarm(Exception):
    """Raised by a handler."""


def _raise_alarm(number, frame):
    """Raise it, but never inside of what measures coverage: an exception there leaves its lock locked for ever."""
    if any(one.f_globals["__name__"].startswith("coverage.") for one, _ in walk_stack(frame)):
        signal.setitimer(signal.ITIMER_REAL, 1e-5)
    else:
        raise Alarm


@on_ranks(2)
def test_interrupted_in_python(comm):
    """A signal while arguments are looked at in Python is told, too."""
    fast, block = Collectives(comm, deadline_s=10), np.zeros(3)
    if comm.rank == 0:
        with pytest.raises(KeyboardInterrupt):
            fast.Bcast(block, Interrupting())
    with pytest.raises(RankError, match="rank 0: KeyboardInterrupt"):
        fast.Bcast(block, 0)
    fast.free()


@on_ranks(2, deadline_s=60)
def test_an_interrupt_anywhere_is_told_on_the_other_ranks(comm, times=20):
    """A handler that raises at any moment, in a call or between two, in a ``with`` block."""
    random = np.random.default_rng(comm.rank)
    for _ in range(times):
        fast, calls = Collectives(comm, deadline_s=10), 0
        fast.allreduce(np.int64(0))  # compiled: there numba swallows exceptions of handlers
        before = signal.signal(signal.SIGALRM, _raise_alarm)
        try:
            with fast:
                if comm.rank == 0:
                    signal.setitimer(signal.ITIMER_REAL, 2e-3 * random.random() + 1e-6)
                while True:
                    fast.allreduce(np.int64(calls))
                    calls += 1
        except (Alarm, RankError) as error:
            assert comm.rank == 0 or "rank 0: " in str(error)
        finally:
            signal.signal(signal.SIGALRM, before)
        counts = comm.allgather(calls)
        assert max(counts) - min(counts) <= 1, counts
        fast.free()


@on_ranks(2)
def test_left_by_an_exception(comm):
    """An exception leaves a ``with`` block on one rank: the others are told in their next call, with the reason."""
    with pytest.raises(ZeroDivisionError if comm.rank == 0 else RankError, match="zero") as caught:
        with Collectives(comm, deadline_s=10) as fast:
            fast.Barrier()
            if comm.rank == 0:
                raise ZeroDivisionError("division by zero")
            fast.Barrier()
    assert comm.rank == 0 or (caught.value.rank == 0 and "ZeroDivisionError" in caught.value.traceback_text)
    fast.free()


@on_ranks(2)
def test_in_a_forked_child(comm):
    """A child of a rank has no part in the collectives of its parent, which go on."""
    with Collectives(comm) as fast:
        assert fast.allreduce(1) == comm.size
        child = os.fork()
        if not child:
            try:
                fast.allreduce(1)
            except ClosedError as error:
                os._exit(7 if "forked" in str(error) else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert fast.allreduce(1) == comm.size


@on_ranks(2, fresh=True)
def test_freeing_does_not_wait_for_a_rank_that_has_left(comm):
    """A rank that frees, after another has left the block by an exception, is told and does not wait for it."""
    with pytest.raises(ZeroDivisionError if comm.rank == 0 else RankError), Collectives(comm) as fast:
        fast.Barrier()
        if comm.rank == 0:
            1 / 0  # noqa: B018


@on_ranks(2, 3, deadline_s=60, fresh=True)
@pytest.mark.parametrize("call", ["Bcast", "Scatter", "Gather", "Reduce", "before Bcast", "in Bcast"])
def test_each_rank_raises_a_failed_call_once(comm, call):
    """Whoever catches the error outside of the block goes on: in MPI, then with other objects of the library.

    All ranks but one have failed: in their arguments, by a signal before compiled code is reached, or in it.
    """
    root = 0 if call in ("Scatter", "Bcast") or " " in call else comm.size - 1
    failing = (comm.rank != root) == (root == 0)
    one, pieces = np.zeros(3 if failing and " " not in call else 2), np.zeros(2 * comm.size)
    arguments = {"Scatter": (pieces, one), "Gather": (one, pieces), "Reduce": (one, np.zeros(2))}.get(call, (one,))
    kind = {"before Bcast": KeyboardInterrupt, "in Bcast": Alarm}.get(call) if failing else None
    error = None
    try:
        with Collectives(comm, max_nbytes=2048, deadline_s=20) as fast:
            fast.Barrier()
            if call == "in Bcast":
                signal.signal(signal.SIGALRM, _raise_alarm)
                if failing:
                    signal.setitimer(signal.ITIMER_REAL, 0.1)
                else:
                    time.sleep(0.5)
            getattr(fast, call.split()[-1])(*arguments, root=Interrupting() if kind is KeyboardInterrupt else root)
    except BaseException as raised:
        error = raised
    comm.Barrier()
    assert isinstance(error, kind or (RankError if " " in call else InputError)), error
    with overlap.FFT2(comm, (2, 4, 6)) as plan:
        assert not plan.forward(plan.real.from_function(lambda y, x: 0 * (y + x))).any()


@on_ranks(2, 3, deadline_s=60, fresh=True)
def test_an_exception_after_a_failed_call_is_another_failure(comm):
    """The other ranks, which have raised the first one, raise this one, too, in a call of another object."""
    with overlap.FFT2(comm, (2, 4, 6)) as plan:
        u, error = plan.real.from_function(lambda y, x: 0 * (y + x)), None
        try:
            with Collectives(comm, max_nbytes=2048, deadline_s=20) as fast:
                with pytest.raises(InputError):
                    fast.Bcast(np.zeros(3 if comm.rank == 1 else 2))
                    fast.Barrier()
                if comm.rank == 1:
                    1 / 0  # noqa: B018
                plan.forward(u)
        except Exception as raised:
            error = raised
        comm.Barrier()
        assert isinstance(error, ZeroDivisionError if comm.rank == 1 else RankError), error
        assert comm.rank == 1 or "ZeroDivisionError" in str(error)
        assert not plan.forward(u).any()


def test_a_block_that_is_left_while_the_others_wait_in_mpi_ends_the_job():
    """At the deadline of the collectives, with the exception."""
    result = jobs.run_job("test_collectives_errors:left_while_others_wait_in_mpi", 2, expect_failure=True)
    assert "notifying the other ranks of ZeroDivisionError" in result.err, result.err


def test_a_rank_that_never_comes_ends_the_job():
    result = jobs.run_job("test_collectives_errors:never_comes", 2, expect_failure=True)
    assert "rank 0 of the node does not take part" in result.err and "Barrier" in result.err


@pytest.mark.parametrize(
    "env", [pytest.param({}, id="one node"), exhaustive({"MPIR_CVAR_NOLOCAL": "1"}, id="two nodes")]
)
def test_a_killed_rank_ends_the_job(env):
    result = jobs.run_job("test_collectives_errors:killed", 2, expect_failure=True, env=env)
    assert result.finished == ()


@pytest.mark.exhaustive
def test_a_rank_of_another_node_that_never_comes_ends_the_job():
    result = jobs.run_job("test_collectives_errors:never_comes", 2, expect_failure=True, env={"MPIR_CVAR_NOLOCAL": "1"})
    assert "rank 0 of another node does not take part" in result.err and "Barrier" in result.err
