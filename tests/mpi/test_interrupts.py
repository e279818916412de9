"""Ctrl-C on one rank before any bytecode of any public call: the others are told or have ended, and all goes on.

The calls and their arguments are the recipes of `generated_recipes`. A signal is sent at a moment drawn among those at
which CPython runs signal handlers while the library's own code runs. If the interrupt comes before the ranks have met,
the interrupted rank has called nothing: it calls again, as a user at a prompt does, and the others end. If they have
ended, the interrupt came after the call.
"""

from __future__ import annotations

import dis
import signal
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from threading import get_ident
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pytest
from generated import Call, Lab, Subject, Watch, called
from generated_fft import decorated
from generated_others import heard
from generated_recipes import SUBJECTS
from generated_runtime import in_program_kept, piped
from generated_sparse import after, started
from marks import on_ranks
from mpi4py import MPI
from test_generated import ROW_S, _end, _Problems, _Rows, subjects_of

import overlap
from overlap.ranks.exclusive import Exclusive

AREAS = tuple(SUBJECTS)
QUICK = ("collectives", "output")  # areas that compile little
ENDED_S = 2.0  # for the other ranks to end after the interrupted call, if they are not waiting for it
SEVERAL = (decorated, in_program_kept, piped, started)  # of the library's calls: no rank can repeat just one of them
THEN_ANOTHER = (after, heard)  # make one more call, in which ranks hear of errors that were through with the first
OWN_CODE = overlap.__path__[0]
LOOKS = {"RESUME", "JUMP_BACKWARD"}  # bytecodes after which CPython looks for signals,
LOOKS_AFTER_C = {"CALL", "CALL_FUNCTION_EX", "CALL_KW", "PRECALL"}  # and those where it does if a C function was called
MONITORED = sys.version_info >= (3, 12)  # there, sys.settrace is told no bytecode of code that it has not seen before
TOOL = 4  # a number that Python's documentation leaves to anybody


class Interrupt:
    """A ``with`` block in which a signal is sent at a moment given by its number; the moments are counted.

    Attributes
    ----------
    moments : int
        How many there have been.
    where : str or None
        File and line of the moment at which the signal was sent.
    """

    def __init__(self, number: int = -1) -> None:
        self.moments, self.where = 0, None
        self._number, self._thread = number, get_ident()
        self._last: dict[FrameType, str] = {}  # the bytecode before, of each frame
        self._names: dict[CodeType, dict[int, str]] = {}

    def __enter__(self) -> Interrupt:
        if MONITORED:
            events = sys.monitoring.events
            calls = {
                events.PY_START: self._starts,
                events.INSTRUCTION: self._executes,
                events.PY_RETURN: self._ends,
                events.PY_YIELD: self._ends,
                events.PY_UNWIND: self._ends,
            }
            sys.monitoring.use_tool_id(TOOL, "Interrupt")
            for event, call in calls.items():
                sys.monitoring.register_callback(TOOL, event, call)
            sys.monitoring.set_events(TOOL, sum(calls))
        else:
            sys.settrace(self._called)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop()
        if MONITORED:
            sys.monitoring.free_tool_id(TOOL)

    def _stop(self) -> None:
        if MONITORED:
            sys.monitoring.set_events(TOOL, 0)
        else:
            sys.settrace(None)

    # From Python 3.12 on: called for all code of all threads.

    def _starts(self, code: CodeType, offset: int) -> None:
        if get_ident() == self._thread:
            self._calls(sys._getframe(1))

    def _executes(self, code: CodeType, offset: int) -> object:
        if not code.co_filename.startswith(OWN_CODE):
            return sys.monitoring.DISABLE
        frame = sys._getframe(1)
        if get_ident() == self._thread and not _finalizes(frame):
            self._next(frame)
        return None

    def _ends(self, code: CodeType, offset: int, value: object) -> None:
        if get_ident() == self._thread:
            self._last.pop(sys._getframe(1), None)

    # Before.

    def _called(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any] | None:
        self._calls(frame)
        if not frame.f_code.co_filename.startswith(OWN_CODE) or _finalizes(frame):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any] | None:
        if event == "return":
            self._last.pop(frame, None)
        elif event == "opcode":
            self._next(frame)
        return self._step if self.where is None else None

    # Always.

    def _calls(self, frame: FrameType) -> None:
        """Note that the caller of a frame has called no C function."""
        if frame.f_back is not None:
            self._last.pop(frame.f_back, None)

    def _next(self, frame: FrameType) -> None:
        """Look at the bytecode that a frame executes next, and send the signal before it if the moment has come."""
        before = self._last.get(frame)
        self._last[frame] = self._name(frame)
        if before in LOOKS or before in LOOKS_AFTER_C:
            self.moments += 1
            if self.moments - 1 == self._number:
                self._stop()
                self._last.clear()
                self.where = f"{frame.f_code.co_filename[len(OWN_CODE) + 1 :]}:{frame.f_lineno}"
                signal.raise_signal(signal.SIGINT)  # its handler runs here, and what that raises goes to the frame

    def _name(self, frame: FrameType) -> str:
        """The name of the bytecode that comes next."""
        code = frame.f_code
        if code not in self._names:
            self._names[code] = {one.offset: one.opname for one in dis.get_instructions(code)}
        return self._names[code].get(frame.f_lasti, "")


def _finalizes(frame: FrameType | None) -> bool:
    """Say whether a `__del__` runs: Python prints what is raised in it, and goes on."""
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


def interrupts(comm: MPI.Intracomm, area: str, seed: int, count: int, row_s: float = ROW_S) -> None:
    """Draw `count` calls of an area, each interrupted on the last rank at a moment that is drawn too."""
    lab, problems, hits = Lab(comm), _Problems(comm.rank == 0), 0
    drawn = np.random.default_rng(seed)
    calls = [
        (subject, name, call)
        for _, subject in subjects_of(area)
        for name, call in subject.calls.items()
        if not call.trusted and call.run not in SEVERAL
    ]
    warnings.simplefilter("ignore", ResourceWarning)  # an interrupted rank may not get what the others have made
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with Watch(row_s) as watch:
            for number in range(count):
                subject, name, call = calls[drawn.integers(len(calls))]
                part, text = drawn.random(), f"{subject.name}.{name}"
                rows = _Rows(lab, subject)
                watch.row(f"{number}: {text}, made", 2.0)
                problem, moments = rows.good(name, call), 0
                if problem is None:
                    problem, moments = _counted(lab, rows, name, call)
                moment = int(part * moments)
                if problem is None and moments:
                    watch.row(f"{number}: {text}, moment {moment} of {moments}", 2.0)
                    where, problem = _interrupted(lab, rows, name, call, moment)
                    text += f", {where}"
                    hits += where is not None
                if problem:
                    problems.append(f"{text}, moment {moment} of {moments}: {problem}")
                watch.row(f"{number}: {text} freed")
                rows.end(problem is None)
    finally:
        signal.signal(signal.SIGINT, before)
    print(f"rank {comm.rank}: {hits} of {count} calls interrupted")
    _end(lab, problems)


@on_ranks(2, fresh=True)
@pytest.mark.parametrize(
    "area", [area if area in QUICK else pytest.param(area, marks=pytest.mark.exhaustive) for area in AREAS]
)
def test_an_interrupt_of_one_rank_leaves_all_of_them_together(comm, area):
    interrupts(comm, area=area, seed=0, count=12)


def _counted(lab: Lab, rows: _Rows, name: str, call: Call) -> tuple[str | None, int]:
    """Make a good call and count the moments at which the last rank could be interrupted."""
    problem, interrupt = None, Interrupt()
    try:
        arguments, function = rows.arguments(name, call), rows.subject.function(rows.fresh(), name)
        if lab.last:
            with interrupt:
                result = called(call, function, lab, arguments)
        else:
            result = called(call, function, lab, arguments)
        call.done(result)
    except BaseException as error:
        problem = f"while it was traced: {type(error).__name__}: {error}"
    problem = next((one for one in lab.gathered(problem) if one is not None), None)
    return problem, lab._own.bcast(interrupt.moments, lab.size - 1)


def _interrupted(lab: Lab, rows: _Rows, name: str, call: Call, moment: int) -> tuple[str | None, str | None]:
    """Interrupt a call; where that was, and what is wrong with what follows."""
    one, another = rows.fresh(), call.run if call.run in THEN_ANOTHER else None
    if another is not None:
        call = replace(call, run=Call().run)
    function = rows.subject.function(one, name)
    last, where, result = lab.size - 1, None, None
    comm = lab._own
    arguments = rows.arguments(name, call)
    error: BaseException | None = None
    if lab.last:
        interrupt = Interrupt(moment)
        try:
            with interrupt:
                result = called(call, function, lab, arguments)
        except BaseException as raised:
            error = raised
        where = interrupt.where
        ended = [comm.irecv(source=rank, tag=1) for rank in range(last)]
        if isinstance(error, KeyboardInterrupt) and not call.local and not _all_in(ended, ENDED_S):
            try:
                result, error = called(call, function, lab, arguments), None
            except BaseException as raised:
                error = raised
        for request in ended:
            request.wait()
    else:
        try:
            result = called(call, function, lab, arguments)
        except BaseException as raised:
            error = raised
        comm.send(None, last, tag=1)
    told = lab.gathered(
        None if error is None else (type(error).__name__, isinstance(error, overlap.OverlapError), str(error)[:200])
    )
    where = lab._own.bcast(where, last)
    others, problem = told[:-1], None
    if another is not None and any(others) and told[lab.rank] is None:
        try:
            another(lab, lambda: result)
        except overlap.OverlapError as raised:
            told[lab.rank] = raised
    if any(other is not None and not other[1] for other in others):
        problem = f"others raise {others}"
    elif len(set(others) - {None if another else ...}) > 1:
        problem = f"others differ: {others}"
    elif told[-1] is not None and told[-1][0] != "KeyboardInterrupt" and not any(others) and not call.local:
        problem = f"the interrupted rank alone raises {told[-1]}"
    if not any(told):
        call.done(result)
    elif result is not None:
        lab.lost.append(result)
    if problem is None:
        if rows.subject.once and any(told):
            rows.end(False)
        problem = rows.good(name, call)
    return where, problem


def _all_in(requests: list[MPI.Request], seconds: float) -> bool:
    """Wait for all ends, for a time."""
    end = time.monotonic() + seconds
    while not all(request.Get_status() for request in requests):
        if time.monotonic() > end:
            return False
        time.sleep(0.002)
    return True


@on_ranks(1)
def test_a_thread_that_was_interrupted_may_call_again(comm: MPI.Intracomm) -> None:
    """A thread that is interrupted while it begins or ends to use a runtime may use it again."""
    exclusive, moments = Exclusive("a runtime"), 0
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    while True:
        try:
            with Interrupt(moments) as interrupt, exclusive.used("one call"):
                pass
        except KeyboardInterrupt:
            pass
        if interrupt.where is None:
            break
        with exclusive.used("the next call"):  # raises BusyError if the first one still holds it
            moments += 1
    signal.signal(signal.SIGINT, before)
    assert moments >= (3 if MONITORED else 4), moments  # get_ident, setdefault, pop; 3.11 counts PRECALL and CALL


def divided(comm: MPI.Intracomm, row_s: float) -> None:
    """Interrupt a call of two collectives, between which it can be left: a defect that must be found."""
    lab, runtime = Lab(comm), overlap.Runtime(comm)

    def both() -> None:
        runtime.coordinator.maximum(1)
        runtime.coordinator.maximum(2)

    subject = Subject(("divided",), make=lambda lab: None, calls={"both": Call()}, functions={"both": both})
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    rows = _Rows(lab, subject)
    _, moments = _counted(lab, rows, "both", subject.calls["both"])
    with Watch(row_s) as watch:
        for moment in range(moments):
            watch.row(f"divided, moment {moment} of {moments}")
            _interrupted(lab, rows, "both", subject.calls["both"], moment)
    signal.signal(signal.SIGINT, before)
