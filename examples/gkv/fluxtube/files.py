"""Files of a run: one rank writes, all ranks learn whether that worked, and a file is whole or does not exist."""

from contextlib import contextmanager
from pathlib import Path

import h5py

from overlap.files import ErrorKeepingFile, replacing


class FileError(RuntimeError):
    """Raised if a folder, checkpoint or output cannot be made, or no checkpoint can be read."""


@contextmanager
def together(comm, expected):
    """Run a ``with`` block that may fail on some ranks, and then raise on all of them (collective).

    The block runs to its end on all ranks, so messages inside it must go on after a failure.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
    expected : str
        The expected action, for the message.

    Raises
    ------
    FileError
        On all ranks with the same message, from the lowest rank that failed.
    """
    failure = None
    try:
        yield
    except Exception as error:
        failure = error
    texts = comm.allgather(None if failure is None else describe(failure))
    for text in filter(None, texts):
        raise FileError(f"{expected}: {text}") from failure


def describe(error):
    """Describe an exception in one line, which is never empty."""
    text = " ".join(str(error).split())
    return text if text and isinstance(error, (OSError, FileError)) else f"{type(error).__name__}: {text}"


def make_folder(comm, folder):
    """Make the folder of a run (collective).

    Raises
    ------
    FileError
        On all ranks.
    """
    with together(comm, f"expected to make {folder}"):
        if comm.rank == 0:
            Path(folder).mkdir(parents=True, exist_ok=True)


@contextmanager
def writing(path, user_block=0, finish=None):
    """Yield a new HDF5 file, which replaces `path` when it is complete.

    Parameters
    ----------
    path : path
    user_block : int
        Bytes before what HDF5 writes.
    finish : callable, optional
        Called with the path of the complete file before it takes its place.

    Yields
    ------
    h5py.File

    Raises
    ------
    OSError
        If it cannot be written; `path` is then unchanged, and no other file is left.
    """
    with replacing(path) as partial:
        with ErrorKeepingFile(partial) as disk:
            with h5py.File(disk, "w", userblock_size=user_block) as file:
                yield file
            if disk.error is not None:
                raise disk.error
        if finish is not None:
            finish(partial)
