"""Replacements of parts of Dedalus: paths between layouts, and methods that move fields along several paths.

Dedalus moves fields from layout to layout, and in each layout checks whether an operator can be evaluated. Here a move
is first noted (`Climbs.move`), and made when the data are needed (`Climbs.flush`): consecutive moves of all noted
fields are then one *climb*, which is one pipeline.

A field's buffer holds its data in every layout. So the components of a field are processed in an order in which no
result overwrites data that are still to be read: from the last one if the data grow, from the first one if they shrink.
A result is stored after its own exchange, hence after all earlier components have been packed. If a rank's data shrink
while those of others grow, it uses a copy.

The work on one component between two layouts is a `Unit`, one slice of a pipeline: programs, and exchanges between
them. Before, between and after exchanges are the transforms of axes that are whole on every rank. Each program works
block by block along an axis that it neither transforms nor divides, in scratch memory that stays in the cache; it reads
the field or received data, and writes data to be sent or the field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from math import prod
from typing import Any

import numpy as np
from dedalus.core import distributor
from dedalus.core.evaluator import Evaluator
from dedalus.core.field import Field
from dedalus.core.future import Future
from mpi4py import MPI

from ...arrays import MessageBoxes
from ...arrays.layout import Box
from ...compiled.memory import address_of
from ...fft.engine.fftw import empty
from ...fft.engine.message import Message, WireFormat
from ...fft.engine.program import ArrayReference, CompiledProgram, View
from ...fft.engine.schedule import Schedule, Schedules, addresses_of
from ...fft.engine.steps import Exchange, Run
from ...runtime.loop.words import ASIDE, BASES, RECEIVE, SEND, SOURCE, TARGET
from ...runtime.plan_call import CallKind
from ..kept_runtimes import RUNTIMES
from .series import Lines, Pieces, Plans, Room, lines_of, resized, shape_of

BLOCK_NBYTES = 64 * 1024
WIDTH = 8  # a block with more indices of the axis along which it is cut has a multiple of this number


@dataclass(frozen=True)
class UnitKind:
    """The parameters of a unit."""

    domain: Any  # Dedalus'
    scales: tuple[float, ...]
    dtype: Any
    start: int  # numbers of the layouts
    stop: int

    @property
    def paths(self) -> list[int]:
        """Return the numbers of the paths between the layouts, in order."""
        up = list(range(min(self.start, self.stop), max(self.start, self.stop)))
        return up if self.stop > self.start else up[::-1]


class SlotMemory:
    """The buffers of one slice in flight: one to send, and two to receive in turns."""

    def __init__(self, nbytes: int) -> None:
        # Each begins on a cache line of its own, because Open MPI takes buffers at the same address for an exchange in
        # place.
        nbytes = -(-max(1, nbytes) // 64) * 64
        memory = np.zeros(3 * nbytes + 64, np.uint8)
        first = -address_of(memory) % 64
        self.send, *self.receive = (memory[first + place * nbytes :][:nbytes] for place in range(3))


def exchanges(dist: Any, kind: UnitKind, path: int) -> bool:
    """Return whether a path exchanges anything of a field; the same on all ranks."""
    step = dist.paths[path]
    if not hasattr(step, "comm_sub"):
        return False
    chunk, shape = _sizes(step, kind)
    return step.comm_sub.size > 1 and any(shape[axis] != chunk[axis] for axis in (step.axis, step.axis + 1))


def _sizes(step: Any, kind: UnitKind) -> tuple[list[int], list[int]]:
    """Return chunks and global shape at a path's begin."""
    both = kind.domain.chunk_shape(step.layout0), step.layout0.global_shape(kind.domain, kind.scales)
    chunk, shape = ([int(length) for length in lengths] for lengths in both)
    return chunk, shape


def _lines_at(dist: Any, kind: UnitKind, path: int, plans: Plans) -> tuple[bool, Lines | None]:
    """Return whether a path transforms a field, and by what; None: only Dedalus' own classes can."""
    step = dist.paths[path]
    basis = None if hasattr(step, "comm_sub") else kind.domain.full_bases[step.axis]
    if basis is None:
        return False, None
    points = int(step.layout1.global_shape(kind.domain, kind.scales)[step.axis])
    return True, lines_of(basis, dist, points, kind.dtype, kind.stop > kind.start, plans)


def made_by(dist: Any, kind: UnitKind, plans: Plans) -> bool:
    """Return whether units can make the move of a path between layouts, with an exchange."""
    if any(
        transforms and lines is None
        for transforms, lines in (_lines_at(dist, kind, path, plans) for path in kind.paths)
    ):
        return False
    return any(exchanges(dist, kind, path) for path in kind.paths)


@dataclass(frozen=True)
class _Segment:
    """Transforms without an exchange between them: axes in order, and shapes of the local array before and after."""

    lines: list[tuple[int, Lines]]
    shape: tuple[int, ...]
    result: tuple[int, ...]


class Unit:
    """One component of a field, from layout to layout.

    There is an awaitable communicator for the number of every path that exchanges. Bytes of the local array are given
    in the first layout, and made in the last one; `message_nbytes` are those of the largest message.
    """

    def __init__(self, dist: Any, kind: UnitKind, comms: dict[int, Any], plans: Plans) -> None:
        self._dtype, up = np.dtype(kind.dtype), kind.stop > kind.start
        shapes = [tuple(map(int, layout.local_shape(kind.domain, kind.scales))) for layout in dist.layouts]
        self._messages: list[tuple[Any, Message, int]] = []  # (path, message, this rank on the communicator)
        self._segments: list[_Segment] = []
        shape = shapes[kind.start]
        lines: list[tuple[int, Lines]] = []
        for path in kind.paths:
            step = dist.paths[path]
            if exchanges(dist, kind, path):
                before, after = shapes[path + (not up)], shapes[path + up]
                self._segments.append(_Segment(lines, shape, before))
                boxes = _boxes(step, kind, before, after, up)
                rank = step.comm_sub.rank
                message = Message(boxes, rank, after, False, False, WireFormat(self._dtype))
                self._messages.append((comms[path], message, rank))
                shape, lines = after, []
                continue
            _, axis_lines = _lines_at(dist, kind, path, plans)
            if axis_lines is not None:
                lines.append((step.axis, axis_lines))
        self._segments.append(_Segment(lines, shape, shapes[kind.stop]))
        ends = shapes[kind.start], shapes[kind.stop]
        self.given_nbytes, self.made_nbytes = (prod(end_shape) * self._dtype.itemsize for end_shape in ends)
        sizes = [max(message.send_size, message.receive_size) for _, message, _ in self._messages]
        self.message_nbytes = max(sizes, default=0) * self._dtype.itemsize
        self.scratch_nbytes = 0
        self._codes = [self._program(number).code for number in range(len(self._segments))]

    def steps(self, component: int, source: int, target: int, slot: SlotMemory) -> Iterator[Run | Exchange]:
        """Yield the steps for a component of a field, from the address of the field's buffer or of its copy to that of
        the buffer."""
        bases = np.zeros(BASES, np.int64)
        bases[SOURCE] = source + component * self.given_nbytes
        bases[TARGET] = target + component * self.made_nbytes
        bases[SEND] = address_of(slot.send)
        for number, code in enumerate(self._codes):
            bases[RECEIVE], bases[ASIDE] = (address_of(slot.receive[(number + turn) % 2]) for turn in (1, 0))
            yield Run(code, bases.tolist(), f"part {number + 1}")
            if number < len(self._messages):
                comm, message, _ = self._messages[number]
                ends = slot.send, slot.receive[number % 2]
                send, receive = (
                    ArrayReference(end[: max(1, size) * self._dtype.itemsize].view(self._dtype))
                    for end, size in zip(ends, (message.send_size, message.receive_size))
                )
                yield Exchange(comm, message, send, receive)

    def _program(self, number: int) -> CompiledProgram:
        """Write the program between two exchanges."""
        segment, program = self._segments[number], CompiledProgram()
        if number:
            _, message, _ = self._messages[number - 1]
            source = Pieces(message.received, message.pieces_received(RECEIVE))
        else:
            source = Pieces.whole(View.contiguous(SOURCE, segment.shape, self._dtype))
        if number < len(self._messages):
            _, message, rank = self._messages[number]
            views = message.pieces_sent(SEND)
            views[rank] = message.pieces_received(ASIDE)[rank]
            target = Pieces(message.sent, views)
        else:
            target = Pieces.whole(View.contiguous(TARGET, segment.result, self._dtype))
        if prod(segment.shape) and prod(segment.result):
            room = _write(program, segment, source, target, self._dtype)
            self.scratch_nbytes = max(self.scratch_nbytes, room)
        return program


def _boxes(step: Any, kind: UnitKind, before: Sequence[int], after: Sequence[int], up: bool) -> MessageBoxes:
    """Return the boxes that a transpose of Dedalus moves, in which blocks are multiples of chunks."""
    chunk, shape = _sizes(step, kind)
    ranks = step.comm_sub.size

    def ranges(axis: int) -> list[slice]:
        chunks = -(-shape[axis] // chunk[axis])
        block = chunk[axis] * -(-chunks // ranks)
        return [slice(*(min(block * place, shape[axis]) for place in (rank, rank + 1))) for rank in range(ranks)]

    joined, split = (step.axis, step.axis + 1) if up else (step.axis + 1, step.axis)

    def boxes(local: Sequence[int], axis: int) -> list[Box]:
        whole = [slice(0, length) for length in local]
        return [(*whole[:axis], part, *whole[axis + 1 :]) for part in ranges(axis)]

    return MessageBoxes(boxes(before, split), boxes(after, joined))


def _write(program: CompiledProgram, segment: _Segment, source: Pieces, target: Pieces, dtype: np.dtype) -> int:
    """Write a segment, block by block; return the scratch memory that it needs, in bytes."""
    if not segment.lines:
        source.move(program, target, 0, slice(0, segment.shape[0]), 0)
        return 0
    axes = {axis for axis, _ in segment.lines}
    cut = next(
        (
            axis
            for axis, length in enumerate(segment.shape)
            if axis not in axes and all(box[axis] == slice(0, length) for box in (*source.boxes, *target.boxes))
        ),
        None,
    )
    if cut is None:
        return _write_block(program, segment, source, target, dtype)
    length = segment.shape[cut]
    longest = [max(lines.given, lines.made) for _, lines in segment.lines]
    other_points = prod(segment.shape) // length // prod(lines.given for _, lines in segment.lines)
    size = max(1, BLOCK_NBYTES // (dtype.itemsize * other_points * prod(longest)))
    size = min(length, size // WIDTH * WIDTH if size > WIDTH else size)
    nbytes = 0
    for part, count in ((slice(0, size), length // size), (slice(length // size * size, length), 1)):
        if part.stop > part.start:
            body = CompiledProgram()
            by = size if count > 1 else 0
            ends = source.along(cut, part, by), target.along(cut, part, by)
            nbytes = max(nbytes, _write_block(body, segment, *ends, dtype))
            program.repeat(body, count)
    return nbytes


def _write_block(program: CompiledProgram, segment: _Segment, source: Pieces, target: Pieces, dtype: np.dtype) -> int:
    """Write the transforms of a block, one axis after the other."""
    room = Room()
    for number, (axis, lines) in enumerate(segment.lines):
        last = number == len(segment.lines) - 1
        shape = resized(shape_of(source), axis, lines.made)
        result = target if last else Pieces.whole(room.array(shape, dtype))
        lines.write(program, source, result, axis, room)
        source = result
    return room.nbytes


DEPTH = 6  # slices in flight
KEPT = 32  # climbs that are kept

Move = tuple[Any, int, int]
"""A field, and the numbers of its layouts before and after the move."""


class Climb:
    """The calls of a climb, for fields of given kinds, from layout to layout: for every field there is the unit of its
    components, and their number. `up` is towards the grid."""

    def __init__(self, runtime: Any, parts: Sequence[tuple[Unit, int]], up: bool) -> None:
        self._parts, self._up = parts, up
        # A copy of data that would be overwritten too early.
        grows = [unit.made_nbytes >= unit.given_nbytes for unit, _ in parts]
        self._copies = [
            None
            if count == 1 or grow == up or unit.made_nbytes == unit.given_nbytes
            else empty(count * unit.given_nbytes, np.uint8)
            for (unit, count), grow in zip(parts, grows)
        ]
        order = [
            (field, component)
            for field, (_, count) in enumerate(parts)
            for component in range(count)[:: -1 if up else 1]
        ]
        self._order = order
        depth = min(DEPTH, len(order))
        self._slots = [SlotMemory(max(unit.message_nbytes for unit, _ in parts)) for _ in range(depth)]
        scratch = max(1, *(unit.scratch_nbytes for unit, _ in parts))
        self._scratch = [empty(scratch, np.uint8) for _ in range(runtime.workers)]
        self._labels = [f"field {field}, {component}" for field, component in order]
        self._schedules = Schedules()
        agreed = {"slices": len(order), "depth": depth}
        self._kind = CallKind(runtime.threads, type(self).__name__, agreed, "poll", depth)

    def run(self, buffers: Sequence[np.ndarray]) -> None:
        """Move the fields with these buffers (collective)."""
        for buffer, copy, (unit, count) in zip(buffers, self._copies, self._parts):
            if copy is not None:
                copy[...] = buffer.view(np.uint8)[: count * unit.given_nbytes]
        self._schedules.of(self._record, buffers).call(self._kind).make(addresses_of(buffers))

    def _record(self, located: Sequence[ArrayReference]) -> Schedule:
        scratch = [address_of(memory) for memory in self._scratch]
        return Schedule(self._labels, self._steps(located), scratch, len(self._slots))

    def _steps(self, located: Sequence[ArrayReference]) -> Iterator[Iterable[Any]]:
        for number, (field, component) in enumerate(self._order):
            unit, copy = self._parts[field][0], self._copies[field]
            target = located[field].address
            source = target if copy is None else address_of(copy)
            yield unit.steps(component, source, target, self._slots[number % len(self._slots)])


class Climbs:
    """The climbs of a distributor's fields, and the moves that are noted and not made yet."""

    def __init__(self, dist: Any) -> None:
        self._dist = dist
        self._noting = False
        self._noted: dict[int, Move] = {}
        self._plans: Plans = {}
        self._units: dict[UnitKind, Unit | None] = {}
        self._climbs: dict[Any, Climb] = {}
        self._runtime: Any = None
        self._comms: dict[int, Any] = {}

    @property
    def pending(self) -> bool:
        """Return whether moves are noted and not made yet."""
        return bool(self._noted)

    @contextmanager
    def batched(self) -> Iterator[None]:
        """Join the moves in a ``with`` block, which must not read fields' data, to one climb (collective)."""
        self.flush()
        outer, self._noting = self._noting, True
        try:
            yield
            self.flush()
        finally:
            self._noting = outer
            for field, start, _ in self._noted.values():  # fields left behind by an error
                field.preset_layout(self._dist.layouts[start])
            self._noted.clear()

    def move(self, fields: Iterable[Any], path: int, up: bool) -> None:
        """Move fields along a path, now or with the next ones (collective)."""
        fields = list(fields)
        if any((stop > start) != up for _, start, stop in self._noted.values()):
            self.flush()
        start, stop = (path, path + 1) if up else (path + 1, path)
        for field in fields:
            before = self._noted.get(id(field))
            self._noted[id(field)] = field, start if before is None else before[1], stop
            field.preset_layout(self._dist.layouts[stop])
        if not self._noting:
            self.flush()

    def flush(self) -> None:
        """Make the noted moves (collective)."""
        moves = list(self._noted.values())
        self._noted.clear()
        for field, start, _ in moves:
            field.preset_layout(self._dist.layouts[start])
        for up in (True, False):
            same_way = [move for move in moves if (move[2] > move[1]) == up]
            whole = [move for move in same_way if self._unit(move) is not None]
            if whole:
                self._climb(whole, up)
            separate = [move for move in same_way if self._unit(move) is None]
            if separate:
                self._step_by_step(separate, up)

    def _step_by_step(self, moves: list[Move], up: bool) -> None:
        """Move fields that only Dedalus can transform, path by path; the exchanges of a path are a pipeline."""
        low, high = min(min(move[1:]) for move in moves), max(max(move[1:]) for move in moves)
        for path in range(low, high)[:: 1 if up else -1]:
            fields = [field for field, *ends in moves if min(ends) <= path < max(ends)]
            ends = (path, path + 1) if up else (path + 1, path)
            exchanged = [(field, *ends) for field in fields if exchanges(self._dist, self._kind((field, *ends)), path)]
            if exchanged:
                self._climb(exchanged, up)
            rest = [field for field in fields if field.layout.index == ends[0]]
            self._dist.paths[path].move_alone(rest, up)

    def _kind(self, move: Move) -> UnitKind:
        field, start, stop = move
        return UnitKind(field.domain, tuple(field.scales), field.dtype, start, stop)

    def _unit(self, move: Move) -> Unit | None:
        """Return the unit of a field's components; None if only Dedalus' own transforms can make the move."""
        kind = self._kind(move)
        if kind not in self._units:
            unit = None
            if made_by(self._dist, kind, self._plans):
                self._start(kind)
                unit = Unit(self._dist, kind, self._comms, self._plans)
            self._units[kind] = unit
        return self._units[kind]

    def _start(self, kind: UnitKind) -> None:
        """Make the runtime and the communicators of the paths that exchange, if need be (collective)."""
        if self._runtime is None:
            self._runtime = RUNTIMES.of(self._dist.comm).runtime()
        for path in kind.paths:
            if path not in self._comms and exchanges(self._dist, kind, path):
                comm = self._dist.paths[path].comm_sub
                # For all ranks the runtime's own communicator is used, because MPI has few.
                whole = MPI.Comm.Compare(comm, self._dist.comm) == MPI.CONGRUENT
                self._comms[path] = self._runtime.comm if whole else self._runtime.wrap(comm)

    def _climb(self, moves: list[Move], up: bool) -> None:
        """Move fields as one pipeline (collective)."""
        key = tuple((self._kind(move), tuple(system.dim for system in move[0].tensorsig)) for move in moves)
        climb = self._climbs.get(key)
        if climb is None:
            if len(self._climbs) >= KEPT:
                del self._climbs[next(iter(self._climbs))]
            parts = [(self._unit(move), prod(system.dim for system in move[0].tensorsig)) for move in moves]
            climb = self._climbs[key] = Climb(self._runtime, parts, up)  # type: ignore[arg-type]
        climb.run([field.buffer for field, _, _ in moves])
        for field, _, stop in moves:
            field.preset_layout(self._dist.layouts[stop])


def climbs_of(dist: Any) -> Climbs:
    """Return the climbs of a distributor; make them if there are none."""
    climbs: Climbs | None = getattr(dist, "_climbs_with_overlap", None)
    if climbs is None:
        climbs = dist._climbs_with_overlap = Climbs(dist)
    return climbs


class _Path:
    """A path between two layouts whose moves are noted."""

    layout0: Any

    def increment(self, fields: Iterable[Any]) -> None:
        """Move fields towards the grid (collective)."""
        climbs_of(self.layout0.dist).move(fields, self.layout0.index, up=True)

    def decrement(self, fields: Iterable[Any]) -> None:
        """Move fields towards coefficients (collective)."""
        climbs_of(self.layout0.dist).move(fields, self.layout0.index, up=False)

    def move_alone(self, fields: list[Any], up: bool) -> None:
        """Move fields by Dedalus' own code."""
        move: Any = super()
        (move.increment if up else move.decrement)(fields)


class TransformPath(_Path, distributor.Transform):
    """Dedalus' `Transform`."""


class TransposePath(_Path, distributor.Transpose):
    """Dedalus' `Transpose`."""


def _batched(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method of a field or an evaluator, so that its moves are one climb."""

    @wraps(method)
    def climbing(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self.dist.paths[0], _Path):  # a distributor made before `use`
            return method(self, *args, **kwargs)
        with climbs_of(self.dist).batched():
            return method(self, *args, **kwargs)

    return climbing


def _attempt_tasks(attempt: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """Wrap an evaluator's method, so that it attempts tasks only in layouts in which an operator can be evaluated."""

    @wraps(attempt)
    def attempting(tasks: list[Any], **kwargs: Any) -> list[Any]:
        if tasks and isinstance(tasks[0]["operator"].dist.paths[0], _Path):
            climbs = climbs_of(tasks[0]["operator"].dist)
            if climbs.pending:
                if not any(_is_ready(task["operator"], kwargs.get("id")) for task in tasks):
                    return tasks
                climbs.flush()
        return attempt(tasks, **kwargs)

    return attempting


def _is_ready(operator: Any, number: Any) -> bool:
    """Return whether a part of an operator can be, or in this evaluation has been, evaluated in the fields' layouts."""
    if not isinstance(operator, Future):
        return True
    if operator.store_last and number is not None and operator.last_id == number:
        return True
    inner = [argument for argument in operator.args if isinstance(argument, Future)]
    if inner:
        return any(_is_ready(argument, number) for argument in inner)
    return bool(operator.check_conditions())


_PATHS = {"Transform": TransformPath, "Transpose": TransposePath}
_THEIRS = {name: getattr(distributor, name) for name in _PATHS}
# These wrappers check the paths of a distributor, so they are never removed.
for _owner, *_names in (
    (Field, "change_layout", "require_grid_space", "require_coeff_space"),
    (Evaluator, "evaluate_handlers", "require_grid_space", "require_coeff_space"),
):
    for _name in _names:
        setattr(_owner, _name, _batched(getattr(_owner, _name)))
Evaluator.attempt_tasks = staticmethod(_attempt_tasks(Evaluator.attempt_tasks))


def use() -> None:
    """Use pipelines for the fields of distributors that are made from now on."""
    vars(distributor).update(_PATHS)


def leave() -> None:
    """Use Dedalus' own code for distributors that are made from now on."""
    vars(distributor).update(_THEIRS)
