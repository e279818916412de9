"""`Pointwise`: planes of the spectrum to real space, a function of them, and back, as one pipeline.

What a slice does is in its kernels: those of `FFT2.pointwise` in `engine.plane_blocks`, those of `Bracket` in
`engine.plane_brackets`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain

import numpy as np

from ..runtime import AsyncComm
from .array_spec import ArraySpec
from .engine.buffers import ArrayReference
from .engine.plane_composition import PlaneComposition, SlotBuffers
from .engine.steps import AnyStep, staggered
from .field_transform import BatchTransform
from .planning.settings import Settings
from .transform import Steps, Transform, natural_parts, targets_fit


class Pointwise(Transform):
    """A function of real-space planes, made to act on spectral ones; see `FFT2.pointwise` and `Bracket`.

    Parameters
    ----------
    comm : AsyncComm
    make : callable
        ``make(effort)`` makes the kernels with an effort of FFTW's planning.
    effort : str or None
        The requested effort of FFTW's planning.
    inputs, outputs : tuple of ArraySpec
        The arrays of the spectrum; shared inputs are last.
    share : BatchTransform, optional
        The transform of the shared inputs to real space.
    """

    _held = (*Transform._held, "_make")

    def __init__(
        self,
        comm: AsyncComm,
        make: Callable[[str | None], PlaneComposition],
        effort: str | None,
        inputs: tuple[ArraySpec, ...],
        outputs: tuple[ArraySpec, ...],
        share: BatchTransform | None = None,
    ) -> None:
        super().__init__(comm.runtime, outputs[0].slices)
        self.inputs, self.outputs = inputs, outputs
        self._comm, self._make, self._share = comm, make, share
        self._kernels = make(effort)
        self.exchange_dtype = self._kernels.back.wire.dtype

    def release(self) -> None:
        super().release()
        if self._share is not None:
            self._share.release()

    def kernels_of(self, settings: Settings) -> PlaneComposition:
        return self._make(settings.effort)

    def configure(self, settings: Settings, count: int | None = None) -> None:
        super().configure(settings, count)
        if self._share is not None:
            self._share.configure(settings)
            self.nbytes_in_flight += self._share.nbytes_in_flight

    def nbytes_per_slice(self) -> int:
        return sum(message.nbytes_sent for message in self._kernels.messages(1))

    def make_slots(self, depth: int, sizes: set[int]) -> list[SlotBuffers]:
        lengths = SlotBuffers.lengths(self._kernels.messages(max(sizes)))
        return [SlotBuffers(buffers, self._kernels.kept) for buffers in self._allocate(depth, lengths)]

    def before(self, inputs: list[np.ndarray]) -> None:
        if self._share is not None:
            shared = inputs[self._kernels.counts[0] :]
            self._share.run_planes([np.stack([planes[0] for planes in shared])], [self._kernels.kept])

    def can_bind(self, outputs: list[np.ndarray]) -> bool:
        return self._share is None and targets_fit(outputs, self.outputs)

    def is_compiled(self, outputs: list[np.ndarray]) -> bool:
        # Compiled code raises nothing, such as the error of a number that is too large for the wire format.
        return not self._kernels.calls and not self._kernels.back.wire.rounds and self.can_bind(outputs)

    def scratch(self) -> list[int]:
        return self._kernels.scratch

    def own_workspace(self) -> tuple[Steps, list[int]]:
        kernels = self._kernels.with_own_scratch()
        slot = SlotBuffers.alone(kernels.messages(self.settings.chunk or 1), kernels.kept)
        return partial(self._steps, kernels, lambda number: slot), kernels.scratch

    def steps(self, inputs: Sequence[ArrayReference], outputs: Sequence[ArrayReference]) -> Iterable[Iterable[AnyStep]]:
        return self._steps(self._kernels, self._slot_of, inputs, outputs)

    def _steps(
        self,
        kernels: PlaneComposition,
        slot_of: Callable[[int], SlotBuffers],
        inputs: Sequence[ArrayReference],
        outputs: Sequence[ArrayReference],
    ) -> Iterator[Iterable[AnyStep]]:
        """Yield the steps of every slice of the pipeline, with some kernels and slots."""
        fields, results = natural_parts(inputs, self.inputs), natural_parts(outputs, self.outputs)
        for number, task in enumerate(self._parts):
            late = staggered(number, len(self._slots)) if kernels.exchanges else ()
            steps = kernels.steps(
                task.part, slot_of(number), fields[: kernels.counts[0]], results, self._comm, self.planning
            )
            yield chain(late, steps)
