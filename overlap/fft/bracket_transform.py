"""`BracketTransform`: the slice program of `Bracket`, two exchanges with work on whole planes in between.

A slice goes from (some ky, all planes) to (all ky, some planes) and back, in two stages of the engine that transform
nothing. On the side where a rank has all planes, messages are sent from and received in the user's arrays directly. A
rank's own piece is not sent; it is read and written in the user's arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from ..arrays import AxisSwap, stages
from ..runtime import AsyncComm, parallel, worker_index
from .array_spec import ArraySpec
from .engine.buffers import ArrayReference, Buffers
from .engine.direction import Direction
from .engine.fftw import zeros
from .engine.plane_brackets import KY, ONE, PLANES, PlaneBrackets
from .engine.stage import Place, SourceArray, Stage
from .engine.steps import Exchange, checked, staggered
from .engine.wire_format import WireFormat
from .planning.settings import Settings, Tuned
from .transform import Progress, Steps, Transform


def exchanging_stages(source: SourceArray, exchange: str | None) -> tuple[Stage, ...]:
    """Return the stages from a slice's modes, split along ky, to whole planes, and back.

    Parameters
    ----------
    source : SourceArray
        Axes are (slice, plane, ky, kx); there is one slice.
    exchange : {None, "f4"}
        The wire format. If numbers are rounded, messages are not sent from or received in the user's arrays.

    Returns
    -------
    (Stage, Stage)
    """
    to_planes, made_stages = AxisSwap(KY, PLANES), []
    wire = WireFormat(source.dtype, exchange if source.layout.grid[0] > 1 else None)
    early = not wire.rounds
    steps, _ = stages([(), to_planes, (), to_planes.reversed(), ()], (0,))
    for step, place in zip(steps, (Place(1, early, natural=False), Place(0, early, natural=True))):
        made_stages.append(Stage(step, place, {}, source, Direction(True, None, by_index=True), wire))
        source = replace(source, layout=made_stages[-1].layout, contiguous=False)
    return tuple(made_stages)


def buffers(stages: Sequence[Stage]) -> Buffers:
    """Make the buffers of one slice: for modes received from other ranks, and for results to be sent back."""
    return Buffers(*(zeros(size, stages[0].wire.dtype) for size in _lengths(stages)))


def nbytes_of_buffers(stages: Sequence[Stage]) -> int:
    """Return the bytes of these buffers."""
    return stages[0].wire.dtype.itemsize * sum(_lengths(stages))


def _lengths(stages: Sequence[Stage]) -> tuple[int, int]:
    """Return the lengths of the send buffer, shared by both exchanges, and of the receive buffer, for both; data that
    are sent from or received in the user's arrays do not count."""
    forth, back = (stage.message(ONE) for stage in stages)
    return max(forth.send_size, back.send_size), forth.receive_size + back.receive_size


class BracketTransform(Transform):
    """Brackets of a batch with one advecting field; see `Bracket`.

    Parameters
    ----------
    comm : AsyncComm
    stages : tuple of Stage
        Made by `exchanging_stages`.
    spectrum : ArraySpec
    points : (int, int)
    requested : Settings
        The requested settings, which are completed in the first call; until then these are `settings`.
    make : callable
        ``make(effort)`` makes the `PlaneBrackets` with an effort of FFTW's planning.
    choose : callable
        ``choose(transform)`` configures the transform with complete settings.

    Attributes
    ----------
    gradient : ndarray of complex
        a_x + i a_y on this rank's planes.
    """

    _held = (*Transform._held, "gradient", "_make", "_choose")

    def __init__(
        self,
        comm: AsyncComm,
        stages: Sequence[Stage],
        spectrum: ArraySpec,
        points: tuple[int, ...],
        requested: Settings,
        make: Callable[[str | None], PlaneBrackets],
        choose: Callable[[BracketTransform], None],
    ) -> None:
        super().__init__(comm.runtime, spectrum.slices)
        self.inputs = self.outputs = (spectrum,)
        self.exchange_dtype = stages[0].wire.dtype
        self.settings = requested
        self.nbytes_in_flight = 0
        self._comm, self._stages = comm, stages
        self._make, self._choose = make, choose
        self._kernels = make(requested.effort)
        self.gradient = zeros((self._kernels.planes, *points), complex)

    def kernels_of(self, settings: Settings) -> PlaneBrackets:
        return self._make(settings.effort)

    def nbytes_per_slice(self) -> int:
        forth, back = (stage.message(ONE) for stage in self._stages)
        return (sum(forth.counts_received) + sum(back.counts_sent)) * self.exchange_dtype.itemsize

    def make_slots(self, depth: int, sizes: set[int]) -> list[Buffers]:
        self.nbytes_in_flight = depth * nbytes_of_buffers(self._stages)
        return [buffers(self._stages) for _ in range(depth)]

    def tune(self, budget_s: float = 30.0, progress: Progress | None = None) -> Tuned:
        self.plan()
        return super().tune(budget_s, progress)

    def _call(self, what: str, arrays: tuple[Any, ...], out: Any) -> Any:
        self.plan()
        return super()._call(what, arrays, out)

    def plan(self) -> None:
        """Choose, in the first call, the settings that were left open."""
        self.check_in_use()
        if self._pipelines is None:
            self._choose(self)

    def scratch(self) -> list[int]:
        return self._kernels.scratch

    def steps(self, inputs: Sequence[ArrayReference], outputs: Sequence[ArrayReference]) -> Iterable[Iterable[Any]]:
        return self._steps(self._kernels, self._slot_of, inputs, outputs)

    def _steps(
        self,
        kernels: PlaneBrackets,
        slot_of: Callable[[int], Buffers],
        inputs: Sequence[ArrayReference],
        outputs: Sequence[ArrayReference],
    ) -> Iterator[Iterable[Any]]:
        """Yield the steps of every slice, in some slots."""
        (f,), (out,) = inputs, outputs
        for number, task in enumerate(self._parts):
            first = task.part.start
            own = f.part(f.array[first]), out.part(out.array[first]), slot_of(number)
            late = staggered(number, len(self._slots)) if self._comm.size > 1 else ()
            yield chain(late, self._steps_of_slice(kernels, *own))

    def steps_of_slice(self, f: ArrayReference, out: ArrayReference, slot: Buffers) -> Iterator[Any]:
        """Yield the steps of one slice's bracket, for located modes."""
        return self._steps_of_slice(self._kernels, f, out, slot)

    def _steps_of_slice(
        self, kernels: PlaneBrackets, f: ArrayReference, out: ArrayReference, slot: Buffers
    ) -> Iterator[Any]:
        wire = self._stages[0].wire
        forth, back = kernels.messages
        if wire.rounds:
            yield kernels.pack(slot, f)
            yield from checked(wire)
        if self._comm.size > 1:
            yield Exchange(
                self._comm, forth, ArrayReference(slot.send) if wire.rounds else f, ArrayReference(slot.receive)
            )
        yield kernels.apply(slot, f, out, ArrayReference(self.gradient))
        yield from checked(wire)
        if self._comm.size > 1:
            yield Exchange(self._comm, back, ArrayReference(slot.send), kernels.results(slot) if wire.rounds else out)
        if wire.rounds:
            yield kernels.unpack(slot, out)

    def can_bind(self, outputs: list[np.ndarray]) -> bool:
        return True

    def is_compiled(self, outputs: list[np.ndarray]) -> bool:
        return not self._stages[0].wire.rounds  # compiled code raises nothing

    def own_workspace(self) -> tuple[Steps, list[int]]:
        kernels, slot = self._kernels.with_own_scratch(), buffers(self._stages)
        return partial(self._steps, kernels, lambda number: slot), kernels.scratch

    async def take(self, a: np.ndarray, slot: Buffers) -> float:
        """Take a slice of modes as the advecting field; return the largest gradient on this rank."""
        kernels, comm, wire, send = self._kernels, self._comm, self._stages[0].wire, a
        if wire.rounds:
            kernels.pack(slot, ArrayReference(a)).execute(self.scratch()[worker_index()])
            wire.raise_overflow()
            send = slot.send
        if comm.size > 1:
            await kernels.messages[0].exchanged(comm, send, slot.receive)
        squares = [0.0]
        await parallel(
            lambda block: squares.append(kernels.take(slot, a, self.gradient, block)), range(len(kernels.blocks))
        )
        return max(squares) ** 0.5
