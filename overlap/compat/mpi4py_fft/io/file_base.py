"""`FileBase`: what files of distributed arrays have in common."""

import numpy as np

from ....errors import InputError


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

    def __init__(self, filename=None, domain=None):
        self.f, self.filename, self.domain = None, filename, domain

    def write(self, step, fields, as_scalar=False, **others):
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
                components = np.ndindex(field.shape[: field.rank]) if as_scalar else [()]
                for component in components:
                    # Classes derived from `DistArray` may know their components by an integer alone.
                    where = component[0] if len(component) == 1 else component
                    self._write(name + "".join(map(str, component)), field[where] if component else field, index, step)

    def read(self, u, name, step=0, **others):
        """Fill a `DistArray` from a whole array in the file (collective)."""
        raise NotImplementedError

    def open(self, mode="r+"):
        """Open the file (collective)."""
        raise NotImplementedError

    def close(self):
        """Close the file (collective)."""
        if self.f is not None:
            self.f.close()
            self.f = None

    @staticmethod
    def backend():
        """Open what writes the file."""
        raise NotImplementedError

    def _write(self, name, field, index, step):
        raise NotImplementedError
