"""`Pointwise`: spectral fields to real space, the user's function, and back, as one pipeline."""

from ..arrays import Exchange, length_of
from ..runtime import worker_index
from .array_spec import ArraySpec
from .engine.fftw import empty, zeros
from .engine.legs import BackwardLeg, ForwardLeg
from .plane_transforms import Backward, PlaneTransform, SlotBuffers


class Pointwise(PlaneTransform):
    """A function of real-space fields, made to act on spectral ones; see `FFT2.pointwise`."""

    def __init__(self, runtime, slab, kernels, spectrum, shared_spectrum, dtype, function,
                 scale_backward, scale_forward):
        super().__init__(runtime, slab, kernels, spectrum.slices)
        inputs, outputs, shared = function.inputs, function.outputs, function.shared
        self.inputs = (spectrum,) * inputs + (shared_spectrum,) * shared
        self.outputs = (spectrum,) * outputs
        self.exchange_dtype = spectrum.dtype
        self._own = inputs
        self._function = function
        self._batch = spectrum.global_shape[:-2]
        self._scale_backward = scale_backward
        self._scale_forward = scale_forward
        plane = length_of(slab.rows[slab.rank]), slab.mx
        # Each worker's real-space planes of the slice it works on.
        self._fields = [[empty(plane, dtype) for _ in range(inputs)]
                        for _ in range(runtime.workers)]
        self._results = [[empty(plane, dtype) for _ in range(outputs if function.takes_out else 0)]
                         for _ in range(runtime.workers)]
        self._shared = [zeros(plane, dtype) for _ in range(shared)]
        self._share = None
        if shared:
            real = ArraySpec(spectrum.comm, (shared,), (slab.my, slab.mx), {-2: slab.rows[slab.rank]},
                        dtype)
            self._share = Backward(runtime, slab, kernels, shared_spectrum, real, scale_backward)

    def release(self):
        super().release()
        self._fields = self._results = self._shared = None
        if self._share is not None:
            self._share.release()

    def configure(self, settings, slices=None):
        super().configure(settings, slices)
        if self._shared:
            self._share.configure(settings)
            self.nbytes_in_flight += self._share.nbytes_in_flight

    def exchanges(self, slices):
        return tuple(Exchange(self.slab, slices * fields, self.exchange_dtype)
                     for fields in (self._own, len(self.outputs)))

    def buffer_lengths(self, back, forth):
        # What is sent first is free again when the results are received: one buffer for both.
        return (max(back.by_rows.size, forth.by_rows.size), back.by_columns.size,
                forth.by_columns.size)

    def make_slot(self, exchanges, rows, fields, results):
        slot, rank = SlotBuffers(), self.slab.rank
        slot.back = {size: BackwardLeg(back, rows, fields, rank)
                     for size, (back, _) in exchanges.items()}
        slot.forth = {size: ForwardLeg(forth, results, rows, rank)
                      for size, (_, forth) in exchanges.items()}
        slot.direct = None
        if 1 in exchanges and len(self.outputs) == 1:
            slot.direct = ForwardLeg(exchanges[1][1], results, None, rank)
        return slot

    def prepare(self, inputs, outputs):
        if self._shared:
            fields = [planes[0] for planes in inputs[self._own:]]
            self._share.run_planes([fields], [self._shared])
        columns = self._kernels[0].columns_forward
        in_place = all([columns.in_place(planes) for planes in outputs])
        return inputs[:self._own], outputs, in_place

    async def run(self, part, slot, compute, comm, inputs, outputs, in_place):
        count = length_of(part)
        slices = range(part.start, part.stop)
        back, forth = slot.back[count], slot.forth[count]
        if count == 1 and slot.direct is not None and in_place and self.outputs[0].natural:
            forth = slot.direct
            forth.aim(outputs[0][part.start], self.slab.rows[self.slab.rank])
        if compute:
            kernels = self.kernels
            for plane, (z, field) in enumerate((z, field) for z in slices for field in inputs):
                back.load(kernels, plane, field[z])
        if comm is not None:
            await back.exchanged(comm)
        if compute:
            kernels, fields = self.kernels, self._fields[worker_index()]
            for j, z in enumerate(slices):
                for i, field in enumerate(fields):
                    back.store(kernels, j * len(fields) + i, field, self._scale_backward)
                for i, result in enumerate(self._apply(fields, z)):
                    forth.load(kernels, j * len(outputs) + i, result, self._scale_forward)
        if comm is not None:
            await forth.exchanged(comm)
        if compute:
            kernels = self.kernels
            for plane, (z, result) in enumerate((z, result) for z in slices for result in outputs):
                forth.store(kernels, plane, result[z], in_place)

    def _apply(self, fields, z):
        """Call the user's function for slice `z`; returns its result planes."""
        if self.planning:  # the function may not bear zeros, or may count its calls
            return [fields[0] * fields[-1]] * len(self.outputs)
        results = self._results[worker_index()]
        return self._function(fields, self._shared, results, self._batch, z)
