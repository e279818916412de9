"""Splits an array of any dimension into blocks with ghost cells on a grid of ranks: pure integer geometry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from numbers import Integral
from typing import Any

from ..errors import InputError, repr_of
from ..ranks.objects import Described
from .partition import block, length_of
from .topology import coordinates
from .weights import checked, checked_shares, combined, integers

Box = tuple[slice, ...]
"""A part of an array, as one slice per axis: ``array[box]`` is a view of it."""


@dataclass(frozen=True)
class Neighbour:
    """Describes the ghost cells that a block receives from a neighbouring block.

    Attributes
    ----------
    rank : int
        The rank of the other block; it may be this rank, if an axis is periodic.
    offset : tuple of int
        Position of the other block: -1, 0 or 1 along each axis.
    receive : tuple of slice
        This rank's ghost cells that the other block fills, in the local array.
    send : tuple of slice
        The cells of the other block that fill them, in the other rank's local array.

    Examples
    --------
    >>> blocks = overlap.Blocks((8, 8), grid=(2, 1))
    >>> for neighbour in blocks.neighbours(0):
    ...     print(neighbour.rank, neighbour.offset, neighbour.receive)
    1 (1, 0) (slice(5, 6, None), slice(1, 9, None))
    """

    rank: int
    offset: tuple[int, ...]
    receive: Box
    send: Box


class Blocks(Described):
    """An array split into blocks, one per rank, each with ghost cells: copies of its neighbours' cells.

    Rank p + P q + ... has the block with coordinates p, q, ... in a P x Q x ... grid (`coordinates`). If the grid does
    not divide an axis, the first blocks along it have one more cell.

    Parameters
    ----------
    shape : tuple of int
        The global shape, without ghost cells.
    grid : tuple of int
        Ranks along each axis.
    width : int or sequence
        Ghost cells: one number, one per axis, or a pair (low side, high side) per axis.
    periodic : bool or sequence of bool
        Whether the first and the last block of an axis are neighbours; for all axes, or one by one.
    corners : bool
        Fill the ghost cells at edges and corners, too. Otherwise only those that share a face with the block.
    weights : sequence of numbers, optional
        One per rank: the cells of a rank are in proportion to its weight (`overlap.arrays.shares`). On a grid of
        several axes a coordinate weighs as much as its ranks together. A block may be empty: it then has no neighbours,
        and the blocks on its two sides are neighbours.
    shares : dict of int to sequence of int, optional
        For some axes the cells of each block along it, in order: ``{0: (4, 4, 1)}``. They override the weights, and may
        be 0.

    Raises
    ------
    InputError
        A value makes no sense, or a block is narrower than the ghost cells that it must fill. Only this rank raises
        (`overlap.agreed_blocks` raises on all ranks).

    Examples
    --------
    >>> blocks = overlap.Blocks((8, 6), grid=(2, 1), width=1)
    >>> blocks.part(1)  # of the global array
    (slice(4, 8, None), slice(0, 6, None))
    >>> blocks.local_shape(1), blocks.own(1)  # with ghost cells; without them
    ((6, 8), (slice(1, 5, None), slice(1, 7, None)))
    >>> blocks.inner(1)
    (slice(2, 4, None), slice(2, 6, None))
    """

    def __init__(
        self,
        shape: Sequence[int],
        grid: Sequence[int],
        *,
        width: int | Sequence[object] = 1,
        periodic: bool | Sequence[bool] = False,
        corners: bool = True,
        weights: Sequence[Any] | None = None,
        shares: Mapping[int, Sequence[int]] | None = None,
    ) -> None:
        cells, ranks = integers(shape), integers(grid)
        if not cells or ranks is None or len(ranks) != len(cells) or min(*cells, *ranks) < 1:
            raise InputError(
                "expected a shape and a grid with one number >= 1 for each axis, received "
                f"shape={repr_of(shape)} and grid={repr_of(grid)}"
            )
        self.shape, self.grid, axes = cells, ranks, len(cells)
        self.width = _widths(width, axes)
        self.periodic = (periodic,) * axes if isinstance(periodic, bool) else tuple(map(bool, _listed(periodic)))
        if len(self.periodic) != axes:
            raise InputError(f"expected periodic to be one truth value, or {axes}, received {repr_of(periodic)}")
        self.corners = corners
        self.size = prod(self.grid)
        self.weights, problem = checked(weights, self.size)
        self.shares, wrong = checked_shares(shares, self.shape, self.grid)
        if problem := problem or wrong:
            raise InputError(problem)
        places = [coordinates(rank, self.grid) for rank in range(self.size)]
        self._parts = [
            block(
                length,
                parts,
                self.shares.get(axis) or (self.weights and combined(self.weights, [place[axis] for place in places])),
            )
            for axis, (length, parts) in enumerate(zip(self.shape, self.grid))
        ]
        for axis, (parts, needed) in enumerate(zip(self._parts, self.width)):
            lengths = [length_of(part) for part in parts]
            even = self.weights is None and axis not in self.shares
            least = min((length for length in lengths if length or even), default=0)
            if ((len(parts) > 1 or self.periodic[axis]) and least < max(needed)) or least == 0:
                raise InputError(
                    f"expected blocks of at least {max(*needed, 1)} cells along axis {axis}, as wide as "
                    f"their ghost cells, received {least} of {self.shape[axis]} cells on {len(parts)} ranks"
                )

    def _title(self) -> str:
        ranks = " x ".join(map(str, self.grid))
        return f"Blocks of {self.shape} cells on {ranks} ranks, width {self.width}, periodic {self.periodic}"

    def part(self, rank: int) -> Box:
        """Return the rank's cells in the global array.

        Parameters
        ----------
        rank : int
            0 to the number of blocks - 1.

        Returns
        -------
        Box

        Raises
        ------
        InputError
            There is no such rank.
        """
        if not isinstance(rank, Integral) or not 0 <= rank < self.size:
            raise InputError(f"expected a rank from 0 to {self.size - 1}, received {repr_of(rank)}")
        return tuple(parts[place] for parts, place in zip(self._parts, coordinates(rank, self.grid)))

    def own(self, rank: int) -> Box:
        """Return the rank's cells in its local array, without ghost cells.

        Parameters
        ----------
        rank : int
            0 to the number of blocks - 1.

        Returns
        -------
        Box
        """
        return tuple(slice(low, low + length_of(part)) for part, (low, _) in zip(self.part(rank), self.width))

    def local_shape(self, rank: int) -> tuple[int, ...]:
        """Return the shape of the rank's local array, with ghost cells.

        Parameters
        ----------
        rank : int
            0 to the number of blocks - 1.

        Returns
        -------
        tuple of int
        """
        return tuple(low + length_of(part) + high for part, (low, high) in zip(self.part(rank), self.width))

    def inner(self, rank: int, reach: int | Sequence[object] | None = None) -> Box:
        """Return the rank's cells, in its local array, that need no ghost cell.

        They can be computed while the ghost cells are exchanged.

        Parameters
        ----------
        rank : int
        reach : optional
            How many cells away the stencil reads, in the form of the width; by default as many as there are ghost
            cells.

        Returns
        -------
        Box
        """
        widths = self.width if reach is None else _widths(reach, len(self.shape))
        box = []
        for own, (low, high) in zip(self.own(rank), widths):
            start = min(own.start + low, own.stop)
            box.append(slice(start, max(start, own.stop - high)))
        return tuple(box)

    def outer(self, rank: int, reach: int | Sequence[object] | None = None) -> list[Box]:
        """List the rank's other cells: boxes that do not overlap, to be computed when the ghost cells have arrived.

        Parameters
        ----------
        rank : int
        reach : optional
            See `inner`.

        Returns
        -------
        list of Box
        """
        inner, rest, boxes = self.inner(rank, reach), list(self.own(rank)), []
        for axis, (own, within) in enumerate(zip(self.own(rank), inner)):
            for side in (slice(own.start, within.start), slice(within.stop, own.stop)):
                rest[axis] = side
                boxes.append(tuple(rest))
            rest[axis] = within
        return [box for box in boxes if all(length_of(side) for side in box)]

    def neighbours(self, rank: int) -> Iterator[Neighbour]:
        """Yield the blocks whose cells are this rank's ghost cells, in the order of their offsets.

        Parameters
        ----------
        rank : int
            0 to the number of blocks - 1.
        """
        filled = [[place for place, part in enumerate(parts) if length_of(part)] for parts in self._parts]
        if not all(map(length_of, self.part(rank))):
            return
        # Positions along each axis count only blocks that have cells.
        own_places = [places.index(place) for places, place in zip(filled, coordinates(rank, self.grid))]
        steps = [prod(self.grid[:axis]) for axis in range(len(self.grid))]
        for offset in product((-1, 0, 1), repeat=len(own_places)):
            sides = sum(map(abs, offset))
            if not sides or (sides > 1 and not self.corners):
                continue
            peer_places = [place + step for place, step in zip(own_places, offset)]
            if any(
                not (periodic or 0 <= place < len(places))
                for place, places, periodic in zip(peer_places, filled, self.periodic)
            ):
                continue
            peer = sum(places[place % len(places)] * step for place, places, step in zip(peer_places, filled, steps))
            if any(not width[step > 0] for step, width in zip(offset, self.width) if step):
                continue
            receive, send = [], []
            for step, own, peer_own, (low, high) in zip(offset, self.own(rank), self.own(peer), self.width):
                if step == 0:
                    receive.append(own)
                    send.append(peer_own)
                elif step < 0:
                    receive.append(slice(0, low))
                    send.append(slice(peer_own.stop - low, peer_own.stop))
                else:
                    receive.append(slice(own.stop, own.stop + high))
                    send.append(slice(peer_own.start, peer_own.start + high))
            yield Neighbour(peer, offset, tuple(receive), tuple(send))


def _widths(width: Any, axes: int) -> tuple[tuple[int, int], ...]:
    """Return ghost cells as a pair (low, high) for each axis."""
    given = (width,) * axes if isinstance(width, int) else _listed(width)
    pairs = tuple((each, each) if isinstance(each, int) else _listed(each) for each in given)
    if len(pairs) != axes or any(
        len(pair) != 2 or not all(isinstance(number, int) and number >= 0 for number in pair) for pair in pairs
    ):
        raise InputError(
            f"expected a number of cells >= 0, or for each of {axes} axes a number or a pair, received {repr_of(width)}"
        )
    return pairs


def _listed(value: Any) -> tuple[Any, ...]:
    """Return a sequence as a tuple; an empty one for a value that is none, or text."""
    try:
        return () if isinstance(value, (str, bytes)) else tuple(value)
    except Exception:  # iterating over a user's object can raise anything
        return ()
