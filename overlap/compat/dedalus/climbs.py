"""Climbs: moves of a batch of fields through Dedalus' layouts, as one pipeline.

Dedalus moves fields from layout to layout, and in each layout checks whether an operator can be evaluated. Here a move
is first noted (`Climbs.move`), and made when the data are needed (`Climbs.flush`): consecutive moves of all noted
fields are then one climb.

A field's buffer holds its data in every layout. So the components of a field are processed in an order in which no
result overwrites data that are still to be read: from the last one if the data grow, from the first one if they shrink.
A result is stored after its own exchange, hence after all earlier components have been packed. If a rank's data shrink
while those of others grow, it uses a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np
from mpi4py import MPI

from ...compiled.memory import address_of
from ...fft.engine.buffers import ArrayReference
from ...fft.engine.fftw import empty
from ...fft.engine.schedule import Schedule, Schedules, addresses_of
from ...runtime.plan_call import CallKind
from ..kept_runtimes import RUNTIMES
from .series import Plans
from .units import SlotMemory, Unit, UnitKind, exchanges, made_by

DEPTH = 6  # slices in flight
KEPT = 32  # climbs that are kept

Move = tuple[Any, int, int]
"""A field, and the numbers of its layouts before and after the move."""


class Climb:
    """The calls of a climb, for fields of given kinds, from layout to layout.

    Parameters
    ----------
    runtime : Runtime
    parts : sequence of (Unit, int)
        For every field, the unit of its components, and their number.
    up : bool
        The climb goes towards the grid.
    """

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
    """The climbs of a distributor's fields, and the moves that are noted and not made yet.

    Parameters
    ----------
    dist : Dedalus' distributor
    """

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
