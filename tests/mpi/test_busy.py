"""Objects that are closed while a call of them is under way.

The calls and their arguments are the recipes of `generated_recipes`. A thread makes the call and stops at a line of the
library's own code, drawn among all that the call executes; the main thread closes the object meanwhile. Either that is
a `BusyError`, nothing is closed, and the call ends as it would have, or the object is closed, and the call ends with an
error of the library or well.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from generated import Call, Lab, Subject, Watch, arguments_of, called
from generated_recipes import ARGUMENTS, SUBJECTS
from marks import exhaustive, on_ranks
from mpi4py import MPI
from test_generated import FIRST, ROW_S, _end, _Problems, subjects_of

import overlap
import overlap.sparse

AREAS = tuple(SUBJECTS)
QUICK = ("collectives", "output")
OWN_CODE = overlap.__path__[0]
PAUSE_S = 0.5  # the main thread may wait for what the stopped one holds


class Stopped(threading.Thread):
    """A thread that makes a call and stops at a line given by its number; the lines are counted.

    Attributes
    ----------
    lines : int
        How many there have been.
    where : str or None
        File and line at which it stopped.
    error : BaseException or None
        How the call has ended.
    """

    def __init__(self, make: Callable[[], Any], number: int = -1) -> None:
        super().__init__(daemon=True, name="caller")
        self.lines, self.where, self.error, self.result = 0, None, None, None
        self.inside, self.leave = threading.Event(), threading.Event()
        self._make, self._number = make, number

    def run(self) -> None:
        sys.settrace(self._traced)
        try:
            self.result = self._make()
        except BaseException as error:
            self.error = error
        finally:
            sys.settrace(None)
            self.inside.set()

    def _traced(self, frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(OWN_CODE):
            return None
        if event == "line":
            if self.lines == self._number:
                self.where = f"{frame.f_code.co_filename[len(OWN_CODE) + 1 :]}:{frame.f_lineno}"
                self.inside.set()
                self.leave.wait(PAUSE_S)
            self.lines += 1
        return self._traced


@on_ranks(1, exhaustive("openmpi-1"), deadline_s=3600)
@pytest.mark.parametrize("every", [1, exhaustive(12)])
@pytest.mark.parametrize("area", [area if area in QUICK else exhaustive(area) for area in AREAS])
def test_every_close_beside_every_call(comm, area, every, row_s=ROW_S):
    """Close each object while another thread is in each of its calls, at `every` so many drawn lines."""
    lab, problems = Lab(comm), _Problems(comm.rank == 0)
    with Watch(row_s) as watch:
        for _, subject in subjects_of(area):
            if subject.close is None:
                continue
            for name, call in subject.calls.items():
                watch.row(f"{subject.name}.{name}, in a thread", FIRST)
                lines = _row(lab, subject, name, call, -1, problems)
                for part in range(every):
                    number = crc32(f"{subject.name}.{name} {part}".encode()) % max(1, lines)
                    watch.row(f"{subject.name}.{name} stopped at line {number} of {lines}", FIRST)
                    _row(lab, subject, name, call, number, problems)
    _end(lab, problems)


def _row(lab: Lab, subject: Subject, name: str, call: Call, number: int, problems: list[str]) -> int:
    """Make a call in a thread, closing the object at a line; return how many lines the call has."""
    one = lab.one = subject.make(lab)
    function = subject.function(one, name)
    arguments = arguments_of(call, function, lab, one, ARGUMENTS)
    thread = Stopped(lambda: called(call, function, lab, arguments), number)
    thread.start()
    thread.inside.wait()
    refused, ended, owners = None, False, dict(lab.owners)
    if number >= 0:
        try:
            subject.close(lab, one)
            ended = True
        except overlap.BusyError as error:
            refused = error
            lab.owners.update(owners)
        except BaseException as error:
            problems.append(f"{subject.name}.{name} at {thread.where}: closing raises {error!r:.300}")
    thread.leave.set()
    thread.join()
    text = f"{subject.name}.{name} at {thread.where}, {'closed' if ended else 'refused' if refused else 'alone'}"
    try:
        if thread.error is None:
            call.right(lab, one, arguments, thread.result)
            call.done(thread.result)
        elif not (ended and isinstance(thread.error, overlap.OverlapError)):
            problems.append(f"{text}: the call raises {thread.error!r:.300}")
        if not ended:
            subject.close(lab, one)
    except BaseException as error:
        problems.append(f"{text}: afterwards {error!r:.300}")
    return thread.lines


@on_ranks(1, 2, "openmpi-1", "openmpi-2")
def test_closed_inside(comm: MPI.Intracomm) -> None:
    """From inside a function of real-space fields, a slice or a callback, every close is refused."""
    for wait in ("off", "block", "poll"):
        with overlap.Runtime(comm, wait=wait, deadline_s=60) as rt, overlap.FFT2(rt, (4, 8, 8), float) as plan:
            with overlap.FFT2(rt, (4, 8, 8), float) as other:
                field, refused = plan.real.empty(), []
                field[...] = 2.0

                def closing(x):
                    refused.extend(_outcomes(plan.close, other.close, rt.close))
                    return x * x

                squared = plan.pointwise(closing, inputs=1)
                squares = plan.backward(squared(plan.forward(field)))
                assert np.allclose(squares, 4.0)

                @rt.pipelined
                async def program(i):
                    await rt.comm.Allreduce(np.ones(1), np.empty(1))
                    refused.extend(_outcomes(plan.close, other.close, rt.close))

                program(range(4))
                assert len(refused) >= 15 and set(refused) == {overlap.BusyError}, (wait, refused)
                assert np.allclose(plan.backward(plan.forward(field)), 2.0)
    with overlap.sparse.Matrix.from_stencil(comm, (8 * comm.size,), [(0,), (-1,), (1,)], [2.0, -1.0, -1.0]) as A:
        with overlap.sparse.Jacobi(A) as M:
            refused = []
            b = A @ np.full(8, 3.0)
            x = overlap.sparse.cg(A, b, M=M, rtol=1e-12, callback=lambda x: refused.extend(_outcomes(A.free, M.free))).x
            assert refused and set(refused) == {overlap.BusyError}, refused
            assert np.allclose(x, 3.0)


class Beside:
    """A thread that is in a call of a plan until `leave` is set; `found` is what the call has given."""

    def __init__(self, plan: overlap.FFT2) -> None:
        self.inside, self.leave, self.found = threading.Event(), threading.Event(), []
        self.field = plan.real.empty()
        self.field[...] = 2.0
        squared, spectrum = plan.pointwise(self.hold, inputs=1), plan.forward(self.field)
        self.thread = threading.Thread(target=self.call, args=(squared, spectrum))
        self.thread.start()
        assert self.inside.wait(60)

    def hold(self, x: np.ndarray) -> np.ndarray:
        self.inside.set()
        assert self.leave.wait(60)
        return x * x

    def call(self, squared: Callable[[Any], Any], spectrum: np.ndarray) -> None:
        try:
            self.found.append(np.array(squared(spectrum)))
        except BaseException as error:
            self.found.append(error)

    def end(self, comm: MPI.Intracomm) -> None:
        """Check what the call has given: of squares of 2, the mean alone is not 0."""
        self.thread.join()
        (found,) = self.found
        assert isinstance(found, np.ndarray), found
        assert np.isclose(comm.allreduce(found.sum().real), 4 * 64 * 4.0)


@on_ranks(1, 2, exhaustive("openmpi-1"), exhaustive("openmpi-2"))
def test_closed_beside(comm: MPI.Intracomm) -> None:
    """A thread's call goes on where the main thread closes."""
    for wait in ("off", "block", "poll"):
        plan = overlap.FFT2(comm, (4, 8, 8), float, settings={"wait": wait})
        beside = Beside(plan)
        calls = plan.close, plan.runtime.close, lambda: plan.forward(beside.field), lambda: plan.forward(beside.field)
        assert _outcomes(*calls) == [overlap.BusyError] * 4
        beside.leave.set()
        beside.end(comm)
        plan.close()


@on_ranks(1, 2, exhaustive("openmpi-1"), exhaustive("openmpi-2"))
def test_left_beside(comm: MPI.Intracomm) -> None:
    """A block that is left by the `BusyError` of a second call waits for the first one, which goes on."""
    for wait in ("off", "block", "poll"):
        with pytest.raises(overlap.BusyError):
            with overlap.FFT2(comm, (4, 8, 8), float, settings={"wait": wait}) as plan:
                beside = Beside(plan)
                try:
                    plan.forward(beside.field) if comm.size > 1 else plan.close()
                finally:  # whatever comes first, the block's end waits for the call
                    threading.Timer(0.2, beside.leave.set).start()
        beside.end(comm)
        assert _outcomes(lambda: plan.forward(beside.field)) == [overlap.ClosedError]


class _EndsAThread:
    """Garbage; with it ends a thread that waits deep in its stack."""

    def __init__(self) -> None:
        self.itself = self  # only the collector of cycles finds it
        self._event = threading.Event()
        self._thread = threading.Thread(target=self._wait, args=(self._event, 300))
        self._thread.start()

    @classmethod
    def _wait(cls, event: threading.Event, depth: int) -> None:
        if depth:
            cls._wait(event, depth - 1)
        else:
            event.wait()

    def __del__(self) -> None:
        self._event.set()
        self._thread.join()


@on_ranks(1)
def test_closed_while_garbage_is_collected(comm: MPI.Intracomm) -> None:
    """Closing looks at the stacks of other threads; none of these ends meanwhile, whenever Python collects garbage."""
    usual = gc.get_threshold()
    for objects in range(20, 1000, 20):  # made before the collection
        rt = overlap.Runtime(comm)
        gc.collect()
        gc.disable()
        _EndsAThread()
        gc.set_threshold(objects, *usual[1:])
        gc.enable()
        try:
            rt.close()
        finally:
            gc.set_threshold(*usual)
        assert gc.isenabled()


def _outcomes(*calls: Callable[[], object]) -> list[type[BaseException] | None]:
    """The classes of the errors with which calls end."""
    found: list[type[BaseException] | None] = []
    for call in calls:
        try:
            call()
            found.append(None)
        except BaseException as error:
            found.append(type(error))
    return found
