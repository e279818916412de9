"""Transforms of batches of planes on slabs: `Forward`, `Backward`, and the base of `Pointwise`."""

from __future__ import annotations

from ..arrays import Exchange, length_of
from ..runtime import worker_index
from .engine.legs import BackwardLeg, ForwardLeg
from .transform import Transform


class SlotBuffers:
    """One slot's legs, by the number of planes; they are views of its buffers."""


class PlaneTransform(Transform):
    """Base of the transforms of planes: their exchanges and their kernels.

    Parameters
    ----------
    runtime : Runtime
    slab : Slab
    kernels : callable
        ``kernels(effort, rows)`` makes `WorkersKernels`, or finds those in use.
    slices : int
    """

    def __init__(self, runtime, slab, kernels, slices):
        super().__init__(runtime, slices)
        self.slab = slab
        self._make_kernels = kernels

    # ---- what a transform of planes supplies ---------------------------------------------------

    def exchanges(self, slices):
        """The exchanges of a chunk of so many slices, in their order."""
        raise NotImplementedError

    def buffer_lengths(self, *exchanges):
        """Elements of each of a slot's buffers for these exchanges."""
        raise NotImplementedError

    def make_slot(self, exchanges, *buffers):
        """A `SlotBuffers` for the exchanges, a dict by number of slices."""
        raise NotImplementedError

    # --------------------------------------------------------------------------------------------

    def make_slots(self, depth, sizes):
        exchanges = {size: self.exchanges(size) for size in sizes}
        lengths = self.buffer_lengths(*exchanges[max(sizes)])
        return [self.make_slot(exchanges, *buffers) for buffers in self._allocate(depth, lengths)]

    def kernels_of(self, settings):
        return self._make_kernels(settings.effort, settings.rows)

    @property
    def kernels(self):
        """The sweeps of the worker that asks."""
        return self._kernels[worker_index()]

    def nbytes_per_slice(self):
        return sum(exchange.nbytes_sent for exchange in self.exchanges(1))

    def release(self):
        super().release()
        self._make_kernels = None


class Forward(PlaneTransform):
    """Real space to spectrum."""

    def __init__(self, runtime, slab, kernels, real, spectrum, scale):
        super().__init__(runtime, slab, kernels, real.slices)
        self.inputs, self.outputs = (real,), (spectrum,)
        self.exchange_dtype = spectrum.dtype
        self._scale = scale

    def exchanges(self, slices):
        return (Exchange(self.slab, slices, self.exchange_dtype),)

    def buffer_lengths(self, exchange):
        return exchange.by_columns.size, exchange.by_rows.size

    def make_slot(self, exchanges, send, receive):
        slot, rank = SlotBuffers(), self.slab.rank
        slot.legs = {size: ForwardLeg(exchange, send, receive, rank)
                     for size, (exchange,) in exchanges.items()}
        slot.direct = ForwardLeg(*exchanges[1], send, None, rank) if 1 in exchanges else None
        return slot

    def prepare(self, inputs, outputs):
        in_place = self._kernels[0].columns_forward.in_place(outputs[0])
        return inputs[0], outputs[0], in_place

    async def run(self, part, slot, compute, comm, real, spectrum, in_place):
        count = length_of(part)
        if count == 1 and in_place and self.outputs[0].natural:
            leg = slot.direct
            leg.aim(spectrum[part.start], self.slab.rows[self.slab.rank])
        else:
            leg = slot.legs[count]
        if compute:
            kernels = self.kernels
            for j in range(count):
                leg.load(kernels, j, real[part.start + j], self._scale)
        if comm is not None:
            await leg.exchanged(comm)
        if compute:
            kernels = self.kernels
            for j in range(count):
                leg.store(kernels, j, spectrum[part.start + j], in_place)


class Backward(PlaneTransform):
    """Spectrum to real space."""

    def __init__(self, runtime, slab, kernels, spectrum, real, scale):
        super().__init__(runtime, slab, kernels, real.slices)
        self.inputs, self.outputs = (spectrum,), (real,)
        self.exchange_dtype = spectrum.dtype
        self._scale = scale

    def exchanges(self, slices):
        return (Exchange(self.slab, slices, self.exchange_dtype),)

    def buffer_lengths(self, exchange):
        return exchange.by_rows.size, exchange.by_columns.size

    def make_slot(self, exchanges, send, receive):
        slot = SlotBuffers()
        slot.legs = {size: BackwardLeg(exchange, send, receive, self.slab.rank)
                     for size, (exchange,) in exchanges.items()}
        return slot

    def prepare(self, inputs, outputs):
        return inputs[0], outputs[0]

    async def run(self, part, slot, compute, comm, spectrum, real):
        count = length_of(part)
        leg = slot.legs[count]
        if compute:
            kernels = self.kernels
            for j in range(count):
                leg.load(kernels, j, spectrum[part.start + j])
        if comm is not None:
            await leg.exchanged(comm)
        if compute:
            kernels = self.kernels
            for j in range(count):
                leg.store(kernels, j, real[part.start + j], self._scale)
