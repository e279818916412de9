"""Objects kept as attributes of a communicator: when it is freed they go, even if its handle is used again."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from mpi4py import MPI

from ..errors import InputError

Kept = TypeVar("Kept")


class _Attribute(Generic[Kept]):
    """The attribute's value. Nothing else refers to it, so it is deleted when the communicator is freed."""

    def __init__(self, kept: Kept) -> None:
        self.kept = kept


class KeptWith(Generic[Kept]):
    """One object for each communicator, made by `make` and closed when the communicator is freed.

    If it is `copied`, duplicates of a communicator, made later, have the same object, which is closed when all of them
    are freed. `every` lists the objects of all communicators that have not been freed.
    """

    def __init__(self, make: Callable[[MPI.Intracomm], Kept], copied: bool = False) -> None:
        self._make, self._copied = make, copied
        self._key: int | None = None
        self.every: list[Kept] = []

    def of(self, comm: MPI.Intracomm) -> Kept:
        """Return the object of a communicator; make it if there is none yet.

        Raises
        ------
        InputError
            On this rank: the communicator, perhaps that of an array, is an intercommunicator or has been freed.
        """
        if not isinstance(comm, MPI.Intracomm) or comm == MPI.COMM_NULL:
            received = "one that was freed" if comm == MPI.COMM_NULL else type(comm).__name__
            raise InputError(f"expected an intracommunicator in use, received {received}")
        # The attribute has no delete function: to make that function's argument, mpi4py looks up the topology of the
        # communicator, and MPICH 5.0 searches for it in the list of attributes that it is just freeing, which can be a
        # segmentation fault.
        if self._key is None:
            copies: Any = self._copied  # mpi4py's annotation knows functions only
            self._key = MPI.Comm.Create_keyval(copies)
        attribute: Any = comm.Get_attr(self._key)
        if attribute is None:
            attribute = _Attribute(self._make(comm))
            # The predefined communicators end with MPI, when nothing can be made or freed any more.
            closes = comm not in (MPI.COMM_WORLD, MPI.COMM_SELF)
            weakref.finalize(attribute, self._deleted, attribute.kept, closes).atexit = False
            comm.Set_attr(self._key, attribute)
            self.every.append(attribute.kept)
        return attribute.kept

    def forget(self, comm: MPI.Intracomm) -> None:
        """Have the next call of `of` make another object."""
        if self._key is not None:
            comm.Delete_attr(self._key)

    def _deleted(self, kept: Any, closes: bool) -> None:
        """Close the object of a communicator that all its ranks free."""
        if closes:
            kept.close()
        self.every.remove(kept)
