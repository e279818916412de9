"""`FileBase`: what files of distributed arrays have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from numbers import Real
from typing import Any, Protocol

import numpy as np
from mpi4py import MPI

from ....arrays import collective_section, part_of
from ....errors import InputError, repr_of

COMM = MPI.COMM_WORLD  # as in mpi4py-fft: a file is made before any array is known

Domain = Sequence[Any]
"""For every axis of the arrays a pair of origin and length, or an array of coordinates."""


class Field(Protocol):
    """What a file knows of a `DistArray`."""

    @property
    def rank(self) -> int:
        """Number of the tensor's indices."""

    @property
    def dimensions(self) -> int:
        """Number of axes, not counting the tensor's."""

    @property
    def global_shape(self) -> tuple[int, ...]:
        """The tensor's axes first."""

    @property
    def v(self) -> np.ndarray:
        """The local part."""

    def local_slice(self) -> tuple[slice, ...]:
        """Return where that lies in the global array."""


class FileBase:
    """A file of snapshots of distributed arrays.

    Parameters
    ----------
    filename : str, optional
    domain : sequence, optional
        For every axis of the arrays a pair of origin and length, or an array of coordinates.

    Attributes
    ----------
    f : open file or None
    """

    def __init__(self, filename: str | None = None, domain: Domain | None = None) -> None:
        self.f: Any = None  # h5py's
        self.filename, self.domain = filename, domain

    def write(self, step: int, fields: Mapping[str, Sequence[Any]], as_scalar: bool = False, **others: Any) -> None:
        """Write a snapshot (collective).

        Parameters
        ----------
        step : int
        fields : dict
            Names to lists of arrays, each a `DistArray`, or a pair of it and a global slice: one integer or
            ``slice(None)`` per axis, not counting the tensor's.
        as_scalar : bool
            Write components of tensors as arrays of their own, ``u0``, ``u1``, ...
        others
            Without effect.

        Raises
        ------
        InputError, RankError
            On all ranks: bad arguments, or such that differ between ranks; what failed while writing.
        """
        with collective_section(COMM) as agreed:
            if not isinstance(step, Real) or not np.isfinite(step):
                raise InputError(f"expected the number of a snapshot, received {repr_of(step):.200}")
            found = []
            for name, field, index in _entries(fields):
                components = np.ndindex(field.global_shape[: field.rank]) if as_scalar else [()]
                for component in components:
                    # Classes derived from `DistArray` may know their components by an integer alone.
                    where = component[0] if len(component) == 1 else component
                    part = field[where] if component else field
                    found.append((name + "".join(map(str, component)), part, _checked_index(part, index)))
            agreed.update(
                step=step,
                fields=[(name, field.global_shape, field.dtype.str, repr(index)) for name, field, index in found],
            )
        for one in found:
            self._write(*one, step)

    def read(self, u: Field, name: str, step: int = 0, **others: Any) -> None:
        """Fill a `DistArray` from a whole array in the file (collective).

        Parameters
        ----------
        u : DistArray
            Filled; its global shape is that of the array in the file.
        name : str
        step : int

        Raises
        ------
        InputError
            On all ranks, when the shapes differ.
        """
        raise NotImplementedError

    def open(self, mode: str = "r+") -> None:
        """Open the file (collective)."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the file (collective)."""
        if self.f is not None:
            self.f.close()
            self.f = None

    @staticmethod
    def backend() -> str:
        """Open what writes the file."""
        raise NotImplementedError

    def _write(self, name: str, field: Field, index: Sequence[int | slice] | None, step: int) -> None:
        """Write a field, or what an index of one entry for each of its axes gives of it."""
        raise NotImplementedError


def _entries(fields: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield name, array and index of all that is to be written, or raise what is wrong with it."""
    if not isinstance(fields, Mapping):
        raise InputError(f"expected fields to be a dict of names to lists of arrays, received {repr_of(fields):.200}")
    for name, entries in fields.items():
        if not isinstance(name, str) or not isinstance(entries, tuple | list):
            raise InputError(
                "expected fields to be a dict of names to lists of arrays, received "
                f"{repr_of(name):.200}: {type(entries).__name__}"
            )
        for entry in entries:
            field, index = entry if isinstance(entry, tuple | list) and len(entry) == 2 else (entry, None)
            if not isinstance(field, np.ndarray) or not hasattr(field, "local_slice"):
                raise InputError(
                    f"expected DistArrays, or pairs of one and a slice, received {repr_of(entry):.200} as {name!r}"
                )
            yield name, field, index


def _checked_index(field: Field, index: Any) -> tuple[int | slice, ...] | None:
    """Return an index of a field's axes, not counting the tensor's, as a tuple, or None."""
    if index is None:
        return None
    try:
        found = tuple(index)
        wanted = (*(slice(None),) * field.rank, *found)
        part_of(wanted, field.global_shape, field.local_slice())
    except Exception:  # a user's object can raise anything
        wanted = ()
    if not any(isinstance(one, slice) for one in wanted):
        raise InputError(
            f"expected a slice of {field.dimensions} indices, not integers alone, received {repr_of(index):.200}"
        )
    return found
