"""MG: V-cycles for a periodic Poisson problem, on `overlap.Halo`.

Ranks hold runs of whole planes of the finest grid. A coarse plane belongs to the owner of the fine plane in its middle.
So restriction moves no data, and a rank may hold few planes of a coarse grid, or none. On each level one halo brings
the planes of other ranks that a rank needs, while the rank computes planes that need none of them. Prolongation fills
ghost planes by itself.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from mpi4py import MPI

import overlap
from overlap.arrays import block

from . import multigrid_loops as loops
from .kernel import Advance, Check, Kernel, Waiting, Weights
from .random_numbers import fill, jumped

SEED = 314159265
LEVELS = {"S": 5, "W": 7, "A": 8, "B": 8, "C": 9}
CYCLES = {"S": 4, "W": 4, "A": 4, "B": 20, "C": 20}
NORMS = {
    "S": 0.5307707005734e-04,
    "W": 0.6467329375339e-05,
    "A": 0.2433365309069e-05,
    "B": 0.1800564401355e-05,
    "C": 0.5706732285740e-06,
}
SMOOTHERS = {letter: (-3 / 8, 1 / 32, -1 / 64) if letter in "SWA" else (-3 / 17, 1 / 33, -1 / 61) for letter in LEVELS}
CHARGES = 10  # number of charges of either sign
CHUNK_NBYTES = 2**22  # bytes computed between two polls of a halo


class Level:
    """A grid of n^3 points: this rank's planes, the ghost planes beside them, and the fields u and r.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
    n : int
    own : slice
        This rank's planes.
    finer : Level or None
        The next finer grid.

    Attributes
    ----------
    count, total : int
        Number of own planes; of own and ghost planes.
    below, above : ndarray
        Places of the neighbours of each own plane in the local array.
    inner : (int, int)
        The own planes that need no ghost plane.
    halo : Halo
    u, r : ndarray, (total, n, n)
    """

    def __init__(self, comm: MPI.Intracomm, n: int, own: slice, finer: Level | None) -> None:
        self.n, self.own, self.count = n, own, own.stop - own.start
        mine = np.arange(own.start, own.stop)
        wanted = [mine - 1, mine + 1]
        if finer is not None:
            wanted += [(finer.planes - 1) // 2, finer.planes // 2]
        ghosts = np.setdiff1d(np.concatenate(wanted) % n, mine)
        self.planes = np.concatenate([mine, ghosts])
        self.total = len(self.planes)
        place = np.full(n, -1)
        place[self.planes] = np.arange(self.total)
        self._place = place
        self.below, self.above = place[(mine - 1) % n], place[(mine + 1) % n]
        self.inner = self.run_of((self.below < self.count) & (self.above < self.count))
        self.halo = overlap.Halo.from_indices(comm, mine, ghosts, ("f8", (n * n,)))
        self.u, self.r = (self.halo.empty()[0].reshape(self.total, n, n) for _ in range(2))

    @staticmethod
    def run_of(good: np.ndarray) -> tuple[int, int]:
        """Return the first place and the last + 1 of consecutive places; (0, 0) if there are none."""
        places = np.flatnonzero(good)
        return (int(places[0]), int(places[-1]) + 1) if len(places) else (0, 0)

    def see(self, coarser: Level) -> None:
        """Note the places of the planes of the next coarser grid."""
        self.low = coarser._place[(self.planes - 1) // 2 % coarser.n]
        self.high = coarser._place[self.planes // 2]
        self.alone = self.run_of((self.low < coarser.count) & (self.high < coarser.count))
        self.middle = self._place[2 * np.arange(coarser.own.start, coarser.own.stop) + 1]


class MG(Kernel):
    """The kernel MG; see `Kernel`."""

    name, title, unit = "mg", "MG", "planes"

    def __init__(self, comm: MPI.Intracomm, letter: str, weights: Weights, advance: Advance, hide: bool = True) -> None:
        super().__init__(comm, letter, weights, advance, hide)
        n = 2 ** LEVELS[letter]
        own = block(n, comm.size, weights)[comm.rank]
        self.share = own.stop - own.start
        self._levels: list[Level] = []  # the finest first
        while n > 1:
            self._levels.append(Level(comm, n, own, self._levels[-1] if self._levels else None))
            n, own = n // 2, slice(own.start // 2, own.stop // 2)
        for fine, coarse in zip(self._levels, self._levels[1:]):
            fine.see(coarse)
        self._top = self._levels[0]
        self._v = np.zeros_like(self._top.r)
        self._charge()
        self._norm = np.nan

    @property
    def size(self) -> str:
        return "x".join([str(self._top.n)] * 3)

    @property
    def iterations(self) -> int:
        return CYCLES[self.letter]

    @property
    def mop(self) -> float:
        return 58 * self.iterations * self._top.n**3 / 1e6

    def _charge(self):
        """Set v: the points of the largest and of the smallest random numbers."""
        n, start = self._top.n, self._top.own.start
        found = []
        numbers = np.empty(n * n)
        for plane in range(self._top.count):
            fill(jumped(SEED, (start + plane) * n * n), numbers)
            order = np.argpartition(numbers, [CHARGES, len(numbers) - CHARGES])
            chosen = np.concatenate([order[:CHARGES], order[-CHARGES:]])
            found += [(float(numbers[point]), (start + plane) * n * n + int(point)) for point in chosen]
        everywhere = sorted({one for part in self.comm.allgather(found) for one in part})
        values = self._v.reshape(self._top.total, n * n)
        for sign, points in ((-1.0, everywhere[:CHARGES]), (1.0, everywhere[-CHARGES:])):
            for _, point in points:
                plane = point // (n * n) - start
                if 0 <= plane < self._top.count:
                    values[plane, point % (n * n)] = sign

    def warm_up(self) -> None:
        self._reset()
        self._residual(self._top, self._v)
        self._cycle()

    def run(self) -> None:
        self.waited_s, self.messages = 0.0, 0
        self._reset()
        self._residual(self._top, self._v)
        self._sum()
        for cycle in range(self.iterations):
            self._cycle()
            self._residual(self._top, self._v)
            self.advance(cycle + 1, self.iterations)
        self._norm = self._sum()

    def _reset(self):
        self._top.u[...] = 0.0

    def _sum(self):
        """Return the norm of the finest residual."""
        total = loops.squares(self._top.r, self._top.count)
        with Waiting(self):
            return float(np.sqrt(self.comm.allreduce(total) / self._top.n**3))

    def _cycle(self):
        """Compute u = u + M r, a V-cycle."""
        for fine, coarse in zip(self._levels, self._levels[1:]):
            self._exchanged(fine, fine.r, (0, 0), 0, None)
            loops.restrict(fine.r, coarse.r, fine.middle, fine.below, fine.above, coarse.count)
        self._smooth(self._levels[-1], True)
        for fine, coarse in zip(self._levels[-2::-1], self._levels[:0:-1]):
            fresh = fine is not self._top
            self._exchanged(
                coarse,
                coarse.u,
                fine.alone,
                fine.total,
                lambda first, last: loops.prolong(coarse.u, fine.u, fine.low, fine.high, first, last, fresh),
            )
            loops.residual(fine.u, fine.r if fresh else self._v, fine.r, fine.below, fine.above, 0, fine.count)
            self._smooth(fine, False)

    def _residual(self, level, v):
        """Compute r = v - A u; the ghost planes of u are exchanged meanwhile."""
        self._exchanged(
            level,
            level.u,
            level.inner,
            level.count,
            lambda first, last: loops.residual(level.u, v, level.r, level.below, level.above, first, last),
        )

    def _smooth(self, level, fresh):
        """Compute u = u + S r."""
        self._exchanged(
            level,
            level.r,
            level.inner,
            level.count,
            lambda first, last: loops.smooth(
                level.r, level.u, level.below, level.above, first, last, *SMOOTHERS[self.letter], fresh
            ),
        )

    def _exchanged(
        self,
        level: Level,
        field: np.ndarray,
        inner: tuple[int, int],
        total: int,
        compute: Callable[[int, int], None] | None,
    ) -> None:
        """Exchange the ghost planes of a field, and compute: first the planes that need none of them."""
        first, last = inner if self.hide else (0, 0)
        flat = field.reshape(level.total, -1)
        with Waiting(self):
            pending = level.halo.start(flat)
        self.messages += len(level.halo.transports)
        if compute is not None:
            step = max(1, CHUNK_NBYTES // (8 * level.n**2))
            for begin in range(first, last, step):
                compute(begin, min(begin + step, last))
                pending.test()
        with Waiting(self):
            pending.wait()
        if compute is not None:
            for begin, end in ((0, first), (last, total)):
                if begin < end:
                    compute(begin, end)

    def checks(self) -> list[Check]:
        return [Check("rnm2", self._norm, NORMS[self.letter], 1e-8)]

    def close(self) -> None:
        for level in self._levels:
            level.halo.free()
