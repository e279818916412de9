"""What `Collectives` takes for arguments and what not, with mpi4py's own methods as the reference."""

from __future__ import annotations

import array
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from marks import exhaustive, on_ranks
from mpi4py import MPI

from overlap.collectives import Collectives
from overlap.errors import ClosedError, InputError

Arguments = tuple[Any, ...]


def _read_only(values: np.ndarray) -> np.ndarray:
    values.flags.writeable = False
    return values


def _sent(rank: int) -> Iterator[Any]:
    """Yield arguments that are read."""
    values = np.arange(6.0).reshape(2, 3) + 10 * rank
    yield _read_only(values.copy())
    yield np.asfortranarray(values)
    yield values.astype(">f8").astype("f8")
    yield array.array("d", values.ravel())
    yield memoryview(values.tobytes()).cast("d")
    yield values.view(np.recarray)


def _ignored() -> Iterator[Any]:
    """Yield arguments for ranks that do not look at them."""
    yield None
    yield _read_only(np.zeros(3))
    yield np.zeros(12)[::2]
    yield np.array([None])
    yield np.ma.masked_array(np.zeros(3), [0, 1, 0])
    yield 7
    yield MPI.IN_PLACE


def _calls(rank: int, size: int, root: int) -> Iterator[tuple[str, Callable[[], Arguments], int]]:
    """Yield collectives, what makes their arguments, and the place of the array that tells the result; -1 is none."""
    here = rank == root
    for number in range(6):

        def send(number: int = number) -> Any:
            return list(_sent(rank))[number]

        yield "Allreduce", lambda send=send: (send(), np.zeros((2, 3))), 1
        yield "Allgather", lambda send=send: (send(), np.zeros((size, 6))), 1
        yield "Bcast", lambda send=send: (send() if here else np.zeros(6), root), -1 if here else 0
        yield "Bcast", lambda send=send: (send() if here else np.zeros((2, 3), order="F"), root), -1 if here else 0
    for number in range(7):

        def ignored(number: int = number) -> Any:
            return list(_ignored())[number]

        def values(count: int) -> np.ndarray:
            return np.arange(1.0 * count) + 10 * rank

        out = 1 if here else -1
        yield "Gather", lambda ignored=ignored: (values(3), np.zeros((size, 3)) if here else ignored(), root), out
        yield "Reduce", lambda ignored=ignored: (values(3), np.zeros(3) if here else ignored(), MPI.SUM, root), out
        yield "Scatter", lambda ignored=ignored: (values(3 * size) if here else ignored(), np.zeros(3), root), 1
    for in_place in (MPI.IN_PLACE, None):  # mpi4py reads both alike

        def own(count: int, in_place: Any = in_place) -> Any:
            return in_place if here else values(count)

        yield "Gather", lambda own=own: (own(3), values(3 * size) if here else None, root), out
        yield "Reduce", lambda own=own: (own(3), values(3) if here else None, MPI.SUM, root), out
        yield "Scatter", lambda own=own: (values(3 * size) if here else None, own(3), root), -1 if here else 1
        yield "Allreduce", lambda in_place=in_place: (in_place, values(3)), 1
        yield "Allgather", lambda in_place=in_place: (in_place, values(3 * size)), 1
    yield "Allreduce", lambda: (np.float64(rank), np.zeros(())), 1
    yield "Bcast", lambda: (bytearray([rank] * 3), np.int64(root)), 0


@on_ranks(exhaustive(1), 2, exhaustive(3))
def test_like_mpi(comm: MPI.Intracomm) -> None:
    """What mpi4py takes gives the same here."""
    with Collectives(comm) as fast:
        for root in range(comm.size):
            for name, arguments, place in _calls(comm.rank, comm.size, root):
                found, expected = arguments(), arguments()
                getattr(fast, name)(*found)
                getattr(comm, name)(*expected)
                if place >= 0:
                    same = bytes(memoryview(found[place])) == bytes(memoryview(expected[place]))
                    assert same, (name, root, found, expected)


@on_ranks(exhaustive(1), 2, exhaustive(3))
def test_refused(comm: MPI.Intracomm) -> None:
    """What would be something else than with mpi4py is one error on all ranks."""
    size, last = comm.size, comm.rank == comm.size - 1
    masked = np.ma.masked_array(np.ones(3), [0, 1, 0])
    one, all_ranks = np.ones(3), np.zeros((size, 3))
    for text, good, bad in (
        ("without a mask", lambda fast: fast.Allreduce(one, one), lambda fast: fast.Allreduce(masked, one)),
        ("without a mask", lambda fast: fast.Allreduce(one, one), lambda fast: fast.Allreduce(one, masked)),
        ("without a mask", lambda fast: fast.Allgather(one, all_ranks), lambda fast: fast.Allgather(masked, all_ranks)),
        ("without a mask", lambda fast: fast.Bcast(one, size - 1), lambda fast: fast.Bcast(masked, size - 1)),
        ("without a mask", lambda fast: fast.allreduce(1.0), lambda fast: fast.allreduce(masked)),
        ("InPlaceType", lambda fast: fast.Allreduce(one, one), lambda fast: fast.Allreduce(one, MPI.IN_PLACE)),
        ("NoneType", lambda fast: fast.Allreduce(one, one), lambda fast: fast.Allreduce(one, None)),
        ("read-only", lambda fast: fast.Allgather(one, all_ranks), lambda fast: fast.Allgather(one, bytes(24 * size))),
        ("numeric", lambda fast: fast.allreduce(1.0), lambda fast: fast.allreduce(np.ones(3))),
        ("root from 0", lambda fast: fast.Bcast(one) or fast.Barrier(), lambda fast: fast.Bcast(one, 2**70)),
        ("root from 0", lambda fast: fast.Bcast(one) or fast.Barrier(), lambda fast: fast.Bcast(one, None)),
        ("operation", lambda fast: fast.Allreduce(one, one), lambda fast: fast.Allreduce(one, one, None)),
    ):
        fast = Collectives(comm)
        with pytest.raises(InputError, match=f"(?s){text}.*rank {size - 1}"):
            (bad if last else good)(fast)
        fast.free()
        with pytest.raises(ClosedError, match="closed"):
            bad(fast)
