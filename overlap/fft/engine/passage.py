"""A passage: the way of one field through local FFTs and exchanges, cut into tasks for a pipeline.

A passage is a list of legs (see `overlap.arrays.stages`), each from one array to another:

    load    of every unit: its first FFTs, from the source into the pieces of a message
    exchange
    store   of every unit: its other FFTs, from the pieces received into the target

and, when all units of the last leg have come, the axes that waited for that (the rest). Sources and
targets are the user's arrays, or work memory in between. The piece that stays on the rank goes
straight to the target where no FFT follows, and so does what is received where it lies there in
one piece.

Every task is one slice of the pipeline, with exactly one operation (or `take_turn`). So operations are
issued in the order of the tasks, and a task may wait for any earlier ones (`wait_for_slices`). That keeps
work memory right: a leg's tasks load when the leg before has ended (`Task.gate`); they store after
their own operation, hence after all earlier tasks have loaded; and where the rest is made out of
work memory, they wait for that too before it is used again (`Task.hold`). Where both legs of a
pencil are cut along the same axis, a field streams through them: a task waits for one of the leg
before alone.

What waits for all units is hidden behind the next field's exchanges, but the last field's is not.
So a share of its units may be exchanged late: cut along the axis that the exchange splits, so that
every late task can complete what it receives. Until then they are put aside (stowed, see `tail`)
when their first FFTs are made: by the tasks before, one after the other, whose messages keep the
link busy meanwhile. The late ones load when these have loaded; a task between the two (the pause)
tells that by its turn.
"""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ...arrays import block, chunks, length_of, moved, stages
from ...runtime import worker_index
from .fftw import REQUIRED_ALIGNMENT, complex_of, zeros
from .flights import (
    UNIT_NBYTES,
    Leg,
    Pause,
    UnitsFlight,
    largest_nbytes,
    points,
    transformed,
)
from .sweep import InPlaceSweep, Sweep
from .tail import Tail

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
    phase : {"", "pause", "late"}
    begin : int
        Tasks before this one need not have ended before it loads.
    stow : slice or None
        Units that it puts aside before it loads its own.
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
    stow: slice | None = None

    def __str__(self):
        if self.phase == "pause":
            return f"field {self.field}, pause"
        phase = f"{self.phase} " if self.phase else ""
        return (f"field {self.field}, leg {self.leg}, {phase}units {self.part.start} to "
                f"{self.part.stop}")


def schedule(units, fields, chunk, ring, holds, streams=False):
    """The tasks of some fields, in order.

    Parameters
    ----------
    units : list of int
        How many every leg has.
    fields : int
    chunk : int
        Units per task, at most.
    ring : int
        Fields whose work memory is there at once. With 2, and two legs, a field's second leg takes
        turns with the next field's first one: the exchanges do not pause between the two.
    holds : bool
        The rest is made out of work memory.
    streams : bool
        Two legs have the same units: one of the second leg needs that of the first one alone.

    Returns
    -------
    list of Task
    """
    if streams:
        return _streamed(chunks(units[0], chunk), fields)
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


def _streamed(parts, fields):
    """The tasks of two legs that a field streams through."""
    found, crossed = [], {}
    count = len(parts)
    turns = sorted((field * count + i + LEAD * leg, leg, field, i) for field in range(fields)
                   for leg in (0, 1) for i in range(count))
    for number, (_, leg, field, i) in enumerate(turns):
        before = crossed.pop((field, i)) if leg else None
        crossed[field, i] = number
        found.append(Task(field, leg, parts[i], before + 1 if leg else 0, 0, number,
                          leg == 1 and i == count - 1, begin=before or 0))
    return found


class Passage:
    """The legs of a transform on one rank, and the work memory between them.

    Arrays have one axis for the batch, axis 0, and then those of a field. A small field's legs are
    cut along the batch: then all of it counts as one field.

    Parameters
    ----------
    route : list
        As of `overlap.arrays.stages`, for axes counted with the batch's.
    layout : Layout
        Layout of the source.
    lines : dict
        The `Axis` of every transformed axis.
    batch : int
    shape : tuple of int
        Global shape of the source, without the batch.
    coordinates : tuple of int
        The rank's, in the layout's grid.
    dtype : dtype
        Type of the source.
    forward : bool
    turned : int or None
        The axis that the arrays of the spectral side have last in memory, if not the last one.
    workers : int
    effort : str
        FFTW planning effort.
    joined : bool
        Small fields may be taken together.
    reused : bool
        The same targets serve again and again: nothing is written there early.
    """

    def __init__(self, route, layout, lines, batch, shape, coordinates, dtype, forward, turned,
                 workers, effort, joined=True, reused=False):
        natural = turned is None or not forward  # the target can hold what is not complete yet
        spectral = complex_of(dtype)
        real = next((axis for axis, line in lines.items() if line.real), None)
        nbytes = largest_nbytes(layout, (1, *shape), spectral)
        whole = batch > 1 and joined and nbytes <= UNIT_NBYTES
        self._whole = whole
        self.coordinates = coordinates
        self.fields = 1 if whole else batch
        self.ring = min(2, self.fields)
        shape = (batch if whole else 1, *shape)
        ways, rest = stages(route, (0,) if whole else range(1, len(shape)),
                          None if forward else real, natural and forward)
        # The rest is made in the target, if that can hold what is not complete yet.
        able = natural and (forward or real is None) and all(
            lines[axis].fine == lines[axis].points for axis in rest)
        self.holds = bool(rest) and not able
        # The second leg has the units of the first one: nothing that it joins is cut there.
        self._streams = (len(ways) == 2 and ways[0].along == ways[1].along and not self.holds and (
            ways[0].transpose is None or ways[0].transpose.joined != ways[0].along))
        self.legs = []
        for number, way in enumerate(ways):
            # Targets are the user's array (place 0), or work memory; with more than one work array
            # on the way, every other one lies where the user's will be, if it fits there.
            place = len(ways) - 1 - number + self.holds
            fresh = not reused and (
                place == 0 or self.fields <= self.ring and len(ways) <= 2)
            leg = Leg(way, layout, lines, shape, coordinates, dtype, forward, workers, effort,
                      place, fresh, natural,
                      turned if (place == 0 if forward else number == 0) else None,
                      self.legs[0].crossing.units if self._streams and number else None)
            self.legs.append(leg)
            layout, shape, dtype = leg.layout, leg.shape, spectral
        self.dtype = spectral
        self._rest_axes = rest
        self._rest = []
        local = layout.local_shape(shape, coordinates)
        cuts = None
        if able and len(rest) == 1 and not whole and ways[-1].transpose is not None and (
                ways[-1].along == ways[-1].transpose.joined == rest[0] and not ways[-1].then):
            # Units along the split axis, of this rank's part of it.
            split, (axis,) = ways[-1].transpose.split, rest
            # Alike on all ranks; rows of odd length are less aligned than FFTW requires.
            if split == axis + 1 and (spectral.itemsize * shape[-1]) % REQUIRED_ALIGNMENT == 0:
                longest = max(map(length_of, layout.parts(shape, split)))
                self._late_count = max(1, min(longest, -(-largest_nbytes(layout, shape, spectral)
                                                         // UNIT_NBYTES)))
                inner = points(local[split + 1:])
                cuts = [slice(part.start * inner, part.stop * inner)
                        for part in block(local[split], self._late_count)]
        if rest:
            self._rest = [_make_rest(local, rest, lines, dtype, forward, effort, able, cuts,
                                     self.fields, turned if forward else None)
                          for _ in range(workers)]
        self.can_be_late = cuts is not None and self.legs[-1].straight and not self._streams
        self._tail = None
        itemsize = spectral.itemsize if forward or real is None else spectral.itemsize // 2
        room = points(transformed(local, rest, lines, forward)) * itemsize if natural else 0
        sizes = [max((points(leg.target) for leg in self.legs
                      if leg.place and leg.place % 2 == odd), default=0) for odd in (0, 1)]
        self._borrows = 0 < sizes[0] * spectral.itemsize <= room
        self._work = [zeros((self.ring, 0 if self._borrows and not odd else size), spectral)
                      for odd, size in enumerate(sizes)]
        self.units = sum(leg.crossing.units for leg in self.legs)  # of one field

    @property
    def nbytes(self):
        """Bytes of work memory."""
        tail = 0 if self._tail is None else self._tail.memory.nbytes
        return tail + sum(work.nbytes for work in self._work)

    def tasks(self, chunk, fields=None, late=0.0):
        """The passage's slices, of at most `chunk` units each; by default for all fields.

        With `late`, that share of the last field is exchanged late, if that `can_be_late`.
        """
        tasks = schedule([leg.crossing.units for leg in self.legs],
                         self.fields if fields is None else fields, chunk, self.ring, self.holds,
                         self._streams)
        self._tail = None
        if not late or not self.can_be_late or not tasks:
            return tasks
        last = len(self.legs) - 1
        own = [task.number for task in tasks
               if task.field == tasks[-1].field and task.leg == last]
        count = max(1, len(own) - round(late * len(own)))
        if count == len(own):
            return tasks
        pause, field, crossing = own[count], tasks[-1].field, self.legs[-1].crossing
        done = tasks[pause].part.start
        self._tail = Tail(self.legs[-1], done, self._late_count, chunk, self.dtype)
        carriers = own[min(1, count - 1):count]  # not the first one: its message is waited for
        for carrier, share in zip(carriers, block(crossing.units - done, len(carriers))):
            tasks[carrier] = replace(tasks[carrier], stow=moved(share, done))
        tasks[pause:] = [Task(field, last, slice(done, done), 0, 0, pause, False, "pause")]
        return tasks + [
            Task(field, last, part, pause + 1, pause, number, False, "late", pause)
            for number, part in enumerate(self._tail.parts, pause + 1)]

    def messages(self, chunk):
        """All messages of one field that are not late."""
        return [leg.message(part) for leg in self.legs
                for part in chunks(leg.crossing.units, chunk)]

    def buffer_lengths(self, chunk):
        """Elements of a slot's buffers, as of the last `tasks`: sent, and received."""
        messages = self.messages(chunk)
        late = 0 if self._tail is None else self._tail.receive_size
        return (max(message.send_size for message in messages),
                max(late, *(message.receive_size for message in messages)))

    def split(self, array):
        """The fields of a local batch, in natural order: what `flight` and `rest` expect."""
        if self._whole:
            return [array]
        return [array[number:number + 1] for number in range(len(array))]

    def flight(self, task, slot, sources, targets):
        """A task with its arrays, the rank's local fields."""
        leg = self.legs[task.leg]
        source = (sources[task.field] if task.leg == 0 else
                  self._target(self.legs[task.leg - 1], task.field, targets))
        target = self._target(leg, task.field, targets)
        if task.phase == "pause":
            return Pause()
        if task.phase == "late":
            groups = self._rest[0].groups[task.part]
            complete = self._completion(slice(groups[0].start, groups[-1].stop), target, target)
            return self._tail.flight(task.part, slot, target, complete)
        stow = None
        if task.stow is not None:
            stow = partial(self._tail.stow, task.stow, source, target)
        return UnitsFlight(leg, task.part, slot, source, target, stow)

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
            work = memory[:points(leg.target) * self.dtype.itemsize].view(self.dtype)
        else:
            work = self._work[leg.place % 2][field % self.ring][:points(leg.target)]
        return work.reshape(leg.target)


def _make_rest(local, axes, lines, dtype, forward, effort, in_target, cuts, fields, turned):
    if in_target and len(axes) == 1 and (
            fields == 1 or points(local) * dtype.itemsize % REQUIRED_ALIGNMENT == 0):
        sweep = InPlaceSweep(local, axes[0], dtype, forward, effort, cuts)
        if sweep.aligned:
            return sweep
    there = list(local)
    for axis in axes:
        there[axis] = lines[axis].length(forward)
    return Sweep(local, axes, lines, dtype, forward, [_whole(local)], [_whole(there)], effort,
                 turned)


def _whole(shape):
    return tuple(slice(0, length) for length in shape)
