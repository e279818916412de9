"""The tasks of a staged transform: their order and their dependences.

Every task is one slice of the pipeline, with exactly one operation (or `take_turn`). So operations are issued in the
order of the tasks, and a task may wait for any earlier ones (`wait_for_slices`). The work of a task after its operation
follows everything that earlier tasks do before theirs.

So no data in work memory are overwritten too early. A task packs when the tasks of the previous stage whose results it
reads have ended. It unpacks after its own operation, hence after all earlier tasks have packed; and if the trailing
axes are transformed out of work memory, it waits until that has been done with the data there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any

from ...arrays import chunks, length_of

LEAD = 2  # tasks of a field's first stage before the first one of the previous field's second stage
NOTHING = range(0)


@dataclass(frozen=True)
class Task:
    """A slice of the pipeline: some units of one stage, of one field."""

    field: int
    stage: int
    part: slice  # the units
    pack_after: range = NOTHING  # the tasks that must end before it packs,
    unpack_after: range = NOTHING  # and before it unpacks
    # It transforms the trailing axes of its field when these tasks have ended; None: another task does.
    trailing_after: range | None = None
    # "units"; "indices": units are indices of the batch; "turn": the task only takes its turn; "late": units that
    # earlier tasks have packed.
    kind: str = "units"
    late: slice | None = None  # late units that it packs before its own

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """Return a key that is equal for tasks with the same work on different fields."""
        return self.stage, self.part.start, self.part.stop, self.kind, self.late and self.late.start

    @cached_property
    def length(self) -> int:
        """Return the number of units."""
        return length_of(self.part)

    def label(self, what: str) -> str:
        """Return the name of the task's work, packing or unpacking, for a trace."""
        if what == "pack":
            return "pack" if self.late is None else "pack late, pack"
        return "unpack late" if self.kind == "late" else what

    def __str__(self) -> str:
        if self.kind == "indices":
            last = self.part.stop - 1
            return f"{last}" if last == self.part.start else f"{self.part.start}-{last}"
        if self.kind == "turn":
            return f"field {self.field}, turn"
        kind = "late " if self.kind == "late" else ""
        return f"field {self.field}, stage {self.stage}, {kind}units {self.part.start} to {self.part.stop}"


def in_order(
    units: list[int],  # of every stage
    fields: int,
    chunk: int,  # units per task, at most
    buffers: int,  # number of fields that have work memory at the same time
    holds: bool,  # the trailing axes are transformed out of work memory
) -> list[Task]:
    """Return the tasks of some fields."""
    parts = [chunks(number, chunk) for number in units]
    last = len(parts) - 1
    if last == 1 and buffers > 1:
        # A field's second stage takes turns with the next field's first one, so exchanges do not pause in between.
        groups = [
            [(field - stage, stage) for stage in (0, 1) if 0 <= field - stage < fields] for field in range(fields + 1)
        ]
    else:
        groups = [[(field, stage)] for field in range(fields) for stage in range(last + 1)]
    tasks: list[Task] = []
    ends: list[int] = []  # number of tasks up to the end of every field
    for group in groups:
        before = range(len(tasks))
        turns = sorted(
            ((i + 1 + LEAD * stage) / len(parts[stage]), stage, field, i)
            for field, stage in group
            for i in range(len(parts[stage]))
        )
        for _, stage, field, i in turns:
            held = holds and stage == last and field >= buffers
            ending = stage == last and i == len(parts[stage]) - 1
            tasks.append(
                Task(
                    field,
                    stage,
                    parts[stage][i],
                    before if stage else NOTHING,
                    range(ends[field - buffers]) if held else NOTHING,
                    range(len(tasks)) if ending else None,
                )
            )
            if ending:
                ends.append(len(tasks))
    return tasks


def streamed(units: int, fields: int, chunk: int) -> list[Task]:
    """Return the tasks of two stages with the same units, if a unit's second task depends only on its first one."""
    parts = chunks(units, chunk)
    tasks: list[Task] = []
    packed: dict[tuple[int, int], int] = {}
    # A unit's second exchange is issued before the first exchange of the later field that uses the same work memory.
    lead = min(LEAD, 2 * len(parts) - 1)
    turns = sorted(
        (field * len(parts) + i + lead * stage, stage, field, i)
        for field in range(fields)
        for stage in (0, 1)
        for i in range(len(parts))
    )
    for number, (_, stage, field, i) in zip(count(), turns):
        after = NOTHING
        if stage:
            before = packed.pop((field, i))
            after = range(before, before + 1)
        packed[field, i] = number
        ending = stage == 1 and i == len(parts) - 1
        tasks.append(Task(field, stage, parts[i], after, trailing_after=range(number) if ending else None))
    return tasks
