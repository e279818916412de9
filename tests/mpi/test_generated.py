"""Tests made of the public names: what is added later is in them by itself, or fails for want of a recipe.

After its end every object says so by name, whatever is asked of it. An argument that is bad on one rank is the same
error on all ranks, and the next call is right. By default one bad value stands for all of an argument's.

All problems of a case are collected; it fails with the list of them. A row that hangs ends the processes, by name.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import NoneType, SimpleNamespace
from typing import Any

import jobs
import numpy as np
import pytest
from generated import Call, Lab, Subject, Watch, arguments_of, called, members_of, representative, wrong_arguments
from generated_recipes import ARGUMENTS, DEGREES, LEGAL, NOT_CALLED, SUBJECTS
from marks import on_ranks
from mpi4py import MPI

import overlap
from overlap.runtime.requests.operations import Several

AREAS = tuple(SUBJECTS)
PARTS = {"runtime": 4}  # jobs for all bad values: every slice that fails leaves a communicator behind, 500 at most
MODULES = ("overlap", "overlap.fft", "overlap.sparse", "overlap.collectives", "overlap.compat.mpi4py_fft")
HELD = ("output", "overlap.DistArray", "overlap.fft.SpectralOperators", "overlap.Halo")
SCALED = ("output", "overlap.DistArray", "overlap.fft.SpectralOperators")
ROW_S = 60.0  # for a row, which may compile, on a busy machine
FIRST = 2.0  # times as long for what compiles most
WRONG = (overlap.OverlapError, TypeError, ValueError, LookupError, ArithmeticError)  # of calls that concern one rank


def subjects_of(area: str) -> Iterator[tuple[str, Subject]]:
    """The subjects of an area, or the one with that name."""
    for each, subjects in SUBJECTS.items():
        for subject in subjects:
            if area in (each, subject.name):
                yield each, subject


# ---- after the end -----------------------------------------------------------------------------


def closed(comm: MPI.Intracomm, area: str, first: int = 0, row_s: float = ROW_S) -> None:
    """After its end every public method, operator and property of an object raises `ClosedError` with its name."""
    lab, problems, number = Lab(comm), [], 0
    with Watch(row_s) as watch:
        for _, subject in subjects_of(area):
            if subject.close is None or subject.functions:
                continue
            for used in (False, True):
                number += 1
                if number < first:
                    continue
                watch.row(f"{number}: {subject.name} closed {'after' if used else 'before'} a first use", FIRST)
                problems += [
                    f"{subject.name}{'' if used else ', never used'}: {text}" for text in _closed(lab, subject, used)
                ]
    _end(lab, problems)


@on_ranks(2)
@pytest.mark.parametrize("area", AREAS)
def test_what_is_closed_says_so(comm, area):
    closed(comm, area=area)


@pytest.mark.exhaustive
@on_ranks(1, 2, 3, "openmpi-1", "openmpi-2", "openmpi-3", deadline_s=600)
@pytest.mark.parametrize("area", AREAS)
def test_what_is_closed_says_so_everywhere(comm, area):
    closed(comm, area=area)


def _closed(lab: Lab, subject: Subject, used: bool) -> list[str]:
    one = lab.one = subject.make(lab)
    members = members_of(subject.kind or type(one))
    attempts: dict[str, Callable[[], object]] = {}
    problems = []
    for name, member in members.items():
        if name in subject.working or name in subject.internal:
            continue
        if isinstance(member, property):
            attempts[name] = lambda name=name: getattr(one, name)
        elif name in ("__enter__", "__len__", "__iter__", "__await__", "__bool__"):
            attempts[name] = lambda name=name: getattr(one, name)()
        elif name not in subject.calls:
            problems.append(f"{name} has no recipe")
        else:
            call, function = subject.calls[name], subject.function(one, name)
            arguments = arguments_of(call, function, lab, one, ARGUMENTS)
            attempts[name] = lambda call=call, name=name, arguments=arguments: _begun(
                called(call, subject.function(one, name), lab, arguments)
            )
    if used:
        if callable(subject.use):
            subject.use(lab, one)
        for name in () if callable(subject.use) else subject.use:
            call, function = subject.calls[name], subject.function(one, name)
            call.done(called(call, function, lab, arguments_of(call, function, lab, one, ARGUMENTS)))
    subject.close(lab, one)
    for name, attempt in attempts.items():
        try:
            result = attempt()
        except overlap.ClosedError as error:
            if not any(word in str(error) for word in subject.words):
                problems.append(f"{name} says {error}, which names none of {subject.words}")
        except BaseException as error:
            problems.append(f"{name} raises {type(error).__name__}: {str(error)[:150]}")
        else:
            problems.append(f"{name} returns {_short(result)}")
    for what, again in (("repr", lambda: repr(one)), ("the end, again,", lambda: again_closed(lab, subject, one))):
        try:
            again()
        except BaseException as error:
            problems.append(f"{what} raises {type(error).__name__}: {error}")
    return problems


@on_ranks(2)
@pytest.mark.parametrize("area", AREAS)
def test_what_is_printed_of_an_object_is_a_line_that_describes_it(comm, area) -> None:
    """What is printed of an object is one line: what it is, its shape or its ranks, and that it was closed."""
    lab, problems = Lab(comm), []
    for _, subject in subjects_of(area):
        one = lab.one = subject.make(lab)
        shown = [repr(one), str(one)]
        if has_ended(lab, subject, one) and subject.close is not None:
            shown.append(repr(one))
        if not isinstance(one, SimpleNamespace | np.ndarray | NoneType):  # numpy prints arrays in its own way
            problems += [f"{subject.name}: {text}" for text in _unlike_a_line(subject, one, comm.size, shown)]
    _end(lab, problems)


def _unlike_a_line(subject: Subject, one: Any, ranks: int, shown: list[str]) -> Iterator[str]:
    """What is wrong with the texts of an object: before, as `print` shows it, and after its end."""
    kinds = {part for name in subject.names for part in re.split("[. ]", name) if part[:1].isupper()}
    shape = getattr(one, "global_shape", getattr(one, "shape", ()))
    facts = list(map(str, shape)) if isinstance(shape, tuple) else []
    if isinstance(one, overlap.Runtime | overlap.runtime.AsyncComm | overlap.collectives.Collectives):
        facts.append(f"over {ranks} rank")
    for text in shown:
        if "\n" in text or " at 0x" in text or len(text) > 200:
            yield f"no line that describes it: {text:.300}"
        if missing := [fact for fact in facts if fact not in text]:
            yield f"says nothing of {missing}: {text}"
        if not any(kind in text for kind in (type(one).__name__, *kinds)):
            yield f"does not say what it is: {text}"
    if ["closed" in text for text in shown] != [False, False, True][: len(shown)]:
        yield f"does not say whether it is closed: {shown}"


def again_closed(lab: Lab, subject: Subject, one: Any) -> None:
    """Close what is closed, by all names that it has for that."""
    for name in ("close", "free", "destroy"):
        if hasattr(one, name) and name not in subject.internal:
            getattr(one, name)()
    if hasattr(one, "__exit__"):
        one.__exit__(None, None, None)


def has_ended(lab: Lab, subject: Subject, one: Any) -> bool:
    """Close an object, or what has given it; return whether there is a way to."""
    if subject.close is not None:
        subject.close(lab, one)
        again_closed(lab, subject, one)  # a preconditioner of a matrix that is freed
    elif id(one) in lab.owners:
        lab.owner_of(one).close()
    else:
        return False
    return True


def _begun(result: Any) -> Any:
    """The result; of what is awaited in slice programs, what its first step gives."""
    if isinstance(result, Several):
        with contextlib.closing(result.__await__()) as steps:
            return next(steps)
    return result


# ---- one bad argument --------------------------------------------------------------------------


class _Problems(list[str]):
    """What is wrong; each is told at once too, as a later row may end the process."""

    def __init__(self, tells: bool) -> None:
        self._tells = tells

    def append(self, text: str) -> None:
        super().append(text)
        if self._tells:
            print(f"row fails: {text}", file=sys.stderr, flush=True)


class _Rows:
    """All rows of a subject, one after the other."""

    def __init__(self, lab: Lab, subject: Subject) -> None:
        self.lab, self.subject = lab, subject
        self.one: Any = None
        self.made = False

    def fresh(self) -> Any:
        """The object of the next call."""
        if not self.made:
            self.one, self.made = self.subject.make(self.lab), True
            self.lab.one = self.one
        return self.one

    def end(self, well: bool = True) -> None:
        """Let go of the object; where ranks differ there is no way to free it."""
        if self.made and not (well and has_ended(self.lab, self.subject, self.one)):
            self.lab.lost.append(self.one)
        self.one, self.made = None, False

    def problem(
        self, name: str, call: Call, bad: Callable[[], dict[str, Any]], everyone: bool, allowed: bool
    ) -> str | None:
        """What is wrong with what a row does, on any rank; None if nothing is."""
        lab = self.lab
        self.fresh()
        function = self.subject.function(self.one, name)
        try:
            arguments = bad() if lab.last or everyone else self.arguments(name, call)
            told, result = _outcome(call, function, lab, arguments)
        except LookupError as error:
            told, result = ("LookupError", str(error)), None
        every = lab.gathered(told)
        wrong = self._judged(every, call, everyone, allowed)
        if every[lab.rank] is None and (call.local or not any(every)):
            try:
                if wrong is None:
                    call.right(lab, self.one, arguments, result)
                call.done(result)
            except Exception as error:
                wrong = f"the result is wrong: {str(error)[:200]}"
        if wrong is not None:
            lab.lost.append(result)
        wrong = _first(lab.gathered(wrong))
        self.end(wrong is None) if wrong is not None or (self.subject.once and every[-1] is not None) else None
        return wrong

    def _judged(self, every: list[Any], call: Call, everyone: bool, allowed: bool) -> str | None:
        last = every[-1]
        if call.local and not everyone:
            if others := [one for one in every[:-1] if one is not None]:
                return f"a rank with good arguments raises {others[0]}"
        elif any(one != last for one in every):
            return f"ranks differ: {'; '.join(map(_told, every))}"
        if last is None:
            return None if allowed else "is accepted"
        kind, text, mro, named = last if len(last) == 4 else (*last, (), True)
        expected = WRONG if call.local or everyone else (overlap.OverlapError,)
        if not any(one.__name__ in mro for one in expected) and not (kind == "Refused" and (call.local or everyone)):
            return f"raises {kind}: {text[:200]}"
        if not (call.local or everyone or named or allowed):  # MPI finds a legal call's on the rank that receives
            return f"does not name the rank: {kind}: {text[:200]}"
        return None

    def good(self, name: str, call: Call) -> str | None:
        """What is wrong with the next good call."""
        lab = self.lab
        problem = None
        try:
            function = self.subject.function(self.fresh(), name)
            arguments = self.arguments(name, call)
            result = called(call, function, lab, arguments)
            call.right(lab, self.one, arguments, result)
            call.done(result)
        except BaseException as error:
            problem = f"the next good call: {type(error).__name__}: {str(error)[:300]}"
            if not isinstance(error, overlap.OverlapError):
                problem += traceback.format_exc()
        problem = _first(lab.gathered(problem))
        if problem:
            self.end(False)
        return problem

    def numbers(self, name: str, call: Call, exponent: int) -> tuple[Any, list[np.ndarray]]:
        """What a call ends with whose numbers are multiplied by 2**exponent, and the numbers of its result."""
        _times(self.fresh(), exponent)
        function, given = self.subject.function(self.one, name), self.arguments(name, call)
        for fixed in ("exchange", "atol"):  # a rounding to singles, and a bound in the units of b
            given.pop(fixed, None)
        if not isinstance(self.one, np.ndarray):  # otherwise they are views of it
            given = {key: _times(value, exponent) for key, value in given.items()}
        told, result = _outcome(call, function, self.lab, given)
        numbers = _numbers_of((result, given.get("out"), given.get("arrays"), given.get("recvbuf")))
        if told is None:
            call.done(result)
        return told, numbers

    def refusal(self, name: str, call: Call) -> str | None:
        """What is wrong with a call that is to raise the same `InputError` on all ranks, or whose object is."""
        try:
            function = self.subject.function(self.fresh(), name)
            told, _ = _outcome(call, function, self.lab, self.arguments(name, call))
        except overlap.InputError as error:
            told = "InputError", str(error)
        every = self.lab.gathered(told)
        if any(one != every[0] for one in every) or every[0] is None or every[0][0] != "InputError":
            return f"is not refused: {'; '.join(map(_told, every))}"
        return None

    def arguments(self, name: str, call: Call) -> dict[str, Any]:
        """Good arguments, new ones."""
        function = self.subject.function(self.fresh(), name)
        return arguments_of(call, function, self.lab, self.one, ARGUMENTS)


def bad_arguments(
    comm: MPI.Intracomm,
    area: str,
    first: int = 0,
    every: bool = False,
    row_s: float = ROW_S,
    part: int = 0,
    parts: int = 1,
) -> None:
    """A bad argument on one rank is the same error on all ranks, and the next good call is right.

    Every one of `parts` has its share of each subject's calls.
    """
    lab, problems, number = Lab(comm), _Problems(comm.rank == 0), 0
    with Watch(row_s) as watch:
        for _, subject in subjects_of(area):
            rows = _Rows(lab, subject)
            for name, call in list(subject.calls.items())[part::parts]:
                first_row = number + 1
                watch.row(f"{first_row}: {subject.name} made for {name}", FIRST)
                function = subject.function(rows.fresh(), name)
                good = partial(rows.arguments, name, call)
                problem = rows.good(name, call) if first_row >= first else None
                if problem:
                    problems.append(f"{subject.name}.{name}: {problem}")
                if call.trusted:
                    continue
                found = _values(wrong_arguments(function, good()))
                for parameter, values in found if every or not found else [representative(name, dict(found))]:
                    row = f"{subject.name}.{name}({parameter}"
                    values = {
                        value: none for value, none in values.items() if f"{parameter}={value}" not in call.skipped
                    }
                    for value, none in values.items() if every else [representative(row, values)]:
                        number += 1
                        if number < first or problem:
                            continue
                        text = f"{row}={value})"
                        watch.row(f"{number}: {text}")
                        rows.fresh()
                        allowed = none or bool({parameter, f"{parameter}={value}"} & (call.legal.keys() | LEGAL.keys()))
                        bad = partial(_bad, function, good, parameter, value)
                        wrong = rows.problem(name, call, bad, parameter in call.untold, allowed)
                        if wrong is None and not call.costly:
                            wrong = rows.good(name, call)
                        if wrong:
                            problems.append(f"{text}: {wrong}")
                if call.costly and number >= first and not problem and (problem := rows.good(name, call)):
                    problems.append(f"{subject.name}.{name}: {problem}")
            watch.row(f"{number}: {subject.name} freed")
            rows.end()
    if lab.rank == 0:
        for path in lab.files:
            Path(path).unlink(missing_ok=True)
    _end(lab, problems)


@on_ranks(2, fresh=True)
@pytest.mark.parametrize("area", AREAS)
def test_a_bad_argument_of_one_rank_is_the_error_of_all(comm, area):
    # Slices that fail leave communicators behind, by design.
    bad_arguments(comm, area=area)


# ---- arrays of which some rank holds nothing ---------------------------------------------------


def held_by_some(comm: MPI.Intracomm, area: str, row_s: float = ROW_S) -> None:
    """Every call works on arrays of which the last rank holds nothing, or is refused on all ranks."""
    lab, problems = Lab(comm, few=True), _Problems(comm.rank == 0)
    with Watch(row_s) as watch:
        for subject, name, call in _calls_of(area):
            rows = _Rows(lab, subject)
            watch.row(f"{subject.name}.{name}", FIRST)
            problem = rows.refusal(name, call) if subject.refuses_few else rows.good(name, call)
            if problem:
                problems.append(f"{subject.name}.{name}: {problem}")
            watch.row(f"{subject.name} freed")
            rows.end()
    _end(lab, problems)


@on_ranks(3)
@pytest.mark.parametrize("area", HELD)
def test_some_rank_holds_nothing(comm, area):
    held_by_some(comm, area=area)


@pytest.mark.exhaustive
@on_ranks(3, 5, "openmpi-3", "openmpi-5", deadline_s=1200, fresh=True)
@pytest.mark.parametrize("area", ["drop-in", "fft", "output", "sparse"])
def test_some_rank_holds_nothing_everywhere(comm, area):
    held_by_some(comm, area=area)


# ---- numbers at the limits of their type -------------------------------------------------------

FAR = (-996, -400, 400, 996)  # exponents of two; 996 is that of 6.7e299


def scaled(comm: MPI.Intracomm, area: str, row_s: float = ROW_S) -> None:
    """The numbers of a result grow with those of the arguments, or the call is refused on all ranks where they cannot.

    The results of arguments of usual size are tested elsewhere.
    """
    lab, problems = Lab(comm), _Problems(comm.rank == 0)
    with Watch(row_s) as watch:
        for subject, name, call in _calls_of(area):
            degree = DEGREES.get(f"{subject.name}.{name}", DEGREES.get(name, 1))
            if call.costly or degree is None:  # the former measure
                continue
            degrees = (degree,) if isinstance(degree, int) else degree
            usual = None
            for exponent in (0, *FAR):
                rows = _Rows(lab, subject)
                watch.row(f"{subject.name}.{name} times 2**{exponent}", FIRST)
                with np.errstate(all="ignore"):
                    told, numbers = rows.numbers(name, call, exponent)
                if usual is None:
                    usual = numbers
                every = lab.gathered(told)
                wrong = _wrong_scale(usual, numbers, degree, exponent) if told is None else None
                fits = all(abs(exponent * degree) < 1000 for degree in degrees)
                if any(one != every[0] for one in every) and not call.local:
                    wrong = f"ranks differ: {'; '.join(map(_told, every))}"
                elif told is not None and (fits or told[0] not in ("InputError", "SliceError")):
                    wrong = f"raises {_told(told)}"
                if wrong := _first(lab.gathered(wrong)):
                    problems.append(f"{subject.name}.{name} times 2**{exponent}: {wrong}")
                watch.row(f"{subject.name} freed")
                rows.end(wrong is None)
    _end(lab, problems)


@on_ranks(2)
@pytest.mark.parametrize("area", SCALED)
def test_results_grow_with_the_numbers(comm, area):
    scaled(comm, area=area)


@pytest.mark.exhaustive
@on_ranks(1, 3, "openmpi-1", "openmpi-3", deadline_s=1200, fresh=True)
@pytest.mark.parametrize("area", ["collectives", "drop-in", "fft", "output", "sparse"])
def test_results_grow_with_the_numbers_everywhere(comm, area):
    scaled(comm, area=area)


def _times(value: Any, exponent: int) -> Any:
    """An argument whose floating-point arrays are multiplied by 2**exponent."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "fc":
            value *= 2.0**exponent
        return value
    if isinstance(value, tuple | list):
        return type(value)(_times(one, exponent) for one in value)
    if isinstance(value, dict):
        return {name: _times(one, exponent) for name, one in value.items()}
    return value


def _numbers_of(result: Any) -> list[np.ndarray]:
    """The numbers of a result: copies of its arrays, and what is a number by itself."""
    if isinstance(result, tuple | list):
        return [array for one in result for array in _numbers_of(one)]
    if isinstance(result, dict):
        return _numbers_of(list(result.values()))
    if isinstance(result, np.ndarray | np.inexact | float | complex) and np.asarray(result).dtype.kind in "fc":
        return [np.array(result)]
    return []


def _wrong_scale(
    usual: list[np.ndarray], found: list[np.ndarray], degree: int | tuple[int, ...], exponent: int
) -> str | None:
    """What is wrong with the numbers of a result, compared with those for arguments of usual size."""
    if len(usual) != len(found):
        return f"{len(found)} arrays instead of {len(usual)}"
    degrees = (degree,) * len(usual) if isinstance(degree, int) else degree
    for before, after, power in zip(usual, found, degrees, strict=True):
        with np.errstate(all="ignore"):
            half = power * exponent // 2
            truth = before * 2.0**half * 2.0 ** (power * exponent - half)
            largest = np.abs(truth).max(initial=0)
            close = np.isclose(after, truth, rtol=1e-6, atol=min(1e-6 * largest, np.finfo(float).max))
        if 0 < largest < np.inf and not close.all():
            return f"{after.ravel()[:4]} instead of {truth.ravel()[:4]}"
    return None


def _calls_of(area: str) -> Iterator[tuple[Subject, str, Call]]:
    """The calls on the arrays of an area."""
    for _, subject in subjects_of(area):
        for name, call in subject.calls.items():
            if not call.trusted:
                yield subject, name, call


def _values(wrong: Iterator[tuple[str, str, dict[str, Any], bool]]) -> list[tuple[str, dict[str, bool]]]:
    """The names of the bad values of every parameter, and whether each is the default."""
    found: dict[str, dict[str, bool]] = {}
    for parameter, value, _, none in wrong:
        found.setdefault(parameter, {})[value] = none
    return list(found.items())


def _bad(
    function: Callable[..., Any], good: Callable[[], dict[str, Any]], parameter: str, value: str
) -> dict[str, Any]:
    """The arguments of a row."""
    return next(
        found for one, which, found, _ in wrong_arguments(function, good()) if (one, which) == (parameter, value)
    )


def _outcome(call: Call, function: Callable[..., Any], lab: Lab, arguments: dict[str, Any]) -> tuple[Any, Any]:
    """What a call ends with: None or its error as all ranks must have it, and its result."""
    try:
        return None, called(call, function, lab, arguments)
    except BaseException as error:
        text = str(error)
        named = f"rank {lab.size - 1}" in text or "all ranks" in text or "ranks " in text
        kinds = tuple(kind.__name__ for kind in type(error).__mro__)
        text = re.sub(r"\brank \d+", "rank ?", re.sub(r"0x[0-9a-f]+", "0x", text))
        return (type(error).__name__, text, kinds, named), None


def _told(outcome: Any) -> str:
    return "no error" if outcome is None else f"{outcome[0]}: {outcome[1][:150]}"


def _first(problems: list[str | None]) -> str | None:
    return next((problem for problem in problems if problem is not None), None)


def _short(result: object) -> str:
    return " ".join(f"{type(result).__name__} {result!r}".split())[:80]


def _end(lab: Lab, problems: list[str]) -> None:
    found = sorted({re.sub(r"0x[0-9a-f]+", "0x", text) for some in lab.gathered(problems) for text in some})
    lab.end()
    if found:
        raise AssertionError(f"{len(found)} rows:\n" + "\n".join(found))


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_has_a_recipe(module: str) -> None:
    known = {
        name.split(".")[-1].split(" ")[0] for subjects in SUBJECTS.values() for one in subjects for name in one.names
    }
    known |= {call for subjects in SUBJECTS.values() for one in subjects for call in one.calls}
    names = importlib.import_module(module).__all__
    assert not sorted({name for name in names if name not in known and f"{module}.{name}" not in NOT_CALLED})


@pytest.mark.exhaustive
@pytest.mark.parametrize("area", AREAS)
@pytest.mark.parametrize("ranks", [2, 3])
def test_every_bad_argument_of_one_rank_is_the_error_of_all(area: str, ranks: int, mpi: str) -> None:
    parts = PARTS.get(area, 1)
    for part in range(parts):
        args = {"area": area, "every": True, "part": part, "parts": parts}
        jobs.run_job("test_generated:bad_arguments", ranks, mpi=mpi, args=args, deadline_s=1800, fresh=True)
