"""Staged transforms: local FFTs and exchanges of fields, cut into tasks for a pipeline.

A staged transform is a list of stages (see `overlap.arrays.stages`), each from one array to another:

    pack      the first FFTs of every unit, from the source into the pieces of a message
    exchange
    unpack    the other FFTs of every unit, from the received pieces into the target

When all units of the last stage have been received, the FFTs along the trailing axes follow. Sources and targets are
the user's arrays, or work memory in between. The rank's own piece goes directly to the target if nothing is to be done
with it in between, and so do received pieces that are contiguous there. The order of the tasks and their dependences
are in `tasks`.

The work that waits for all units is hidden behind the next field's exchanges, except for that of the last field. So a
share of the last field's units may be exchanged late, in messages that are cut along the axis that the exchange splits,
so that every late task can complete the part that it receives. The tasks before, whose messages keep the link busy
meanwhile, make the first FFTs of these units and pack the results (see `late`). The late tasks follow when
these tasks have packed, which a task without a message between the two ensures by its turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from ...arrays import StageAxes, axis_names, block, chunks, ffts_along, length_of, moved, stages
from ...runtime import take_turn, wait_for_slices
from ...runtime.loop.words import ASIDE, BASES, SOURCE, TARGET
from ...runtime.requests.requests import AsyncComm
from .axis import Axis, Direction, dtype_after, modes_dtype
from .fftw import ALIGNMENT, REQUIRED_ALIGNMENT, zeros
from .late import LateTiles
from .message import Message, WireFormat
from .program import ArrayReference, Buffers, CompiledProgram, ProgramCache, View, assemble
from .stage import UNIT_NBYTES, Place, SourceArray, Stage, largest_nbytes, transformed
from .steps import AnyStep, Exchange, Run, Split, checked, ended
from .sweep import Sweep
from .sweep_in_place import NEAR_NBYTES, SweepInPlace
from .tasks import Task, in_order, streamed

PARTS = 8  # at most, for each of several workers,
PART_NBYTES = 4 * UNIT_NBYTES  # and of at least this many bytes


class TrailingAxes:
    """The sweep along the trailing axes, in parts for several workers."""

    def __init__(
        self,
        stage: Stage,  # the last stage, which has stored the input
        axes: tuple[int, ...],
        way: StageAxes,  # the axes of that stage
        lines: dict[int, Axis],
        direction: Direction,
        # Whether the target holds incomplete results, whether all fields are taken as one, and whether there is only
        # one.
        kind: tuple[bool, bool, bool],
        workers: int,
    ) -> None:
        able, whole, alone = kind
        shape, dtype, local = stage.shape, stage.target_dtype, stage.target_shape
        # Units along the axis that the last exchange splits, if its messages can be late.
        cuts, before, self.late_units, ends = None, False, 0, None
        if not whole and way.transpose is not None and way.along in axes:
            # Units along this rank's part of the split axis.
            split, axis = way.transpose.split, way.along
            # Equal on all ranks; rows or points of odd length are less aligned than FFTW requires.
            row = 1 if split == len(shape) - 1 else shape[-1]
            beside = split == axis + 1 or split == 1 == axis - 1  # only a batch of length 1 precedes the two
            if not able and split == 1 and stage.dtype == dtype:
                self.late_units, ends = len(stage.late_parts), (split, stage.late_parts)
            elif (
                able
                and len(axes) == 1
                and axis == way.transpose.joined
                and not way.then
                and beside
                and ((dtype.itemsize * row) % REQUIRED_ALIGNMENT == 0)
            ):
                self.late_units = len(stage.late_parts)
                inner = prod(local[split + 1 : axis] if split < axis else local[split + 1 :])
                cuts = [slice(part.start * inner, part.stop * inner) for part in stage.late_parts]
                before = split < axis
        alone = alone or prod(local) * dtype.itemsize % REQUIRED_ALIGNMENT == 0
        if (
            able
            and len(axes) == 1
            and alone
            and SweepInPlace.suits(local, axes[0], dtype, () if before else cuts or ())
        ):
            self.sweep: SweepInPlace | Sweep = SweepInPlace(
                local, axes[0], lines[axes[0]], dtype, direction, cuts=cuts, before=before
            )
        else:
            transformed_shape = transformed(local, axes, lines, direction.forward)
            own = direction if direction.forward else replace(direction, turned=None)
            self.sweep = Sweep(
                local,
                {axis: lines[axis] for axis in axes},
                dtype,
                own,
                [_whole(local)],
                [_whole(transformed_shape)],
                same=able,
                ends=ends,
            )
        few = prod(local) * dtype.itemsize // PART_NBYTES
        self.parts = block(  # the sweep's blocks
            self.sweep.count,
            1 if workers == 1 else max(1, min(self.sweep.count, max(workers, min(few, PARTS * workers)))),
        )

    def write(self, program: CompiledProgram, source: View, target: View, scale: float, blocks: slice) -> None:
        """Write some blocks of the sweep, from the view `source` to `target`."""
        self.sweep.write(program, [source], [target], scale, blocks)


def _whole(shape: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(0, length) for length in shape)


class WorkMemory:
    """Two work arrays, for stages with even and odd place numbers (`Place.number`), each for some fields at once.

    Even places use the memory of a field's result if it has `result_nbytes` bytes and these suffice.
    """

    def __init__(self, stages: Sequence[Stage], fields: int, result_nbytes: int) -> None:
        self.fields = fields
        sizes = [
            max(
                (
                    prod(stage.target_shape) * stage.target_dtype.itemsize
                    for stage in stages
                    if stage.place.number and stage.place.number % 2 == odd
                ),
                default=0,
            )
            for odd in (0, 1)
        ]
        self._borrows = 0 < sizes[0] <= result_nbytes
        sizes = [-(-size // ALIGNMENT) * ALIGNMENT for size in sizes]
        self._arrays = [
            zeros((fields, 0 if self._borrows and not odd else size), np.uint8) for odd, size in enumerate(sizes)
        ]

    @property
    def nbytes(self) -> int:
        """Return the bytes of both arrays."""
        return sum(array.nbytes for array in self._arrays)

    def stored(self, stage: Stage, field: int, target: ArrayReference) -> ArrayReference:
        """Return the array in which a stage stores a field whose result goes to `target`."""
        number, shape, dtype = stage.place.number, stage.target_shape, stage.target_dtype
        if number == 0:
            return target
        borrowed = number % 2 == 0 and self._borrows
        memory = target.array.reshape(-1).view(np.uint8) if borrowed else self._arrays[number % 2][field % self.fields]
        array = memory[: prod(shape) * dtype.itemsize].view(dtype).reshape(shape)
        return target.part(array) if borrowed else ArrayReference(array)


class StagedTransform:
    """The stages of a transform on one rank, and the work memory between them.

    Arrays have one axis for the batch, axis 0, and then those of a field. Stages of small fields are cut along the
    batch; then the whole batch counts as one field.
    """

    calls = staggers = False  # as in `PlaneComposition`
    returned = 0

    def __init__(
        self,
        route: list[Any],  # see `overlap.arrays.stages`; axes are counted with that of the batch
        lines: dict[int, Axis],
        source: SourceArray,
        direction: Direction,
        workers: int,
        joined: bool | None = True,  # small fields are transformed together; None: all fields are, whatever their size
        reused: bool = False,  # the targets are used again and again, so nothing is written there early
        exchange: str | None = None,
    ) -> None:
        forward, turned = direction.forward, direction.turned
        natural = turned is None or not forward  # the target can hold incomplete results
        layout, batch = source.layout, source.shape[0]
        real = next((axis for axis, line in lines.items() if line.real), None)
        nbytes = largest_nbytes(layout, (1, *source.shape[1:]), modes_dtype(source.dtype, lines))
        whole = joined is None or (batch > 1 and joined and nbytes <= UNIT_NBYTES)
        self._whole = whole
        self.by_index = direction.by_index  # units are indices of the batch: the program for some serves any others
        self.coordinates = source.coordinates
        self.fields = 1 if whole else batch
        buffers = min(2, self.fields)
        source = replace(source, shape=(batch if whole else 1, *source.shape[1:]))
        axes = [0] if whole else list(range(1, len(source.shape)))
        joined = route[1].joined if not forward and len(route) == 3 and route[1] is not None else None
        ends_alone = joined is not None and set(route[-1]) - {real} == {joined}
        if ends_alone and not whole:  # the axis that may wait is the best one for cutting
            axes.sort(key=lambda axis: axis != joined)
        ways, trailing = stages(route, axes, None if forward else real, natural and (forward or ends_alone))
        # The trailing axes are transformed in the target if it can hold incomplete results.
        able = natural and all(not lines[axis].real and lines[axis].alike for axis in trailing)
        self._holds = bool(trailing) and not able
        # The second stage has the units of the first one, because it does not join the axis along which that is cut.
        self._streams = (
            len(ways) == 2
            and ways[0].along == ways[1].along
            and not self._holds
            and (ways[0].transpose is None or ways[0].transpose.joined != ways[0].along)
        )
        self.stages: list[Stage] = []
        wire = WireFormat(source.dtype, exchange)
        for number, way in enumerate(ways):
            # Targets are the user's array (place 0) or work memory. If more than one work array is needed, every second
            # one uses the memory of the user's array, if it fits there.
            at = len(ways) - 1 - number + self._holds
            place = Place(
                at, not reused and (at == 0 or (self.fields <= buffers and len(ways) <= 2)), natural or at > 0
            )
            own = replace(direction, turned=turned if (at == 0 if forward else number == 0) else None)
            self.stages.append(
                Stage(
                    way,
                    place,
                    lines,
                    source,
                    own,
                    wire,
                    self.stages[0].blocks.units if self._streams and number else None,
                    ends_late=self._holds
                    and number == len(ways) - 1
                    and trailing == (way.along,)
                    and (way.transpose is not None and way.transpose.split == 1),
                )
            )
            layout, shape, dtype = self.stages[-1].layout, self.stages[-1].shape, self.stages[-1].target_dtype
            source = SourceArray(layout, shape, self.coordinates, dtype)
        wires = [stage.wire for stage in self.stages]
        travelling = [wire for wire in wires if wire.rounds] or wires
        # The widest wire format of all stages, which is that of the buffers.
        self.wire = max(travelling, key=lambda wire: wire.dtype.itemsize)
        self._trailing_axes = trailing
        local = all(stage.dimension is None for stage in self.stages)
        self._alone = self.by_index and local
        # Nothing is exchanged and no memory serves several fields, so the tasks of a call need no turns.
        self.in_any_order = local and self.fields == 1
        self._trailing = (
            TrailingAxes(
                self.stages[-1], trailing, ways[-1], lines, direction, (able, whole, self.fields == 1), workers
            )
            if trailing
            else None
        )
        self.can_be_late = (
            self._trailing is not None
            and self._trailing.late_units > 0
            and self.stages[-1].place.early
            and self.stages[-1].twiddle is None
            and not self._streams
        )
        itemsize = dtype_after(source.dtype, lines, trailing, forward).itemsize
        local_input = layout.local_shape(shape, self.coordinates)
        room = prod(transformed(local_input, trailing, lines, forward)) * itemsize if natural else 0
        self._work = WorkMemory(self.stages, buffers, room)
        nbytes = max(
            [stage.scratch_nbytes for stage in self.stages]
            + [0 if self._trailing is None else self._trailing.sweep.scratch_nbytes]
        )
        self._scratch = [ArrayReference(zeros(nbytes, np.uint8)) for _ in range(workers)]
        self._tiles: LateTiles | None = None  # None if no unit is late
        self._codes = ProgramCache()
        self.units = sum(stage.blocks.units for stage in self.stages)  # units of one field

    @property
    def nbytes(self) -> int:
        """Return the bytes of work memory."""
        return self._work.nbytes + (0 if self._tiles is None else self._tiles.memory.nbytes)

    @property
    def _late(self) -> LateTiles:
        """Return the late tiles, which exist if a task is late."""
        assert self._tiles is not None
        return self._tiles

    def tasks(self, chunk: int, fields: int | None = None, late: float = 0.0) -> list[Task]:
        """Return the tasks, of at most `chunk` units each; by default for all fields.

        If units are indices of the batch, `fields` is their number. The share `late` of the last field is exchanged
        late if it `can_be_late`.
        """
        if self.by_index:
            return [
                Task(0, 0, part, kind="indices") for part in chunks(self.units if fields is None else fields, chunk)
            ]
        fields = self.fields if fields is None else fields
        units = [stage.blocks.units for stage in self.stages]
        tasks = (
            streamed(units[0], fields, chunk)
            if self._streams
            else in_order(units, fields, chunk, self._work.fields, self._holds)
        )
        if self._tiles is not None:  # programs of late tasks have addresses of its memory
            self._codes.clear()
        self._tiles = None
        trailing = self._trailing
        if not late or trailing is None or not self.can_be_late or not tasks:
            return tasks
        last = len(self.stages) - 1
        own = [number for number, task in enumerate(tasks) if task.field == tasks[-1].field and task.stage == last]
        count = max(1, len(own) - round(late * len(own)))
        if count == len(own):
            return tasks
        self._codes.clear()
        turn, field, stage = own[count], tasks[-1].field, self.stages[-1]
        done = tasks[turn].part.start
        self._tiles = LateTiles(stage, done, trailing.late_units, chunk)
        early = own[min(1, count - 1) : count]  # all but the first one, whose message is waited for
        for number, share in zip(early, block(stage.blocks.units - done, len(early))):
            tasks[number] = replace(tasks[number], late=moved(share, done))
        tasks[turn:] = [Task(field, last, slice(done, done), kind="turn")]
        return tasks + [
            Task(field, last, part, range(turn, turn + 1), range(turn), kind="late") for part in self._tiles.parts
        ]

    def messages(self, chunk: int) -> list[Message]:
        """Return the messages of one field that are not late, one of each kind."""
        if self.by_index:
            return [self.stages[0].message(slice(0, min(chunk, self.units)))] if self.units else []
        return [stage.message(part) for stage in self.stages for part in chunks(stage.blocks.units, chunk)]

    def buffer_lengths(self, chunk: int) -> tuple[int, int]:
        """Return the lengths of a slot's send and receive buffers for the last `tasks`, in elements of `wire`."""
        messages, itemsize = self.messages(chunk), self.wire.dtype.itemsize
        sent = [message.send_size * message.wire.dtype.itemsize for message in messages]
        received = [message.receive_size * message.wire.dtype.itemsize for message in messages]
        if self._tiles is not None:
            received.append(self._tiles.receive_size * self.stages[-1].wire.dtype.itemsize)
        return -(-max(sent, default=0) // itemsize), -(-max(received, default=0) // itemsize)

    def slot(self, send: np.ndarray, receive: np.ndarray) -> Buffers:
        """Return the buffers of a slot."""
        return Buffers(send, receive)

    def _split(self, batches: Sequence[ArrayReference]) -> list[ArrayReference]:
        """Return the fields of local batches, one by one if they are transformed one by one."""
        if self._whole:
            return list(batches)
        return [batch.at(slice(number, number + 1)) for batch in batches for number in range(len(batch.array))]

    def arrays(
        self, sources: Sequence[ArrayReference], targets: Sequence[ArrayReference]
    ) -> list[list[ArrayReference]]:
        """Return the arrays of a call: for every field, the source of every stage, and the final target.

        The arguments are the rank's parts of the batch, or of several ones, in natural order, before and after the
        transform.
        """
        sources, targets = self._split(sources), self._split(targets)
        stored = [targets]
        for stage in reversed(self.stages):
            stored.append([self._work.stored(stage, field, target) for field, target in enumerate(targets)])
        return [sources, *stored[:0:-1], targets]

    @property
    def scratch_nbytes(self) -> int:
        """Return the bytes of every worker's scratch memory."""
        return self._scratch[0].array.nbytes

    @property
    def scratch(self) -> list[int]:
        """Return the addresses of every worker's scratch memory."""
        return [memory.address for memory in self._scratch]

    def steps(
        self,
        task: Task,
        slot: Buffers,
        arrays: list[list[ArrayReference]],  # from `arrays`
        # One per dimension of the grid; None: nothing is exchanged, and no turns are taken.
        comms: Sequence[AsyncComm] | None,
        scale: float,  # factor of the source
        first: int = 0,  # index in the pipeline of the slice that is the first task
        # The transform starts after this number of slices has ended; its source may be filled until then.
        start: int = 0,
    ) -> Iterator[AnyStep]:
        """Yield the steps of a task."""
        stage, field, alone = self.stages[task.stage], task.field, self._alone
        source, target = arrays[task.stage][field], arrays[task.stage + 1][field]
        if task.pack_after:
            yield ended(task.pack_after, first)
        elif start:
            yield wait_for_slices(start)
        if task.kind in ("units", "indices"):
            yield self._run("local" if alone else "pack", task, slot, source, target, scale if task.stage == 0 else 1.0)
            yield from checked(stage.wire)
        if comms is not None and not alone:
            if stage.dimension is None or task.kind == "turn":
                yield take_turn()
            else:
                yield self._exchange(task, stage, slot, target, comms[stage.dimension])
        if task.kind == "turn" or alone:
            return
        if task.unpack_after:
            yield ended(task.unpack_after, first)
        yield self._run("unpack", task, slot, arrays[-1][field], target, 1.0)
        if task.trailing_after is not None and self._trailing is not None:
            yield ended(task.trailing_after, first)
            parts = [self._completing(self._trailing, part, target, arrays[-1][field]) for part in self._trailing.parts]
            yield parts[0] if len(parts) == 1 else Split(parts)

    def _exchange(self, task: Task, stage: Stage, slot: Buffers, target: ArrayReference, comm: AsyncComm) -> Exchange:
        if task.kind == "late":
            message, memory = self._late.message(task.part)
            send = ArrayReference(memory)
        else:
            message, send = stage.message(self._standard(task)), slot.send
        receive = slot.receive
        if message.direct:
            first = task.part.start * prod(stage.target_shape[1:]) if self.by_index else 0
            receive = target.part(target.array.reshape(-1)[first:])
        return Exchange(comm, message, send, receive)

    def _run(
        self, what: str, task: Task, slot: Buffers, source: ArrayReference, target: ArrayReference, scale: float
    ) -> Run:
        key = (what, task.length) if self.by_index else (what, *task.key)
        codes = self._codes.of((source.kind, target.kind, scale))
        code = codes.get(key)
        if code is None:
            code = codes[key] = assemble(self._write, source.view(SOURCE), target.view(TARGET), scale, what, task)
        bases, first = slot.bases.copy(), task.part.start if self.by_index else 0
        bases[SOURCE] = source.address + first * source.strides[0]
        bases[TARGET] = target.address + first * target.strides[0]
        if task.late is not None:
            bases[ASIDE] = self._late.address
        return Run(code, bases, task.label(what))

    def _write(self, program: CompiledProgram, source: View, target: View, scale: float, what: str, task: Task) -> None:
        stage, part = self.stages[task.stage], self._standard(task)
        if what == "local":
            stage.local(program, length_of(part), source, target, scale)
        elif what == "pack":
            if task.late is not None:
                self._late.pack(program, task.late, source, target, scale)
            stage.pack(program, part, source, target, scale)
        elif task.kind == "late":
            assert self._trailing is not None  # the task completes late units of the trailing axes
            self._late.unpack(program, task.part, target)
            groups = self._trailing.sweep.groups[task.part]
            self._trailing.write(program, target, source, scale, slice(groups[0].start, groups[-1].stop))
        else:
            stage.unpack(program, part, target)

    def _standard(self, task: Task) -> slice:
        """Return the units for which a task's program is written."""
        return slice(0, length_of(task.part)) if self.by_index else task.part

    def _completing(self, trailing: TrailingAxes, part: slice, source: ArrayReference, target: ArrayReference) -> Run:
        """Return the step that transforms a part of the trailing axes."""
        # Data that come from memory are not overwritten, because they would be written back to memory.
        source_view = replace(source.view(SOURCE), spare=source.array.nbytes <= NEAR_NBYTES)
        code = self._codes.find(
            ("trailing", source.kind, target.kind),
            part.start,
            trailing.write,
            source_view,
            target.view(TARGET),
            1.0,
            part,
        )
        bases = np.zeros(BASES, np.int64)
        bases[SOURCE], bases[TARGET] = source.address, target.address
        return Run(code, bases, "complete")

    def describe(self) -> str:
        """Return the work memory and the stages as text, to be added to other text."""
        names = axis_names(len(self.stages[0].shape) - 1)
        stages = [*(stage.in_words(names) for stage in self.stages), *ffts_along(self._trailing_axes, names)]
        return f", {self.nbytes / 2**20:.1f} MiB of work memory; {'; then '.join(stages)}"
