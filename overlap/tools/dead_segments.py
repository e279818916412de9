"""Finds and removes the named shared memory of MPI libraries that killed ranks have left.

A rank that is aborted or killed does not remove its segments (MPICH: 1 MiB and more per rank), and they take memory
until somebody does. A segment is dead if no process has it open or mapped. Every process that makes or uses a segment
has it open or mapped, so segments of running jobs are never touched. To check this, all processes of this user must be
visible. Do not clean a folder that is shared with another process namespace, as between containers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

FOLDER = Path("/dev/shm")
# In order: halos; MPICH; Open MPI's messages (before and since 5), windows and ROMIO; UCX, which both libraries use.
NAMES = (
    "overlap_shm_",
    "mpich_shm_",
    "mpich_shar_tmp",
    "mpich_s_shar_tmp",
    "sm_segment.",
    "vader_segment.",
    "osc_rdma.",
    "osc_sm.",
    "osc_ucx.",
    "ucx_shm_posix_",
)
_VANISH_S = 0.3  # time for ranks to end after their launcher, and to remove their own segments


def existing() -> set[str]:
    """Find the segments that MPI libraries made for this user, by name."""
    names = set()
    with suppress(FileNotFoundError), os.scandir(FOLDER) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                if entry.name.startswith(NAMES) and entry.stat(follow_symlinks=False).st_uid == os.getuid():
                    names.add(entry.name)
    return names


def abandoned() -> dict[str, int]:
    """Find the segments that dead jobs of this user have left: their names and bytes.

    The search is made twice, a moment apart: a rank that ends unmaps a segment before it removes it, and would fail if
    this function removed it first.
    """
    left = _unused(existing())
    if left:
        time.sleep(_VANISH_S)
        left = _unused(left & existing())
    sizes = {}
    for name in sorted(left):
        with suppress(FileNotFoundError):
            sizes[name] = (FOLDER / name).stat().st_size
    return sizes


def remove(names: Iterable[str]) -> None:
    """Remove segments; ignore those that have gone already."""
    for name in names:
        (FOLDER / name).unlink(missing_ok=True)


@contextmanager
def removing_segments() -> Iterator[None]:
    """Remove the segments that a job leaves if it starts and ends inside this `with` block."""
    before = existing()
    try:
        yield
    finally:
        limit_s = time.monotonic() + _VANISH_S
        while left := existing() - before:
            unused = _unused(left)
            remove(unused)
            if unused == left or time.monotonic() > limit_s:
                break
            time.sleep(0.05)  # a process of the job may be about to end


def _unused(names: set[str]) -> set[str]:
    """Keep those of the segments that no process has open or mapped.

    Descriptors are read before mappings: a process maps a segment before it closes its descriptor, so it is seen in one
    of the two.
    """
    if not names:
        return set()
    used = set()
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        with suppress(OSError):  # the process has ended, or belongs to another user
            for descriptor in (process / "fd").iterdir():
                with suppress(OSError):
                    used.add(os.readlink(descriptor).rpartition("/")[2])
        with suppress(OSError):
            maps = (process / "maps").read_text(errors="replace")
            used |= {line.rpartition("/")[2] for line in maps.splitlines() if f"{FOLDER}/" in line}
    return names - used
