"""Levels of a multigrid, the ranks that compute each level, and the cost of a cycle: pure arithmetic.

Level 1 is the finest. All ranks compute the levels up to the *switching level*. Coarser levels are gathered to fewer
ranks. One rank solves the last level directly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from ..arrays.blocks import Blocks
from ..arrays.topology import coordinates
from ..errors import InputError
from .cells import equal_block

ENOUGH = 64  # a level of at most this many cells needs no coarser one
MOST_DIRECT = 1000  # largest number of cells that are solved directly
EXCHANGES = 6  # halo exchanges of a level in a cycle


@dataclass(frozen=True)
class Costs:
    """Holds the measured costs of which a cycle's time is made up."""

    cell_s: float  # seconds per cell of a level in a cycle
    latency_s: float  # seconds of a small message
    byte_s: float  # seconds per byte of a large one

    def cycle_s(self, levels: Sequence[Blocks]) -> float:
        """Return the seconds of one cycle on these levels."""
        total = 0.0
        for number, blocks in enumerate(levels):
            cells = prod(blocks.shape)
            total += cells / blocks.size * self.cell_s + (blocks.size > 1) * EXCHANGES * self.latency_s
            if number and blocks.size < levels[number - 1].size:  # gathering and scattering
                total += 2 * (self.latency_s + 8 * cells / blocks.size * self.byte_s)
        return total


def last_switch(blocks: Blocks) -> int:
    """Find the last possible switching level: how often all blocks can be halved before one level is left."""
    cells, times = equal_block(blocks), 0
    while all(length % 2 == 0 for length in cells):
        cells, times = tuple(length // 2 for length in cells), times + 1
    return min(times, len(_shapes(blocks)) - 1)


def levels_of(
    blocks: Blocks,  # level 1
    switch: int,  # the last level that all ranks compute
    ranks: int = 1,  # compute the next levels as long as their blocks can be halved; after that one rank does
) -> list[Blocks]:
    """Return the distribution of cells over ranks for each level; raise an `InputError` if the grid cannot be halved
    often enough, or if there is no such switching level or no such part of the ranks."""
    if len(blocks.shape) != 3 or any(blocks.periodic):
        raise InputError(
            f"expected three axes that are not periodic, received blocks of {len(blocks.shape)} axes, periodic: "
            f"{blocks.periodic}"
        )
    shapes = _shapes(blocks)
    if prod(shapes[-1]) > MOST_DIRECT:
        raise InputError(
            f"expected a grid that can be halved along all axes until at most {MOST_DIRECT} cells are left, received "
            f"{blocks.shape}, which ends at {shapes[-1]}"
        )
    last = last_switch(blocks)
    if blocks.size > 1 and last == 0:
        raise InputError(f"expected blocks of an even number of cells along each axis, received {equal_block(blocks)}")
    if not isinstance(switch, int) or not 1 <= switch <= max(last, 1):
        raise InputError(f"expected switch to be a level from 1 to {max(last, 1)}, received {switch!r}")
    few = merged_grid(blocks, ranks)
    levels = [blocks]
    for number, shape in enumerate(shapes[1:], 2):
        grid = blocks.grid if number <= switch else few
        below = number < len(shapes)
        if levels[-1].size == 1 or not below or any(length % (2 * parts) for length, parts in zip(shape, grid)):
            grid = (1,) * len(shape)
        levels.append(Blocks(shape, grid, width=0))
    return levels


def merged_grid(blocks: Blocks, ranks: int) -> tuple[int, ...]:
    """Find a grid of fewer ranks, each of whose blocks is made of whole blocks, with the smallest surface."""
    possible = [
        grid
        for grid in product(*([part for part in range(1, parts + 1) if parts % part == 0] for parts in blocks.grid))
        if prod(grid) == ranks
    ]
    if not possible:
        raise InputError(
            f"expected gather_to to be a number of ranks that a part of the grid {blocks.grid} has, received {ranks!r}"
        )
    return min(possible, key=lambda grid: sum(parts / length for parts, length in zip(grid, blocks.shape)))


def merged_rank(rank: int, grid: tuple[int, ...], few: tuple[int, ...]) -> int:
    """Return the rank of the smaller grid that has the cells of a rank."""
    places = [place * parts // all_parts for place, parts, all_parts in zip(coordinates(rank, grid), few, grid)]
    return sum(place * prod(few[:axis]) for axis, place in enumerate(places))


def best_switch(blocks: Blocks, ranks: int, costs: Costs) -> int:
    """Choose the switching level with the shortest cycle by these costs."""
    return min(
        range(1, last_switch(blocks) + 1), key=lambda switch: costs.cycle_s(levels_of(blocks, switch, ranks)), default=1
    )


def _shapes(blocks: Blocks) -> Any:
    """Return the grid of each level; with several ranks there are at least two."""
    sizes = [blocks.shape]
    while (prod(sizes[-1]) > ENOUGH or len(sizes) == 1 < blocks.size) and all(length % 2 == 0 for length in sizes[-1]):
        sizes.append(tuple(length // 2 for length in sizes[-1]))
    return sizes
