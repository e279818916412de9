"""Files that are written whole or not at all, safe reading of files, and the folder of the user's files."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self


def read(path: str | os.PathLike[str], limit_nbytes: int) -> bytes:
    """Read a regular file; reject longer ones and other files, such as a named pipe, without waiting for them.

    Raises `FileNotFoundError` if there is no such file, and another `OSError` if it cannot be opened or read, is no
    regular file (a folder, a named pipe, a device), or is too long, or if `path` is no valid file name.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except ValueError as error:  # a NUL, or characters that a file name cannot have
        raise OSError(str(error)) from None
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise OSError("not a regular file")
        if status.st_size <= limit_nbytes:
            with open(handle, "rb", closefd=False) as file:
                content = file.read(limit_nbytes + 1)
            if len(content) <= limit_nbytes:  # it has not grown meanwhile
                return content
    finally:
        os.close(handle)
    raise OSError(f"longer than {limit_nbytes} bytes")


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a new, empty file beside `path` to write to; it replaces `path` at the end of the ``with`` block.

    A process that reads `path` finds the old content or the new one, even after a crash or if the disk is full. The new
    file has an unpredictable name, and is removed if writing it fails. A link stays a link. If two processes write at
    once, the one that ends last wins.

    The new file exists, and only this user can open it until the end.

    Raises
    ------
    OSError
        The folder cannot be written to, the disk is full, or `path` is a folder, a device, a circle of links, or no
        valid file name.
    """
    target = final_target(path)
    mode = target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask()
    handle, name = tempfile.mkstemp(prefix=f".{target.name[:40]}.", suffix=".partial", dir=target.parent)
    os.close(handle)
    try:
        yield Path(name)
        with open(name, "rb") as file:
            os.fsync(file.fileno())
        os.chmod(name, mode)
        os.replace(name, target)
    except BaseException as error:
        with suppress(OSError):
            os.remove(name)
        if isinstance(error, OSError) and error.errno and error.filename in (None, name):
            raise OSError(error.errno, error.strerror, os.fspath(path)) from error
        raise


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Return a ``with`` block in which every `OSError` names a file, as those of HDF5 and of a full disk do not."""
    try:
        yield
    except OSError as error:
        if os.fspath(path) in str(error):
            raise
        raise OSError(f"{os.fspath(path)}: {error}") from error


class ErrorKeepingFile:
    """A file for HDF5 to write to, which keeps the first error of the disk.

    HDF5 itself does not survive a full disk: closing its file fails and leaves it open, and when the process ends HDF5
    writes again, which may crash. So errors are hidden from HDF5: after the first one, everything that it writes is
    dropped.
    """

    error: OSError | None  # the first one

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file, self.error = open(path, "r+b", buffering=0), None  # noqa: SIM115 (closed by `__exit__`)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._file.close()

    def seek(self, *where: int) -> int:
        return self._file.seek(*where)

    def tell(self) -> int:
        return self._file.tell()

    def read(self, count: int) -> bytes | None:
        return self._file.read(count)

    def readinto(self, target: Any) -> int:
        """Read into a buffer; bytes that were never written are 0."""
        target = memoryview(target)
        count = self._file.readinto(target)
        target[count:] = bytes(len(target) - count)
        return len(target)

    def write(self, data: Any) -> int:
        left = memoryview(data)
        while left and self.error is None:
            left = left[self._try(self._file.write, left) or 0 :]
        return len(data)

    def truncate(self, size: int | None = None) -> None:
        self._try(self._file.truncate, size)

    def flush(self) -> None:
        self._try(os.fsync, self._file.fileno())

    def _try(self, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except OSError as error:
            self.error = self.error or error
            return None


def write(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write a whole file at once, text in UTF-8; see `replacing`."""
    with replacing(path) as partial:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)


def sealed(text: str) -> str:
    """Return JSON text with its digest, by which `is_sealed` detects later whether any byte has changed.

    Parameters
    ----------
    text : str
        It has an item ``"digest": ""``, which becomes the SHA-256 of the given text.
    """
    return text.replace('"digest": ""', f'"digest": "{_digest(text.encode())}"', 1)


def is_sealed(content: bytes, digest: object) -> bool:
    """Return whether a file's content is unchanged since `sealed`, given the digest that was read from it.

    This detects damage, not malice: a person who changes the file can give it another digest.
    """
    return (
        isinstance(digest, str)
        and digest.isascii()
        and content.count(digest.encode()) == 1
        and digest == _digest(content.replace(digest.encode(), b""))
    )


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def unwritable(path: str | os.PathLike[str]) -> str | None:
    """Return why `replacing` would fail now, or None; it may fail later nevertheless."""
    try:
        folder = final_target(path).parent
        if not folder.is_dir():
            return "its folder does not exist"
    except OSError as error:
        return str(error)
    return None if os.access(folder, os.W_OK | os.X_OK) else "its folder cannot be written to"


def final_target(path: str | os.PathLike[str]) -> Path:
    """Return where a file is, or will be, at the end of all links."""
    try:
        target = Path(os.path.realpath(path))
        if target.is_symlink():  # links that form a circle cannot be resolved
            raise OSError("too many levels of symbolic links")
        # /dev/stdout leads to a pipe, which has no name.
        if (target.exists() and not target.is_file()) or (os.path.exists(path) and not os.path.isfile(path)):
            raise OSError("not a regular file")
    except ValueError as error:  # a NUL, or characters that a file name cannot have
        raise OSError(str(error)) from None
    return target


def _umask() -> int:
    """Return the process's umask, which can be read only by setting it."""
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


CACHE_VARIABLE = "OVERLAP_CACHE"


def user_folder() -> Path | None:
    """Return the folder of files kept for this user, or None if nothing is to be kept.

    It is OVERLAP_CACHE (empty: nothing is kept), by default ``overlap`` in the user's cache folder.
    """
    named = os.environ.get(CACHE_VARIABLE)
    if named is not None:
        return Path(named) if named else None
    base = os.environ.get("XDG_CACHE_HOME")
    with suppress(RuntimeError):  # no home folder
        return (Path(base) if base and os.path.isabs(base) else Path.home() / ".cache") / "overlap"
    return None


def save_figure(figure: Any, path: str | os.PathLike[str], dpi: int = 130) -> None:
    """Write a `matplotlib.figure.Figure` to a file, whole or not at all; the suffix chooses the format, by default PNG.

    Raises
    ------
    ValueError
        Matplotlib has no format for the suffix.
    OSError
        The file cannot be written.
    """
    with replacing(path) as partial:
        figure.savefig(partial, dpi=dpi, format=Path(path).suffix.removeprefix(".") or "png")
