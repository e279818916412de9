"""Transforms of whole fields: staged transforms run as pipelines.

The slices of the pipeline are the tasks of a staged transform, see there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..runtime import AsyncComm, Runtime
from .array_spec import ArraySpec
from .engine.buffers import ArrayReference, Buffers
from .engine.fftw import zeros
from .engine.staged import StagedTransform
from .planning.candidates import Candidates, FieldCandidates, PlaneCandidates
from .planning.settings import Settings
from .transform import Steps, Transform, natural_parts, targets_fit

TRIAL_FIELDS = 3


class Fields(Transform):
    """Base of the transforms of fields.

    Parameters
    ----------
    runtime : Runtime
    comms : sequence of AsyncComm
        One per dimension of the grid.
    units : int
        Units of one field, in all stages.
    fields : int
        Number of fields, one after the other.

    Attributes
    ----------
    units : int
    can_be_late : bool
        Whether `Settings.late` has an effect.
    replans : bool
        Whether `Settings.effort` has an effect after the transform has been made.
    """

    can_be_late = False
    replans = True
    candidates: type[Candidates] = FieldCandidates

    def __init__(self, runtime: Runtime, comms: Sequence[AsyncComm], units: int, fields: int) -> None:
        super().__init__(runtime, units * fields)
        self.units = units
        self._entries = fields
        self._comms = comms

    def trial_fields(self) -> int:
        """Return the number of fields of a measured run, enough to include the overlap of successive fields."""
        return min(self._entries, TRIAL_FIELDS)

    def staged_transforms(self) -> tuple[StagedTransform, ...]:
        """Return the staged transforms of the transform's tasks."""
        raise NotImplementedError

    def nbytes_per_slice(self) -> int:
        """Return the bytes that this rank sends per unit, on average."""
        nbytes = sum(message.nbytes_sent for staged in self.staged_transforms() for message in staged.messages(1))
        units = sum(staged.units for staged in self.staged_transforms())
        return -(-nbytes // max(1, units))

    def message_nbytes(self, chunk: int) -> int:
        """Return the bytes of the largest piece that this rank sends."""
        return max(
            max(message.counts_sent) * message.wire.dtype.itemsize
            for staged in self.staged_transforms()
            for message in staged.messages(chunk)
        )

    def slot_nbytes(self, chunk: int) -> int:
        """Return the bytes of one slot's buffers, at least 1."""
        return max(1, sum(self._buffer_lengths(chunk)) * self.exchange_dtype.itemsize)

    def _buffer_lengths(self, chunk: int) -> list[int]:
        return [max(lengths) for lengths in zip(*(staged.buffer_lengths(chunk) for staged in self.staged_transforms()))]

    def make_pipelines(self, tasks: Sequence[Any]) -> None:
        """Make the pipelines of some tasks, with slots for any of their messages."""
        depth = max(1, min(self.settings.depth or 1, len(tasks)))
        self._make_pipelines(
            tasks,
            [Buffers(*buffers) for buffers in self._allocate(depth, self._buffer_lengths(self.settings.chunk or 1))],
        )


class FieldTransform(Fields):
    """A transform of fields in one direction, from real space to the spectrum or back.

    Parameters
    ----------
    runtime : Runtime
    comms : sequence of AsyncComm
        One per dimension of the grid.
    staged : StagedTransform
    source, target : ArraySpec
    scale : float
    make : callable, optional
        ``make(effort)`` makes the staged transform with another effort of FFTW's planning.
    """

    _held = (*Transform._held, "_staged", "_make")

    def __init__(
        self,
        runtime: Runtime,
        comms: Sequence[AsyncComm],
        staged: StagedTransform,
        source: ArraySpec,
        target: ArraySpec,
        scale: float,
        make: Callable[[str | None], StagedTransform] | None = None,
    ) -> None:
        super().__init__(runtime, comms, staged.units, staged.fields)
        self.inputs, self.outputs = (source,), (target,)
        self.exchange_dtype = staged.wire.dtype
        self.can_be_late = staged.can_be_late
        self._staged, self._make, self.replans = staged, make, make is not None
        self._scale = scale

    @property
    def scale(self) -> float:
        """Return the factor of the source."""
        return self._scale

    @scale.setter
    def scale(self, scale: float) -> None:
        if scale != self._scale:
            self._scale = scale
            self._bound.forget()  # calls that were recorded with the old factor
            self._schedules.clear()
            self._own_workspace = None

    def kernels_of(self, settings: Settings) -> StagedTransform:
        return self._staged if self._make is None else self._make(settings.effort)

    def configure(self, settings: Settings, count: int | None = None) -> None:
        """Allocate slots and make the pipelines for `settings`; by default for the whole batch."""
        self.settings = settings
        self._staged = self.kernels_of(settings)
        self.make_pipelines(self._staged.tasks(settings.chunk or 1, count, settings.late or 0.0))

    def staged_transforms(self) -> tuple[StagedTransform, ...]:
        return (self._staged,)

    def describe(self) -> str:
        """Say what was chosen and what it costs, as text."""
        return f"{super().describe()}, {self._staged.nbytes / 2**20:.1f} MiB of work memory; {self._staged.describe()}"

    def scratch(self) -> list[int]:
        return self._staged.scratch

    def steps(self, inputs: Sequence[ArrayReference], outputs: Sequence[ArrayReference]) -> Iterable[Iterable[Any]]:
        comms = None if self._staged.in_any_order else self._comms
        return self._steps(self._staged, self._slot_of, comms, inputs, outputs)

    def _steps(
        self,
        staged: StagedTransform,
        slot_of: Callable[[int], Buffers],
        comms: Sequence[AsyncComm] | None,
        inputs: Sequence[ArrayReference],
        outputs: Sequence[ArrayReference],
    ) -> Iterator[Iterable[Any]]:
        """Yield the steps of every task of a staged transform, on the given slots."""
        (source,), (target,) = natural_parts(inputs, self.inputs), natural_parts(outputs, self.outputs)
        arrays = staged.arrays(*([side.part(field) for field in staged.split(side.array)] for side in (source, target)))
        for number, task in enumerate(self._parts):
            yield staged.steps(task, slot_of(number), arrays, comms, self.scale)

    def can_bind(self, outputs: list[np.ndarray]) -> bool:
        return targets_fit(outputs, self.outputs)

    def is_compiled(self, outputs: list[np.ndarray]) -> bool:
        return targets_fit(outputs, self.outputs) and not self._staged.wire.rounds  # compiled code raises nothing

    def own_workspace(self) -> tuple[Steps, list[int]]:
        staged = self._staged.with_own_workspace()
        lengths = staged.buffer_lengths(self.settings.chunk or 1)
        slot = Buffers(*(zeros(max(1, length), staged.wire.dtype) for length in lengths))
        return partial(self._steps, staged, lambda number: slot, None), staged.scratch


class BatchTransform(FieldTransform):
    """A transform of a batch of planes, which are its units."""

    candidates = PlaneCandidates

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._entries = self.slices

    def nbytes_per_slice(self) -> int:
        """Return the bytes that this rank sends per plane."""
        return self._staged.message_nbytes()
