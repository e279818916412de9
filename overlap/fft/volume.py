"""Transforms of whole fields: passages run as pipelines.

The slices of the pipeline are the tasks of a passage, see there. The same program without the sweeps
is the skeleton and measures T, without the exchanges it measures C.
"""

from dataclasses import dataclass

import numpy as np

from ..arrays import mpi_type
from ..runtime import parallel, take_turn, wait_for_slices
from .engine.fftw import REQUIRED_ALIGNMENT, zeros
from .planning.candidates import FieldCandidates
from .transform import Transform

TRIAL_FIELDS = 3


@dataclass(frozen=True)
class FieldBuffers:
    """One slot's buffers: the remote pieces of a message, and what is received of one."""

    send: np.ndarray
    receive: np.ndarray
    type: object  # MPI's, of the elements


class Fields(Transform):
    """Base of the transforms of fields: how a passage's task runs.

    Parameters
    ----------
    runtime : Runtime
    comms : sequence of AsyncComm
        One per dimension of the grid.
    units : int
        Units of one field, on all legs.
    fields : int
        How many of them come one after the other.

    Attributes
    ----------
    units : int
    can_be_late : bool
        Whether `Settings.late` means anything.
    """

    can_be_late = False
    candidates = FieldCandidates

    def __init__(self, runtime, comms, units, fields):
        super().__init__(runtime, units * fields)
        self.units = units
        self._fields = fields
        self._comms = comms

    def trial_fields(self):
        """Fields of a measured planning run: enough to see how they follow each other."""
        return min(self._fields, TRIAL_FIELDS)

    def trial_arrays(self, fields):
        """Inputs (zero) and outputs of some fields, as for `run_planes`."""
        def batch(side):
            count = fields if side.slices == self._fields else side.slices
            return zeros((count, *side.shape[-side.dimensions:]), side.dtype)
        return [batch(side) for side in self.inputs], [batch(side) for side in self.outputs]

    def kernels_of(self, settings):
        """Nothing: the passages hold their sweeps, which are those of all settings."""
        return None

    def pinned(self, settings):
        """The settings as they are: nothing of them is found by timing later."""
        return settings

    def passages(self):
        """The passages that its tasks are of."""
        raise NotImplementedError

    def nbytes_per_slice(self):
        """Bytes this rank sends per unit, on average."""
        counts = sum(sum(message.counts_sent) for passage in self.passages()
                     for message in passage.messages(1))
        units = sum(passage.units for passage in self.passages())
        return -(-counts * self.exchange_dtype.itemsize // max(1, units))

    def message_nbytes(self, chunk):
        """Bytes of the largest piece that leaves this rank."""
        return max(max(message.counts_sent) for passage in self.passages()
                   for message in passage.messages(chunk)) * self.exchange_dtype.itemsize

    def slot_nbytes(self, chunk):
        """Bytes of one slot's buffers, at least 1."""
        return max(1, sum(self._buffer_lengths(chunk)) * self.exchange_dtype.itemsize)

    def _buffer_lengths(self, chunk):
        return [max(lengths) for lengths in zip(
            *(passage.buffer_lengths(chunk) for passage in self.passages()))]

    def run_planes(self, inputs, outputs, what="whole"):
        """Run on lists of batches of fields that are known to fit (collective)."""
        targets = [out if not side.natural or _fits(out) else zeros(out.shape, out.dtype)
                   for out, side in zip(outputs, self.outputs)]
        self._pipelines[what](self._parts, *self.prepare(inputs, targets))
        for out, target in zip(outputs, targets):
            if target is not out:
                out[...] = target

    def make_pipelines(self, tasks):
        """The pipelines of some tasks, and slots for any of their messages."""
        depth = max(1, min(self.settings.depth, len(tasks)))
        kind = mpi_type(self.exchange_dtype)
        self._make_pipelines(tasks, [
            FieldBuffers(*buffers, kind)
            for buffers in self._allocate(depth, self._buffer_lengths(self.settings.chunk))])

    async def travel(self, passage, task, slot, compute, comm, sources, targets, scale, first=0,
                     start=0):
        """Run one task of a passage.

        Parameters
        ----------
        first : int
            The slice that is the passage's first task.
        start : int
            The passage starts when so many slices have ended; `sources` may be filled until then.
        """
        if compute:
            await (wait_for_slices(first + task.gate, first + task.begin) if task.gate
                   else wait_for_slices(start))
        flight = passage.flight(task, slot, sources, targets)
        if compute:
            flight.load(scale if task.leg == 0 else 1.0)
        if comm is not None:
            dimension = flight.dimension
            await (take_turn() if dimension is None else flight.exchanged(self._comms[dimension]))
        if compute:
            await wait_for_slices(first + task.hold if task.hold else 0)
            flight.store()
            if task.completes:
                await wait_for_slices(first + task.number)
                await parallel(lambda run: run(), passage.rest(task.field, targets))


class Volume(Fields):
    """A transform of fields along one passage."""

    def __init__(self, runtime, comms, passage, source, target, scale):
        super().__init__(runtime, comms, passage.units, passage.fields)
        self.inputs, self.outputs = (source,), (target,)
        self.exchange_dtype = passage.dtype
        self.can_be_late = passage.can_be_late
        self._passage = passage
        self.scale = scale

    def release(self):
        super().release()
        self._passage = None

    def configure(self, settings, fields=None):
        """Allocate slots and make the pipelines for `settings`; by default for all fields."""
        self.settings = settings
        self.make_pipelines(self._passage.tasks(settings.chunk, fields, settings.late))

    def passages(self):
        return (self._passage,)

    def describe(self):
        """What was chosen and what it costs, as text."""
        return (f"{super().describe()}, {self._passage.nbytes / 2**20:.1f} MiB of work memory; "
                f"{self._passage.describe()}")

    def prepare(self, inputs, outputs):
        split = self._passage.split
        return (split(natural_view(inputs[0], self.inputs[0])),
                split(natural_view(outputs[0], self.outputs[0])))

    async def run(self, task, slot, compute, comm, sources, targets):
        await self.travel(self._passage, task, slot, compute, comm, sources, targets, self.scale)


def natural_view(array, side):
    """A batch of fields with its axes in natural order, (batch, z, y, x)."""
    return array if side.natural else np.moveaxis(array, -1, -3)


def _fits(array):
    """Whether plans for contiguous, aligned arrays can work on this one."""
    return array.flags.c_contiguous and array.ctypes.data % REQUIRED_ALIGNMENT == 0
