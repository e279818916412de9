"""The tasks of a staged transform: their order, and what each one waits for.

Every task is one slice of the pipeline, with exactly one operation (or `take_turn`). So operations are
issued in the order of the tasks, and a task may wait for any earlier ones (`wait_for_slices`). What a task
does after its operation comes after everything that earlier tasks do before theirs.

That keeps work memory right. A task packs when those tasks of the stage before have ended whose results
it reads. It unpacks after its own operation, hence after all earlier tasks have packed; and where the
trailing axes are transformed out of work memory, it waits until that was done with what is there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any

from ...arrays import chunks, length_of

LEAD = 2  # tasks of a field's first stage before the second one of the field before joins in
NOTHING = range(0)


@dataclass(frozen=True)
class Task:
    """A slice of the pipeline: some units of one stage, of one field.

    Attributes
    ----------
    field, stage : int
    part : slice
        The units.
    pack_after, unpack_after : range
        The tasks that have to end before it packs, and before it unpacks.
    trailing_after : range or None
        It transforms the trailing axes of its field when these tasks have ended; None: another one does.
    kind : {"units", "indices", "turn", "late"}
        "indices": units that are indices of the batch. "turn": it does nothing but take its turn. "late": of
        the units that were set aside.
    set_aside : slice or None
        Units that it sets aside before it packs its own.
    """

    field: int
    stage: int
    part: slice
    pack_after: range = NOTHING
    unpack_after: range = NOTHING
    trailing_after: range | None = None
    kind: str = "units"
    set_aside: slice | None = None

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """Alike for tasks that do the same to different fields."""
        aside = self.set_aside and self.set_aside.start
        return self.stage, self.part.start, self.part.stop, self.kind, aside

    @cached_property
    def length(self) -> int:
        """Number of units."""
        return length_of(self.part)

    def label(self, what: str) -> str:
        """Name what it does, to pack or to unpack, in a trace."""
        if what == "pack":
            return "pack" if self.set_aside is None else "set aside, pack"
        return "unpack late" if self.kind == "late" else what

    def __str__(self) -> str:
        if self.kind == "indices":
            last = self.part.stop - 1
            return f"{last}" if last == self.part.start else f"{self.part.start}-{last}"
        if self.kind == "turn":
            return f"field {self.field}, turn"
        kind = "late " if self.kind == "late" else ""
        return f"field {self.field}, stage {self.stage}, {kind}units {self.part.start} to {self.part.stop}"


def in_order(units: list[int], fields: int, chunk: int, buffers: int, holds: bool) -> list[Task]:
    """Return the tasks of some fields.

    Parameters
    ----------
    units : list of int
        How many every stage has.
    fields : int
    chunk : int
        Units per task, at most.
    buffers : int
        Fields whose work memory is there at once. With 2, and two stages, a field's second stage takes
        turns with the next field's first one: the exchanges do not pause between the two.
    holds : bool
        The trailing axes are transformed out of work memory.
    """
    parts = [chunks(number, chunk) for number in units]
    last = len(parts) - 1
    if last == 1 and buffers > 1:
        groups = [
            [(field - stage, stage) for stage in (0, 1) if 0 <= field - stage < fields] for field in range(fields + 1)
        ]
    else:
        groups = [[(field, stage)] for field in range(fields) for stage in range(last + 1)]
    found: list[Task] = []
    ends: list[int] = []  # tasks up to the end of every field
    for group in groups:
        before = range(len(found))
        turns = sorted(
            ((i + 1 + LEAD * stage) / len(parts[stage]), stage, field, i)
            for field, stage in group
            for i in range(len(parts[stage]))
        )
        for _, stage, field, i in turns:
            held = holds and stage == last and field >= buffers
            ending = stage == last and i == len(parts[stage]) - 1
            found.append(
                Task(
                    field,
                    stage,
                    parts[stage][i],
                    before if stage else NOTHING,
                    range(ends[field - buffers]) if held else NOTHING,
                    range(len(found)) if ending else None,
                )
            )
            if ending:
                ends.append(len(found))
    return found


def streamed(units: int, fields: int, chunk: int) -> list[Task]:
    """Return the tasks of two stages with the same units, where one of the second needs that of the first alone."""
    parts = chunks(units, chunk)
    found: list[Task] = []
    packed: dict[tuple[int, int], int] = {}
    # A field's second exchange of a unit is issued before the first one of the field whose units then lie in its place.
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
        found.append(Task(field, stage, parts[i], after, trailing_after=range(number) if ending else None))
    return found
