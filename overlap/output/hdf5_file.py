"""Makes and changes the HDF5 file of an `Output`, on the rank that writes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..arrays.hdf5_storage import Axes, hdf5, write_axis
from ..arrays.pieces import chunk_of
from ..files import ErrorKeepingFile, replacing, unwritable
from .problems import MARK, STEP, TIME, Stored
from .transactions import changing, undo

VERSION = 1
_FORMAT = ("v110", "v110")  # readable since 2017; the superblock of this version contains the end of the file

Known = tuple[list[int], list[float], dict[str, Stored], dict[str, Any]]


def known(path: Path, mode: str) -> Known | None:
    """Return steps, times, fields and attributes of a file; None if the file does not exist yet.

    Raises
    ------
    OSError
        The file cannot be opened or made, or an `Output` did not write it.
    """
    if mode == "w" or (mode == "a" and not path.exists()):
        if problem := unwritable(path):
            raise OSError(f"cannot write {path}: {problem}")
        return None
    undo(path)
    with hdf5().File(path, "r") as file:
        attrs = dict(file.attrs)
        if attrs.pop(MARK, None) != VERSION:
            raise OSError(f"expected a file that an Output of this version has written, received {path}")
        fields = {
            name: Stored(data.shape[1:], data.dtype.str)
            for name, data in file.items()
            if name not in (TIME, STEP) and len(data.dims[0]) and data.dims[0][0] == file[TIME]
        }
        return file[STEP][:].tolist(), file[TIME][:].tolist(), fields, attrs


@contextmanager
def created(
    path: Path,
    like: Mapping[str, Stored],
    axes: Callable[[str, tuple[int, ...]], Axes],
    attrs: Mapping[str, Any],
    exchange: str | None,
) -> Iterator[Any]:
    """Yield a new file, with data sets and without steps; it replaces an old file when the block ends."""
    undo(path)  # the undo file of an old file would damage the new one
    with replacing(path) as partial, ErrorKeepingFile(partial) as disk:
        with hdf5().File(disk, "w", libver=_FORMAT) as file:
            file.attrs.update(attrs)
            file.attrs[MARK] = VERSION
            numbers = {"maxshape": (None,), "chunks": (512,)}
            for name, dtype in ((TIME, "f8"), (STEP, "i8")):
                file.create_dataset(name, (0,), dtype, **numbers)
            file[TIME].make_scale(TIME)
            for name, (shape, dtype) in like.items():
                chunks = (1, *chunk_of(shape, np.dtype(dtype).itemsize))
                maxshape = (None, *(length or None for length in shape))  # a chunk is not longer than an axis can be
                options = {"maxshape": maxshape, "chunks": chunks} if shape else numbers
                data = file.create_dataset(name, (0, *shape), dtype, **options)
                if exchange is not None and shape:
                    data.attrs["exchange"] = exchange
                for number, (axis, values) in enumerate(axes(name, shape).items(), 1):
                    if axis not in file:
                        write_axis(file, axis, values)
                    data.dims[number].attach_scale(file[axis])
            for name in (STEP, *like):
                file[name].dims[0].attach_scale(file[TIME])
            yield file
        if disk.error is not None:
            raise disk.error


@contextmanager
def changed(path: Path) -> Iterator[Any]:
    """Yield the file; its changes take effect when the block ends."""
    undo(path)
    with changing(path) as disk, hdf5().File(disk, "r+", libver=_FORMAT) as file:
        yield file


def extend(file: Any, count: int, values: Mapping[str, Any]) -> None:
    """Make room for one more step than `count`, and write its numbers."""
    for name, value in values.items():
        file[name].resize(count + 1, 0)
        if file[name].ndim == 1:
            file[name][-1] = value
