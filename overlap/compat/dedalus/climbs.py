"""Climbs: fields of one batch on their way through Dedalus' layouts, as one pipeline.

Dedalus moves fields from layout to layout, and between two layouts asks whether an operator can be evaluated there.
Here a move is noted first (`Climbs.move`) and made when somebody needs the data (`Climbs.flush`): moves that follow
each other are one climb then, of all fields that were noted.

A field's buffer holds its data in every layout. So the components of a field follow each other in an order in which a
result overwrites nothing that is still to be read: from the last one where data grow, from the first one where they
shrink. A result is stored after its own exchange, hence after all earlier components have been packed. Where a rank's
data shrink while others' grow, it takes a copy.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np
from mpi4py import MPI

from ...fft.engine.buffers import ArrayReference
from ...fft.engine.fftw import empty
from ...fft.engine.schedule import KINDS, Schedule, addresses_of, kind_of, stand_ins
from ...fft.transform import Key
from ...lowlevel.memory import address_of
from ..kept_runtimes import RUNTIMES
from .lines import Plans
from .units import Kind, SlotMemory, Unit, exchanges, made_by

DEPTH = 6  # slices in flight
KEPT = 32  # climbs whose pipelines are kept

Move = tuple[Any, int, int]
"""A field, and the numbers of the layouts it comes from and goes to."""


class Climb:
    """The pipeline of one climb: fields of some kinds, from layout to layout.

    Parameters
    ----------
    runtime : Runtime
    parts : sequence of (Unit, int)
        What every field's components go through, and how many there are.
    up : bool
        Towards the grid.
    """

    def __init__(self, runtime: Any, parts: Sequence[tuple[Unit, int]], up: bool) -> None:
        self._parts, self._up = parts, up
        # A copy of what would be overwritten too early.
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
        self._keys = [Key(number, f"field {field}, {component}") for number, (field, component) in enumerate(order)]
        self._schedules: dict[Any, Schedule] = {}
        self._calls: dict[bytes, Callable[[], None] | None] = {}

        def program(key: Key, schedule: Schedule, addresses: array[int]) -> Any:
            return schedule.slice(key.number, addresses, True, True)

        def skeleton(key: Key, schedule: Schedule, addresses: array[int]) -> Any:
            return schedule.slice(key.number, addresses, False, True)

        program.__qualname__ = type(self).__name__
        self._pipeline = runtime.pipelined(program, skeleton=skeleton, depth=depth, independent=True)

    def run(self, buffers: Sequence[np.ndarray]) -> None:
        """Move the fields with these buffers (collective)."""
        for buffer, copy, (unit, count) in zip(buffers, self._copies, self._parts):
            if copy is not None:
                copy[...] = buffer.view(np.uint8)[: count * unit.given_nbytes]
        addresses = addresses_of(buffers)
        schedule = self._recorded(buffers)
        call = self._whole_call(schedule, addresses)
        if call is not None:
            call()
        else:
            self._pipeline(self._keys, schedule, addresses)

    def _whole_call(self, schedule: Schedule, addresses: array[int]) -> Callable[[], None] | None:
        """Return what makes a call in compiled code, where nothing is to be hidden."""
        if len(self._keys) > 1 and self._pipeline.wait != "off":
            return None
        key = addresses.tobytes()
        call = self._calls.get(key)
        if call is None:
            if len(self._calls) >= KEPT:
                self._calls.clear()
            call = schedule.whole_call(self._pipeline, addresses)
            if call is not None:
                self._calls[key] = call
        return call

    def _recorded(self, buffers: Sequence[np.ndarray]) -> Schedule:
        kind = kind_of(buffers)
        schedule = self._schedules.get(kind)
        if schedule is None:
            if len(self._schedules) >= KINDS:
                self._schedules.clear()
                self._calls.clear()
            slices = self._steps(stand_ins(buffers))
            scratch = [address_of(one) for one in self._scratch]
            schedule = self._schedules[kind] = Schedule(self._keys, slices, scratch)
        return schedule

    def _steps(self, located: Sequence[ArrayReference]) -> Iterator[Iterable[Any]]:
        for number, (field, component) in enumerate(self._order):
            unit, copy = self._parts[field][0], self._copies[field]
            target = located[field].address
            source = target if copy is None else address_of(copy)
            yield unit.steps(component, source, target, self._slots[number % len(self._slots)])


class Climbs:
    """The climbs of a distributor's fields, and the moves that were noted and not made yet.

    Parameters
    ----------
    dist : Dedalus' distributor
    """

    def __init__(self, dist: Any) -> None:
        self._dist = dist
        self._noting = False
        self._noted: dict[int, Move] = {}
        self._plans: Plans = {}
        self._units: dict[Kind, Unit | None] = {}
        self._climbs: dict[Any, Climb] = {}
        self._runtime: Any = None
        self._comms: dict[int, Any] = {}

    @property
    def pending(self) -> bool:
        """Return whether moves were noted and not made yet."""
        return bool(self._noted)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Make moves one climb: those in a ``with`` block, which must not look at fields' data (collective)."""
        self.flush()
        outer, self._noting = self._noting, True
        try:
            yield
            self.flush()
        finally:
            self._noting = outer
            for field, start, _ in self._noted.values():  # after an error
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
        """Make the moves that were noted (collective)."""
        moves = list(self._noted.values())
        self._noted.clear()
        for field, start, _ in moves:
            field.preset_layout(self._dist.layouts[start])
        for up in (True, False):
            here = [move for move in moves if (move[2] > move[1]) == up]
            whole = [move for move in here if self._unit(move) is not None]
            if whole:
                self._climb(whole, up)
            others = [move for move in here if self._unit(move) is None]
            if others:
                self._step_by_step(others, up)

    def _step_by_step(self, moves: list[Move], up: bool) -> None:
        """Move fields whose transforms are Dedalus' alone, path by path; exchanges of a path are a pipeline."""
        low, high = min(min(move[1:]) for move in moves), max(max(move[1:]) for move in moves)
        for path in range(low, high)[:: 1 if up else -1]:
            fields = [field for field, *ends in moves if min(ends) <= path < max(ends)]
            ends = (path, path + 1) if up else (path + 1, path)
            exchanged = [(field, *ends) for field in fields if exchanges(self._dist, self._kind((field, *ends)), path)]
            if exchanged:
                self._climb(exchanged, up)
            rest = [field for field in fields if field.layout.index == ends[0]]
            self._dist.paths[path].move_alone(rest, up)

    def _kind(self, move: Move) -> Kind:
        field, start, stop = move
        return Kind(field.domain, tuple(field.scales), field.dtype, start, stop)

    def _unit(self, move: Move) -> Unit | None:
        """Return what a field's components go through; None: only Dedalus' own transforms can make the move."""
        kind = self._kind(move)
        if kind not in self._units:
            found = None
            if made_by(self._dist, kind, self._plans):
                self._start(kind)
                found = Unit(self._dist, kind, self._comms, self._plans)
            self._units[kind] = found
        return self._units[kind]

    def _start(self, kind: Kind) -> None:
        """Have a runtime, and communicators for what exchanges (collective)."""
        if self._runtime is None:
            self._runtime = RUNTIMES.of(self._dist.comm).runtime()
        for path in kind.paths:
            if path not in self._comms and exchanges(self._dist, kind, path):
                comm = self._dist.paths[path].comm_sub
                whole = MPI.Comm.Compare(comm, self._dist.comm) == MPI.CONGRUENT  # MPI has few communicators
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
    """Return the climbs of a distributor, made now if there are none."""
    found: Climbs | None = getattr(dist, "_climbs_with_overlap", None)
    if found is None:
        found = dist._climbs_with_overlap = Climbs(dist)
    return found
