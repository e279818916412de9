"""A slice program with a halo exchange: heat that spreads in a batch of rods."""

# [start]
import mpi4py
import numpy as np

mpi4py.rc.thread_level = "serialized"
from mpi4py import MPI

import overlap

comm = MPI.COMM_WORLD
rods, points, steps, c = 12, 96, 20, 0.25  # c = diffusivity * dt / dx^2

mine = np.array_split(np.arange(points), comm.size)[comm.rank]
below, above = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size  # the rod is a ring

start = np.random.default_rng(1).random((rods, points))
u = np.zeros((rods, len(mine) + 2))  # a halo point at either end
u[:, 1:-1] = start[:, mine]
# [end start]


def expected():
    """All points of all rods after all steps, by NumPy."""
    v = start
    for _ in range(steps):
        v = v + c * (np.roll(v, 1, axis=1) - 2 * v + np.roll(v, -1, axis=1))
    return v[:, mine]


# [blocking]
def advance_all():
    for rod in range(rods):
        f = u[rod]
        comm.Sendrecv(f[-2:-1], above, 0, f[:1], below, 0)  # up: my last point, their halo
        comm.Sendrecv(f[1:2], below, 1, f[-1:], above, 1)  # down
        f[1:-1] += c * (f[:-2] - 2 * f[1:-1] + f[2:])


# [end blocking]


for _ in range(steps):
    advance_all()
assert np.allclose(u[:, 1:-1], expected())
u[:, 1:-1] = start[:, mine]

# [pipelined]
with overlap.Runtime(comm, workers=1) as rt:

    @rt.pipelined
    async def advance(rod):
        f = u[rod]
        await rt.comm.Sendrecv(f[-2:-1], above, 0, f[:1], below, 0)
        await rt.comm.Sendrecv(f[1:2], below, 1, f[-1:], above, 1)
        f[1:-1] += c * (f[:-2] - 2 * f[1:-1] + f[2:])

    for _ in range(steps):
        advance(range(rods))
# [end pipelined]

assert np.allclose(u[:, 1:-1], expected())
u[:, 1:-1] = start[:, mine]

# [interior]
with overlap.Runtime(comm, workers=1) as rt:

    @rt.pipelined(buffers=lambda: np.empty(len(mine)))
    async def advance(rod, change):
        f = u[rod]
        up = await rt.comm.Isendrecv(f[-2:-1], above, 0, f[:1], below, 0)  # starts
        down = await rt.comm.Isendrecv(f[1:2], below, 1, f[-1:], above, 1)
        change[1:-1] = f[1:-3] - 2 * f[2:-2] + f[3:-1]  # needs no halo
        await up  # completes
        await down
        change[0] = f[0] - 2 * f[1] + f[2]
        change[-1] = f[-3] - 2 * f[-2] + f[-1]
        f[1:-1] += c * change

    for _ in range(steps):
        advance(range(rods))
# [end interior]

assert np.allclose(u[:, 1:-1], expected())
u[:, 1:-1] = start[:, mine]


# [skeleton]
def exchanges(rod):
    """This rod's two exchanges, with tags of its own."""
    f = u[rod]
    return (
        rt.comm.Sendrecv(f[-2:-1], above, 2 * rod, f[:1], below, 2 * rod),
        rt.comm.Sendrecv(f[1:2], below, 2 * rod + 1, f[-1:], above, 2 * rod + 1),
    )


async def only_exchange(rod):
    for exchange in exchanges(rod):
        await exchange


with overlap.Runtime(comm, workers=1) as rt:

    @rt.pipelined(skeleton=only_exchange)
    async def advance(rod):
        for exchange in exchanges(rod):
            await exchange
        u[rod, 1:-1] += c * (u[rod, :-2] - 2 * u[rod, 1:-1] + u[rod, 2:])

    for _ in range(steps):
        advance(range(rods))
# [end skeleton]

assert np.allclose(u[:, 1:-1], expected())

# [halo]
blocks = overlap.Blocks((rods, points), grid=(1, comm.size), width=[(0, 0), (1, 1)], periodic=[False, True])
change = np.empty((rods, len(mine)))

with overlap.Halo(comm, blocks) as halo:
    (w,) = halo.empty()  # with a ghost cell at either end
    w[:, 1:-1] = start[:, mine]
    for _ in range(steps):
        pending = halo.start(w)  # all rods at once
        change[:, 1:-1] = w[:, 1:-3] - 2 * w[:, 2:-2] + w[:, 3:-1]
        pending.wait()
        change[:, 0] = w[:, 0] - 2 * w[:, 1] + w[:, 2]
        change[:, -1] = w[:, -3] - 2 * w[:, -2] + w[:, -1]
        w[:, 1:-1] += c * change
    assert np.allclose(w[:, 1:-1], expected())
# [end halo]
