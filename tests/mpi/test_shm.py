"""Shared memory that is short, as in a container whose /dev/shm has 64 MiB: one error on all ranks, no SIGBUS.

Made of the public names, as the tests of `test_generated`.

Either all is right, or there is one error, the same on all ranks; then, with enough memory, the next call is right.
The job has a small /dev/shm of its own (`small_shm`), of which rank 0 takes all but the room that a row leaves. Where
namespaces are refused, files cannot become longer than that room.
"""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from generated import Call, Lab, Subject, Watch, arguments_of
from generated_recipes import ARGUMENTS, SUBJECTS
from marks import on_ranks
from mpi4py import MPI
from small_shm import SMALL
from test_generated import FIRST, ROW_S, _end, _outcome, _told, again_closed, subjects_of

import overlap
from overlap import sparse
from overlap.collectives import Collectives

AREAS = (*SUBJECTS, "large")
SHORT = 2**20
ROOMS = [0, 2**12, 2**14, 2**16, 2**18, SHORT]
SHM = Path("/dev/shm")
FILE_NBYTES = 2**13  # what the tests write to a file must fit where files are limited


@contextmanager
def room(lab: Lab, nbytes: int | None) -> Iterator[None]:
    """Leave so many bytes of shared memory; all with None (collective)."""
    if nbytes is None:
        yield
        return
    gc.collect()  # nothing is given back later
    lab.gathered(None)
    limits, ballast = resource.getrlimit(resource.RLIMIT_FSIZE), SHM / "ballast"
    if os.environ[SMALL] == "refused":
        resource.setrlimit(resource.RLIMIT_FSIZE, (max(nbytes, FILE_NBYTES), limits[1]))
    elif lab.rank == 0:
        with open(ballast, "wb") as file:
            system = os.statvfs(SHM)
            os.posix_fallocate(file.fileno(), 0, system.f_bavail * system.f_frsize - nbytes)
    lab.gathered(None)
    try:
        yield
    finally:
        lab.gathered(None)
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        if lab.rank == 0:
            ballast.unlink(missing_ok=True)
        lab.gathered(None)


def short(comm: MPI.Intracomm, area: str, rooms: list[int], row_s: float = ROW_S) -> None:
    """Every constructor and every call of an area, with each of these rooms."""
    assert os.environ[SMALL] == "refused" or os.statvfs(SHM).f_blocks * os.statvfs(SHM).f_frsize <= 2**26
    lab, problems = Lab(comm), []
    subjects = LARGE if area == "large" else [subject for _, subject in subjects_of(area)]
    with Watch(row_s) as watch:
        for subject in subjects:
            # Compiles first, except what shall fail in its first call; ends with a right call.
            for nbytes in (*rooms, None) if area == "large" else (None, *rooms, None):
                watch.row(f"{subject.name} with room for {nbytes} bytes", FIRST)
                found = _row(lab, subject, nbytes)
                problems += [f"{subject.name}, room for {nbytes} bytes: {text}" for text in found]
    _end(lab, problems)


@on_ranks(2, small_shm=True)
def test_more_than_there_is_room_for(comm):
    short(comm, area="large", rooms=[SHORT])


@pytest.mark.exhaustive
@on_ranks(1, 2, 3, "openmpi-1", "openmpi-2", "openmpi-3", deadline_s=3600, small_shm=True)
@pytest.mark.parametrize("area", AREAS)
def test_every_room(comm, area):
    short(comm, area=area, rooms=ROOMS)


def _row(lab: Lab, subject: Subject, nbytes: int | None) -> list[str]:
    problems: list[str] = []
    with room(lab, nbytes):
        told, one = _outcome(Call(), subject.make, lab, {"lab": lab})
        problems += _judged(lab, "its constructor", nbytes, told)
        for name, call in subject.calls.items() if told is None else ():
            if call.local or call.trusted:
                continue
            lab.one = one
            function = subject.function(one, name)
            arguments = arguments_of(call, function, lab, one, ARGUMENTS)
            told, result = _outcome(call, function, lab, arguments)
            problems += _judged(lab, name, nbytes, told)
            # Where there is no room for boards, halos send messages; a stencil on one rank exchanges nothing.
            spared = nbytes in ROOMS[:2] if "Halo" in subject.name else name == "from_stencil" and lab.size == 1
            if told is None and nbytes is not None and subject in LARGE and not spared:
                problems.append(f"{name} needs no more")
            if any(lab.gathered(told)):
                if subject.once:
                    break
                continue
            call.right(lab, one, arguments, result)
            call.done(result)
        if one is not None and subject.close is not None:
            subject.close(lab, one)
            again_closed(lab, subject, one)  # a preconditioner of a matrix that is freed
    return problems


def _judged(lab: Lab, what: str, nbytes: int | None, told: Any) -> list[str]:
    every = lab.gathered(told)
    if any(one != every[0] for one in every):
        return [f"{what} differs between ranks: {'; '.join(map(_told, every))}"]
    if told is None:
        return []
    if nbytes is None:
        return [f"{what} raises where memory is not short: {_told(told)}"]
    if "OverlapError" not in told[2]:
        return [f"{what} raises another kind: {_told(told)}"]
    if not ("/dev/shm" in told[1] and "bytes" in told[1]):
        return [f"{what} does not say what is short: {_told(told)}"]
    return []


# ---- calls that need more than a mebibyte of shared memory ----------------------------------------


def summed(lab: Lab, one: Any, arguments: dict[str, Any], result: Any) -> None:
    send, receive = np.full(2**18, lab.rank + 1.0), np.zeros(2**18)
    result.Allreduce(send, receive)
    assert (receive == lab.size * (lab.size + 1) / 2).all()


def summed_in_slices(lab: Lab, one: Any, arguments: dict[str, Any], result: Any) -> None:
    found = []

    async def program(z: int) -> None:
        found.append(await result.allreduce(lab.rank + 1.0))

    one.pipelined(program)(range(2))
    assert found == [lab.size * (lab.size + 1) / 2] * 2


def wide(lab: Lab) -> overlap.Blocks:
    return overlap.Blocks((3 * lab.size, 2**18), (lab.size, 1), width=1, periodic=True)


def exchanged(lab: Lab, blocks: overlap.Blocks, halo: overlap.Halo, u: np.ndarray) -> None:
    u[blocks.own(lab.rank)] = lab.rank + 1.0
    halo.exchange(u)
    assert (u[0] == (lab.rank - 1) % lab.size + 1.0).all() and (u[-1] == (lab.rank + 1) % lab.size + 1.0).all()


def of_neighbours(lab: Lab, one: Any, arguments: dict[str, Any], result: Any) -> None:
    blocks = wide(lab)
    exchanged(lab, blocks, result, np.zeros(blocks.local_shape(lab.rank)))


def thin(lab: Lab) -> overlap.Blocks:
    return overlap.Blocks((2**10 * lab.size, 2**8), (lab.size, 1), width=1, periodic=True)


def in_their_arrays(lab: Lab, one: Any, arguments: dict[str, Any], result: Any) -> None:
    exchanged(lab, thin(lab), one, *result)


def second_difference(lab: Lab, one: Any, arguments: dict[str, Any], result: Any) -> None:
    """The product with 1 along an axis with open ends."""
    planes, points = 2, 2**18
    truth = np.zeros((planes, points))
    truth[0] += lab.rank == 0
    truth[-1] += lab.rank == lab.size - 1
    assert np.array_equal((result @ np.ones(planes * points)).reshape(planes, points), truth)


def stencil(lab: Lab) -> dict[str, Any]:
    return {"shape": (2 * lab.size, 2**18), "offsets": ((0, 0), (1, 0), (-1, 0)), "coefficients": (2.0, -1.0, -1.0)}


def freed(one: Any) -> None:
    one.free()


def large(
    name: str, function: Callable[..., Any], good: Callable[[Lab], dict[str, Any]], right: Callable[..., object]
) -> Subject:
    """A function that needs much shared memory for these arguments."""
    return Subject(
        (f"large {name}",),
        make=lambda lab: None,
        functions={name: function},
        calls={name: Call(lambda lab, one: good(lab), right, done=freed)},
    )


LARGE = (
    large("Collectives", Collectives, lambda lab: {"max_nbytes": 2**21}, summed),
    large("Halo", overlap.Halo, lambda lab: {"parts": wide(lab)}, of_neighbours),
    large("from_stencil", sparse.Matrix.from_stencil, stencil, second_difference),
    Subject(
        ("large Halo.empty",),
        make=lambda lab: overlap.Halo(lab.comm, thin(lab)),
        close=lambda lab, one: one.free(),
        calls={"empty": Call(right=in_their_arrays)},
    ),
    Subject(
        ("large Runtime.collectives",),
        make=lambda lab: overlap.Runtime(lab.comm, wait="off"),
        close=lambda lab, one: one.close(),
        calls={"collectives": Call(lambda lab, one: {"max_nbytes": 2**21}, summed_in_slices)},
    ),
)
