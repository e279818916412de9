"""Layouts of n-dimensional arrays on a process grid, and what an exchange moves between two.

A grid has dimensions, each of some size; a rank has one coordinate in each. A layout says which axis
of an array is split over which dimension. An exchange along one dimension (a swap) joins the axis
that was split over it and splits another one instead; all ranks that differ in this coordinate only
take part. It is cut along a third axis, or along the joined one, into units: the least that a
message can hold. All ranks have as many units, whatever their share.
"""

from dataclasses import dataclass, replace

from .partition import block, length_of


@dataclass(frozen=True)
class Layout:
    """Which axis is split over which dimension of a grid.

    Attributes
    ----------
    splits : tuple of (int or None)
        For every axis of the array: a dimension of the grid, or None where the axis is whole.
    grid : tuple of int
        Size of every dimension.
    """

    splits: tuple
    grid: tuple

    def parts(self, shape, axis):
        """The slice of `axis` that each coordinate of its dimension holds."""
        dimension = self.splits[axis]
        return block(shape[axis], 1 if dimension is None else self.grid[dimension])

    def local_slice(self, shape, coordinates):
        """Where the rank's part lies in a global array of `shape`."""
        return tuple(
            self.parts(shape, axis)[0 if dimension is None else coordinates[dimension]]
            for axis, dimension in enumerate(self.splits))

    def local_shape(self, shape, coordinates):
        """Shape of the rank's part of a global array of `shape`."""
        return tuple(map(length_of, self.local_slice(shape, coordinates)))

    def swapped(self, swap):
        """The layout after an exchange."""
        splits = list(self.splits)
        if splits[swap.joined] is None or splits[swap.split] is not None:
            raise ValueError(f"expected axis {swap.joined} to be split and axis {swap.split} to be "
                             f"whole, received {self}")
        splits[swap.split], splits[swap.joined] = splits[swap.joined], None
        return replace(self, splits=tuple(splits))


@dataclass(frozen=True)
class Swap:
    """An exchange: axis `joined`, split before, is whole after it; `split` the other way round."""

    joined: int
    split: int

    def reversed(self):
        return Swap(self.split, self.joined)


@dataclass(frozen=True)
class Message:
    """What one exchange of a few units moves, in this rank's local index ranges.

    Attributes
    ----------
    sent, received : list of tuple of slice
        For every rank of the dimension a box of the array before, and of the array after.
    """

    sent: list
    received: list


class Crossing:
    """The geometry of an exchange, seen from one rank.

    Parameters
    ----------
    before : Layout
    swap : Swap or None
        None: nothing is exchanged, the array is only cut into units.
    shape : tuple of int
        Global shape at the exchange.
    coordinates : tuple of int
        This rank's.
    along : int
        The axis that is cut into units: neither split over the same dimension after the exchange,
        nor, unless it is the joined one, before it.
    units : int or None
        How many; None: one per index of the longest part.

    Attributes
    ----------
    before, after : tuple of int
        Local shapes.
    size, rank : int
        Size of the communicator along the dimension, and this rank in it.
    dimension : int or None
    """

    def __init__(self, before, swap, shape, coordinates, along, units=None):
        after = before if swap is None else before.swapped(swap)
        self.swap, self.along = swap, along
        self.before = before.local_shape(shape, coordinates)
        self.after = after.local_shape(shape, coordinates)
        self.dimension = None if swap is None else before.splits[swap.joined]
        self.size = 1 if swap is None else before.grid[self.dimension]
        self.rank = 0 if swap is None else coordinates[self.dimension]
        parts = before.parts(shape, along)
        longest = max(map(length_of, parts))
        self.units = longest if units is None else min(units, longest)
        if swap is not None:
            self._joined = before.parts(shape, swap.joined)
            self._split = after.parts(shape, swap.split)
        if swap is not None and along == swap.joined:
            own = [length_of(part) for part in parts]
        else:
            own = [self.before[along]] * self.size
        self._ranges = [block(length, max(1, self.units))[:self.units] for length in own]

    def unit(self, number):
        """Local range, along the axis that is cut, of one unit."""
        return self._ranges[self.rank][number]

    def message(self, part):
        """The message of a run of units, a slice with a start and a stop."""
        sent, received = [], []
        for rank, ranges in enumerate(self._ranges):
            here = [slice(0, length) for length in self.before]
            there = [slice(0, length) for length in self.after]
            here[self.along] = _run(self._ranges[self.rank], part)
            there[self.along] = _run(ranges, part)
            if self.swap is not None:
                here[self.swap.split] = self._split[rank]
                run = there[self.along] if self.along == self.swap.joined else slice(
                    0, length_of(self._joined[rank]))
                there[self.swap.joined] = moved(run, self._joined[rank].start)
            sent.append(tuple(here))
            received.append(tuple(there))
        return Message(sent, received)


class Remainder:
    """What a crossing, cut along its joined axis, still has to exchange after its first units.

    Now cut along the axis that it splits, into the receivers' units: what is received of one is all
    that was missing there.

    Parameters
    ----------
    crossing : Crossing
    done : int
        Units that need no exchange any more.
    units : int
        How many there shall be along the split axis, at most.

    Attributes
    ----------
    before : tuple of int
        Shape of what remains of the rank's local array before.
    """

    def __init__(self, crossing, done, units):
        self._crossing = crossing
        self.done = done
        left = slice(done, crossing.units)
        self._left = [_run(ranges, left) for ranges in crossing._ranges]
        self._joined, self._split = crossing.swap.joined, crossing.swap.split
        lengths = [length_of(part) for part in crossing._split]
        self.units = max(1, min(units, max(lengths)))
        self._ranges = [block(length, self.units) for length in lengths]
        shape = list(crossing.before)
        shape[self._joined] = length_of(self._left[crossing.rank])
        self.before = tuple(shape)

    def unit(self, number):
        """Local range, along the axis that is split, of one unit of this rank."""
        return self._ranges[self._crossing.rank][number]

    def message(self, part):
        """The message of a run of units; what is sent, in the index ranges of what remains."""
        sent, received = [], []
        crossing = self._crossing
        for rank, ranges in enumerate(self._ranges):
            here = [slice(0, length) for length in self.before]
            there = [slice(0, length) for length in crossing.after]
            here[self._split] = moved(_run(ranges, part), crossing._split[rank].start)
            there[self._split] = _run(self._ranges[crossing.rank], part)
            there[self._joined] = moved(self._left[rank], crossing._joined[rank].start)
            sent.append(tuple(here))
            received.append(tuple(there))
        return Message(sent, received)


def moved(part, by):
    """The range, some places further on."""
    return slice(part.start + by, part.stop + by)


def _run(ranges, part):
    return slice(ranges[part.start].start, ranges[part.stop - 1].stop)


def box_shape(box):
    """Shape of a box, a tuple of slices."""
    return tuple(map(length_of, box))


def contiguous(box, shape):
    """Whether a box lies in one piece in a C-contiguous array of `shape`."""
    if 0 in box_shape(box):
        return True
    partial = False
    for part, length in zip(reversed(box), reversed(shape)):
        if partial and length_of(part) > 1:
            return False
        partial = partial or length_of(part) < length
    return True


def offset(box, shape):
    """Position of a box's first element in a C-contiguous array of `shape`."""
    position = 0
    for part, length in zip(box, shape):
        position = position * length + part.start
    return position


# ---- the way through several exchanges -------------------------------------------------------

@dataclass(frozen=True)
class Leg:
    """One exchange, cut along an axis, with the axes transformed unit by unit on either side.

    Attributes
    ----------
    first : tuple of int
        Axes transformed before the exchange, in order.
    swap : Swap or None
        None: the leg ends in the rank's own memory.
    then : tuple of int
        Axes transformed after it.
    along : int
        The axis that is cut; transformed neither here nor there.
    """

    first: tuple
    swap: Swap | None
    then: tuple
    along: int


def legs(route, axes, last=None, in_place=False):
    """Split a way through exchanges into legs.

    Parameters
    ----------
    route : list
        Groups of axes (tuples) to transform, with a `Swap` or None between each two; all axes of a
        group are whole there. None puts an end to a leg where nothing is exchanged.
    axes : sequence of int
        The axes along which a leg may be cut, the best ones first. Axis 0 is never transformed.
    last : int, optional
        The axis that is transformed last of all: that of a real result.
    in_place : bool
        The best axis to cut along may wait until the last leg is complete, if that joins it and
        nothing else is left: then it is transformed where it is.

    Returns
    -------
    legs : list of Leg
    rest : tuple of int
        Axes that remain to be transformed when the last leg is complete.
    """
    found = []
    pending = route[0]
    for link, group in zip(route[1::2], route[2::2]):
        choices = []
        for along in axes if link is not None else (*axes, 0):
            if along in pending or link is not None and along == link.split:
                continue
            then = ()
            if link is not None and along != link.joined:
                waits = {along, last} if along in group else {along}
                then = tuple(axis for axis in group if axis not in waits)
            choices.append(Leg(pending, link, then, along))
        waits = in_place and group is route[-1] and group == (axes[0],)
        leg = choices[0] if waits else max(choices, key=lambda leg: len(leg.then))
        found.append(leg)
        pending = tuple(axis for axis in group if axis not in leg.then)
    return found, pending
