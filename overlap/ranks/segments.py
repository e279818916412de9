"""Memory that the ranks of a node share, and that exists as long as a process maps it.

All ranks free an MPI window together, which ends the arrays in it. But arrays of a halo belong to the user, who drops
them on each rank at some time, usually after the halo; and each window takes a communicator, of which MPI has few. So a
segment is a mapped file whose name has been removed: the operating system keeps it until the last mapping is gone,
however a process ends, and each array owns its mapping.
"""

from __future__ import annotations

import mmap
import os
import uuid
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from mpi4py import MPI

from ..errors import RankError
from .together import together

PREFIX = "overlap_shm_"
_FOLDER = Path("/dev/shm")


def segments(
    node: MPI.Intracomm, nbytes: int, peers: Iterable[int], comm: MPI.Intracomm | None = None
) -> dict[int, np.ndarray]:
    """Make a segment of zeros on each rank of a node, and map it and those of some others. Collective over `comm`.

    This rank's segment has `nbytes` bytes; `peers` are the ranks of the node whose segments it maps besides. `comm` has
    the ranks of several nodes that make segments at once; by default those of the node. Returns for each of these ranks
    an array of uint8, which begins at a page and owns its mapping.

    Raises
    ------
    RankError
        On all ranks of `comm`: a segment could not be made or mapped, because shared memory is short or because
        containers do not share files.
    """
    path = _FOLDER / f"{PREFIX}{os.getpid()}_{uuid.uuid4().hex}"
    nbytes = max(nbytes, 1)  # an empty file cannot be mapped
    comm = comm or node
    try:
        own_segment = together(comm, lambda: _mapped(path, nbytes, os.O_CREAT | os.O_EXCL))
        names: list[tuple[str, int]] = node.allgather((path.name, nbytes))
        paths = {rank: (_FOLDER / names[rank][0], names[rank][1]) for rank in set(peers) - {node.rank}}
        peer_segments = together(comm, lambda: {rank: _mapped(*place) for rank, place in paths.items()})
    finally:
        path.unlink(missing_ok=True)
    return {node.rank: own_segment, **peer_segments}


def unusable(node: MPI.Intracomm) -> str | None:
    """Return why ranks of a node cannot write to each other's memory; None if they can. Collective over the node."""
    try:
        segments(node, 1, [0])
    except RankError as error:
        return f"ranks of a node cannot map each other's memory here (rank {error.rank} of the node: {error.summary})"
    return None


def _mapped(path: Path, nbytes: int, flags: int = 0) -> np.ndarray:
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
    try:
        if flags:
            _reserve(file, nbytes)
        return np.frombuffer(mmap.mmap(file, nbytes), np.uint8)
    finally:
        os.close(file)


def _reserve(file: int, nbytes: int) -> None:
    """Take all memory of a segment now: if there is not enough later, a write is a SIGBUS.

    The owner does so, thus the memory is near the owner's core.
    """
    try:
        os.posix_fallocate(file, 0, nbytes)
    except OSError as error:
        system = os.statvfs(_FOLDER)
        raise OSError(
            error.errno,
            f"expected {nbytes} bytes of shared memory in {_FOLDER}, received {os.strerror(error.errno or 0)!r} where "
            f"{system.f_bavail * system.f_frsize} bytes are free",
        ) from None
