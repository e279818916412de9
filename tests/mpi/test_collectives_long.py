"""Long messages on one node: by the window or by MPI."""

import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from marks import exhaustive, on_ranks
from mpi4py import MPI
from test_collectives import everything

from overlap.collectives import Collectives, long_messages
from overlap.errors import InputError


@on_ranks(2, exhaustive(3))
def test_by_either_way(comm):
    """By the window or by MPI, whatever is chosen for a size: the same; what was measured is kept, a bad file is
    measured anew.
    """
    folder = comm.bcast(tempfile.mkdtemp() if comm.rank == 0 else None)
    place = Path(folder, "cache")
    os.environ["OVERLAP_CACHE"] = str(place)
    try:
        found = _way_of_long(comm, None)
        kept = sorted(place.glob("*.collectives.json"))
        assert len(kept) == 4, kept
        assert place.stat().st_mode & 0o777 == 0o700, "the cache's folder is its owner's alone"
        assert _way_of_long(comm, None) == found
        comm.Barrier()
        if comm.rank == 0:
            for path, content in zip(kept, ("", "{}", "[1]", '{"sizes": [1], "by_mpi": [true]}')):
                path.write_text(content)
        comm.Barrier()
        assert _way_of_long(comm, None).keys() == found.keys()
        for way in (True, False):
            _way_of_long(comm, way)
    finally:
        comm.Barrier()
        del os.environ["OVERLAP_CACHE"]
        if comm.rank == 0:
            shutil.rmtree(folder)


def _way_of_long(comm, way):
    """What was found for each collective; `way` is by MPI or not, None for what is measured."""
    with Collectives(comm) as fast:
        carrier = fast._carrier
        if way is not None:
            carrier.by_mpi = {kind: (way,) * len(long_messages.SIZES) for kind in long_messages.KINDS}
        for seed, count in enumerate((8_192, 8_193, 40_000, 300_001)):
            for root in range(comm.size):
                everything(fast, comm, count, root, seed)
        _in_place(fast, comm, 20_000)
        assert fast.allreduce(1) == comm.size
        return dict(carrier.by_mpi)


def _in_place(fast, comm, count):
    everybodys = np.full((comm.size, count), -1.0)
    everybodys[comm.rank] = comm.rank
    fast.Allgather(MPI.IN_PLACE, everybodys)
    assert (everybodys == np.arange(comm.size)[:, None]).all()
    root = comm.size - 1
    mine = np.full(count, float(comm.rank))
    everybodys[:root] = -1
    fast.Gather(MPI.IN_PLACE if comm.rank == root else mine, everybodys if comm.rank == root else None, root)
    assert comm.rank != root or (everybodys == np.arange(comm.size)[:, None]).all()
    everybodys[:] = np.arange(comm.size)[:, None] + 5
    fast.Scatter(everybodys if comm.rank == root else None, MPI.IN_PLACE if comm.rank == root else mine, root)
    assert (mine == comm.rank + 5).all() or comm.rank == root


@on_ranks(2, exhaustive(3))
def test_different(comm):
    """One exception on all ranks before MPI is called."""
    last = comm.rank == comm.size - 1
    fast = Collectives(comm)
    with pytest.raises(InputError, match="root=1"):
        fast.Bcast(np.zeros(100_000), 1 if last else 0)
    with pytest.raises(InputError):
        fast.Barrier()
    fast.free()
