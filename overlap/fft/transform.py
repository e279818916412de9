"""Transforms: slice programs of local sweeps and exchanges, run as pipelines.

A slice of the pipeline is a chunk of planes that travel in one message. Every transform is a program

    load each plane; await the exchange; store each plane

or, for `Pointwise`, two of these with the user's function in between. The same program without the
sweeps is its skeleton (what the other ranks wait for, if a sweep fails) and measures T; without the
exchange it measures C.
"""

from dataclasses import replace

import numpy as np

from ..arrays import Exchange, chunks, length_of
from ..errors import ClosedError
from ..runtime import worker_index
from .engine.fftw import ALIGNMENT, zeros
from .engine.kernels import ColumnSweep, RowSweep
from .engine.legs import BackwardLeg, ForwardLeg
from .planning.candidates import Candidates, PlaneCandidates
from .planning.settings import Settings
from .planning.tune import budget_problem, tune


class Kernels:
    """One worker's sweeps, both ways."""

    def __init__(self, slab, dtype, transposed, rows, effort):
        self.rows_forward = RowSweep(slab, dtype, True, rows, effort)
        self.rows_backward = RowSweep(slab, dtype, False, rows, effort)
        self.columns_forward = ColumnSweep(slab, dtype, True, transposed, effort)
        self.columns_backward = ColumnSweep(slab, dtype, False, transposed, effort)


class WorkersKernels(list):
    """One `Kernels` per worker.

    Attributes
    ----------
    rows : int
        Rows per block of the sweeps along x.
    """

    def __init__(self, kernels, rows):
        super().__init__(kernels)
        self.rows = rows


class Chunk:
    """Slices that travel in one message: ``range(start, stop)``."""

    def __init__(self, start, stop):
        self.start, self.stop = start, stop

    def __str__(self):
        last = self.stop - 1
        return f"{self.start}" if self.start == last else f"{self.start}-{last}"


class SlotBuffers:
    """One slot's legs, by the number of planes; they are views of its buffers."""


class Transform:
    """Base of `Forward`, `Backward` and `Pointwise`: arguments, settings, pipelines.

    Attributes
    ----------
    settings : Settings
    trials : tuple of Trial
        What planning or tuning measured, fastest first; empty where everything was given.
    tuned : Tuned or None
        What `tune` gained, in this run or in the one whose file was read.
    nbytes_in_flight : int
        Memory of all slots on this rank, in bytes.
    """

    candidates: type[Candidates] = PlaneCandidates  # what is worth a try

    def __init__(self, runtime, slab, kernels, slices):
        self.runtime = runtime
        self.slab = slab
        self.slices = slices
        self.name = type(self).__name__.lower()
        self.trials = ()
        self.tuned = None
        self.planning = False  # arrays hold no data of the user's
        self._make_kernels = kernels
        self._kernels = None  # of `settings`: `WorkersKernels`
        self._memory = None  # of all slots

    # `kernels(effort, rows)` makes `WorkersKernels`, or finds those in use.
    #
    # What a subclass supplies: the sides of its arrays (`inputs`, `outputs`), the dtype of what is
    # exchanged, the exchanges, its slots, its slice program, and what of the arguments this needs.

    def exchanges(self, slices):
        """The exchanges of a chunk of so many slices, in their order."""
        raise NotImplementedError

    def buffer_lengths(self, *exchanges):
        """Elements of each of a slot's buffers for these exchanges."""
        raise NotImplementedError

    def make_slot(self, exchanges, *buffers):
        """A `SlotBuffers` for the exchanges, a dict by number of slices."""
        raise NotImplementedError

    async def run(self, part, slot, compute, comm, *prepared):
        raise NotImplementedError

    def prepare(self, inputs, outputs):
        return inputs, outputs

    def configure(self, settings, slices=None):
        """Allocate slots and make the pipelines for `settings`."""
        self.settings = settings
        self._kernels = self.kernels_of(settings)
        parts = [Chunk(part.start, part.stop) for part in chunks(
            self.slices if slices is None else slices, settings.chunk)]
        sizes = {length_of(part) for part in parts} or {1}
        depth = max(1, min(settings.depth, len(parts)))
        self._make_pipelines(parts, self._make_slots(depth, sizes))

    def _make_pipelines(self, parts, slots):
        """The pipelines of the slice program over `parts`, on some slots."""
        self._parts = parts
        settings, comm, depth = self.settings, self.runtime.comm, len(slots)

        def pipeline(compute, comm, wait):
            async def program(part, slot, *prepared):
                await self.run(part, slot, compute, comm, *prepared)

            async def skeleton(part, slot, *prepared):
                await self.run(part, slot, False, comm, *prepared)

            program.__qualname__ = type(self).__name__
            return self.runtime.pipelined(
                program, skeleton=skeleton, buffers=iter(slots).__next__, depth=depth, wait=wait,
                in_flight=min(settings.in_flight, depth), polls=settings.polls)

        alone = "off" if self.runtime.workers == 1 else "poll"
        self._pipelines = {"whole": pipeline(True, comm, settings.wait),
                           "compute": pipeline(True, None, alone),
                           "exchange": pipeline(False, comm, "off")}

    def kernels_of(self, settings):
        """The sweeps for `settings`, of all workers."""
        return self._make_kernels(settings.effort, settings.rows)

    def pinned(self, settings: Settings) -> Settings:
        """The settings with nothing left for a later plan to find by timing."""
        return replace(settings, rows=self.kernels_of(settings).rows)

    @property
    def kernels(self):
        """The sweeps of the worker that asks."""
        return self._kernels[worker_index()]

    def _make_slots(self, depth, sizes):
        """Slots for chunks of `sizes` slices."""
        exchanges = {size: self.exchanges(size) for size in sizes}
        lengths = self.buffer_lengths(*exchanges[max(sizes)])
        return [self.make_slot(exchanges, *buffers) for buffers in self._allocate(depth, lengths)]

    def _allocate(self, depth, lengths):
        """Buffers of some lengths for every slot, all in one block of memory."""
        dtype = self.exchange_dtype
        # Each buffer starts on a cache line of its own, also an empty one: Open MPI takes a nonblocking
        # exchange whose two buffers start at one address for one in place, whatever their counts.
        line = ALIGNMENT // dtype.itemsize
        lengths = [max(1, -(-length // line)) * line for length in lengths]
        each = sum(lengths)
        self.nbytes_in_flight = depth * each * dtype.itemsize
        held = -1 if self._memory is None else self._memory.size
        if held < depth * each or held > depth * each and not self.planning:
            self._memory = None  # free before there is more
            self._memory = zeros(depth * each, dtype)
        starts = [sum(lengths[:i]) for i in range(len(lengths))]
        return [[self._memory[slot * each + start:slot * each + start + length]
                 for start, length in zip(starts, lengths)] for slot in range(depth)]

    def nbytes_per_slice(self):
        """Bytes this rank sends per slice."""
        return sum(exchange.nbytes_sent for exchange in self.exchanges(1))

    def describe(self):
        """What was chosen and what it costs, as text."""
        tuned = f"; {self.tuned}" if self.tuned is not None else ""
        return (f"{self.name}: {self.settings}; "
                f"{self.nbytes_in_flight / 2**20:.1f} MiB in flight{tuned}")

    def tune(self, budget_s=30.0, progress=None):
        """Search for the fastest settings and use them (collective).

        Mode, depth, slices per message, exchanges in flight, polls per exchange and FFTW's effort
        are searched, as far as the plan was not asked for them by name; the number of threads is fixed
        by the runtime. What was gained is in `tuned`, what was tried in `trials`. To keep it in a
        file, use the plan's `tune`. Results may differ in the last bits from those before, when
        another effort wins; not from ``wait="off"`` with the same effort.

        Parameters
        ----------
        budget_s : float
            Seconds that it may take, about.
        progress : callable, optional
            ``progress(what, done, total)``, called on rank 0 now and then; `done` and `total` are
            seconds.

        Returns
        -------
        Tuned

        Raises
        ------
        InputError
            On all ranks, when the budget is no positive number or differs between ranks.
        """
        self.check_in_use()
        self.runtime.preflight(budget_problem(budget_s), budget_s=budget_s)
        tune(self, budget_s, progress)
        return self.tuned

    def check_in_use(self):
        """Raise `ClosedError` after the plan was closed."""
        if self._pipelines is None:
            raise ClosedError("expected a plan in use, received one that was closed")

    def compute(self, *arrays, out=None):
        """All local work of the call and none of its communication; the result means nothing."""
        return self._call("compute", arrays, out)

    def communicate(self, *arrays, out=None):
        """The call's exchanges, one after another, and nothing else; no result."""
        return self._call("exchange", arrays, out)

    def __call__(self, *arrays, out=None):
        """Transform (collective).

        Parameters
        ----------
        arrays : ndarray
            This rank's part of each input, of any strides; unchanged.
        out : ndarray or tuple of ndarray, optional
            Where to put this rank's part of the result.

        Returns
        -------
        DistArray or tuple of DistArray
            The result, or `out`.

        Raises
        ------
        InputError
            On all ranks, when any argument of any rank does not fit; nothing was done.
        SliceError
            On all ranks, when a step failed on one; `out` is undefined, the plan usable.
        """
        return self._call("whole", arrays, out)

    def run_planes(self, inputs, outputs, what="whole"):
        """Run on lists of planes that are known to fit (collective)."""
        self._pipelines[what](self._parts, *self.prepare(inputs, outputs))

    def trial_arrays(self, slices):
        """Inputs (zero) and outputs of `slices` slices, as for `run_planes`."""
        def planes(side):
            return zeros((slices if side.slices == self.slices else side.slices,
                          *side.shape[-2:]), side.dtype)
        return [planes(side) for side in self.inputs], [planes(side) for side in self.outputs]

    def nbytes_of_arrays(self):
        """Bytes of one slice's inputs and outputs on this rank."""
        return sum(int(np.prod(side.shape[-2:])) * side.dtype.itemsize
                   for side in (*self.inputs, *self.outputs)) or 1

    def release(self):
        """Let go of buffers and plans: they are in a cycle, which Python would find late."""
        self._pipelines = self._kernels = self._make_kernels = self._memory = None

    def _call(self, what, arrays, out):
        self.check_in_use()
        results = out if isinstance(out, tuple) else (out,) * len(self.outputs)
        problem = self._problem(arrays, out, results)
        if problem is not None:
            self.refuse(problem, what)
        if out is None:
            results = tuple(side.empty() for side in self.outputs)
        inputs = [side.planes(array) for side, array in zip(self.inputs, arrays)]
        outputs = [side.planes(array) for side, array in zip(self.outputs, results)]
        self.run_planes(inputs, outputs, what)
        for result, planes in zip(results, outputs):
            if not np.may_share_memory(result, planes):
                result[...] = planes.reshape(result.shape)
        return results if len(results) > 1 else results[0]

    def refuse(self, problem, what="whole"):
        """Raise `InputError` on all ranks, in place of a call (collective)."""
        self._pipelines[what]((), problem=problem)

    def _problem(self, arrays, out, results):
        """What is wrong with the arguments, or None."""
        if len(arrays) != len(self.inputs):
            return f"expected {len(self.inputs)} input array(s), received {len(arrays)}"
        for side, array in zip(self.inputs, arrays):
            if problem := side.problem(array, "an input"):
                return problem
        if out is None:
            return None
        if len(results) != len(self.outputs) or isinstance(out, tuple) != (len(results) > 1):
            return (f"expected out to be {len(self.outputs)} array(s), a tuple if more than one, "
                    f"received {type(out).__name__} of {len(results)}")
        for position, (side, array) in enumerate(zip(self.outputs, results)):
            if problem := side.problem(array, "out"):
                return problem
            if not array.flags.writeable:
                return "expected out to be writeable, received a read-only array"
            if any(np.may_share_memory(array, other)
                   for other in (*arrays, *results[:position])):
                return ("expected out to share no memory with an input or another output, "
                        "received arrays that do")
        return None


class Forward(Transform):
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


class Backward(Transform):
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
