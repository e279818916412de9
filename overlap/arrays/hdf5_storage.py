"""Stores distributed arrays in HDF5 files, with named axes (dimension scales) like those of netCDF-4.

If h5py was built with MPI, all ranks write to the file at once. Otherwise rank 0 writes, and receives one piece at a
time, so that no rank ever holds the whole array. h5py comes with the extra `files`.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..errors import InputError
from ..files import ErrorKeepingFile, naming, replacing
from ..ranks.door import collective_section
from .distribution import Distribution
from .exchange import array_section, refuse_objects
from .pieces import PIECE_NBYTES, boxes, pieces_on, shifted

Axes = Mapping[str, np.ndarray | range]
"""Coordinates by the names of axes; a range stands for positions."""


def hdf5() -> Any:
    """Import h5py; raise an `InputError` if it is not installed."""
    try:
        import h5py
    except ModuleNotFoundError:
        raise InputError(
            "expected h5py, which reads and writes HDF5 files, received an installation without it: "
            "pip install 'overlap-mpi[files]'"
        ) from None
    return h5py


@contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[Any]:
    """Open an HDF5 file to read; an `OSError` names it."""
    with naming(path), hdf5().File(path, "r") as file:
        yield file


def axes_of(
    global_shape: Sequence[int], name: str, dims: Sequence[str] | None, coords: Mapping[str, ArrayLike] | None
) -> Axes:
    """Return names and coordinates of all axes; see `DistArray.save`."""
    count = len(global_shape)
    names = [f"axis_{axis}" for axis in range(count)] if dims is None else list(dims)
    if not _is_name(name):
        raise InputError(f"expected name to be a text without '/' and not empty, received {name!r}")
    if len(names) != count or len({*names, name}) != count + 1 or not all(map(_is_name, names)):
        raise InputError(f"expected {count} different names of axes, other than {name!r}, received dims={dims!r}")
    given = {key: np.asarray(values) for key, values in (coords or {}).items()}
    lengths = dict(zip(names, global_shape))
    for key, values in given.items():
        if values.shape != (lengths.get(key),):
            raise InputError(
                f"expected coordinates of shapes {lengths}, one number each, received {key!r} of shape {values.shape}"
            )
    return {key: given.get(key, range(length)) for key, length in lengths.items()}


def described(name: str, axes: Axes) -> dict[str, Any]:
    """Describe name and axes in a form that is equal on ranks with equal arguments."""
    return {"name": name, "dims": list(axes), "coords": [_checksum(values) for values in axes.values()]}


def _is_name(label: Any) -> bool:
    return isinstance(label, str) and label not in ("", ".") and "/" not in label and "\0" not in label


def _is_stored(h5py: Any, dtype: np.dtype) -> bool:
    try:
        h5py.h5t.py_create(dtype, logical=True)
    except TypeError:
        return False
    return True


def _checksum(values: np.ndarray | range) -> int:
    """Return a checksum of coordinates, for which they are not copied; 0 for positions."""
    if isinstance(values, range):
        return 0
    if values.dtype.hasobject:
        return zlib.crc32(repr(values.tolist()).encode())
    return zlib.crc32(np.ascontiguousarray(values).view(np.uint8).data)


def save(
    comm: Any,
    local: np.ndarray,
    where: Distribution,
    path: str | os.PathLike[str],
    name: str,
    dims: Sequence[str] | None,
    coords: Mapping[str, ArrayLike] | None,
) -> None:
    """Write an array to a new file (collective); see `DistArray.save`."""
    with array_section(comm, "save", where) as agreed:
        h5py = hdf5()
        refuse_objects(local.dtype)
        axes = axes_of(where.global_shape, name, dims, coords)
        for what, values in {"the array": local, **axes}.items():
            if isinstance(values, np.ndarray) and not _is_stored(h5py, values.dtype):
                raise InputError(f"expected {what} to be of a type that HDF5 files can store, received {values.dtype}")
        agreed.update(path=os.fspath(path), dtype=local.dtype.str, **described(name, axes))
    write = _save_in_parallel if h5py.get_config().mpi else _save_on_rank_0
    write(comm, local, where, path, name, axes)


def load(comm: Any, local: np.ndarray, where: Distribution, path: str | os.PathLike[str], name: str) -> None:
    """Fill a local array from a file (collective); see `DistArray.load`."""
    with collective_section(comm, "load"):
        hdf5()  # before the file is opened: a rank without h5py is the error, not what the others find
    with collective_section(comm, "load"), reading(path) as file:
        dataset = file[name]
        if dataset.shape != where.global_shape or not np.can_cast(dataset.dtype, local.dtype, "same_kind"):
            raise InputError(
                f"expected {name!r} in {os.fspath(path)!r} to be of shape {where.global_shape} and of a "
                f"type that fits {local.dtype}, received {dataset.shape} and {dataset.dtype}"
            )
        for box in boxes(local.shape, local.itemsize):
            local[box] = dataset[shifted(box, where.local_slice)]


def _save_on_rank_0(comm: Any, local: np.ndarray, where: Distribution, path: Any, name: str, axes: Axes) -> None:
    with collective_section(comm, "writing a file"), pieces_on(0, comm, local, where.local_slice) as parts:
        if parts is None:
            return
        with replacing(path) as partial, ErrorKeepingFile(partial) as disk:
            with _created(disk, where, name, local.dtype, axes) as data:
                for box, part in parts:
                    data[box] = part
            if disk.error is not None:
                raise disk.error


def _save_in_parallel(comm: Any, local: np.ndarray, where: Distribution, path: Any, name: str, axes: Axes) -> None:
    """Write with all ranks at once, to a file beside `path` that rank 0 renames at the end."""
    partial = Path(os.fspath(path) + ".partial")
    with (
        collective_section(comm, "writing a file"),
        _created(partial, where, name, local.dtype, axes, driver="mpio", comm=comm) as data,
    ):
        if local.size:
            data[where.local_slice] = local
    with collective_section(comm, "renaming a file"):
        if comm.rank == 0:
            os.replace(partial, path)


def write_axis(file: Any, axis: str, values: np.ndarray | range) -> None:
    """Write the coordinates of an axis; positions are made in pieces, as they may be as many as elements."""
    data = file.create_dataset(axis, (len(values),), values.dtype if isinstance(values, np.ndarray) else np.int64)
    for start in range(0, len(values), PIECE_NBYTES // 8):
        part = values[start : start + PIECE_NBYTES // 8]
        data[start : start + len(part)] = np.arange(part.start, part.stop) if isinstance(part, range) else part
    data.make_scale(axis)


@contextmanager
def _created(path: Any, where: Distribution, name: str, dtype: np.dtype, axes: Axes, **options: Any) -> Iterator[Any]:
    """Make a file with a data set and its axes; yield the data set to a ``with`` block."""
    with hdf5().File(path, "w", **options) as file:
        data = file.create_dataset(name, where.global_shape, dtype)
        for number, (axis, values) in enumerate(axes.items()):
            write_axis(file, axis, values)
            data.dims[number].attach_scale(file[axis])
        yield data
