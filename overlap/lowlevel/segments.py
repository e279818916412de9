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
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from ..errors import RankError, formatted

PREFIX = "overlap_shm_"
_FOLDER = Path("/dev/shm")


def segments(node: MPI.Intracomm, nbytes: int, peers: Iterable[int]) -> dict[int, np.ndarray]:
    """Make a segment of zeros on each rank of a node, and map it and those of some others. Collective over the node.

    Parameters
    ----------
    node : mpi4py.MPI.Intracomm
    nbytes : int
        The size of this rank's segment.
    peers : iterable of int
        The ranks of the node whose segments this one maps, besides its own.

    Returns
    -------
    dict
        For each of these ranks an array of uint8, which begins at a page and owns its mapping.

    Raises
    ------
    RankError
        On all ranks of the node: a segment could not be made or mapped, because memory is short or because containers
        do not share files.
    """
    path = _FOLDER / f"{PREFIX}{os.getpid()}_{uuid.uuid4().hex}"
    nbytes = max(nbytes, 1)  # an empty file cannot be mapped
    try:
        own_segment, names = _collective_section(
            node, lambda: _mapped(path, nbytes, os.O_CREAT | os.O_EXCL), (path.name, nbytes)
        )
        paths = {rank: (_FOLDER / names[rank][0], names[rank][1]) for rank in set(peers) - {node.rank}}
        peer_segments, _ = _collective_section(node, lambda: {rank: _mapped(*place) for rank, place in paths.items()})
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
            # If memory is short, this raises; otherwise a later write would cause SIGBUS. The owner touches the memory
            # first, so it is near the owner's core.
            os.posix_fallocate(file, 0, nbytes)
        return np.frombuffer(mmap.mmap(file, nbytes), np.uint8)
    finally:
        os.close(file)


def _collective_section(node: MPI.Intracomm, make: Callable[[], Any], value: Any = None) -> tuple[Any, list[Any]]:
    """Call `make` and gather a value of each rank; if `make` raises on a rank, raise on all of them."""
    made, error = None, None
    try:
        made = make()
    except Exception as problem:
        error = problem
    reports: Any = node.allgather((error and formatted(error), value))
    for rank, (report, _) in enumerate(reports):
        if report is not None:
            raise RankError(rank, *report) from error
    return made, [value for _, value in reports]
