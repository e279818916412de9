"""`FileBase`: what files of distributed arrays have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ....errors import InputError

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
        """Where that lies in the global array."""


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
        """
        for name, entries in fields.items():
            if not isinstance(name, str) or not isinstance(entries, tuple | list):
                raise InputError(
                    "expected fields to be a dict of names to lists of arrays, received "
                    f"{name!r}: {type(entries).__name__}"
                )
            for entry in entries:
                field, index = entry if isinstance(entry, tuple | list) else (entry, None)
                components = np.ndindex(field.global_shape[: field.rank]) if as_scalar else [()]
                for component in components:
                    # Classes derived from `DistArray` may know their components by an integer alone.
                    where = component[0] if len(component) == 1 else component
                    self._write(name + "".join(map(str, component)), field[where] if component else field, index, step)

    def read(self, u: Field, name: str, step: int = 0, **others: Any) -> None:
        """Fill a `DistArray` from a whole array in the file (collective)."""
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
        raise NotImplementedError
