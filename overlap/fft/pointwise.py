"""`Pointwise`: arrays of the spectrum to real space, a function of them, and back, as one pipeline.

What a slice does is in its kernels: `engine.plane_blocks` for `FFT2.pointwise`, `engine.plane_brackets` for `Bracket`,
and `FieldComposition` where the function acts on whole fields. There every entry of the batch has the tasks of its
inputs' transform, one slice for the function, and the tasks of its outputs' transform. The function waits for all
earlier slices, and the transform back waits for the function. The next entry's inputs wait for neither until they store
(see `engine.tasks`: the work of a slice after its operation follows everything that earlier slices do before theirs).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ..runtime import AsyncComm, Runtime, take_turn, wait_for_slices
from .array_spec import ArraySpec
from .call import fits, natural_parts
from .engine.fftw import empty
from .engine.message import Message
from .engine.plane_composition import PlaneComposition
from .engine.program import ArrayReference, Buffers
from .engine.schedule import addresses_of, stand_in
from .engine.staged import StagedTransform
from .engine.steps import AnyStep, Call
from .engine.tasks import Task
from .function import Function
from .planning.settings import Settings
from .transform import FieldTransform, Transform


@dataclass(frozen=True)
class Step:
    """A slice of the pipeline."""

    stage: str  # "share", "back", "apply" or "forth"
    entry: int  # its index in the batch
    first: int  # the slice with which the stage begins
    task: Task | None

    def __str__(self) -> str:
        return f"{self.stage}, entry {self.entry}" + (f", {self.task}" if self.task else "")


class FieldComposition:
    """The staged transforms around a function of real-space fields, and the steps of both."""

    calls, by_index, staggers = True, False, False  # as in `PlaneComposition`

    def __init__(
        self,
        back: StagedTransform,  # of all inputs to real space
        forth: StagedTransform,  # of all outputs back
        scales: tuple[float, float],  # factors of both
        function: Function,
        batch: tuple[int, ...],  # shape of the batch
        real: ArraySpec,  # the arrays of fields in real space
        # Such arrays with one entry: inputs of the function, shared inputs, and the results that it fills.
        fields: Sequence[list[np.ndarray]],
    ) -> None:
        self._back, self._forth, self._scales = back, forth, scales
        self._function, self._batch, self._real, self._fields = function, batch, real, fields
        self.units = back.units * (function.inputs + function.shared) + forth.units * function.outputs
        self.wire, self.returned = back.wire, function.outputs
        self._made: list[np.ndarray] = []  # results of the function for the current entry

    def tasks(self, chunk: int, entries: int, late: float = 0.0) -> list[Step]:
        """Return the slices of a pipeline for some entries of the batch; none is late."""
        function, steps = self._function, list[Step]()

        def add(stage: str, entry: int, tasks: Sequence[Task | None]) -> None:
            first = len(steps)
            steps.extend(Step(stage, entry, first, task) for task in tasks)

        add("share", 0, self._back.tasks(chunk, function.shared))
        for entry in range(entries):
            add("back", entry, self._back.tasks(chunk, function.inputs))
            add("apply", entry, [None])
            add("forth", entry, self._forth.tasks(chunk, function.outputs))
        return steps

    def messages(self, chunk: int) -> list[Message]:
        """Return the messages of one field in both directions, one of each kind."""
        return self._back.messages(chunk) + self._forth.messages(chunk)

    def buffer_lengths(self, chunk: int) -> list[int]:
        """Return the lengths of a slot's buffers for the last `tasks`."""
        return [max(lengths) for lengths in zip(*(side.buffer_lengths(chunk) for side in (self._back, self._forth)))]

    def slot(self, send: np.ndarray, receive: np.ndarray) -> Buffers:
        """Return the buffers of a slot."""
        return Buffers(send, receive)

    @property
    def scratch(self) -> list[int]:
        """Return the addresses of every worker's scratch memory."""
        return max(self._back, self._forth, key=lambda staged: staged.scratch_nbytes).scratch

    def describe(self) -> str:
        """Return the memory besides that of slots, to be added to other text."""
        own = sum(field.nbytes for fields in self._fields for field in fields)
        work = self._back.nbytes + self._forth.nbytes
        return f", {own / 2**20:.1f} MiB of fields in real space, {work / 2**20:.1f} MiB of work memory"

    def arrays(self, inputs: Sequence[ArrayReference], outputs: Sequence[ArrayReference]) -> dict[str, list[Any]]:
        """Return the arrays of every entry in the transforms before and after the function, as `steps` expects them."""
        own, first_made = self._function.inputs, len(inputs) + len(outputs)
        given, shared = ([ArrayReference(field) for field in fields] for fields in self._fields[:2])
        made = [ArrayReference(given[0].array, stand_in(first_made + number)) for number in range(len(outputs))]
        given, shared, made = (natural_parts(fields, [self._real] * len(fields)) for fields in (given, shared, made))
        entries = [slice(number, number + 1) for number in range(len(outputs[0].array))]
        return {
            "share": [self._back.arrays(inputs[own:], shared)],
            "back": [self._back.arrays([field.at(entry) for field in inputs[:own]], given) for entry in entries],
            "forth": [self._forth.arrays(made, [field.at(entry) for field in outputs]) for entry in entries],
        }

    def steps(
        self, step: Step, slot: Buffers, arrays: dict[str, list[Any]], comms: Sequence[AsyncComm] | None, planning: bool
    ) -> Iterator[AnyStep]:
        """Yield the steps of a slice; if `planning`, the user's function is not called."""
        stage, entry, first = step.stage, step.entry, step.first
        if step.task is None:
            yield wait_for_slices(first)
            yield Call(partial(self._apply, entry, planning), "apply")
            yield take_turn()
            return
        staged, scale = (self._forth, self._scales[1]) if stage == "forth" else (self._back, self._scales[0])
        start = first if stage == "forth" or (stage == "back" and entry == 0) else 0
        yield from staged.steps(step.task, slot, arrays[stage][entry], comms, scale, first, start=start)

    def _apply(self, entry: int, planning: bool, addresses: array[int]) -> None:
        """Call the user's function for one entry; its results are transformed back from the arrays that it returns."""
        given, shared, results = ([field[0] for field in some] for some in self._fields)
        if planning:  # the user's function might fail for zeros, or count its calls
            returned: Sequence[np.ndarray] = [given[0] * given[-1]] * self.returned
        else:
            returned = self._function(given, shared, results, self._batch, entry)
        # Converted to the type that compiled code reads; complex numbers are rejected if real ones are expected.
        kind = given[0].dtype
        self._made = [np.asarray(result).astype(kind, casting="same_kind", copy=False) for result in returned]
        for place, result in enumerate(self._made):
            if not fits(result):
                self._made[place] = empty(result.shape, kind)
                self._made[place][...] = result
        addresses[-len(self._made) :] = addresses_of(self._made)


class Pointwise(Transform):
    """A function of arrays in real space, made to act on spectral ones.

    See `FFT2.pointwise`, `FFT3.pointwise` and `Bracket`.

    Parameters
    ----------
    runtime : Runtime
    comms : sequence of AsyncComm
    make : callable
        ``make(effort)`` makes the kernels with an effort of FFTW's planning.
    effort : str or None
        The requested effort of FFTW's planning.
    inputs, outputs : tuple of ArraySpec
        The arrays of the spectrum; shared inputs are last.
    share : FieldTransform, optional
        The transform of the shared inputs to the kept fields of a `PlaneComposition`.

    Examples
    --------
    >>> with overlap.FFT2(comm, (2, 16, 16), dtype="f8", norm="forward") as plan:
    ...     square = plan.pointwise(lambda a: a * a, dealias="3/2")
    ...     u = plan.forward(plan.real.from_function(lambda y, x: np.sin(x)))
    ...     v = plan.backward(square(u))
    >>> bool(np.allclose(v, np.sin(2 * np.pi * np.arange(16) / 16) ** 2))
    True
    """

    def __init__(
        self,
        runtime: Runtime,
        comms: Sequence[AsyncComm],
        make: Callable[[str | None], PlaneComposition | FieldComposition],
        effort: str | None,
        inputs: tuple[ArraySpec, ...],
        outputs: tuple[ArraySpec, ...],
        share: FieldTransform | None = None,
    ) -> None:
        super().__init__(runtime, comms, make(effort), make, inputs, outputs, outputs[0].slices)
        self._share, self.shares = share, share is not None

    def release(self) -> None:
        super().release()
        if self._share is not None:
            self._share.release()

    def configure(self, settings: Settings, count: int | None = None) -> None:
        super().configure(settings, count)
        if self._share is not None:
            self._share.configure(settings)
            made = self.configuration
            made.share = self._share.configuration
            made.nbytes_in_flight += self._share.nbytes_in_flight

    def before(self, inputs: list[np.ndarray]) -> None:
        if self._share is not None:
            assert self.configuration.share is not None
            self._share.configuration = self.configuration.share
            shared = inputs[self._kernels.counts[0] :]
            self._share.run_planes([np.stack([planes[0] for planes in shared])], [self._kernels.kept])
