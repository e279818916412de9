"""`HDF5File`: snapshots of distributed arrays in an HDF5 file.

If h5py is built with MPI, all ranks write at once; otherwise rank 0 has the file open, and the others send their parts
to it. All ranks read by themselves. h5py is an optional dependency.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from os import PathLike, fspath
from typing import Any

import numpy as np

from ....arrays import collective_section, part_of, pieces_on
from ....errors import InputError, repr_of
from ....ranks.interrupts import holding_signals
from .file_base import COMM, Domain, Field, FileBase


class HDF5File(FileBase):
    """An HDF5 file; making one is collective over all ranks of `MPI.COMM_WORLD`, and so are its methods.

    An array is written to ``name/3D/step``, a part of it to ``name/2D/slice_4_slice/step``.

    Parameters
    ----------
    h5name : str
    domain : sequence, optional
        As in `FileBase`; by default from 0 to 2 pi along every axis.
    mode : {"a", "w", "r"}
        Append, write or read.
    kw
        Options of `h5py.File`.

    Raises
    ------
    InputError, RankError
        On all ranks, if arguments are bad or differ between ranks, or if the file cannot be opened, read or written.

    Examples
    --------
    >>> from overlap.compat.mpi4py_fft import DistArray, HDF5File
    >>> u = DistArray((8, 8, 8), val=1.0)
    >>> file = HDF5File("fields.h5", mode="w")
    >>> file.write(0, {"u": [u]})
    >>> file.read(u, "u", step=0)
    """

    @holding_signals
    def __init__(self, h5name: str, domain: Domain | None = None, mode: str = "a", **kw: Any) -> None:
        with collective_section(COMM, "making an HDF5File") as agreed:
            if not isinstance(h5name, str | PathLike):
                raise InputError(f"expected a file's name, received {repr_of(h5name):.200}")
            if mode not in ("a", "w", "r"):
                raise InputError(f"expected mode to be 'a', 'w' or 'r', received {repr_of(mode):.200}")
            agreed.update(h5name=fspath(h5name), domain=_lengths(domain), mode=mode, options=sorted(kw))
        super().__init__(h5name, domain)
        self.open(mode, **kw)
        self.close()

    @staticmethod
    def backend() -> str:
        return "hdf5"

    @holding_signals
    def open(self, mode: str = "r+", **kw: Any) -> None:
        with ExitStack() as failing:
            failing.callback(super().close)
            with collective_section(COMM, "opening a file") as agreed:
                agreed.update(filename=self.filename, mode=mode)
                import h5py

                if h5py.get_config().mpi:
                    self.f = h5py.File(self.filename, mode, driver="mpio", comm=COMM, **kw)
                elif COMM.rank == 0:
                    self.f = h5py.File(self.filename, mode, **kw)
            failing.pop_all()  # open on all ranks: another rank may have failed, or an interrupt may end the section

    @holding_signals
    def close(self) -> None:
        with ExitStack() as closing:
            closing.callback(super().close)  # even if the section raises what has failed on another rank
            with collective_section(COMM, "closing a file"):  # no rank reads the file before rank 0 has closed it
                super().close()

    @holding_signals
    def write(self, step: int, fields: Mapping[str, Sequence[Any]], as_scalar: bool = False, **others: Any) -> None:
        self.open()
        try:
            super().write(step, fields, as_scalar)
        finally:
            self.close()

    @holding_signals
    def read(self, u: Field, name: str, step: int = 0, **others: Any) -> None:
        with collective_section(COMM, "reading a snapshot"):
            import h5py

            with h5py.File(self.filename, "r") as file:
                dataset = file[f"{name}/{u.dimensions}D/{step}"]
                if dataset.shape != u.global_shape:
                    raise InputError(
                        f"expected {name!r} of shape {u.global_shape} in {self.filename!r}, received {dataset.shape}"
                    )
                if u.v.size:
                    u.v[...] = dataset[u.local_slice()]

    def _write(self, name: str, field: Field, index: Sequence[int | slice] | None, step: int) -> None:
        rank = field.rank
        wanted = (slice(None),) * rank + ((slice(None),) * field.dimensions if index is None else tuple(index))
        shape, held, box = part_of(wanted, field.global_shape, field.local_slice())
        values = field.v[(..., *held)]
        kinds = ["slice" if isinstance(entry, slice) else str(int(entry)) for entry in wanted[rank:]]
        path = f"{name}/{kinds.count('slice')}D/" + ("" if index is None else "_".join(kinds) + "/") + str(step)
        if self.f is not None and self.f.driver == "mpio":
            with collective_section(COMM, "writing an array"):
                data = self._dataset(name, path, field, shape)
                if values.size:
                    data[box] = values
            return
        with collective_section(COMM, "writing an array"), pieces_on(0, COMM, values, box) as parts:
            if parts is not None:
                data = self._dataset(name, path, field, shape)
                for place, part in parts:
                    data[place] = part

    def _dataset(self, name: str, path: str, field: Field, shape: Sequence[int]) -> Any:
        """Return the dataset to write to; if it is new, write the domain of its group, too."""
        group = self.f.require_group(name)
        attributes: dict[str, Any] = {"shape": field.global_shape[field.rank :], "rank": field.rank}
        for key, value in attributes.items():
            if key not in group.attrs:
                group.attrs[key] = value
            if not np.array_equal(group.attrs[key], value):
                raise InputError(f"expected arrays of {key} {group.attrs[key]} as {name!r}, received {value}")
        domain = ((0, 2 * np.pi),) * field.dimensions if self.domain is None else self.domain
        if len(domain) != field.dimensions:
            raise InputError(f"expected a domain of {field.dimensions} axes, received {len(domain)}")
        for axis, coordinates in enumerate(domain):
            where = f"{'mesh' if isinstance(coordinates, np.ndarray) else 'domain'}/x{axis}"
            if where not in group:
                group[where] = (
                    np.squeeze(coordinates) if isinstance(coordinates, np.ndarray) else np.array(coordinates, float)
                )
        return self.f.require_dataset(path, shape=tuple(shape), dtype=field.v.dtype, exact=True)


def _lengths(domain: Any) -> list[int] | None:
    """Return the count of numbers for each axis of a domain; raise `InputError` if it is not valid."""
    try:
        axes = None if domain is None else [np.asarray(axis, float) for axis in domain]
        good = axes is None or (len(axes) > 0 and all(axis.size > 1 and np.isfinite(axis).all() for axis in axes))
    except Exception:  # a user's object can raise anything
        good = False
    if not good:
        raise InputError(
            "expected domain to have a pair of origin and length, or an array of coordinates, for each axis, received "
            f"{repr_of(domain):.200}"
        )
    return None if axes is None else [axis.size for axis in axes]
