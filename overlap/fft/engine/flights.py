"""Legs of a passage on one rank: geometry, messages, sweeps, and the flights that use them.

A leg goes from one array to another (see `overlap.arrays.stages`). Some of its units at a time travel
in one message; a flight is such a task under way, on a slot's buffers.
"""

from math import prod

import numpy as np

from ...arrays import TransposeBlocks, box_shape, contiguous, length_of, offset
from ...runtime import worker_index
from .fftw import complex_of
from .sweep import Sweep

UNIT_NBYTES = 256 * 1024
NARROWEST_UNIT = 16  # points, along the array's last axis


class Leg:
    """One leg on this rank: geometry, messages, and the sweeps of every worker."""

    def __init__(self, way, layout, lines, shape, coordinates, dtype, forward, workers, effort,
                 place, fresh, natural, turned, units=None):
        self.place = place
        self._way = way
        spectral = complex_of(dtype)
        crossed = transformed(shape, way.first, lines, forward)
        if units is None:
            longest = max(map(length_of, layout.parts(crossed, way.along)))
            least = NARROWEST_UNIT if way.along == len(shape) - 1 else 1
            units = max(1, min(longest // least,
                               -(-largest_nbytes(layout, crossed, spectral) // UNIT_NBYTES)))
        self.crossing = TransposeBlocks(layout, way.transpose, crossed, coordinates, way.along, units)
        self.layout = layout if way.transpose is None else layout.transposed(way.transpose)
        self.shape = transformed(crossed, way.then, lines, forward)
        self.target = self.layout.local_shape(self.shape, coordinates)
        # What need not wait in the slot until the exchange is over, goes straight to the target.
        self.straight = fresh and not way.then
        self.direct = self.straight and (natural or place > 0)
        self._messages = {}
        # By worker, and by the length of a unit.
        self.first = [{} for _ in range(workers)]
        self.then = [{} for _ in range(workers)] if way.then else None
        source = layout.local_shape(shape, coordinates)
        for number in range(self.crossing.units):
            length = length_of(self.crossing.unit(number))
            if length == 0 or length in self.first[0]:
                continue
            message = self.crossing.message(slice(number, number + 1))
            along = way.along

            def unit(shape):
                return replaced(tuple(slice(0, count) for count in shape), along, slice(0, length))

            tiles = [replaced(box, along, slice(0, length)) for box in message.sent]
            pieces = [replaced(box, along, slice(0, length)) for box in message.received]
            for worker in range(workers):
                self.first[worker][length] = Sweep(
                    box_shape(unit(source)), way.first, lines, dtype, forward, [unit(source)],
                    tiles, effort, None if forward else turned)
                if way.then:
                    self.then[worker][length] = Sweep(
                        box_shape(unit(self.crossing.after)), way.then, lines, spectral, forward,
                        pieces, [unit(self.target)], effort, turned if forward else None)

    def __str__(self):
        return f"{self._way}, {self.crossing.units} units"

    def message(self, part):
        """The message of some units."""
        key = part.start, part.stop
        if key not in self._messages:
            crossing = self.crossing
            self._messages[key] = Message(crossing.message(part), crossing.rank, self.target,
                                          self.straight, self.direct)
        return self._messages[key]

    def units(self, part):
        """Every unit of a message: its range in the local arrays, and in the message."""
        ranges = [self.crossing.unit(number) for number in range(part.start, part.stop)]
        start = ranges[0].start
        return [(one, slice(one.start - start, one.stop - start)) for one in ranges
                if length_of(one)]


class Message:
    """Where the pieces of a message lie in a slot's buffers, or in the target."""

    def __init__(self, boxes, rank, target, straight, direct):
        self.sent, self.received = boxes.sent, boxes.received
        self.shapes_sent = [box_shape(box) for box in boxes.sent]
        self.shapes_received = [box_shape(box) for box in boxes.received]
        sent = [points(shape) for shape in self.shapes_sent]
        received = [points(shape) for shape in self.shapes_received]
        sent[rank] = 0
        if straight:
            received[rank] = 0
        self.counts_sent = sent
        self.starts_sent = starts_of(sent)
        self.send_size = sum(sent)
        self.starts_received = starts_of(received)
        self.direct = direct and all(
            contiguous(box, target) for number, box in enumerate(boxes.received)
            if number != rank)
        if self.direct:
            self.starts_received = [offset(box, target) for box in boxes.received]
        self.receive_size = 0 if self.direct else sum(received)
        self.counts_received = received[:rank] + [0] + received[rank + 1:]


class Flight:
    """A message under way: a buffer to send from, and where what is received goes."""

    def __init__(self, leg, message, send, slot, target):
        self.dimension = leg.crossing.dimension
        self._target, self._type = target, slot.type
        self._message, self._send = message, send
        self._rank = leg.crossing.rank
        own = target[message.received[self._rank]] if leg.straight else None
        if message.direct:
            self._receive, self._unpack = target.reshape(-1), []
        else:
            self._receive = slot.receive
            self._unpack = pieces_of(slot.receive, message.starts_received,
                                     message.shapes_received, self._rank, own)
        self._own = own

    def exchanged(self, comm):
        """The awaitable exchange."""
        message = self._message
        return comm.Alltoallv(
            [self._send, message.counts_sent, message.starts_sent, self._type],
            [self._receive, message.counts_received, message.starts_received, self._type])

    def unpack(self):
        """Copy what was received, and not straight into the target, to where it belongs."""
        own = None if self._own is None else self._rank
        for number, (piece, box) in enumerate(zip(self._unpack, self._message.received)):
            if number != own:
                np.copyto(self._target[box], piece)


class UnitsFlight(Flight):
    """A flight of some units, with their FFTs before and after.

    Attributes
    ----------
    stow : callable or None
        What is done first, called with the scale.
    """

    def __init__(self, leg, part, slot, source, target, stow=None):
        message = leg.message(part)
        super().__init__(leg, message, slot.send, slot, target)
        self._leg, self._units, self._source = leg, leg.units(part), source
        self._where = (slice(None),) * leg.crossing.along
        self.stow = stow
        own = self._unpack[self._rank] if self._own is None else self._own
        self._pack = pieces_of(slot.send, message.starts_sent, message.shapes_sent, self._rank, own)

    def load(self, scale):
        if self.stow is not None:
            self.stow(scale)
        sweeps, where = self._leg.first[worker_index()], self._where
        for here, there in self._units:
            sweeps[length_of(here)]([self._source[(*where, here)]],
                                    [piece[(*where, there)] for piece in self._pack], scale)

    def store(self):
        if not self._leg.then:
            self.unpack()
            return
        sweeps, where = self._leg.then[worker_index()], self._where
        for here, there in self._units:
            sweeps[length_of(here)]([piece[(*where, there)] for piece in self._unpack],
                                    [self._target[(*where, here)]])


class Pause:
    """A task that does nothing but take its turn."""

    dimension = None

    def load(self, scale):
        pass

    def store(self):
        pass


def points(shape):
    """Elements of an array of `shape`."""
    return prod(shape)


def pieces_of(buffer, starts, shapes, rank, own):
    """The pieces in a buffer; that of `rank` is `own`, if given."""
    return [own if number == rank and own is not None else
            buffer[start:start + points(shape)].reshape(shape)
            for number, (start, shape) in enumerate(zip(starts, shapes))]


def starts_of(counts):
    """Where each piece starts, one after the other."""
    return [sum(counts[:number]) for number in range(len(counts))]


def replaced(box, axis, part):
    """The box with another range along one axis."""
    return (*box[:axis], part, *box[axis + 1:])


def transformed(shape, axes, lines, forward):
    """Global shape when some axes have been transformed."""
    shape = list(shape)
    for axis in axes:
        shape[axis] = lines[axis].length(forward)
    return tuple(shape)


def largest_nbytes(layout, shape, dtype):
    """Size of the largest local array: that of the first rank in every dimension."""
    return points(layout.local_shape(shape, (0,) * len(layout.grid))) * dtype.itemsize
