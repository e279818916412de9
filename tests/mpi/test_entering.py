"""What all ranks do together is entered by one door: who enters is told, and who waits there says so.

Every collective call is the next call of the other ranks when an exception has left a ``with`` block on one of them;
and the call that only one rank makes at first.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import commands
import numba
import numpy as np
import processes
import pytest
from everywhere import outcome
from generated import Call, Lab, Watch, called
from generated_recipes import SUBJECTS
from marks import exhaustive, on_ranks
from mpi4py import MPI
from test_errors import Boom
from test_generated import FIRST, ROW_S, _end, _first, _Problems, _Rows, subjects_of

import overlap
import overlap.fft
from overlap.collectives import Collectives
from overlap.ranks import watchdog
from overlap.sparse import diffusion

AREAS = tuple(SUBJECTS)
QUICK = ("output",)  # areas that compile little
MULTIPLE = {"MPI4PY_RC_THREAD_LEVEL": "multiple"}
PROGRAM = """
import sys
from mpi4py import MPI
import numpy as np
import overlap
from overlap.ranks import watchdog

comm, how = MPI.COMM_WORLD, sys.argv[1]
rt = overlap.Runtime(comm, deadline_s=2, entry_deadline_s=None if how == "ended" else 2)
here = slice(comm.rank, comm.rank + 1)
u = overlap.DistArray(np.ones((1, 4)), comm, (comm.size, 4), (0,), (here, slice(0, 4)))
if how == "opposite":
    watchdog.NOTICE_S = 0.3  # instead of a minute
    other = overlap.Runtime(comm)
    (rt if comm.rank else other).close()
if comm.rank == 1:
    if how == "ended":
        sys.exit(0)
    comm.recv(source=0)
u.global_mean() if how == "alone" else overlap.Runtime(comm, deadline_s=8)
"""


def run_program(tmp_path, how):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    command, env = processes.launcher_command("mpich")
    with commands.process(*command, "-n", 2, sys.executable, script, how, env=env) as job:
        out, err = job.communicate(timeout=commands.DEADLINE_S)
    assert job.returncode != 0, out + err
    return err


DEADLINE_S = 30
NOTICE_S = 0.3  # instead of a minute
OVER = "the call is over\n"
SETTINGS = {"wait": "off", "effort": "estimate"}
ENDED = ("overlap.halo.PendingHalo",)  # a round, which a failure ends
RENEWED = (
    "overlap.runtime.AsyncCollectives",
)  # the next program that awaits them raises the error, and makes new ones
UNTOLD = ("overlap.sparse.Matrix.start_sum",)  # a sum of MPI, which has no header: it is under the deadline


def rows_of(lab: Lab, area: str, watch: Watch, first: int) -> Iterator[tuple[str, str, Call, _Rows]]:
    """Every public collective call of an area, with objects to call."""
    number = 0
    for _, subject in subjects_of(area):
        rows = _Rows(lab, subject)
        for name, call in subject.calls.items():
            number += 1
            if number >= first and not call.local:
                text = f"{subject.name}.{name}"
                watch.row(f"{number}: {text}", FIRST)
                yield text, name, call, rows
        watch.row(f"{number}: {subject.name} freed", FIRST)
        rows.end()


@on_ranks(2, fresh=True, deadline_s=900)
@pytest.mark.parametrize(
    "area", [area if area in QUICK else pytest.param(area, marks=pytest.mark.exhaustive) for area in AREAS]
)
def test_an_exception_is_told_in_every_public_call(comm, area, first=0, row_s=ROW_S) -> None:
    """One rank leaves another object's block by an exception: the others raise it in their next call, any call."""
    lab, problems = Lab(comm), _Problems(comm.rank == 0)
    with Watch(row_s) as watch:
        for text, name, call, rows in rows_of(lab, area, watch, first):
            problem = rows.good(name, call)
            if not problem and text not in UNTOLD:
                function, arguments = rows.subject.function(rows.fresh(), name), rows.arguments(name, call)
                problem = _first(lab.gathered(_raised(lab, partial(called, call, function, lab, arguments))))
                if problem or rows.subject.once or rows.subject.name in ENDED:
                    rows.end(problem is None)
                if not problem and rows.subject.name in RENEWED:
                    function, arguments = rows.subject.function(rows.fresh(), name), rows.arguments(name, call)
                    problem = _first(lab.gathered(_raised_again(partial(called, call, function, lab, arguments))))
            problem = problem or rows.good(name, call)
            if problem:
                problems.append(f"{text}: {problem}")
    _end(lab, problems)


def _raised_again(use: Callable[[], object]) -> str | None:
    """What is wrong with what `use` raises, None if nothing is."""
    try:
        use()
    except overlap.SliceError as error:
        return None if "on purpose" in error.summary else f"says {error}"
    return "nothing is raised"


def _raised(lab: Lab, use: Callable[[], object]) -> str | None:
    """What is wrong with what the others raise in `use`, None if nothing is."""
    message = f"on purpose, {time.monotonic()}"
    try:
        with overlap.Runtime(lab.comm, deadline_s=None):
            if lab.last:
                raise Boom(message)
            use()
    except Boom as error:
        return None if lab.last and str(error) == message else f"raises {error!r}"
    except overlap.RankError as error:
        if error.rank != lab.size - 1 or lab.last:
            return f"names rank {error.rank}: {error}"
        return None if "on purpose" in error.summary else f"says {error}"
    except BaseException as error:
        return f"raises {type(error).__name__}: {str(error)[:300]}"
    return "nothing is raised"


@on_ranks(2, fresh=True, deadline_s=900)
@pytest.mark.parametrize(
    "area", [area if area in QUICK else pytest.param(area, marks=pytest.mark.exhaustive) for area in AREAS]
)
def test_every_public_call_says_for_whom_it_waits(comm, area, first=0, row_s=ROW_S) -> None:
    """Rank 0 alone makes a call: it says, once, in which call it waits for whom; when the others come, all is well."""
    lab, problems = Lab(comm), _Problems(comm.rank == 0)
    with error_output(comm) as said, Watch(row_s) as watch, mock.patch.object(watchdog, "NOTICE_S", NOTICE_S):
        for text, name, call, rows in rows_of(lab, area, watch, first):
            problem = rows.good(name, call)
            if not problem:
                begins = comm.bcast(os.path.getsize(said) if comm.rank == 0 else None)
                while comm.rank and not _lines(said, begins):
                    time.sleep(0.01)
                problem = rows.good(name, replace(call, right=partial(_over, call)))
            if not problem and comm.rank == 0:
                problem = _notice_problem(_lines(said, begins), comm.size)
            if problem := _first(lab.gathered(problem)):
                problems.append(f"{text}: {problem}")
    _end(lab, problems)


@contextlib.contextmanager
def error_output(comm: MPI.Intracomm) -> Iterator[str]:
    """The path of a file to which rank 0 prints its errors meanwhile; at the end they go where they belong."""
    own = os.dup(2)
    with tempfile.NamedTemporaryFile("a+") as file:
        if comm.rank == 0:
            os.dup2(file.fileno(), 2)
        try:
            yield comm.bcast(file.name)
        finally:
            os.dup2(own, 2)
            os.close(own)
            if comm.rank == 0:
                file.seek(0)
                sys.stderr.write(file.read())


def _over(call: Call, lab: Lab, *result: Any) -> None:
    """Say on rank 0 that the call is over, perhaps without a wait; then check its result."""
    if lab.rank == 0:
        os.write(2, OVER.encode())
    call.right(lab, *result)


def _lines(path: str, begins: int) -> list[str]:
    """What rank 0 has said of the call: for whom it waits, and that it is over."""
    with open(path) as file:
        file.seek(begins)
        return [line for line in file if line.startswith("overlap: rank 0 has waited") or line == OVER]


def _notice_problem(lines: list[str], ranks: int) -> str | None:
    """What is wrong with what rank 0 has said."""
    whom = "rank 1" if ranks == 2 else f"ranks {', '.join(map(str, range(1, ranks)))}"
    if lines == [OVER]:  # this rank had no need to wait
        return None
    if len(lines) != 2 or not re.search(rf" for ({whom}|other ranks)\b", lines[0]):  # MPI itself names none
        return f"says {lines}"
    return None


# ---- without recipes ---------------------------------------------------------------------------


@on_ranks(2, exhaustive(3))
def test_calls_of_arrays(comm: MPI.Intracomm) -> None:
    """Collectives of arrays, plans and constructors, each as the next call after an exception in a plan's block."""
    whole = np.arange(comm.size * 8.0).reshape(2 * comm.size, 4)
    here = slice(2 * comm.rank, 2 * comm.rank + 2)
    u = overlap.DistArray(whole[here], comm, whole.shape, (0,), (here, slice(0, 4)))
    with overlap.FFT2(comm, (2, 4, 4), "f8", settings=SETTINGS) as other:
        calls: list[Callable[[], object]] = [
            u.gather,
            u.global_sum,
            partial(u.redistribute, 1),
            partial(u.save, "never_written.h5"),
            partial(other.real.scatter, np.ones((2, 4, 4))),
            partial(other.real.from_function, lambda y, x: y + x),
            partial(other.forward, other.real.empty()),
            partial(overlap.fft.fft2, u),
            partial(overlap.Runtime, comm),
            partial(overlap.FFT2, comm, (2, 4, 4)),
            partial(overlap.Halo, comm, overlap.Blocks((8, 8), (comm.size, 1))),
        ]
        for call in calls:
            error = outcome(failing_plan, comm, call)
            if comm.rank == 0:
                assert type(error) is Boom, (call, error)
            else:
                assert type(error) is overlap.RankError, (call, error)
                assert error.rank == 0 and error.summary == "test_errors.Boom: in a plan", (call, error)
                assert "failing_plan" in error.traceback_text, (call, error)
            gathered = u.gather()
            assert comm.rank or np.array_equal(gathered, whole), call
            assert u.global_sum() == whole.sum(), call
        field = other.real.from_function(lambda y, x: np.cos(y) + x)
        np.testing.assert_allclose(other.backward(other.forward(field)), field, atol=1e-12)
    overlap.fft.close_plans()


@on_ranks(2, exhaustive(3))
def test_calls_of_data(comm: MPI.Intracomm) -> None:
    """Calls that exchange nothing but data, as the next ones; then all ranks, in step, make them well."""
    values, total = np.zeros((10, 10)), comm.size * (comm.size + 1) / 2
    own = np.full(1, comm.rank + 1.0)
    everyone, long = np.empty(comm.size), np.ones(10**6)
    blocks = overlap.Blocks((8 * comm.size, 8), (comm.size, 1), periodic=True)
    for transport in ("auto", "messages"):
        with overlap.Halo(comm, blocks, transport=transport, deadline_s=DEADLINE_S) as halo:

            def tested(halo: overlap.Halo = halo) -> None:
                pending = halo.start(values)
                while not pending.test():
                    pass

            for call in (lambda: halo.exchange(values), lambda: halo.start(values).wait(), tested):
                told_in(comm, call)
                values[1:-1] = comm.rank
                call()
                assert values[0, 1] == (comm.rank - 1) % comm.size, values
                assert values[-1, 1] == (comm.rank + 1) % comm.size, values
    calls: list[Callable[[Collectives], object]] = [
        lambda fast: fast.Barrier(),
        lambda fast: fast.allreduce(1.0),
        lambda fast: fast.Allgather(own, everyone),
        lambda fast: fast.Allreduce(MPI.IN_PLACE, long),
        lambda fast: compiled(fast, 1.0),
    ]
    for use in calls:
        with Collectives(comm, deadline_s=DEADLINE_S) as fast:
            told_in(comm, partial(use, fast))
            error = outcome(use, fast)  # it is over on all ranks
            assert type(error) is overlap.RankError and "in a plan" in error.summary, error
    told_in(comm, partial(Collectives, comm, deadline_s=DEADLINE_S))
    cells = overlap.Blocks((8 * comm.size, 8, 8), (comm.size, 1, 1))
    with diffusion(comm, cells, 1.0, fixed=[(0, 0)], deadline_s=DEADLINE_S) as A:
        x = np.arange(512.0)
        product = A @ x
        for call in (lambda: A @ x, lambda: A.sum(np.ones(1)), lambda: A.norm(np.inf)):
            told_in(comm, call)
            assert np.array_equal(A @ x, product)
            assert A.sum(own.copy()) == total
    with Collectives(comm) as fast:
        assert fast.allreduce(own[0]) == total


@numba.njit
def compiled(fast: Any, value: float) -> Any:
    return fast.allreduce(value)


def told_in(comm: MPI.Intracomm, call: Callable[[], object]) -> None:
    """Raise on rank 0 in the block of a plan; the others learn of it in a call."""
    error = outcome(failing_plan, comm, call)
    assert type(error) is (overlap.RankError if comm.rank else Boom), (call, error)
    assert comm.rank == 0 or (error.rank, error.summary) == (0, "test_errors.Boom: in a plan"), (call, error)


@on_ranks(2, exhaustive(3))
def test_data_then_own_messages(comm: MPI.Intracomm) -> None:
    """The ranks have raised, the others in a round of a halo: then all of them meet in MPI calls of their own."""
    with overlap.Halo(comm, overlap.Blocks((8 * comm.size, 8), (comm.size, 1)), deadline_s=DEADLINE_S) as halo:
        told_in(comm, lambda: halo.exchange(np.zeros(halo.local_shape)))
        assert comm.allreduce(1) == comm.size


def failing_plan(comm: MPI.Intracomm, call: Callable[[], object]) -> None:
    """Leave the block of a plan by an exception on rank 0, while the others make a call."""
    with overlap.FFT2(comm, (2, 4, 4), settings=SETTINGS) as plan:
        plan.forward(plan.real.empty())
        if comm.rank == 0:
            raise Boom("in a plan")
        call()


@on_ranks(2, exhaustive(3))
def test_caught_and_used_again(comm: MPI.Intracomm) -> None:
    """Objects whose block was not left work on: whole calls of compiled code, pipelines and arrays, in any order."""
    with overlap.FFT2(comm, (4, 8, 8), "c16", settings=SETTINGS) as plan, overlap.Runtime(comm) as rt:
        rng = np.random.default_rng(5)
        full = rng.standard_normal((4, 8, 8)) + 1j * rng.standard_normal((4, 8, 8))
        u = plan.real.scatter(full)
        expected = np.fft.fft2(full)[plan.spectrum.local_slice]
        for number in range(12):
            uses = [
                lambda: np.testing.assert_allclose(plan.forward(u), expected, atol=1e-10),
                lambda: np.testing.assert_allclose(u.global_sum(), full.sum(), rtol=1e-12),
                lambda: rt.pipelined(summing)(range(3), rt.comm),
            ]
            uses = uses[number % 3 :] + uses[: number % 3]
            error = outcome(failing_plan, comm, uses[-1])
            assert type(error) is (overlap.RankError if comm.rank else Boom), (number, error)
            for use in uses:
                use()


async def summing(z: int, comm: Any) -> None:
    await comm.Allreduce(MPI.IN_PLACE, np.ones(1))


@on_ranks(2, exhaustive(3))
def test_reported_once(comm: MPI.Intracomm) -> None:
    """A rank that has raised a failure does not raise it again, nor for its own exception of which it is the cause."""
    with overlap.Runtime(comm) as rt:

        def leave() -> None:
            inner = overlap.Runtime(comm)
            try:
                failing_plan(comm, lambda: rt.pipelined(summing)(range(2), rt.comm))
            except (Boom, overlap.RankError) as error:
                with inner:
                    raise KeyError("of the user's") from error

        error = outcome(leave)
        assert type(error) is KeyError, error
        rt.pipelined(summing)(range(2), rt.comm)
        overlap.Runtime(comm).close()
        assert rt.coordinator.maximum(comm.rank) == comm.size - 1


@on_ranks(2, exhaustive("openmpi-2"), env=MULTIPLE)
def test_a_thread_tells_it(comm):
    test_calls_of_arrays(comm)
    test_calls_of_data(comm)
    test_data_then_own_messages(comm)
    test_caught_and_used_again(comm)
    test_reported_once(comm)


@pytest.mark.parametrize("how, said", [("alone", "reducing an array has not completed"), ("ended", "without close()")])
def test_the_end_of_a_job_in_which_one_rank_calls(tmp_path, how, said):
    err = run_program(tmp_path, how)
    assert said in err, err


def test_two_runtimes_closed_in_opposite_order_say_so(tmp_path):
    err = run_program(tmp_path, "opposite")
    for rank in range(2):
        assert re.search(rf"rank {rank} has waited for \d+ s in closing a runtime for rank {1 - rank}\n", err), err
