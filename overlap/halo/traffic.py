"""The traffic of a halo: which ranks exchange which entries, for blocks with ghost cells or lists of entries.

A *region* of a local array is a box (a tuple of slices) or an array of positions along the first axis.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..arrays.blocks import Blocks
from ..arrays.exchange import Overflow
from ..arrays.partition import length_of
from ..compiled.copy_table import ArrayRegion, strides_of
from ..ranks.standalone_coordinator import StandaloneCoordinator

Region = tuple[slice, ...] | np.ndarray
Pairs = list[tuple[ArrayRegion, ArrayRegion]]


class LocalArrays(NamedTuple):
    """The arrays of a round on a rank.

    Attributes
    ----------
    shape : tuple of int
        Shape of each array, without the components of an item.
    items : sequence of int
        Bytes of an item, for each array.
    singles : collection of int
        The numbers of the arrays whose doubles travel as singles.
    overflow : Overflow or None
        Where copies tell that one was too large; None if there are no such arrays.
    """

    shape: tuple[int, ...]
    items: Sequence[int]
    singles: Collection[int] = ()
    overflow: Overflow | None = None

    def region(self, number: int, region: Region) -> ArrayRegion:
        """Describe a region of array `number`."""
        nbytes = self.items[number]
        precision, rounding = (8, self._rounding) if number in self.singles else (0, 0)
        if isinstance(region, np.ndarray):
            return ArrayRegion(number, 0, (len(region),), (nbytes,), nbytes, region, precision, rounding)
        strides = strides_of(self.shape, nbytes)
        offset = sum(side.start * stride for side, stride in zip(region, strides))
        return ArrayRegion(
            number, offset, tuple(map(length_of, region)), strides, nbytes, precision=precision, rounding=rounding
        )

    @property
    def _rounding(self) -> int:
        return 0 if self.overflow is None else self.overflow.address

    def check(self) -> None:
        """Raise an `InputError` if a number was too large to travel."""
        if self.overflow is not None:
            self.overflow.check()

    def packing(self, regions: Sequence[Region], message: int = 0) -> tuple[Pairs, int]:
        """Return where regions of all arrays are in message `message`.

        Returns
        -------
        list of (ArrayRegion, ArrayRegion)
            Each region in its array, and in the message.
        int
            Bytes of the message; every array's part begins at a multiple of 64.
        """
        pairs, first = [], 0
        for number in range(len(self.items)):
            first = -(-first // 64) * 64
            for region in regions:
                place = self.region(number, region)
                nbytes = place.nbytes // 2 if place.precision else place.nbytes
                strides = strides_of(place.shape, nbytes)
                packed = place._replace(
                    base=message,
                    offset=first,
                    strides=strides,
                    nbytes=nbytes,
                    positions=None,
                    precision=place.precision // 2,
                )
                pairs.append((place, packed))
                first += place.size * nbytes
        return pairs, first


def swapped(pairs: Pairs) -> Pairs:
    """Exchange source and target of each copy."""
    return [(target, source) for source, target in pairs]


@dataclass(frozen=True)
class Traffic:
    """The data that a rank exchanges with another rank in a round, as regions in the order of the message.

    Attributes
    ----------
    rank : int
        The other rank.
    sends : sequence of Region
        Regions of this rank's local array that are sent.
    fills : sequence of Region
        The corresponding regions of the other rank's local array.
    receives : sequence of Region
        Regions of this rank's local array that are received.
    shape : tuple of int
        Shape of the other rank's local array.
    """

    rank: int
    sends: Sequence[Region]
    fills: Sequence[Region]
    receives: Sequence[Region]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Entries:
    """The local shape and the traffic for lists of owned and needed entries."""

    local_shape: tuple[int, ...]
    traffic: Sequence[Traffic]


def of_blocks(blocks: Blocks, rank: int) -> list[Traffic]:
    """Return the traffic that fills the ghost cells of blocks."""
    own_neighbours = list(blocks.neighbours(rank))
    peers = sorted({neighbour.rank for neighbour in own_neighbours} | _mirrored(blocks, rank))
    traffic = []
    for peer in peers:
        peer_neighbours = [neighbour for neighbour in blocks.neighbours(peer) if neighbour.rank == rank]
        traffic.append(
            Traffic(
                peer,
                [neighbour.send for neighbour in peer_neighbours],
                [neighbour.receive for neighbour in peer_neighbours],
                [neighbour.receive for neighbour in own_neighbours if neighbour.rank == peer],
                blocks.local_shape(peer),
            )
        )
    return traffic


def _mirrored(blocks: Blocks, rank: int) -> set[int]:
    """Find the ranks that have this one as a neighbour; ghost cells may be on one side only."""
    both = Blocks(
        blocks.shape,
        blocks.grid,
        width=[max(pair) for pair in blocks.width],
        periodic=blocks.periodic,
        corners=blocks.corners,
        weights=blocks.weights,
        shares=blocks.shares,
    )
    return {neighbour.rank for neighbour in both.neighbours(rank)}


def of_indices(
    coordinator: StandaloneCoordinator,
    owned: np.ndarray,
    needed: np.ndarray,
    places: tuple[np.ndarray, np.ndarray, int] | None = None,
) -> Entries:
    """Return the traffic that brings entries, identified by global numbers, to ranks that need them. Collective.

    `places` has the positions of the owned and of the needed entries in the local array, and its length. By default the
    owned entries come first and then the needed ones, in the order given.

    Raises
    ------
    InputError
        On all ranks: a needed entry has no owner, or an entry has two.
    """
    size = coordinator.size
    if places is None:
        length = len(owned) + len(needed)
        places = np.arange(len(owned)), np.arange(len(owned), length), length
    owned_at, needed_at, length = places
    # Rank g mod size keeps the directory entry of g: its owner, and its position in the owner's array.
    kept = _sent(coordinator, owned % size, owned, owned_at)
    numbers, owners_places = (np.concatenate(one) for one in zip(*kept))
    owners = np.repeat(np.arange(size), [len(part[0]) for part in kept])
    order = np.argsort(numbers, kind="stable")
    numbers, owners, owners_places = numbers[order], owners[order], owners_places[order]
    twice = numbers[:-1][numbers[1:] == numbers[:-1]]
    coordinator.check(
        "the owners of entries",
        f"expected every entry to have one owner, received {twice[0]} twice" if len(twice) else None,
    )
    lost, answers = None, []
    for source, (wanted,) in enumerate(_sent(coordinator, needed % size, needed)):
        at = np.searchsorted(numbers, wanted)
        good = at < len(numbers)
        good[good] = numbers[at[good]] == wanted[good]
        if not good.all():
            lost = f"expected every entry that is needed to have an owner, received {wanted[~good][0]} (rank {source})"
        answers.append((owners[at[good]], owners_places[at[good]]))
    coordinator.check("the owners of entries", lost)
    found = coordinator.alltoall(answers)
    # In the order of the requests, by directory; then in the order of the local array, which both ranks know.
    places_here = np.concatenate([needed_at[needed % size == rank] for rank in range(size)])
    order = np.argsort(places_here)
    owners, owners_places = (np.concatenate(one)[order] for one in zip(*found))
    places_here = places_here[order]
    received = [_shortest(places_here[owners == rank]) for rank in range(size)]
    sent = _sent(coordinator, owners, owners_places, places_here)
    shapes = coordinator.allgather(length)
    traffic = []
    for peer, (mine, theirs) in enumerate(sent):
        sends, fills = ([_shortest(part)] if len(mine) else [] for part in (mine, theirs))
        receives = [received[peer]] if (owners == peer).any() else []
        if sends or receives:
            traffic.append(Traffic(peer, sends, fills, receives, (shapes[peer],)))
    return Entries((shapes[coordinator.rank],), traffic)


def _shortest(positions: np.ndarray) -> Region:
    """Return consecutive positions as a slice, others as they are."""
    if len(positions) and (np.diff(positions) == 1).all():
        return (slice(int(positions[0]), int(positions[-1]) + 1),)
    return positions


def _sent(coordinator: StandaloneCoordinator, ranks: np.ndarray, *values: np.ndarray) -> Any:
    """Send each value to its rank in `ranks`; return the values that each rank has sent here."""
    return coordinator.alltoall([tuple(one[ranks == rank] for one in values) for rank in range(coordinator.size)])
