"""The traffic of a halo: which ranks exchange which entries, for blocks with ghost cells or lists of entries.

A *region* of a local array is a box (a tuple of slices) or an array of positions along the first axis. At the end are
the checks of a `Halo`'s arguments and of the arrays of its rounds.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from ..arrays.blocks import Blocks
from ..arrays.exchange import Overflow, dtype_sent, exchange_problem
from ..arrays.partition import length_of
from ..checks import choice_problem, mask_problem
from ..compiled.copy_table import ArrayRegion, strides_of
from ..compiled.memory import address_of
from ..errors import InputError, repr_of, text_of
from ..ranks.standalone_coordinator import StandaloneCoordinator

Types = list[tuple[np.dtype, tuple[int, ...]]]

Region = tuple[slice, ...] | np.ndarray
Pairs = list[tuple[ArrayRegion, ArrayRegion]]
TRANSPORTS = ("auto", "window", "messages")


class LocalArrays(NamedTuple):
    """The arrays of a round on a rank."""

    shape: tuple[int, ...]  # of each array, without the components of an item
    items: Sequence[int]  # bytes of an item, for each array
    singles: Collection[int] = ()  # the numbers of the arrays whose doubles travel as singles
    overflow: Overflow | None = None  # where copies tell that one was too large; None if there are no such arrays

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
        """Return each region in its array and in message `message`, where every array's part begins at a multiple of 64
        bytes; and the bytes of the message."""
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
    """The data that a rank exchanges with another rank in a round, as regions in the order of the message."""

    rank: int  # the other rank
    sends: Sequence[Region]  # regions of this rank's local array that are sent
    fills: Sequence[Region]  # the corresponding regions of the other rank's local array
    receives: Sequence[Region]  # regions of this rank's local array that are received
    shape: tuple[int, ...]  # of the other rank's local array


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
    owned entries come first and then the needed ones, in the order given. An `InputError` is raised on all ranks if a
    needed entry has no owner, or an entry has two.
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


def types_of(given: Any) -> tuple[Types, str | None]:
    """Return each array's type and components, and what is wrong with the argument, or None."""
    found: Types = []
    for one in given if isinstance(given, list) else [given]:
        try:
            base, components = np.dtype(one).base, np.dtype(one).shape
        except Exception as error:  # the conversion of an object can raise anything
            return [], f"expected a data type, or a list of them, received {repr_of(one)} ({text_of(error)})"
        if base.hasobject or not base.itemsize:
            return [], f"expected a data type of numbers, received {repr_of(one)}"
        found.append((base, components))
    return found, None if found else "expected at least one data type, received none"


def problem_of(
    comm: MPI.Intracomm, parts: object, transport: object, exchange: Any = None, types: Types | None = None
) -> str | None:
    """Return what is wrong with the other arguments, or None."""
    problems = [exchange_problem(exchange, dtype) for dtype, _ in types or [(np.dtype(float), ())]]
    if all(problems):
        return problems[0]
    if problem := choice_problem("transport", transport, TRANSPORTS, listed=False):
        return problem
    if not isinstance(parts, (Blocks, Entries)):
        return f"expected Blocks, received {type(parts).__name__}"
    if isinstance(parts, Blocks) and parts.size != comm.size:
        return f"expected a grid of {comm.size} ranks, received {parts.grid}"
    return None


def numbers_of(owned: Any, needed: Any) -> tuple[list[np.ndarray], str | None]:
    """Return lists of global numbers as arrays, and what is wrong with them, or None."""
    lists, problem = [], None
    for name, numbers in (("owned", owned), ("needed", needed)):
        found = np.asarray(numbers)
        if found.ndim != 1 or (found.size and (found.dtype.kind not in "iu" or found.min() < 0)):
            problem = (
                f"expected {name} to be a list of integers >= 0, received an array of shape {found.shape} "
                f"and type {found.dtype}" + (f" from {found.min()} on" if found.dtype.kind == "i" else "")
            )
        elif len(np.unique(found)) < len(found):
            problem = f"expected every number of {name} once, received one twice"
        lists.append(found if problem else found.astype(np.int64))
    return lists, problem


class RoundArrays:
    """Checks the arrays of rounds and finds their addresses.

    Arrays of the last rounds are recognised and not checked again. After a sweep, when the caches hold nothing of this
    code, a check takes longer than starting an MPI message. The arrays are kept alive, so their addresses stay valid.
    For the arguments see `LocalArrays`, `types_of` and `Halo`.
    """

    _KNOWN = 2  # rounds: often two arrays are used in turns

    def __init__(self, shape: tuple[int, ...], types: Types, exchange: str | None = None) -> None:
        self.kinds = [(shape + components, dtype) for dtype, components in types]  # shape and type of each array
        items = [dtype.itemsize * prod(components) for dtype, components in types]
        ways = [None if exchange_problem(exchange, dtype) else exchange for dtype, _ in types]
        self.exchange_dtypes = tuple(dtype_sent(dtype, way) for (dtype, _), way in zip(types, ways))
        singles = [number for number, way in enumerate(ways) if way is not None]
        self.local = LocalArrays(shape, items, singles, Overflow() if singles else None)
        self._known: dict[tuple[int, ...], tuple[tuple[np.ndarray, ...], tuple[int, ...]]] = {}

    def addresses(self, arrays: tuple[np.ndarray, ...]) -> tuple[int, ...]:
        """Return the addresses of the arrays of a round; raise an `InputError` if they do not fit the halo."""
        number = tuple(map(id, arrays))
        if number not in self._known:
            self._check(arrays)
            if len(self._known) == self._KNOWN:
                del self._known[next(iter(self._known))]
            self._known[number] = arrays, tuple(map(address_of, arrays))
        return self._known[number][1]

    def _check(self, arrays: tuple[Any, ...]) -> None:
        if len(arrays) != len(self.kinds):
            raise InputError(f"expected {len(self.kinds)} arrays (one per data type), received {len(arrays)}")
        for array, (shape, dtype) in zip(arrays, self.kinds):
            if not isinstance(array, np.ndarray) or mask_problem(array=array):
                raise InputError(f"expected an array, received {type(array).__name__}")
            if array.shape != shape or array.dtype != dtype:
                raise InputError(
                    f"expected an array of shape {shape} and type {dtype}, received {array.shape} and {array.dtype}"
                )
            if not array.flags.c_contiguous or not array.flags.writeable:
                received = "a read-only one" if array.flags.c_contiguous else "another order: use np.ascontiguousarray"
                raise InputError(
                    f"expected an array that is contiguous in C order and can be written to, received {received}"
                )
