"""`FieldPointwise`: spectral fields to real space, the user's function, and back, as one pipeline.

Every entry of the batch has the tasks of its inputs' transform, one slice for the function, and the tasks of its
outputs' transform. The function waits for all earlier slices, and the transform back waits for the function. The next
entry's inputs wait for neither until they store (see `engine.tasks`: the work of a slice after its operation follows
everything that earlier slices do before theirs).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ..runtime import AsyncComm, Runtime, take_turn, wait_for_slices
from .array_spec import ArraySpec
from .engine.buffers import ArrayReference, Buffers
from .engine.fftw import empty, zeros
from .engine.schedule import Schedule, addresses_of, stand_in
from .engine.staged import StagedTransform
from .engine.steps import Call
from .engine.tasks import Task
from .field_transform import Fields
from .function import Function
from .planning.settings import Settings
from .transform import fits, natural_parts


@dataclass(frozen=True)
class Step:
    """A slice of the pipeline.

    Attributes
    ----------
    stage : {"share", "back", "apply", "forth"}
    entry : int
        Its index in the batch.
    first : int
        The slice with which the stage begins.
    task : Task or None
    """

    stage: str
    entry: int
    first: int
    task: Task | None

    def __str__(self) -> str:
        return f"{self.stage}, entry {self.entry}" + (f", {self.task}" if self.task else "")


class FieldPointwise(Fields):
    """A function of real-space fields, made to act on spectral ones; see `FFT3.pointwise`.

    Parameters
    ----------
    runtime : Runtime
    comms : sequence of AsyncComm
    function : Function
    make : callable
        ``make(effort)`` makes the staged transforms, to real space and back, with an effort of FFTW's planning.
    effort : str or None
        The requested effort of FFTW's planning.
    spectra : tuple of ArraySpec
        The arrays of inputs and outputs, and those of shared inputs.
    real : ArraySpec
        The arrays of fields in real space.
    scales : tuple of float
        Factors of the transforms to real space, and back.
    """

    _held = (*Fields._held, "_given", "_shared", "_results", "_made", "_make", "_back", "_forth")

    def __init__(
        self,
        runtime: Runtime,
        comms: Sequence[AsyncComm],
        function: Function,
        make: Callable[[str | None], tuple[StagedTransform, ...]],
        effort: str | None,
        spectra: tuple[ArraySpec, ArraySpec],
        real: ArraySpec,
        scales: tuple[float, float],
    ) -> None:
        (back, forth), (spectrum, shared_spectrum) = make(effort), spectra
        local, dtype = (1, *real.shape), real.dtype
        units = back.units * (function.inputs + function.shared) + forth.units * function.outputs
        super().__init__(runtime, comms, units, spectrum.slices)
        self.inputs = (spectrum,) * function.inputs + (shared_spectrum,) * function.shared
        self.outputs = (spectrum,) * function.outputs
        self.exchange_dtype = back.wire.dtype
        self._function = function
        self._make, self._back, self._forth = make, back, forth
        self._batch, self._real = spectrum.global_shape[: -spectrum.dimensions], real
        self._scale_backward, self._scale_forward = scales
        self._given = [zeros(local, dtype) for _ in range(function.inputs)]
        self._shared = [zeros(local, dtype) for _ in range(function.shared)]
        self._results = [zeros(local, dtype) for _ in range(function.outputs if function.takes_out else 0)]
        self._made: list[np.ndarray] = []  # results of the function for the current entry

    def kernels_of(self, settings: Settings) -> tuple[StagedTransform, ...]:
        return self._make(settings.effort)

    def configure(self, settings: Settings, count: int | None = None) -> None:
        """Allocate slots and make the pipelines for `settings`; by default for the whole batch."""
        self.settings = settings
        self._back, self._forth = self.kernels_of(settings)
        entries = self._entries if count is None else count
        function, chunk = self._function, settings.chunk or 1
        steps: list[Any] = []

        def add(stage: str, entry: int, tasks: Sequence[Task | None]) -> None:
            first = len(steps)
            steps.extend(Step(stage, entry, first, task) for task in tasks)

        add("share", 0, self._back.tasks(chunk, function.shared))
        for entry in range(entries):
            add("back", entry, self._back.tasks(chunk, function.inputs))
            add("apply", entry, [None])
            add("forth", entry, self._forth.tasks(chunk, function.outputs))
        self.make_pipelines(steps)

    def staged_transforms(self) -> tuple[StagedTransform, ...]:
        return self._back, self._forth

    def describe(self) -> str:
        """Return the settings and the memory that they take, as text."""
        self.check_in_use()
        own = sum(field.nbytes for fields in (self._given, self._shared, self._results) for field in fields)
        work = self._back.nbytes + self._forth.nbytes
        return (
            f"{super().describe()}, {own / 2**20:.1f} MiB of fields in real space, "
            f"{work / 2**20:.1f} MiB of work memory"
        )

    def scratch(self) -> list[int]:
        return max(self._back, self._forth, key=lambda staged: staged.scratch_nbytes).scratch

    def prepare(self, inputs: list[np.ndarray], outputs: list[np.ndarray]) -> tuple[Schedule, array[int]]:
        schedule, addresses = super().prepare(inputs, outputs)
        addresses.extend([0] * len(outputs))  # addresses of the arrays that the function returns
        return schedule, addresses

    def steps(self, inputs: Sequence[ArrayReference], outputs: Sequence[ArrayReference]) -> Iterator[Iterable[Any]]:
        own, batch = self._function.inputs, len(outputs[0].array)
        sides, results = natural_parts(inputs, self.inputs), natural_parts(outputs, self.outputs)
        function_inputs, shared = (
            self._located([ArrayReference(array) for array in arrays]) for arrays in (self._given, self._shared)
        )
        first_made = len(inputs) + len(outputs)
        function_outputs = self._located(
            [ArrayReference(self._given[0], stand_in(first_made + number)) for number in range(len(outputs))]
        )
        entries = [slice(number, number + 1) for number in range(batch)]

        def of_entry(fields: Sequence[ArrayReference], entry: slice) -> list[ArrayReference]:
            return [field.part(field.array[entry]) for field in fields]

        on_the_way = {
            "share": [self._back.arrays(sides[own:], shared)],
            "back": [self._back.arrays(of_entry(sides[:own], entry), function_inputs) for entry in entries],
            "forth": [self._forth.arrays(function_outputs, of_entry(results, entry)) for entry in entries],
        }
        for number, step in enumerate(self._parts):
            yield self._steps(step, self._slot_of(number), on_the_way)

    def _located(self, fields: Sequence[ArrayReference]) -> list[ArrayReference]:
        """Return fields in real space with the order of axes of the transforms."""
        return natural_parts(fields, [self._real] * len(fields))

    def _steps(self, step: Step, slot: Buffers, arrays: dict[str, Any]) -> Iterator[Any]:
        stage, entry, first, task = step.stage, step.entry, step.first, step.task
        if task is None:
            yield wait_for_slices(first)
            yield Call(partial(self._apply, entry), "apply")
            yield take_turn()
        elif stage == "forth":
            yield from self._forth.steps(
                task, slot, arrays[stage][entry], self._comms, self._scale_forward, first, start=first
            )
        else:
            start = first if stage == "back" and entry == 0 else 0
            yield from self._back.steps(
                task, slot, arrays[stage][entry], self._comms, self._scale_backward, first, start=start
            )

    def _apply(self, entry: int, addresses: array[int]) -> None:
        """Call the user's function for one entry; its results are transformed back from the arrays that it returns."""
        fields, shared = [field[0] for field in self._given], [field[0] for field in self._shared]
        if self.planning:  # the user's function might fail for zeros, or count its calls
            results: Sequence[np.ndarray] = [fields[0] * fields[-1]] * len(self.outputs)
        else:
            results = self._function(fields, shared, [result[0] for result in self._results], self._batch, entry)
        # Converted to the type that compiled code reads; complex numbers are rejected if real ones are expected.
        kind = self._given[0].dtype
        self._made = [np.asarray(result).astype(kind, casting="same_kind", copy=False) for result in results]
        for place, result in enumerate(self._made):
            if not fits(result):
                self._made[place] = empty(result.shape, kind)
                self._made[place][...] = result
        addresses[-len(self._made) :] = addresses_of(self._made)
