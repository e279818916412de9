"""Ways to sweep over blocks of cells whose ghost cells come from neighbours: by this library, and by hand with MPI's
calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from ...arrays import Blocks
from ...compiled import njit
from ...halo import Halo

_LOOKS = 8  # polls of the halo during a sweep
_FEW_LOOKS = 4  # polls if the system sends whole messages by itself: more polls cost more than they hide
_SHORT_NBYTES = 2**18

Ways = dict[str, Callable[[], Any]]


@njit
def sweep(u: Any, v: Any, first: int, last: int) -> None:
    """Set v to the sum of six neighbours minus 6 u, on planes `first` to `last` - 1; only planes have ghosts."""
    for z in range(first, last):
        for y in range(1, u.shape[1] - 1):
            low, high, centre, down, up, out = u[z, y - 1], u[z, y + 1], u[z, y], u[z - 1, y], u[z + 1, y], v[z, y]
            for x in range(1, len(out) - 1):
                out[x] = low[x] + high[x] + down[x] + up[x] + centre[x - 1] + centre[x + 1] - 6 * centre[x]


def sweeps(comm: MPI.Intracomm, shape: tuple[int, ...], planes: int) -> tuple[Ways, Callable[[], None]]:
    """Make the ways to sweep over slabs. Collective.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
    shape : (nz, ny, nx)
        Cells of a rank.
    planes : int
        Ghost planes on each side.

    Returns
    -------
    ways : dict
        ``C``, ``T``, ``off``, ``auto``, and by hand: ``plain``, Irecv and Isend, inner planes, Waitall; ``tested``,
        persistent requests, a Testall after each chunk of inner planes; ``sendrecv``, blocking calls and nothing else.
    close : callable
        Frees what they use.
    """
    blocks = Blocks((shape[0] * comm.size, *shape[1:]), (comm.size, 1, 1), width=((planes, planes), 0, 0))
    halo = Halo(comm, blocks)
    (u,) = halo.empty()
    v = np.zeros_like(u)
    own, inner = blocks.own(comm.rank)[0], blocks.inner(comm.rank, ((1, 1), 0, 0))[0]
    u[own] = np.random.default_rng(comm.rank).random(u[own].shape)
    looks = _FEW_LOOKS if planes * u[0].nbytes <= _SHORT_NBYTES else _LOOKS
    chunk = -(-shape[0] // looks)
    chunks = [(first, min(first + chunk, inner.stop)) for first in range(inner.start, inner.stop, chunk)]
    up, down = (rank if 0 <= rank < comm.size else MPI.PROC_NULL for rank in (comm.rank + 1, comm.rank - 1))
    messages = [
        (down, u[own.start : own.start + planes], u[:planes]),
        (up, u[own.stop - planes : own.stop], u[own.stop :]),
    ]
    requests = [comm.Recv_init(receive, peer) for peer, _, receive in messages if peer != MPI.PROC_NULL]
    requests += [comm.Send_init(send, peer) for peer, send, _ in messages if peer != MPI.PROC_NULL]

    def compute() -> None:
        sweep(u, v, own.start, own.stop)

    def rest() -> None:
        sweep(u, v, own.start, inner.start)
        sweep(u, v, inner.stop, own.stop)

    def off() -> None:
        halo.exchange(u)
        compute()

    def hidden() -> None:
        pending = halo.start(u)
        first = inner.start
        while first < inner.stop and not pending.test():
            last = min(first + chunk, inner.stop)
            sweep(u, v, first, last)
            first = last
        pending.wait()
        sweep(u, v, first, own.stop)  # in one piece: nothing is left to hide
        sweep(u, v, own.start, inner.start)

    def plain() -> None:
        begun = [comm.Irecv(receive, peer) for peer, _, receive in messages]
        begun += [comm.Isend(send, peer) for peer, send, _ in messages]
        sweep(u, v, inner.start, inner.stop)
        MPI.Request.Waitall(begun)
        rest()

    def tested() -> None:
        MPI.Prequest.Startall(requests)
        for chunk in chunks:
            sweep(u, v, *chunk)
            MPI.Request.Testall(requests)
        MPI.Request.Waitall(requests)
        rest()

    def sendrecv() -> None:
        for (peer, send, _), (opposite, _, receive) in (messages, messages[::-1]):
            comm.Sendrecv(send, peer, recvbuf=receive, source=opposite)

    def close() -> None:
        for request in requests:
            request.Free()
        halo.free()

    return {
        "C": compute,
        "T": lambda: halo.exchange(u),
        "off": off,
        "auto": hidden,
        "plain": plain,
        "tested": tested,
        "sendrecv": sendrecv,
    }, close
