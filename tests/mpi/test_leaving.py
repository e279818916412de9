"""A rank that leaves by an exception between two calls, or ends: nobody waits for it."""

import atexit
import gc
import os
import shutil
import sys
import tempfile
import threading
import traceback
import warnings
import weakref
from pathlib import Path

import commands
import numpy as np
import processes
import pytest
from everywhere import outcome, same_everywhere
from marks import exhaustive, on_ranks
from mpi4py import MPI
from test_errors import Boom

import overlap
from overlap.collectives import Collectives
from overlap.ranks import departure, together
from overlap.sparse import AdditiveSchwarz, Jacobi, Matrix, Multigrid, diffusion

MULTIPLE = {"MPI4PY_RC_THREAD_LEVEL": "multiple"}  # then a thread waits for the other ranks
USE = """
import sys
from mpi4py import MPI
import overlap

def use(rt):
    async def program(z):
        await rt.comm.Barrier()
    rt.pipelined(program)([0])
"""
PROGRAM = f"""{USE}
comm, how = MPI.COMM_WORLD, sys.argv[1]
rt = overlap.Runtime(comm, deadline_s=1 if how == "never" else None)
use(rt)
if comm.rank == 0:
    if how == "exit":
        sys.exit(0)
    raise ValueError("on purpose")
if how in ("never", "mpi4py"):
    comm.recv(source=0)
use(rt)
"""
UNDER_PYTEST = f"""{USE}
def test_with():
    with overlap.Runtime(MPI.COMM_WORLD, deadline_s=None) as rt:
        use(rt)
        if MPI.COMM_WORLD.rank == 0:
            raise ValueError("in a with block")
        use(rt)

def test_without():
    rt = overlap.Runtime(MPI.COMM_WORLD, deadline_s=None)
    use(rt)
    if MPI.COMM_WORLD.rank == 0:
        raise ValueError("outside")
    use(rt)
"""


def job_of(script, *options, how=(), **env):
    """Two ranks of a Python program."""
    command, its_env = processes.launcher_command("mpich")
    return commands.process(*command, "-n", 2, sys.executable, *options, script, *how, env=its_env | env)


WITHIN = f"""{USE}
comm = MPI.COMM_WORLD
with overlap.Runtime(comm, deadline_s=None) as outer, overlap.FFT2(outer, (2, 4, 4)) as inner:
    use(outer)
    if comm.rank == 0:
        raise ValueError("on purpose")
    comm.recv(source=0)
"""


def runtime(comm):
    rt = overlap.Runtime(comm, deadline_s=None)
    return rt, lambda: rt.pipelined(summing)(range(3), rt.comm)


async def summing(z, comm):
    await comm.Allreduce(MPI.IN_PLACE, np.ones(1))


def splitting(comm):
    rt = overlap.Runtime(comm, deadline_s=None)
    return rt, lambda: rt.comm.Split(comm.rank % 2)


def plan(comm):
    made = overlap.FFT2(comm, (2, 4, 4), settings={"wait": "off", "effort": "estimate"})
    return made, lambda: made.forward(made.real.empty())


def halo(comm):
    made = overlap.Halo(comm, overlap.Blocks((8, 8), (comm.size, 1)), deadline_s=None)
    return made, lambda: made.exchange(np.zeros(made.local_shape))


def halo_of_messages(comm):
    made = overlap.Halo(comm, overlap.Blocks((8, 8), (comm.size, 1)), transport="messages", deadline_s=None)
    return made, lambda: made.exchange(np.zeros(made.local_shape))


def matrix(comm):
    own = np.arange(4 * comm.rank, 4 * comm.rank + 4)
    columns = np.concatenate([own, (own + 1) % (4 * comm.size)])
    made = Matrix(comm, np.tile(own, 2), columns, np.ones(8), 4, deadline_s=None)
    return made, lambda: made @ np.ones(4)


def converted(comm):
    """A matrix that `astype` has made."""
    with matrix(comm)[0] as real:
        made = real.astype("c16")
    return made, lambda: made @ np.ones(4)


def transpose(comm):
    made = overlap.Transpose(comm, (2, 4, 4), 1, 2, settings={"wait": "off"})
    return made, lambda: made.forward(made.source.empty())


def output(comm):
    place = comm.bcast(tempfile.mkdtemp() if comm.rank == 0 else None)
    made = overlap.Output(comm, Path(place) / "run.h5", "w")
    if comm.rank == 0:
        weakref.finalize(made, remove, place, os.getpid())
    return made, lambda: made.write({"number": 1.0}, step=len(made.steps), time=0.0)


def remove(place, process):
    if os.getpid() == process:  # not in a child
        shutil.rmtree(place)


def protected(comm):
    here = slice(comm.rank, comm.rank + 1)
    field = overlap.DistArray(np.ones((1, 10**6)), comm, (comm.size, 10**6), (0,), (here, slice(0, 10**6)))
    made = overlap.Protected(field, min(1, comm.size - 1), deadline_s=None)
    return made, lambda: made.start(1)


def collectives(comm):
    made = Collectives(comm, deadline_s=None)
    return made, lambda: made.Allreduce(MPI.IN_PLACE, np.ones(1))


def diffusing(comm):
    made = diffusion(comm, cubes(comm), 1.0, fixed=[(0, 0)], deadline_s=None)
    return made, lambda: made @ np.ones(512)


def cubes(comm):
    return overlap.Blocks((8 * comm.size, 8, 8), (comm.size, 1, 1))


def preconditioner(A, kind):
    made = kind(A, cubes(A.halo.comm)) if kind is Multigrid else kind(A)
    return made, lambda: made @ np.ones(512)


KINDS = (runtime, splitting, plan, transpose, output, halo, halo_of_messages, matrix, converted, protected, collectives)
PRECONDITIONERS = (Jacobi, Multigrid, AdditiveSchwarz)


def used_by(make, comm, raising, uses=2):
    """Use something in its ``with`` block; rank 0 raises before the last use, or all do when all have used it once."""
    made, use = make(comm)
    with made:
        use()
        if raising == "all":
            comm.Barrier()
        if comm.rank == 0 or raising == "all":
            raise Boom(f"of rank {comm.rank}")
        for _ in range(uses - 1):
            use()


def told(comm, raising="one"):
    """One rank leaves the block by an exception: the others raise it in their next call, or when they free or close."""
    for make in KINDS:
        for uses in (2, 1):
            error = outcome(used_by, make, comm, raising, uses)
            if comm.rank == 0:
                assert type(error) is Boom, (make, uses, error)
            else:
                assert type(error) is overlap.RankError, (make, uses, error)
                assert error.rank == 0 and error.summary == "test_errors.Boom: of rank 0", (make, error)
                assert "used_by" in error.traceback_text, (make, error)
    made, use = runtime(comm)  # the ranks are in step
    with made:
        use()


@on_ranks(1)
def test_on_all(comm):
    """All leave by an exception, each by its own: nobody is told of another one's."""
    for make in KINDS:
        for _ in range(3):
            error = outcome(used_by, make, comm, "all")
            assert type(error) is Boom and str(error) == f"of rank {comm.rank}", (make, error)


@on_ranks(2, deadline_s=240, env={"MPIR_CVAR_NOLOCAL": "1"}, fresh=True)
def test_an_exception_is_told_between_nodes(comm):
    """Without a board, where headers and reports are nonblocking operations of MPI."""
    told(comm)
    test_on_all(comm)


def inside_a_round(comm):
    """One rank leaves when it has begun a round and not done its part of it: the others raise that in this round."""
    needed = [comm.rank - 1] if comm.rank else []  # nobody sends to rank 0, so it may be rounds ahead
    made = overlap.Halo.from_indices(comm, [comm.rank], needed, deadline_s=None)
    values = np.zeros(1 + len(needed))
    rounds = []

    def used():
        with made:
            if comm.rank == 0:
                for _ in range(2):
                    made.exchange(values)
                made.start(values)  # both places for its data hold those of rounds that rank 1 has not begun
                for other in range(1, comm.size):
                    comm.send(None, other)
                raise Boom("in the middle")
            comm.recv(source=0)
            for _ in range(4):
                made.exchange(values)
                rounds.append(len(rounds) + 1)

    error = outcome(used)
    if comm.rank == 0:
        assert type(error) is Boom, error
        return
    assert type(error) is overlap.RankError and error.rank == 0 and "in the middle" in error.summary, error
    assert rounds == [1, 2] or comm.rank > 1, rounds


def inner_block(comm):
    """A plan on a runtime that others use, too: its end tells the ranks, and the runtime goes on."""
    with overlap.Runtime(comm, deadline_s=None) as rt:
        error = outcome(used_by, lambda _: plan(rt), comm, "one")
        assert type(error) is (Boom if comm.rank == 0 else overlap.RankError), error
        rt.pipelined(summing)(range(3), rt.comm)
        made = diffusing(comm)[0]
        with made:
            kinds = [lambda _, kind=kind: preconditioner(made, kind) for kind in PRECONDITIONERS]
            for kind in (*kinds, lambda _: (Jacobi(made), lambda: made.norm(np.inf))):
                error = outcome(used_by, kind, comm, "one")
                assert type(error) is (Boom if comm.rank == 0 else overlap.RankError), error
                made @ np.ones(512)


def both_blocks(comm):
    """An exception leaves the blocks of a plan and of its runtime, or is caught between them; the others close both."""

    def used(caught, then):
        with overlap.Runtime(comm, deadline_s=None) as rt:
            try:
                with plan(rt)[0] as made:
                    made.forward(made.real.empty())
                    if comm.rank == 0:
                        raise Boom("in both")
            except Boom:
                if not caught:
                    raise
                if then:
                    rt.pipelined(summing)(range(3), rt.comm)

    for caught, then in ((False, False), (True, False), (True, True)):
        error = outcome(used, caught, then)
        if comm.rank == 0:
            expected = overlap.RankError if then else type(None) if caught else Boom
        else:
            expected = overlap.RankError
        assert type(error) is expected, (caught, then, error)
    made, use = runtime(comm)  # the ranks are in step
    with made:
        use()
    wait_for_departures()


def reports_that_cross(comm):
    """Two ranks leave by exceptions of their own, and learn late that all reports have come: the third raises one."""
    blocks = overlap.agreed_blocks(comm, (4 * comm.size, 4), grid=(comm.size, 1), width=1)
    exchanges, completed = [], together.Exchange.is_complete

    def late(exchange):
        if exchange not in exchanges:
            exchanges.append(exchange)
        complete = completed(exchange)
        return complete and (exchange is not exchanges[0] or len(exchanges) > 1)

    def used():
        with overlap.Halo(comm, blocks) as halo:
            if comm.rank:
                raise Boom(f"of rank {comm.rank}")
            halo.exchange(*halo.empty())
            halo.exchange(*halo.empty())

    together.Exchange.is_complete = late
    try:
        error = outcome(used)
        with overlap.Halo(comm, blocks) as halo:
            (values,) = halo.empty()
            values[:] = comm.rank
            halo.exchange(values)
    finally:
        together.Exchange.is_complete = completed
    assert type(error) is (Boom if comm.rank else overlap.RankError), error
    assert comm.rank == comm.size - 1 or values[-1, 2] == comm.rank + 1


@on_ranks(3, fresh=True)
def test_on_three_ranks(comm):
    reports_that_cross(comm)
    told(comm)
    test_on_all(comm)
    inside_a_round(comm)
    both_blocks(comm)


def caught_by_some(comm):
    """All ranks raise the same, and one leaves by it while the others go on: they are told."""

    def used():
        with overlap.Runtime(comm, deadline_s=None) as rt:
            error = outcome(rt.pipelined(failing), range(3), rt.comm)
            if comm.rank == 0:
                raise error
            rt.pipelined(summing)(range(3), rt.comm)

    async def failing(z, target):
        await target.Allreduce(MPI.IN_PLACE, np.ones(1))
        if target.rank == 1:
            raise Boom(z)

    error = outcome(used)
    assert type(error) is (overlap.SliceError if comm.rank == 0 else overlap.RankError), error
    assert "Boom" in error.summary, error


def different_ends(comm):
    """One rank closes while the others call: all are told, and nobody waits."""
    rt, use = runtime(comm)
    use()
    error = outcome(rt.close if comm.rank == 0 else use)
    assert type(error) is overlap.InputError and "closing a runtime" in str(error), error
    same_everywhere(comm, str(error))
    if comm.rank:
        assert type(outcome(use)) is overlap.InputError  # again, without waiting for anybody
    rt.close()


def after_a_while(comm):
    """Who comes late is told, too; meanwhile the other rank has left, and uses other things."""
    rt, use = runtime(comm)

    def used():
        with rt:
            use()
            if comm.rank == 0:
                raise Boom("early")
            comm.recv(source=0)
            use()

    error = outcome(used)
    if comm.rank == 0:
        for other in range(1, comm.size):
            comm.send(None, other)
    assert type(error) is (Boom if comm.rank == 0 else overlap.RankError), error
    wait_for_departures()


@on_ranks(2, exhaustive("openmpi-2"), env=MULTIPLE, fresh=True)
def test_a_thread_tells_the_others(comm):
    # First, in processes of their own: as long as an object is there that other cases have left, hooks are installed
    # already, and a report that waits for the next call keeps its object.
    in_a_thread(comm)
    told(comm)
    test_on_all(comm)
    inner_block(comm)
    both_blocks(comm)
    after_a_while(comm)


def wait_for_departures():
    """Wait until all ranks know which of them have left what; reports on other objects wait for the next call there."""
    for one in list(departure._departures):
        if one._report.leaving:
            one.join()


def in_a_thread(comm):
    """An exception that ends the thread which has used a runtime tells the others; one of another thread does not."""
    wait_for_departures()
    gc.collect()  # what other cases have left: as long as it is there, so are the hooks
    before, seen = threading.excepthook, []
    threading.excepthook = own = lambda args: seen.append(args.exc_type)
    rt, use = runtime(comm)
    try:
        assert threading.excepthook is not own
        for thread in (threading.Thread(target=raising), threading.Thread(target=raising, args=(use,))):
            error = outcome(use)
            assert error is None, error
            if comm.rank == 0:
                thread.start()
                thread.join()
        if comm.rank:
            error = outcome(use), outcome(use)
            error = error[1] or error[0]
            assert type(error) is overlap.RankError and "in the thread" in error.summary, error
        else:
            assert seen == [Boom, Boom], seen
        rt.close()
        wait_for_departures()
        assert threading.excepthook is own
    finally:
        threading.excepthook = before


def raising(use=None):
    if use is not None:
        use()
    raise Boom("in the thread")


@on_ranks(1)
def test_hooks_are_put_back(comm):
    """Python's hooks are the program's own again when everything was closed, or left by an exception and collected."""
    wait_for_departures()
    gc.collect()
    before = sys.excepthook, threading.excepthook
    rt, _ = runtime(comm)
    assert comm.size == 1 or sys.excepthook is not before[0]
    with plan(comm)[0]:
        pass
    rt.close()
    assert (sys.excepthook, threading.excepthook) == before
    error = outcome(used_by, matrix, comm, "all")
    assert type(error) is Boom, error
    del error
    wait_for_departures()
    gc.collect()
    assert (sys.excepthook, threading.excepthook) == before


@on_ranks(2, deadline_s=240, fresh=True)
def test_an_exception_between_two_calls_is_told(comm):
    # halos that were left keep their communicators
    told(comm)
    test_on_all(comm)
    inside_a_round(comm)
    inner_block(comm)
    both_blocks(comm)
    caught_by_some(comm)
    different_ends(comm)
    in_a_thread(comm)
    test_hooks_are_put_back(comm)


@on_ranks(1, 2, deadline_s=240)
def test_forked_children_are_refused(comm):
    """In a forked child everything that was made before says so, and its end touches nothing that the parent uses."""
    # Their tracebacks keep objects that were not made.
    failed = [outcome(overlap.Runtime, None), outcome(overlap.Halo, None, overlap.Blocks((8, 8), (1, 1)))]
    failed += [outcome(overlap.Protected, []), outcome(Collectives, None)]
    assert {type(error) for error in failed} == {overlap.InputError}, failed
    made = [make(comm) for make in KINDS]
    made.append(diffusing(comm))
    made += [preconditioner(made[-1][0], kind) for kind in PRECONDITIONERS]
    for _, use in made:
        use()
    around = made[KINDS.index(halo)][0]
    pending = around.start(np.zeros(around.local_shape))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a process with threads
        child = os.fork()
    if child == 0:
        status = 1
        try:
            check_child(made, [pending.wait, pending.test, lambda: overlap.Runtime(comm), lambda: halo(comm)])
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert status == 0, status
    pending.wait()
    for _ in range(2):
        for _, use in made:
            use()
    for one, _ in reversed(made):
        one._end()


def check_child(made, more):
    """Check what the child of `forked` may do."""
    for one, use in made:
        error = outcome(use)
        assert type(error) is overlap.ClosedError and "forked" in str(error), (one, error)
        assert outcome(one._end) is None
        assert type(outcome(one.__enter__)) is overlap.ClosedError, one
        error = outcome(one.__exit__, Boom, Boom("in the child"), None)
        assert error is None, error
    for use in more:
        error = outcome(use)
        assert type(error) is overlap.ClosedError and "forked" in str(error), error
    made.clear()
    gc.collect()
    atexit._run_exitfuncs()


@pytest.mark.parametrize(
    "how, options, told",
    [
        ("raise", (), "RankError: failed on rank 0: ValueError: on purpose"),
        ("exit", (), "RankError: failed on rank 0: its process has ended without close()"),
        ("raise", ("-m", "IPython", "--colors=NoColor"), "has ended without close(), after ValueError: on purpose"),
        ("never", (), "ValueError: on purpose has ended this rank"),
        ("mpi4py", ("-m", "mpi4py"), "ValueError: on purpose"),
    ],
)
def test_the_end_of_a_process_is_told(tmp_path, how, options, told):
    """Where the others wait in MPI, mpi4py ends the job, or a deadline does."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    with job_of(script, *options, how=[how]) as job:
        said = "".join(job.communicate(timeout=commands.DEADLINE_S))  # IPython writes errors to standard output
    assert job.returncode != 0 and told in said, said
    if (how, options) == ("raise", ()):
        assert said.count("ValueError: on purpose") == 2, said  # with its traceback, and in a RankError
    assert ("within 1 s" in said) == ("has ended this rank" in said) == (how == "never"), said


def test_pytest_is_told_of(tmp_path):
    script = tmp_path / "test_program.py"
    script.write_text(UNDER_PYTEST)
    options = "-m", "pytest", "-q", "-c", "/dev/null", "-p", "no:cacheprovider"
    with job_of(script, *options, PYTEST_ADDOPTS="") as job:  # what these are is meant for the session
        out, _ = job.communicate(timeout=commands.DEADLINE_S)
    assert job.returncode != 0
    # pytest goes on after a test that has failed, and its process ends well.
    assert "RankError: failed on rank 0: ValueError: in a with block" in out, out
    assert "RankError: failed on rank 0: its process has ended without close(), after ValueError: outside" in out, out


@pytest.mark.parametrize("level", ["serialized", "multiple"])
@pytest.mark.parametrize("options", [(), ("-m", "mpi4py")], ids=["python", "mpi4py"])
def test_the_traceback_is_printed_while_the_other_rank_waits_in_mpi(tmp_path, level, options):
    """It is, although no deadline ends the job; mpi4py does."""
    script = tmp_path / "program.py"
    script.write_text(WITHIN)
    with job_of(script, *options, MPI4PY_RC_THREAD_LEVEL=level, OVERLAP_CACHE=str(tmp_path)) as job:
        if options:
            _, err = job.communicate(timeout=commands.DEADLINE_S)
            assert job.returncode != 0
        else:
            err = ""
            while "ValueError: on purpose" not in err:
                line = job.stderr.readline()
                assert line, err
                err += line
            job.terminate()
            job.communicate(timeout=commands.DEADLINE_S)
    assert "ValueError: on purpose" in err and 'raise ValueError("on purpose")' in err, err
