"""Who sends what to whom: messages between pairs of ranks, from blocks with ghost cells or from lists of entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arrays.blocks import Blocks
from ..runtime.control.own_control import OwnControl
from .moves import Region


@dataclass(frozen=True)
class Traffic:
    """All that one rank sends to and receives from another one in a round; regions in the order of the message.

    Attributes
    ----------
    rank : int
        The other one.
    sends : sequence of Region
        Regions of the own local array.
    fills : sequence of Region
        Where these go in the other rank's local array.
    receives : sequence of Region
        Regions of the own local array.
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
    """What lists of entries have to be exchanged: the local shape, and the messages."""

    local_shape: tuple[int, ...]
    traffic: Sequence[Traffic]


def of_blocks(blocks: Blocks, rank: int) -> list[Traffic]:
    """Make the messages that fill the ghost cells of blocks."""
    mine = list(blocks.neighbours(rank))
    peers = sorted({one.rank for one in mine} | _mirrored(blocks, rank))
    found = []
    for peer in peers:
        theirs = [one for one in blocks.neighbours(peer) if one.rank == rank]
        found.append(
            Traffic(
                peer,
                [one.send for one in theirs],
                [one.receive for one in theirs],
                [one.receive for one in mine if one.rank == peer],
                blocks.local_shape(peer),
            )
        )
    return found


def _mirrored(blocks: Blocks, rank: int) -> set[int]:
    """Find the ranks that have this one as a neighbour, where ghost cells may be on one side only."""
    both = Blocks(
        blocks.shape,
        blocks.grid,
        width=[max(pair) for pair in blocks.width],
        periodic=blocks.periodic,
        corners=blocks.corners,
        weights=blocks.weights,
    )
    return {one.rank for one in both.neighbours(rank)}


def of_indices(
    control: OwnControl, owned: np.ndarray, needed: np.ndarray, places: tuple[np.ndarray, np.ndarray, int] | None = None
) -> Entries:
    """Make the messages that bring entries, known by global numbers, to those that need them. Collective.

    `places` has where the owned and the needed entries stand in the local array, and how long this is. By default the
    owned ones come first and then the needed ones, in the order given.

    Raises
    ------
    InputError
        On all ranks: an entry that somebody needs has no owner, or one has two.
    """
    size = control.size
    if places is None:
        length = len(owned) + len(needed)
        places = np.arange(len(owned)), np.arange(len(owned), length), length
    owned_at, needed_at, length = places
    # Rank g mod size keeps the directory of entry g: its owner and its place there.
    kept = _sent(control, owned, owned % size, owned_at)
    numbers = np.concatenate([part[0] for part in kept])
    owners = np.repeat(np.arange(size), [len(part[0]) for part in kept])
    owners_places = np.concatenate([part[1] for part in kept])
    order = np.argsort(numbers, kind="stable")
    numbers, owners, owners_places = numbers[order], owners[order], owners_places[order]
    twice = numbers[:-1][numbers[1:] == numbers[:-1]]
    control.check(
        "the owners of entries",
        f"expected every entry to have one owner, received {twice[0]} twice" if len(twice) else None,
    )
    asked = _sent(control, needed, needed % size, needed_at)
    lost, out = None, [list[tuple[int, np.ndarray, np.ndarray]]() for _ in range(size)]
    for source, (wanted, where) in enumerate(asked):
        at = np.searchsorted(numbers, wanted)
        good = at < len(numbers)
        good[good] = numbers[at[good]] == wanted[good]
        if not good.all():
            lost = f"expected every entry that is needed to have an owner, received {wanted[~good][0]} (rank {source})"
            continue
        for owner in np.unique(owners[at]):
            one = owners[at] == owner
            out[owner].append((source, owners_places[at[one]], where[one]))
    control.check("the owners of entries", lost)
    orders: list[list[tuple[int, np.ndarray, np.ndarray]]] = control.alltoall(
        out
    )  # to each owner: who gets what, where
    sends: dict[int, list[np.ndarray]] = {}
    for source, mine, theirs in (one for part in orders for one in part):
        before = sends.get(source)
        sends[source] = (
            [mine, theirs]
            if before is None
            else [np.concatenate([before[0], mine]), np.concatenate([before[1], theirs])]
        )
    for source, (mine, theirs) in sends.items():
        ascending = np.argsort(theirs)
        sends[source] = [mine[ascending], theirs[ascending]]
    # Told by the owners, so both ends have them in the same order.
    told = control.alltoall([sends[peer][1] if peer in sends else None for peer in range(size)])
    shapes = control.allgather(length)
    traffic = []
    for peer in range(size):
        out_and_in: list[Region] = [_shortest(positions) for positions in sends.get(peer, ())]
        received: list[Region] = [] if told[peer] is None else [_shortest(told[peer])]
        if out_and_in or received:
            traffic.append(Traffic(peer, out_and_in[:1], out_and_in[1:], received, (shapes[peer],)))
    return Entries((shapes[control.rank],), traffic)


def _shortest(positions: np.ndarray) -> Region:
    """Give a slice where positions follow each other."""
    if len(positions) and (np.diff(positions) == 1).all():
        return (slice(int(positions[0]), int(positions[-1]) + 1),)
    return positions


def _sent(control: OwnControl, numbers: np.ndarray, ranks: np.ndarray, values: np.ndarray) -> Any:
    """Send numbers, and a value for each, to the ranks given; returns what each rank has sent here."""
    return control.alltoall([(numbers[ranks == rank], values[ranks == rank]) for rank in range(control.size)])
