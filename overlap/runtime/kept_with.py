"""What is kept with a communicator, as an attribute of it: nothing outlives it for another one with its handle."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from mpi4py import MPI


class Closing(Protocol):
    """What can be closed by all ranks."""

    def close(self) -> None:
        """End it (collective)."""


Kept = TypeVar("Kept", bound=Closing)


class _Attribute(Generic[Kept]):
    """The attribute's value, which nothing else refers to: it goes when the communicator is freed."""

    def __init__(self, kept: Kept) -> None:
        self.kept = kept


class KeptWith(Generic[Kept]):
    """One thing of a kind for each communicator, closed when the communicator is freed.

    Parameters
    ----------
    make : callable
        Makes that of a communicator.

    Attributes
    ----------
    every : list
        Those of all communicators that are there.
    """

    def __init__(self, make: Callable[[MPI.Intracomm], Kept]) -> None:
        self._make = make
        self._key: int | None = None
        self.every: list[Kept] = []

    def of(self, comm: MPI.Intracomm) -> Kept:
        """Return that of a communicator, made now if there is none."""
        # The attribute has no delete function: mpi4py would look up the topology of the communicator for its argument,
        # and MPICH 5.0 does that in the list of attributes that it is just freeing, which can be a segmentation fault.
        if self._key is None:
            self._key = MPI.Comm.Create_keyval()
        found: Any = comm.Get_attr(self._key)
        if found is None:
            found = _Attribute(self._make(comm))
            # The predefined ones go at MPI's end, where nothing can be made or freed any more.
            closes = comm not in (MPI.COMM_WORLD, MPI.COMM_SELF)
            weakref.finalize(found, self._deleted, found.kept, closes).atexit = False
            comm.Set_attr(self._key, found)
            self.every.append(found.kept)
        return found.kept

    def _deleted(self, kept: Kept, closes: bool) -> None:
        """Close that of a communicator that all its ranks free."""
        if closes:
            kept.close()
        self.every.remove(kept)
