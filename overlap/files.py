"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a new, empty file beside `path` to write to; it takes the place of `path` at the end.

    Whoever reads `path` finds the old content or the new one, also after a crash or on a full disk.
    The file beside it has a name that nobody can predict, and is gone if writing it fails. A link
    stays a link.

    Parameters
    ----------
    path : str or path-like

    Yields
    ------
    Path
        Of the file to write; it exists, and only this user can open it until the end.

    Raises
    ------
    OSError
        The folder cannot be written to, the disk is full, or `path` is a folder.
    """
    target = Path(os.path.realpath(path))
    mode = target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask()
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent)
    os.close(handle)
    try:
        yield Path(name)
        with open(name, "rb") as file:
            os.fsync(file.fileno())
        os.chmod(name, mode)
        os.replace(name, target)
    except BaseException:
        with suppress(OSError):
            os.remove(name)
        raise


def write(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write a whole file at once, in UTF-8 where it is text; see `replacing`."""
    with replacing(path) as partial:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)


def _umask() -> int:
    """What the process keeps from others; the only way to read it is to set it."""
    umask = os.umask(0o077)
    os.umask(umask)
    return umask
