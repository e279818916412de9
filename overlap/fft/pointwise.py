"""`Pointwise`: spectral planes to real space, the user's function, and back, as one pipeline.

Between its two exchanges a slice is processed block by block (see `engine.plane_blocks`): a block stays in the cache
from the last FFTs to real space to the first FFTs back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..arrays import length_of
from ..runtime import AsyncComm
from .array_spec import ArraySpec
from .engine.buffers import ArrayReference, Buffers
from .engine.compiled_function import compiled as compiled_function
from .engine.fftw import zeros
from .engine.message import Message
from .engine.plane_blocks import PlaneBlocks
from .engine.program import ASIDE, SOURCE, View
from .engine.steps import Call, Exchange, checked, staggered
from .field_transform import BatchTransform
from .function import Function
from .planning.settings import Settings
from .transform import Transform, natural_parts, targets_fit


class SlotBuffers:
    """The buffers of a slot; the memory from which inputs are sent is reused to receive results."""

    def __init__(self, shared: np.ndarray, rows: np.ndarray, fields: np.ndarray, results: np.ndarray) -> None:
        self.back, self.forth = Buffers(rows, fields), Buffers(results, rows)
        self.middle = Buffers(results, fields)
        self.middle.bases[ASIDE] = ArrayReference(rows).address
        self.middle.bases[SOURCE] = ArrayReference(shared).address


class Pointwise(Transform):
    """A function of real-space planes, made to act on spectral ones; see `FFT2.pointwise`.

    Parameters
    ----------
    comm : AsyncComm
    function : Function
    make : callable
        ``make(effort)`` makes the `PlaneBlocks` with an effort of FFTW's planning.
    effort : str or None
        The requested effort of FFTW's planning.
    spectra : (ArraySpec, ArraySpec)
        The arrays of an input or output, and those of a shared field.
    share : BatchTransform or None
        The transform of the shared fields to real space.
    """

    _held = (*Transform._held, "_shared", "_seen", "_make")

    def __init__(
        self,
        comm: AsyncComm,
        function: Function,
        make: Callable[[str | None], PlaneBlocks],
        effort: str | None,
        spectra: tuple[ArraySpec, ArraySpec],
        share: BatchTransform | None,
    ) -> None:
        spectrum, shared = spectra
        super().__init__(comm.runtime, spectrum.slices)
        self.inputs = (spectrum,) * function.inputs + (shared,) * function.shared
        self.outputs = (spectrum,) * function.outputs
        self._comm, self._function, self._make, self._share = comm, function, make, share
        self._kernels = make(effort)
        self.exchange_dtype = self._kernels.back.wire.dtype
        self._batch = spectrum.global_shape[:-2]
        rows, nx = self._kernels.back.target_shape[1:]
        dtype = self._kernels.back.target_dtype
        self._shared = zeros((0, rows, nx), dtype) if share is None else np.asarray(share.outputs[0].empty())
        self._seen = self._shared.view()  # passed to the user's function
        self._seen.flags.writeable = False
        self._shared_view = View.of(SOURCE, self._shared)
        self._compiled = compiled_function(function, self._kernels.places(function.shared, self._shared.strides[0]))

    def release(self) -> None:
        super().release()
        if self._share is not None:
            self._share.release()

    def kernels_of(self, settings: Settings) -> PlaneBlocks:
        return self._make(settings.effort)

    def configure(self, settings: Settings, count: int | None = None) -> None:
        super().configure(settings, count)
        if self._share is not None:
            self._share.configure(settings)
            self.nbytes_in_flight += self._share.nbytes_in_flight

    def nbytes_per_slice(self) -> int:
        return sum(sum(message.counts_sent) for message in self._kernels.messages(1)) * self.exchange_dtype.itemsize

    def make_slots(self, depth: int, sizes: set[int]) -> list[SlotBuffers]:
        back, forth = self._kernels.messages(max(sizes))
        lengths = (max(back.send_size, forth.receive_size), back.receive_size, forth.send_size)
        return [SlotBuffers(self._shared, *buffers) for buffers in self._allocate(depth, lengths)]

    def before(self, inputs: list[np.ndarray]) -> None:
        if self._share is not None:
            shared = inputs[self._function.inputs :]
            self._share.run_planes([np.stack([planes[0] for planes in shared])], [self._shared])

    def can_bind(self, outputs: list[np.ndarray]) -> bool:
        return self._share is None and targets_fit(outputs, self.outputs)

    def scratch(self) -> list[int]:
        return self._kernels.scratch

    def steps(self, inputs: Sequence[ArrayReference], outputs: Sequence[ArrayReference]) -> Iterator[Iterable[Any]]:
        fields, results = natural_parts(inputs, self.inputs), natural_parts(outputs, self.outputs)
        for number, task in enumerate(self._parts):
            yield self._steps(number, task.part, fields[: self._function.inputs], results)

    def _steps(
        self, number: int, part: slice, inputs: Sequence[ArrayReference], outputs: Sequence[ArrayReference]
    ) -> Iterator[Any]:
        kernels, slot = self._kernels, self._slot_of(number)
        back, forth = kernels.messages(length_of(part))
        if kernels.back.dimension is not None:
            yield from staggered(number, len(self._slots))
        for which, field in enumerate(inputs):
            yield kernels.pack(slot, part, which, field)
        yield from checked(kernels.back.wire)
        if kernels.back.dimension is not None:
            yield self._exchange(back, slot.back)
        yield from self._apply(slot, part)
        yield from checked(kernels.forth.wire)
        if kernels.forth.dimension is not None:
            yield self._exchange(forth, slot.forth)
        for which, result in enumerate(outputs):
            yield kernels.unpack(slot, part, which, result)

    def _exchange(self, message: Message, buffers: Buffers) -> Exchange:
        return Exchange(
            self._comm,
            message,
            ArrayReference(buffers.send),
            ArrayReference(buffers.receive),
        )

    def _apply(self, slot: SlotBuffers, part: slice) -> Iterator[Any]:
        """Apply the user's function to all blocks of some slices."""
        kernels, count = self._kernels, length_of(part)
        compiled = self._compiled
        if compiled is not None and not self.planning:
            yield kernels.apply(slot, count, compiled.address, self._shared_view)
            yield Call(lambda addresses: compiled.check(), "check what was compiled")
            return
        for first in range(0, count, kernels.together):
            planes = slice(first, min(first + kernels.together, count))
            for block, rows in enumerate(kernels.rows):
                yield kernels.to_real(slot, count, planes, block)
                yield Call(partial(self._call_function, planes, rows, part.start + first), "apply")
                yield kernels.to_modes(slot, count, planes, block)

    def _call_function(self, planes: slice, rows: slice, first: int, addresses: Any) -> None:
        """Call the user's function for a block of some slices."""
        fields, results = self._kernels.arrays(rows, length_of(planes))
        if self.planning:  # the user's function might fail for zeros, or count its calls
            for result in results:
                np.multiply(fields[0], fields[-1], out=result)
        else:
            self._function.fill(results, fields, list(self._seen[:, rows]), self._batch, first, rows)
