"""Memory that the ranks of a node share, and that lives as long as somebody maps it.

A window of MPI is freed by all ranks at once, and arrays in it are gone then. Arrays of a halo are the user's, who
drops them on each rank at some time, after the halo as a rule; and a window is a communicator more, of which MPI has
few. So a segment is a mapped file that has lost its name: the operating system keeps it until the last mapping is gone,
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
        The size of the own segment.
    peers : iterable of int
        The ranks of the node whose segments this one maps, besides its own.

    Returns
    -------
    dict
        An array of uint8 for each of these ranks. It begins at a page, and holds its mapping.

    Raises
    ------
    RankError
        On all ranks of the node: a segment could not be made or mapped, for want of memory, or because a container has
        files of its own.
    """
    path, nbytes = _FOLDER / f"{PREFIX}{os.getpid()}_{uuid.uuid4().hex}", max(nbytes, 1)  # nothing cannot be mapped
    try:
        mine, names = _collective_section(
            node, lambda: _mapped(path, nbytes, os.O_CREAT | os.O_EXCL), (path.name, nbytes)
        )
        paths = {rank: (_FOLDER / names[rank][0], names[rank][1]) for rank in set(peers) - {node.rank}}
        others, _ = _collective_section(node, lambda: {rank: _mapped(*place) for rank, place in paths.items()})
    finally:
        path.unlink(missing_ok=True)
    return {node.rank: mine, **others}


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
            # Memory that is not there is an error here, not a SIGBUS where it is written to. The owner touches it
            # first, so it is near the owner's core.
            os.posix_fallocate(file, 0, nbytes)
        return np.frombuffer(mmap.mmap(file, nbytes), np.uint8)
    finally:
        os.close(file)


def _collective_section(node: MPI.Intracomm, make: Callable[[], Any], value: Any = None) -> tuple[Any, list[Any]]:
    """Make something, and gather a value of each rank; or raise on all of them where one has failed."""
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
