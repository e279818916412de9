"""Distribution of phase space over ranks, and the neighbours of each rank.

Ranks form a Cartesian grid over (mu, v, z, ky), ky fastest: the ranks that share all but ky, among
which the nonlinear term communicates, are next to each other. Along z ranks hold whole pairs of
points, because the nonlinear term works on pairs of planes.
"""

from mpi4py import MPI

from overlap.arrays import block

from .config import ConfigError

AXES = ("mu", "v", "z", "ky")
HALO = 2  # planes that fourth-order differences need on each side
RING = ("z",)  # axes whose ends are neighbours: field lines go on


class Decomposition:
    """Describes the part of one rank.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
    runtime : overlap.Runtime
        A runtime of the same ranks.
    config : Config

    Attributes
    ----------
    parts : dict
        Slices of this rank along each of `AXES`.
    ranks : dict
        Number of ranks along each axis.
    ky, z, v, mu : overlap's AsyncComm
        The ranks in one line along an axis, for slice programs. The runtime frees them.
    velocity : AsyncComm
        Those that share all but v and mu.

    Raises
    ------
    ConfigError
        On all ranks, when the sizes do not allow so many ranks.
    """

    def __init__(self, comm, runtime, config):
        self.comm = comm
        self.ranks = arrange(comm.size, config)
        self.coordinates, rest = {}, comm.rank
        for axis in reversed(AXES):
            rest, self.coordinates[axis] = divmod(rest, self.ranks[axis])
        self.parts = {axis: parts[self.coordinates[axis]] for axis, parts in parts_of(self.ranks, config.grid).items()}
        self.ky, self.z, self.v, self.mu, self.velocity = (
            runtime.comm.Split(self._line(*axes)) for axes in (("ky",), ("z",), ("v",), ("mu",), ("v", "mu"))
        )

    def _line(self, *axes):
        """Return a number that is equal on ranks which differ along the given axes only."""
        number = 0
        for axis in AXES:
            number = number * self.ranks[axis] + (0 if axis in axes else self.coordinates[axis])
        return number

    def neighbours(self, axis):
        """Return the ranks below and above in the line along an axis; PROC_NULL beyond an end."""
        here, count = self.coordinates[axis], self.ranks[axis]
        return [
            there % count if axis in RING or 0 <= there < count else MPI.PROC_NULL for there in (here - 1, here + 1)
        ]

    def ends(self, axis):
        """Return whether this rank is the first, and whether it is the last, along an axis."""
        here = self.coordinates[axis]
        return here == 0, here == self.ranks[axis] - 1


def parts_of(ranks, grid):
    """Return the slices of all ranks along each axis."""
    pairs = block(grid.nz // 2, ranks["z"])
    return {
        "mu": block(grid.nmu + 1, ranks["mu"]),
        "v": block(grid.nv, ranks["v"]),
        "z": [slice(2 * part.start, 2 * part.stop) for part in pairs],
        "ky": block(grid.ny + 1, ranks["ky"]),
    }


def allowed(grid):
    """Return the numbers of ranks that each axis can be split over.

    A halo must come from one neighbour; in mu the first rank reflects two planes about the axis.
    Every rank has as many slices in v.
    """
    most = {"ky": grid.ny + 1, "v": grid.nv // HALO, "z": grid.nz // 2, "mu": (grid.nmu + 1) // (HALO + 1)}
    return {
        axis: [n for n in range(1, largest + 1) if axis != "v" or grid.nv % n == 0] for axis, largest in most.items()
    }


def arrange(size, config):
    """Choose the numbers of ranks along each axis: those of the configuration; others are as large as possible along
    ky, v, z, mu in turn."""
    ranks, left = {}, size
    for axis, numbers in allowed(config.grid).items():
        ranks[axis] = getattr(config.parallel, axis)
        if ranks[axis] and ranks[axis] not in numbers:
            raise ConfigError(
                f"parallel.{axis}: expected one of {_listed(numbers)} ranks for this grid, received {ranks[axis]}"
            )
        left, rest = divmod(left, max(1, ranks[axis]))
        if rest:
            left = 0
    for axis, numbers in allowed(config.grid).items():
        if not ranks[axis] and left:
            ranks[axis] = max(n for n in numbers if left % n == 0)
            left //= ranks[axis]
    if left == 1:
        return ranks
    raise ConfigError(
        "parallel: expected a number of ranks that is a product of "
        + " and ".join(
            f"{getattr(config.parallel, axis) or 'one of ' + _listed(numbers)} ({axis})"
            for axis, numbers in allowed(config.grid).items()
        )
        + f", received {size}"
    )


def _listed(numbers):
    if numbers == list(range(1, len(numbers) + 1)):
        return f"1 to {len(numbers)}"
    return ", ".join(map(str, numbers))
