"""Makes and changes the HDF5 file of an `Output`, wholly or not at all, on the rank that writes it.

HDF5 changes a file in many places, and a file that is left half changed is lost. Here new data are written behind the
end of the old file. When these are on the disk, the few old places that refer to them are changed. Until that is done,
a second file keeps the old content of these places. So a process may end at any time: before the change the file has
the old content, after it the new one, and during the change `undo` restores the old one.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from ..arrays.hdf5_storage import Axes, hdf5, reading, write_axis
from ..arrays.pieces import chunk_of
from ..files import ErrorKeepingFile, final_target, naming, replacing, unwritable, write
from .problems import MARK, STEP, TIME, Stored

PAGE_NBYTES = 4096


class ChangingFile(ErrorKeepingFile):
    """A file for HDF5 to change, in which nothing of the old content is touched before `commit`.

    Data behind the old end, which readers of the old content do not see, are written to the disk at once. Data before
    the old end, the few places that refer to the new content, stay in memory until `commit`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self._path = Path(path)
        self._old_end = self._end = _end_of(self._file.fileno())
        self._at = 0
        self._pages: dict[int, bytearray] = {}  # changed pages before the old end, by their offset

    def seek(self, *where: int) -> int:
        place, whence = (*where, os.SEEK_SET)[:2]
        self._at = place + (self._end if whence == os.SEEK_END else self._at if whence == os.SEEK_CUR else 0)
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, count: int) -> bytes:
        content = bytearray(max(0, min(count, self._end - self._at)))
        self.readinto(content)
        return bytes(content)

    def readinto(self, target: Any) -> int:
        """Read into a buffer; bytes that were never written are 0."""
        target = memoryview(target).cast("B")
        self._file.seek(self._at)
        super().readinto(target)
        for place, page in self._pages.items():
            first, last = max(place, self._at), min(place + len(page), self._at + len(target))
            if first < last:
                target[first - self._at : last - self._at] = page[first - place : last - place]
        self._at += len(target)
        return len(target)

    def write(self, data: Any) -> int:
        left = memoryview(data).cast("B")
        count = len(left)
        while left and self._at < self._old_end:
            place = self._at - self._at % PAGE_NBYTES
            if place not in self._pages:
                nbytes = min(PAGE_NBYTES, self._old_end - place)
                self._pages[place] = bytearray(os.pread(self._file.fileno(), nbytes, place))
            page, start = self._pages[place], self._at - place
            some = len(page[start : start + len(left)])
            page[start : start + some] = left[:some]
            left, self._at = left[some:], self._at + some
        if left:
            self._file.seek(self._at)
            super().write(left)
            self._at += len(left)
        self._end = max(self._end, self._at)
        return count

    def truncate(self, size: int | None = None) -> None:
        self._end = self._at if size is None else size
        super().truncate(max(self._end, self._old_end))

    def commit(self) -> None:
        """Write the changes that are in memory to the file; an `OSError` says that the disk has not taken everything,
        and the file has not changed.

        Before that, the old content of these places is written to a second file, which is removed at the end; a process
        that ends in between leaves it for `undo`.
        """
        self.flush()
        if self.error is not None:
            raise self.error
        old = [os.pread(self._file.fileno(), len(page), place) for place, page in self._pages.items()]
        places = np.array([(place, len(page)) for place, page in self._pages.items()], np.int64).reshape(-1, 2)
        content = np.array([self._old_end, len(places)], np.int64).tobytes() + places.tobytes() + b"".join(old)
        beside = undo_path(self._path)
        write(beside, hashlib.sha256(content).digest() + content)
        _flush_folder(beside.parent)
        for place, page in self._pages.items():
            os.pwrite(self._file.fileno(), page, place)
        os.ftruncate(self._file.fileno(), self._end)
        os.fsync(self._file.fileno())
        os.remove(beside)
        _flush_folder(beside.parent)

    def drop(self) -> None:
        """Remove the data written behind the old end."""
        os.ftruncate(self._file.fileno(), self._old_end)


@contextmanager
def changing(path: str | os.PathLike[str]) -> Iterator[ChangingFile]:
    """Return a file to change: all changes are made when the block ends, or none of them, with an `OSError` if the file
    cannot be opened or written, or another process is restoring it (`undo`)."""
    target = final_target(path)
    with naming(target), ChangingFile(target) as file, _locked(file._file.fileno(), fcntl.LOCK_SH):
        try:
            yield file
            file.commit()
        except BaseException:
            with suppress(OSError):
                if not undo_path(target).exists():
                    file.drop()
            raise


def undo(path: str | os.PathLike[str]) -> bool:
    """Restore the old content of a file if a process ended while it wrote changes to the file; return whether it did.

    An `OSError` says that the content cannot be restored, or that another process is about to change the file.
    """
    target = final_target(path)
    beside = undo_path(target)
    if not target.exists():  # another process has removed it
        beside.unlink(missing_ok=True)
    if not beside.exists():
        return False
    content = beside.read_bytes()
    digest, content = content[:32], content[32:]
    if digest != hashlib.sha256(content).digest():
        raise OSError(f"{beside} is damaged: the earlier content of {target.name} cannot be restored")
    end, count = np.frombuffer(content[:16], np.int64)
    at = 16 + 16 * int(count)
    with open(target, "r+b") as file, _locked(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB):
        for place, nbytes in np.frombuffer(content[16:at], np.int64).reshape(-1, 2).tolist():
            os.pwrite(file.fileno(), content[at : at + nbytes], place)
            at += nbytes
        os.ftruncate(file.fileno(), int(end))
        os.fsync(file.fileno())
        beside.unlink()
    return True


def _end_of(handle: int) -> int:
    """Return the end of a file that HDF5 has noted in it; a process that died may have written more behind it."""
    size, head = os.fstat(handle).st_size, os.pread(handle, 36, 0)
    if head.startswith(b"\x89HDF\r\n\x1a\n") and head[8] in (2, 3):  # the format's second and third superblock
        return min(size, int.from_bytes(head[28:36], "little"))
    return size


def undo_path(path: Path) -> Path:
    """Return the name of the file that keeps the old content of another one."""
    return path.with_name(path.name + ".undo")


@contextmanager
def _locked(handle: int, how: int) -> Iterator[None]:
    """Lock an open file, where its file system has locks; readers of HDF5 take shared ones."""
    try:
        fcntl.flock(handle, how)
    except BlockingIOError:
        raise OSError("another process has the file open") from None
    except OSError:
        yield
        return
    try:
        yield
    finally:
        fcntl.flock(handle, fcntl.LOCK_UN)


def _flush_folder(folder: Path) -> None:
    """Flush a folder's entries to the disk, if its file system can."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            os.fsync(handle)
    finally:
        os.close(handle)


VERSION = 1
_FORMAT = ("v110", "v110")  # readable since 2017; the superblock of this version contains the end of the file

Known = tuple[list[int], list[float], dict[str, Stored], dict[str, Any]]


def known(path: Path, mode: str) -> Known | None:
    """Return steps, times, fields and attributes of a file; None if the file does not exist yet.

    An `OSError` says that the file cannot be opened or made, or that an `Output` did not write it.
    """
    if mode == "w" or (mode == "a" and not path.exists()):
        if problem := unwritable(path):
            raise OSError(f"cannot write {path}: {problem}")
        return None
    undo(path)
    with reading(path) as file:
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
    mode: str,
    like: Mapping[str, Stored],
    axes: Callable[[str, tuple[int, ...]], Axes],
    attrs: Mapping[str, Any],
    exchange: str | None,
) -> Iterator[Any]:
    """Yield a new file, with data sets and without steps; with mode "w" it replaces an old file when the block ends."""
    if mode == "a" and path.exists():
        raise _changed_elsewhere(path, "no steps", "some")
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
def changed(path: Path, steps: Sequence[int]) -> Iterator[Any]:
    """Yield the file, which has these steps; its changes take effect when the block ends."""
    undo(path)
    with changing(path) as disk, hdf5().File(disk, "r+", libver=_FORMAT) as file:
        check_step(file, path, len(steps) - 1, steps)
        if len(file[STEP]) != len(steps):
            raise _changed_elsewhere(path, f"{len(steps)} steps", f"{len(file[STEP])}")
        yield file


def check_step(file: Any, path: Path, number: int, steps: Sequence[int]) -> None:
    """Raise an `OSError` if the step with this number in the file is another one than in `steps`."""
    found = int(file[STEP][number]) if number < len(file[STEP]) else "none"
    if found != steps[number]:
        raise _changed_elsewhere(path, f"step {steps[number]} in place {number}", f"{found}")


def _changed_elsewhere(path: Path, expected: str, found: str) -> OSError:
    changed = "another Output, perhaps of another job, has changed the file since this one was opened"
    return OSError(f"expected {path} with {expected}, received one with {found}: {changed}")


def extend(file: Any, count: int, values: Mapping[str, Any]) -> None:
    """Make room for one more step than `count`, and write its numbers."""
    for name, value in values.items():
        file[name].resize(count + 1, 0)
        if file[name].ndim == 1:
            file[name][-1] = value
