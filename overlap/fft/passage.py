"""A passage: the way of one field through local FFTs and exchanges, cut into tasks for a pipeline.

A passage is a list of legs (see `overlap.decomp.legs`), each from one array to another:

    load    of every unit: its first FFTs, from the source into the pieces of a message
    exchange
    store   of every unit: its other FFTs, from the pieces received into the target

and, when all units of the last leg have come, the axes that waited for that (the rest). Sources and
targets are the user's arrays, or work memory in between. The piece that stays on the rank goes
straight to the target where no FFT follows, and so does what is received where it lies there in
one piece.

Every task is one slice of the pipeline, with exactly one operation (or `turn`). So operations are
issued in the order of the tasks, and a task may wait for any earlier ones (`after`). That keeps work
memory right: a leg's tasks load when the leg before has ended (`Task.gate`); they store after their
own operation, hence after all earlier tasks have loaded; and where the rest is made out of work
memory, they wait for that too before it is used again (`Task.hold`).

What waits for all units is hidden behind the next field's exchanges, but the last field's is not. So
a share of its units may be put aside when their first FFTs are made ("stow"), and be exchanged "late":
in another order, cut along the axis that the exchange splits, so that every late task can complete
what it receives. Only the first units are sent at once, to keep the link busy meanwhile.
"""

from dataclasses import dataclass, replace

import numpy as np

from ..decomp import (Crossing, Remainder, block, box_shape, chunks, contiguous, legs, length_of,
                      offset)
from ..runtime import worker_index
from .local import REQUIRED_ALIGNMENT, complex_of, zeros
from .sweep import InPlaceSweep, Sweep

UNIT_NBYTES = 64 * 1024
NARROWEST_UNIT = 16  # points, along the array's last axis
PARTS = 16  # of the rest, at most, for several workers
LEAD = 2  # tasks of a field's first leg before the second one of the field before joins in


@dataclass(frozen=True)
class Task:
    """A slice of the pipeline: some units of one leg, of one field.

    Attributes
    ----------
    field, leg : int
    part : slice
        The units.
    gate, hold : int
        How many tasks must have ended before it loads, and before it stores.
    number : int
        Its place in the order.
    completes : bool
        The last task of its field, which waits for all others and makes the rest.
    phase : {"", "stow", "late"}
    begin : int
        Tasks before this one need not have ended before it loads.
    """

    field: int
    leg: int
    part: slice
    gate: int
    hold: int
    number: int
    completes: bool
    phase: str = ""
    begin: int = 0

    def __str__(self):
        phase = f"{self.phase} " if self.phase else ""
        return (f"field {self.field}, leg {self.leg}, {phase}units {self.part.start} to "
                f"{self.part.stop}")


def schedule(units, fields, chunk, ring, holds):
    """The tasks of some fields, in order.

    Parameters
    ----------
    units : list of int
        Of every leg.
    fields : int
    chunk : int
        Units per task, at most.
    ring : int
        Fields whose work memory is there at once. With 2, and two legs, a field's second leg takes
        turns with the next field's first one: the exchanges do not pause between the two.
    holds : bool
        The rest is made out of work memory.

    Returns
    -------
    list of Task
    """
    parts = [chunks(count, chunk) for count in units]
    last = len(parts) - 1
    if last == 1 and ring > 1:
        groups = [[(field - leg, leg) for leg in (0, 1) if 0 <= field - leg < fields]
                  for field in range(fields + 1)]
    else:
        groups = [[(field, leg)] for field in range(fields) for leg in range(last + 1)]
    found, ends = [], []
    for group in groups:
        gate = len(found)
        turns = sorted(((i + 1 + LEAD * leg) / len(parts[leg]), leg, field, i)
                       for field, leg in group for i in range(len(parts[leg])))
        for _, leg, field, i in turns:
            hold = ends[field - ring] if holds and leg == last and field >= ring else 0
            completes = leg == last and i == len(parts[leg]) - 1
            found.append(Task(field, leg, parts[leg][i], gate if leg else 0, hold, len(found),
                              completes))
            if completes:
                ends.append(len(found))
    return found


class Passage:
    """The legs of a transform on one rank, and the work memory between them.

    Arrays have one axis for the batch, axis 0, and then those of a field. A small field's legs are
    cut along the batch: then all of it counts as one field.

    Parameters
    ----------
    route : list
        As of `overlap.decomp.legs`, for axes counted with the batch's.
    layout : Layout
        Of the source.
    lines : dict
        The `Line` of every transformed axis.
    batch : int
    shape : tuple of int
        Global shape of the source, without the batch.
    coordinates : tuple of int
        The rank's, in the layout's grid.
    dtype : dtype
        Of the source.
    forward : bool
    natural : bool
        The target's axes are in natural order: it can hold what is not complete yet.
    workers : int
    effort : str
        FFTW planning effort.
    joined : bool
        Small fields may be taken together.
    reused : bool
        The same targets serve again and again: nothing is written there early.
    """

    def __init__(self, route, layout, lines, batch, shape, coordinates, dtype, forward, natural,
                 workers, effort, joined=True, reused=False):
        spectral = complex_of(dtype)
        real = next((axis for axis, line in lines.items() if line.real), None)
        whole = batch > 1 and joined and _nbytes(layout, (1, *shape), spectral) <= UNIT_NBYTES
        self._whole = whole
        self.coordinates = coordinates
        self.fields = 1 if whole else batch
        self.ring = min(2, self.fields)
        shape = (batch if whole else 1, *shape)
        ways, rest = legs(route, (0,) if whole else range(1, len(shape)),
                          None if forward else real)
        # The rest is made in the target, if that can hold what is not complete yet.
        able = natural and (forward or real is None) and all(
            lines[axis].fine == lines[axis].points for axis in rest)
        self.holds = bool(rest) and not able
        self.legs = []
        for number, way in enumerate(ways):
            # Targets are the user's array (place 0), or work memory; with more than one work array
            # on the way, every other one lies where the user's will be, if it fits there.
            place = len(ways) - 1 - number + self.holds
            fresh = not reused and (
                place == 0 or self.fields <= self.ring and len(ways) <= 2)
            leg = _Leg(way, layout, lines, shape, coordinates, dtype, forward, workers, effort,
                       place, fresh, natural)
            self.legs.append(leg)
            layout, shape, dtype = leg.layout, leg.shape, spectral
        self.dtype = spectral
        self._rest_axes = rest
        self._rest = []
        local = layout.local_shape(shape, coordinates)
        cuts = None
        if able and len(rest) == 1 and not whole and ways[-1].swap is not None and (
                ways[-1].along == ways[-1].swap.joined == rest[0] and not ways[-1].then):
            # Units along the split axis, of this rank's part of it.
            split, (axis,) = ways[-1].swap.split, rest
            # Alike on all ranks; rows of odd length are less aligned than FFTW requires.
            if split == axis + 1 and (spectral.itemsize * shape[-1]) % REQUIRED_ALIGNMENT == 0:
                longest = max(map(length_of, layout.parts(shape, split)))
                self._late_count = max(1, min(longest, -(-_nbytes(layout, shape, spectral)
                                                         // UNIT_NBYTES)))
                inner = _points(local[split + 1:])
                cuts = [slice(part.start * inner, part.stop * inner)
                        for part in block(local[split], self._late_count)]
        if rest:
            self._rest = [_make_rest(local, rest, lines, dtype, forward, effort, able, cuts,
                                     self.fields)
                          for _ in range(workers)]
        self.can_be_late = cuts is not None
        self._remainder = self._stowed = None
        itemsize = spectral.itemsize if forward or real is None else spectral.itemsize // 2
        room = _points(_after(local, rest, lines, forward)) * itemsize if natural else 0
        sizes = [max((_points(leg.target) for leg in self.legs
                      if leg.place and leg.place % 2 == odd), default=0) for odd in (0, 1)]
        self._borrows = 0 < sizes[0] * spectral.itemsize <= room
        self._work = [zeros((self.ring, 0 if self._borrows and not odd else size), spectral)
                      for odd, size in enumerate(sizes)]
        self.units = sum(leg.crossing.units for leg in self.legs)  # of one field

    @property
    def nbytes(self):
        """Bytes of work memory."""
        arrays = [*self._work, self._stowed]
        return sum(work.nbytes for work in arrays if work is not None)

    def tasks(self, chunk, fields=None, late=0.0):
        """The passage's slices, of at most `chunk` units each; by default for all fields.

        With `late`, that share of the last field is exchanged late, if that `can_be_late`.
        """
        tasks = schedule([leg.crossing.units for leg in self.legs],
                         self.fields if fields is None else fields, chunk, self.ring, self.holds)
        self._remainder = self._stowed = None
        if not late or not self.can_be_late or not tasks:
            return tasks
        last = len(self.legs) - 1
        own = [task.number for task in tasks
               if task.field == tasks[-1].field and task.leg == last]
        stowed = own[max(1, len(own) - round(late * len(own))):]
        if not stowed:
            return tasks
        begin, end = stowed[0], len(tasks)
        crossing = self.legs[-1].crossing
        self._remainder = Remainder(crossing, tasks[begin].part.start, self._late_count)
        self._stowed = zeros(self._remainder.before, self.dtype)
        tasks[begin:] = [replace(task, phase="stow", completes=False) for task in tasks[begin:]]
        return tasks + [
            Task(tasks[-1].field, last, part, end, begin, end + number, False, "late", begin)
            for number, part in enumerate(chunks(self._remainder.units, chunk))]

    def messages(self, chunk):
        """All messages of one field, as of the last `tasks`."""
        found = [leg.message(part) for leg in self.legs
                 for part in chunks(leg.crossing.units, chunk)]
        if self._remainder is not None:
            found += [self._late_message(part)
                      for part in chunks(self._remainder.units, chunk)]
        return found

    def _late_message(self, part):
        leg = self.legs[-1]
        return _Message(self._remainder.message(part), leg.crossing.rank, leg.target, True, False)

    def split(self, array):
        """The fields of a local batch, in natural order: what `flight` and `rest` expect."""
        if self._whole:
            return [array]
        return [array[number:number + 1] for number in range(len(array))]

    def flight(self, task, lane, sources, targets):
        """A task with its arrays, the rank's local fields."""
        leg = self.legs[task.leg]
        source = (sources[task.field] if task.leg == 0 else
                  self._target(self.legs[task.leg - 1], task.field, targets))
        target = self._target(leg, task.field, targets)
        if task.phase == "stow":
            return _Stow(leg, task.part, source, self._stowed,
                         leg.crossing.unit(self._remainder.done).start)
        if task.phase == "late":
            groups = self._rest[0].groups[task.part]
            return _Late(leg, self._late_message(task.part), lane, self._stowed, target,
                         self._completion(slice(groups[0].start, groups[-1].stop), target, target))
        return _Flight(leg, leg.message(task.part), lane, source, target, task.part)

    def rest(self, field, targets):
        """Functions that make together what had to wait for all units of a field."""
        if not self._rest:
            return []
        source, target = self._target(self.legs[-1], field, targets), targets[field]
        count = len(self._rest[0].blocks)
        return [self._completion(part, source, target)
                for part in block(count, min(count, PARTS))] if count else []

    def _completion(self, part, source, target):
        """A function that makes some blocks of the rest."""
        def run():
            sweep = self._rest[worker_index()]
            sources, targets = sweep.views(source), sweep.views(target)
            for one in sweep.blocks[part]:
                one(sources, targets, 1.0)
        return run

    def describe(self):
        """The way, as text."""
        return "; ".join(map(str, self.legs)) + (
            f"; then axes {self._rest_axes}" if self._rest_axes else "")

    def _target(self, leg, field, targets):
        """The array that a leg stores into, for one field."""
        if leg.place == 0:
            return targets[field]
        if leg.place % 2 == 0 and self._borrows:
            memory = targets[field].reshape(-1).view(np.uint8)
            work = memory[:_points(leg.target) * self.dtype.itemsize].view(self.dtype)
        else:
            work = self._work[leg.place % 2][field % self.ring][:_points(leg.target)]
        return work.reshape(leg.target)


class _Leg:
    """One leg on this rank: geometry, messages, and the sweeps of every worker."""

    def __init__(self, way, layout, lines, shape, coordinates, dtype, forward, workers, effort,
                 place, fresh, natural):
        self.place = place
        self._way = way
        spectral = complex_of(dtype)
        crossed = _after(shape, way.first, lines, forward)
        longest = max(map(length_of, layout.parts(crossed, way.along)))
        least = NARROWEST_UNIT if way.along == len(shape) - 1 else 1
        units = -(-_nbytes(layout, crossed, spectral) // UNIT_NBYTES)
        self.crossing = Crossing(layout, way.swap, crossed, coordinates, way.along,
                                 max(1, min(longest // least, units)))
        self.layout = layout if way.swap is None else layout.swapped(way.swap)
        self.shape = _after(crossed, way.then, lines, forward)
        self.target = self.layout.local_shape(self.shape, coordinates)
        # What need not wait in the lane until the exchange is over, goes straight to the target.
        self.straight = fresh and not way.then
        self.direct = self.straight and (natural or place > 0)
        self.then = bool(way.then)
        self._messages = {}
        self._first = [{} for _ in range(workers)]
        self._then = [{} for _ in range(workers)]
        source = layout.local_shape(shape, coordinates)
        for number in range(self.crossing.units):
            length = length_of(self.crossing.unit(number))
            if length == 0 or length in self._first[0]:
                continue
            message = self.crossing.message(slice(number, number + 1))
            along = way.along

            def unit(shape):
                return _with(tuple(slice(0, count) for count in shape), along, slice(0, length))

            tiles = [_with(box, along, slice(0, length)) for box in message.sent]
            pieces = [_with(box, along, slice(0, length)) for box in message.received]
            for worker in range(workers):
                self._first[worker][length] = Sweep(
                    box_shape(unit(source)), way.first, lines, dtype, forward, [unit(source)],
                    tiles, effort)
                if way.then:
                    self._then[worker][length] = Sweep(
                        box_shape(unit(self.crossing.after)), way.then, lines, spectral, forward,
                        pieces, [unit(self.target)], effort)

    def __str__(self):
        return f"{self._way}, {self.crossing.units} units"

    def message(self, part):
        """The message of some units."""
        key = part.start, part.stop
        if key not in self._messages:
            crossing = self.crossing
            self._messages[key] = _Message(crossing.message(part), crossing.rank, self.target,
                                           self.straight, self.direct)
        return self._messages[key]

    def units(self, part):
        """Every unit of a message: its range in the local arrays, and in the message."""
        ranges = [self.crossing.unit(number) for number in range(part.start, part.stop)]
        start = ranges[0].start
        return [(one, slice(one.start - start, one.stop - start)) for one in ranges
                if length_of(one)]


class _Message:
    """Where the pieces of a message lie in a lane's buffers, or in the target."""

    def __init__(self, boxes, rank, target, straight, direct):
        self.sent, self.received = boxes.sent, boxes.received
        self.shapes_sent = [box_shape(box) for box in boxes.sent]
        self.shapes_received = [box_shape(box) for box in boxes.received]
        sent = [_points(shape) for shape in self.shapes_sent]
        received = [_points(shape) for shape in self.shapes_received]
        sent[rank] = 0
        if straight:
            received[rank] = 0
        self.counts_sent = sent
        self.starts_sent = _starts(sent)
        self.send_size = sum(sent)
        self.starts_received = _starts(received)
        self.direct = direct and all(
            contiguous(box, target) for number, box in enumerate(boxes.received)
            if number != rank)
        if self.direct:
            self.starts_received = [offset(box, target) for box in boxes.received]
        self.receive_size = 0 if self.direct else sum(received)
        self.counts_received = received[:rank] + [0] + received[rank + 1:]


class _Flight:
    """A task under way: its arrays and its lane's buffers, cut into pieces."""

    def __init__(self, leg, message, lane, source, target, part=None):
        self.dimension = leg.crossing.dimension
        self._leg, self._part = leg, part
        self._source, self._target = source, target
        self._lane = lane
        self._message = message
        rank = leg.crossing.rank
        own = target[message.received[rank]] if leg.straight else None
        if message.direct:
            self._receive, self._unpack = target.reshape(-1), []
        else:
            self._receive = lane.receive
            self._unpack = _pieces(lane.receive, message.starts_received, message.shapes_received,
                                   rank, own)
        self._pack = _pieces(lane.send, message.starts_sent, message.shapes_sent, rank,
                             self._unpack[rank] if own is None else own)

    def load(self, scale):
        along, leg = self._leg.crossing.along, self._leg
        sweeps = leg._first[worker_index()]
        for here, there in leg.units(self._part):
            where = (slice(None),) * along
            sweeps[length_of(here)]([self._source[(*where, here)]],
                                    [piece[(*where, there)] for piece in self._pack], scale)

    def exchanged(self, comm):
        """The awaitable exchange."""
        message = self._message
        return comm.Alltoallv(
            [self._lane.send, message.counts_sent, message.starts_sent, self._lane.type],
            [self._receive, message.counts_received, message.starts_received, self._lane.type])

    def store(self):
        leg, target = self._leg, self._target
        if not leg.then:
            own = leg.crossing.rank if leg.straight else None
            for number, (piece, box) in enumerate(zip(self._unpack, self._message.received)):
                if number != own:
                    np.copyto(target[box], piece)
            return
        sweeps = leg._then[worker_index()]
        where = (slice(None),) * leg.crossing.along
        for here, there in leg.units(self._part):
            sweeps[length_of(here)]([piece[(*where, there)] for piece in self._unpack],
                                    [target[(*where, here)]])


class _Stow:
    """A task that makes the first FFTs of some units, and puts the result aside."""

    dimension = None

    def __init__(self, leg, part, source, memory, start):
        self._leg, self._part, self._source = leg, part, source
        self._memory, self._start = memory, start

    def load(self, scale):
        leg, along = self._leg, self._leg.crossing.along
        sweeps, where = leg._first[worker_index()], (slice(None),) * along
        boxes = leg.message(self._part).sent
        for here, _ in leg.units(self._part):
            there = slice(here.start - self._start, here.stop - self._start)
            sweeps[length_of(here)](
                [self._source[(*where, here)]],
                [self._memory[_with(box, along, there)] for box in boxes], scale)

    def store(self):
        pass


class _Late(_Flight):
    """A task that exchanges late what was put aside, and completes what it receives."""

    def __init__(self, leg, message, lane, memory, target, complete):
        super().__init__(leg, message, lane, memory, target)
        self._complete = complete

    def load(self, scale):
        for piece, box in zip(self._pack, self._message.sent):
            np.copyto(piece, self._source[box])

    def store(self):
        super().store()
        self._complete()


def _make_rest(local, axes, lines, dtype, forward, effort, in_target, cuts, fields):
    if in_target and len(axes) == 1 and (
            fields == 1 or _points(local) * dtype.itemsize % REQUIRED_ALIGNMENT == 0):
        sweep = InPlaceSweep(local, axes[0], dtype, forward, effort, cuts)
        if sweep.aligned:
            return sweep
    there = list(local)
    for axis in axes:
        there[axis] = lines[axis].length(forward)
    return Sweep(local, axes, lines, dtype, forward, [_whole(local)], [_whole(there)], effort)


def _points(shape):
    return int(np.prod(shape, dtype=int))


def _pieces(buffer, starts, shapes, rank, own):
    """The pieces in a buffer; that of `rank` is `own`, if given."""
    return [own if number == rank and own is not None else
            buffer[start:start + _points(shape)].reshape(shape)
            for number, (start, shape) in enumerate(zip(starts, shapes))]


def _starts(counts):
    return [sum(counts[:number]) for number in range(len(counts))]


def _whole(shape):
    return tuple(slice(0, length) for length in shape)


def _with(box, axis, part):
    return (*box[:axis], part, *box[axis + 1:])


def _after(shape, axes, lines, forward):
    """Global shape when some axes have been transformed."""
    shape = list(shape)
    for axis in axes:
        shape[axis] = lines[axis].length(forward)
    return tuple(shape)


def _nbytes(layout, shape, dtype):
    """Size of the largest local array: that of the first rank in every dimension."""
    return _points(layout.local_shape(shape, (0,) * len(layout.grid))) * dtype.itemsize
