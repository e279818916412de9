"""Objects that nobody closes: what they hold is freed when all ranks have dropped them, whatever class they are of.

Made of the public names, as the tests of `test_generated`.

What an object holds is counted from outside: the communicators that MPI can still make (MPICH has about two thousand),
duplicates as MPI counts them, descriptors.
"""

from __future__ import annotations

import gc
import warnings
from collections import deque
from typing import Any

import pytest
from generated import Lab, Subject, Watch
from generated_recipes import SUBJECTS
from leftovers import descriptors, duplicates
from marks import on_ranks
from mpi4py import MPI
from test_generated import FIRST, ROW_S, _end, again_closed, subjects_of

import overlap

AREAS = tuple(SUBJECTS)
MANY = 5000  # more than twice the communicators that MPICH has
MOST = 5000  # more communicators than MPICH can make


def communicators_left() -> int | None:
    """How many communicators MPI can still make; None where it can make any number."""
    held = []
    try:
        while len(held) < MOST:
            held.append(MPI.COMM_SELF.Dup())
    except MPI.Exception:
        return len(held)
    finally:
        for one in held:
            one.Free()
    return None


def dropped(comm: MPI.Intracomm, area: str, count: int, row_s: float = ROW_S) -> None:
    """An object that is dropped says so, and what it holds is freed when all ranks have dropped it.

    Every second one is in a reference cycle, and the last rank drops some later than the others.
    """
    lab, problems = Lab(comm), []
    limited = "MPICH" in MPI.Get_library_version()
    duplicates()  # counts from here on
    with Watch(row_s) as watch:
        for _, subject in subjects_of(area):
            if subject.close is None or subject.functions:
                continue
            watch.row(f"{subject.name} dropped {count} times", FIRST * (1 + count // 20))
            problems += [f"{subject.name}: {text}" for text in _dropped(lab, subject, count, limited)]
    _end(lab, problems)


@on_ranks(2)
@pytest.mark.parametrize("area", AREAS)
def test_what_is_dropped_is_freed(comm, area):
    dropped(comm, area=area, count=4)


@pytest.mark.exhaustive
@on_ranks(1, 2, "openmpi-1", "openmpi-2", deadline_s=7200, fresh=True)
@pytest.mark.parametrize("area", AREAS)
def test_thousands_are_dropped(comm, area):
    dropped(comm, area=area, count=MANY, row_s=600.0)


def _dropped(lab: Lab, subject: Subject, count: int, limited: bool) -> list[str]:
    for _ in range(2):  # compiles, fills caches
        one = subject.make(lab)
        subject.close(lab, one)
        again_closed(lab, subject, one)  # a preconditioner of a matrix that is freed
        del one
    before = _held(lab, limited)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        kept: deque[list[Any]] = deque([_made(lab, subject, 0)])
        holds = before[0] is not None and _held(lab, limited)[0] != before[0]
        for number in range(1, count):
            kept.append(_made(lab, subject, number))
            while len(kept) > (5 if lab.last else 1):
                kept.popleft()
        kept.clear()
        after = _held(lab, limited)
    said = [str(one.message) for one in said if one.category is ResourceWarning]
    problems = []
    if holds and len(said) < count and "mpi4py_fft" not in subject.name:  # whose scripts destroy nothing
        problems.append(f"{len(said)} warnings say that it was dropped {count} times: {said[:1]}")
    if said and "dropped without" not in said[0]:
        problems.append(f"the warning says {said[0]}")
    names = "communicators left", "duplicates", "descriptors"
    problems += [
        f"{name} were {was}, are {now} after {count} objects"
        for name, was, now in zip(names, before, after)
        if was != now
    ]
    return problems


def _made(lab: Lab, subject: Subject, number: int) -> list[Any]:
    """A subject in a list, which every second time refers to itself."""
    cell = [one := subject.make(lab)]
    if owner := lab.owners.pop(id(one), None):
        cell.append(owner)
    cell.append(vars(lab).pop("runtime", None))
    lab.lost.clear()
    if number % 2:
        cell.append(cell)
    return cell


def _held(lab: Lab, limited: bool) -> tuple[int | None, int, int]:
    """What can be counted, when all ranks have freed what all have dropped."""
    gc.collect()
    lab.gathered(None)
    overlap.Runtime(lab.comm, wait="off").close()
    left = min(lab.gathered(communicators_left())) if limited else None
    lab.gathered(None)  # nobody makes a communicator while others hold them all
    return left, duplicates()[0], len(descriptors())
