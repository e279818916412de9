"""`FileBase`: the base class of files of distributed arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from numbers import Real
from typing import Any, Protocol

import numpy as np
from mpi4py import MPI

from ....arrays import collective_section, part_of
from ....errors import InputError, repr_of
from ....ranks.interrupts import holding_signals
from ....ranks.objects import Described

COMM = MPI.COMM_WORLD  # the same as in mpi4py-fft: a file is made before any array is known

Domain = Sequence[Any]
"""For every axis of the arrays a pair of origin and length, or an array of coordinates."""


class Field(Protocol):
    """What a file needs from a `DistArray`."""

    @property
    def rank(self) -> int:
        """Return the number of the tensor's indices."""

    @property
    def dimensions(self) -> int:
        """Return the number of axes, not counting those of the tensor."""

    @property
    def global_shape(self) -> tuple[int, ...]:
        """Return the global shape, with the tensor's axes first."""

    @property
    def v(self) -> np.ndarray:
        """Return the local part."""

    def local_slice(self) -> tuple[slice, ...]:
        """Return the place of the local part in the global array."""


class FileBase(Described):
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
        self.f: Any = None  # an `h5py.File`
        self.filename, self.domain = filename, domain

    def _title(self) -> str:
        return f"{type(self).__name__} {self.filename!r}"

    @holding_signals
    def write(self, step: int, fields: Mapping[str, Sequence[Any]], as_scalar: bool = False, **others: Any) -> None:
        """Write a snapshot (collective).

        Parameters
        ----------
        step : int
        fields : dict
            Maps names to lists of arrays, each a `DistArray` or a pair of an array and a global slice: one integer or
            ``slice(None)`` per axis, not counting those of the tensor.
        as_scalar : bool
            Write components of tensors as separate arrays ``u0``, ``u1``, ...
        others
            Without effect.

        Raises
        ------
        InputError, RankError
            On all ranks: an argument is bad or differs between ranks, or writing has failed.
        """
        with collective_section(COMM, "writing a snapshot") as agreed:
            if not isinstance(step, Real) or not np.isfinite(step):
                raise InputError(f"expected the number of a snapshot, received {repr_of(step):.200}")
            parts = []
            for name, field, index in _entries(fields):
                components = np.ndindex(field.global_shape[: field.rank]) if as_scalar else [()]
                for component in components:
                    # Classes derived from `DistArray` may accept only an integer as index of a component.
                    where = component[0] if len(component) == 1 else component
                    part = field[where] if component else field
                    parts.append((name + "".join(map(str, component)), part, _checked_index(part, index)))
            agreed.update(
                filename=self.filename,
                step=step,
                fields=[(name, field.global_shape, field.dtype.str, repr(index)) for name, field, index in parts],
            )
        for entry in parts:
            self._write(*entry, step)

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
            On all ranks, if the shapes differ.
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
        """Return the name of the library that writes the file."""
        raise NotImplementedError

    def _write(self, name: str, field: Field, index: Sequence[int | slice] | None, step: int) -> None:
        """Write a field, or the part that `index`, with one entry for each axis, selects."""
        raise NotImplementedError


def _entries(fields: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield name, array and index of everything to be written; raise `InputError` if an entry is wrong."""
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
    """Return an index of a field's axes, not counting those of the tensor, as a tuple, or None."""
    if index is None:
        return None
    try:
        entries = tuple(index)
        wanted = (*(slice(None),) * field.rank, *entries)
        part_of(wanted, field.global_shape, field.local_slice())
    except Exception:  # a user's object can raise anything
        wanted = ()
    if not any(isinstance(entry, slice) for entry in wanted):
        raise InputError(
            f"expected a slice of {field.dimensions} indices, not integers alone, received {repr_of(index):.200}"
        )
    return entries
