"""Hiding an Allreduce: behind other slices, and behind other work of the same slice."""

# [start]
import mpi4py
import numpy as np

mpi4py.rc.thread_level = "serialized"
from mpi4py import MPI

import overlap

comm = MPI.COMM_WORLD
count, points = 16, 600  # vectors, and points of each

mine = np.array_split(np.arange(points), comm.size)[comm.rank]
v = np.random.default_rng(2).random((count, points))[:, mine]
# [end start]

# [slices]
length = np.empty((count, 1))
with overlap.Runtime(comm) as rt:

    @rt.pipelined
    async def normalise(i):
        await rt.comm.Allreduce(np.array([v[i] @ v[i]]), length[i])
        v[i] /= np.sqrt(length[i])

    normalise(range(count))
# [end slices]

assert np.allclose(comm.allreduce((v**2).sum(axis=1)), 1)


# [one]
def smoothed(w):
    """Some work that does not need the norm: a sweep over this rank's points."""
    return (w + np.roll(w, 1) + np.roll(w, -1)) / 3


norms = []
with overlap.Runtime(comm) as rt:

    @rt.pipelined
    async def iterate(i):
        w, norm2 = v[i], np.empty(1)
        for _ in range(5):
            pending = await rt.comm.Iallreduce(np.array([w @ w]), norm2)  # of the last iterate
            w = smoothed(w)  # meanwhile, the next one
            await pending
            norms.append((i, norm2[0]))
        v[i] = w

    iterate(range(1))
# [end one]

assert len(norms) == 5 and np.isclose(norms[0][1], 1)

# [compiled]
import numba

from overlap.collectives import Collectives


@numba.njit(nogil=True)
def norm(fast, w):
    return np.sqrt(fast.allreduce(np.sum(w * w)))


with Collectives(comm) as fast:  # ranks of one node
    assert np.isclose(norm(fast, v[1]), 1)
# [end compiled]
