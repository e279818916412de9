"""What is kept with a communicator, as an attribute of it: nothing outlives it for another one with its handle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from mpi4py import MPI


class Closing(Protocol):
    """What can be closed by all ranks."""

    def close(self) -> None:
        """End it (collective)."""


Kept = TypeVar("Kept", bound=Closing)


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
        if self._key is None:
            self._key = MPI.Comm.Create_keyval(delete_fn=self._deleted)
        found: Any = comm.Get_attr(self._key)
        if found is None:
            found = self._make(comm)
            comm.Set_attr(self._key, found)
            self.every.append(found)
        return found

    def _deleted(self, comm: MPI.Comm, key: int, kept: Kept) -> None:
        """Close that of a communicator that all its ranks free.

        The predefined ones go at MPI's end, where nothing can be made or freed any more.
        """
        if comm not in (MPI.COMM_WORLD, MPI.COMM_SELF):
            kept.close()
        self.every.remove(kept)
