"""`FieldTransform`: a transform in one direction, a staged transform run as a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..runtime import AsyncComm, Runtime
from .array_spec import ArraySpec
from .engine.staged import StagedTransform
from .engine.steps import AnyStep
from .transform import Transform


class FieldTransform(Transform):
    """A transform of planes or fields in one direction, from real space to the spectrum or back.

    The slices of a call are the tasks of the staged transform, see there.

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
        entries = staged.units if staged.by_index else staged.fields
        super().__init__(runtime, comms, staged, make or (lambda effort: staged), (source,), (target,), entries)
        self.can_be_late, self.replans = staged.can_be_late, make is not None
        self._scale = scale

    @property
    def scale(self) -> float:
        """Return the factor of the source."""
        return self._scale

    @scale.setter
    def scale(self, scale: float) -> None:
        if scale != self._scale:
            self._scale = scale
            self.forget()  # calls that were recorded with the old factor

    def _steps_of(self, task: Any, slot: Any, arrays: Any) -> Iterable[AnyStep]:
        comms = None if self._kernels.in_any_order else self._comms
        steps: Iterable[AnyStep] = self._kernels.steps(task, slot, arrays, comms, self.scale)
        return steps
