"""`BracketTransform`: the slice program of `Bracket`. Two exchanges with whole planes worked on in between.

A slice goes from (some ky, all planes) to (all ky, some planes) and back, in two stages of the engine that transform
nothing. Messages go straight from and to the user's arrays on the side where all planes are; a rank's own
piece does not travel, and is read and written where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..arrays import Transpose, mpi_type, stages
from ..runtime import AsyncComm, parallel
from .array_spec import ArraySpec
from .engine.buffers import ArrayReference, Buffers
from .engine.direction import Direction
from .engine.fftw import zeros
from .engine.plane_brackets import KY, ONE, PLANES, PlaneBrackets
from .engine.stage import Place, SourceArray, Stage
from .engine.steps import Exchange, staggered
from .planning.settings import Settings, Tuned
from .transform import Progress, Transform


def exchanging_stages(source: SourceArray) -> tuple[Stage, ...]:
    """Return the stages from a slice's modes as they lie outside of the exchanges to whole planes, and back.

    Parameters
    ----------
    source : SourceArray
        Axes are (slice, plane, ky, kx); there is one slice.

    Returns
    -------
    (Stage, Stage)
    """
    there, made = Transpose(KY, PLANES), []
    steps, _ = stages([(), there, (), there.reversed(), ()], (0,))
    for step, place in zip(steps, (Place(1, early=True, natural=False), Place(0, early=True, natural=True))):
        made.append(Stage(step, place, {}, source, Direction(True, None, by_index=True)))
        source = replace(source, layout=made[-1].layout, contiguous=False)
    return tuple(made)


def buffers(stages: Sequence[Stage]) -> Buffers:
    """Return the buffers of one slice: modes that other ranks hold, to be sent back, and received."""
    there, back = (stage.message(ONE) for stage in stages)
    return Buffers(*(zeros(size, complex) for size in (back.send_size, there.receive_size)))


def nbytes_of_buffers(stages: Sequence[Stage]) -> int:
    """Tell how many bytes these have."""
    there, back = (stage.message(ONE) for stage in stages)
    return 16 * (back.send_size + there.receive_size)


class BracketTransform(Transform):
    """Brackets of a batch with one advecting field; see `Bracket`.

    Parameters
    ----------
    comm : AsyncComm
    stages : tuple of Stage
        As `exchanging_stages` makes them.
    spectrum : ArraySpec
    points : (int, int)
    requested : Settings
        Planned when the transform is called first: until then these are its `settings`.
    make : callable
        ``make(effort)`` gives the `PlaneBrackets` with an effort of FFTW's planning.
    choose : callable
        ``choose(transform)`` configures it with settings for what was left open.

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
        self.exchange_dtype = spectrum.dtype
        self.settings = requested
        self.nbytes_in_flight = 0
        self._comm, self._stages = comm, stages
        self._make, self._choose = make, choose
        self._kernels = make(requested.effort)
        self.gradient = zeros((self._kernels.planes, *points), complex)

    def kernels_of(self, settings: Settings) -> PlaneBrackets:
        return self._make(settings.effort)

    def nbytes_per_slice(self) -> int:
        return nbytes_of_buffers(self._stages)

    def make_slots(self, depth: int, sizes: set[int]) -> list[Buffers]:
        self.nbytes_in_flight = depth * self.nbytes_per_slice()
        return [buffers(self._stages) for _ in range(depth)]

    def tune(self, budget_s: float = 30.0, progress: Progress | None = None) -> Tuned:
        self.plan()
        return super().tune(budget_s, progress)

    def _call(self, what: str, arrays: tuple[Any, ...], out: Any) -> Any:
        self.plan()
        return super()._call(what, arrays, out)

    def plan(self) -> None:
        """Choose what was left open, the first time."""
        self.check_in_use()
        if self._pipelines is None:
            self._choose(self)

    def scratch(self) -> list[int]:
        return self._kernels.scratch

    def steps(self, inputs: Sequence[ArrayReference], outputs: Sequence[ArrayReference]) -> Iterator[Iterable[Any]]:
        (f,), (out,) = inputs, outputs
        for number, task in enumerate(self._parts):
            first = task.part.start
            yield self._steps(number, f.part(f.array[first]), out.part(out.array[first]))

    def _steps(self, number: int, f: ArrayReference, out: ArrayReference) -> Iterator[Any]:
        if self._comm.size > 1:
            yield from staggered(number, len(self._slots))
        yield from self.steps_of_slice(f, out, self._slot_of(number))

    def steps_of_slice(self, f: ArrayReference, out: ArrayReference, slot: Buffers) -> Iterator[Any]:
        """Tell what one slice's bracket takes, of located modes."""
        there, back = self._kernels.messages
        kind = mpi_type(f.array.dtype)
        if self._comm.size > 1:
            yield Exchange(self._comm, there, f, ArrayReference(slot.receive), kind)
        yield self._kernels.apply(slot, f, out, ArrayReference(self.gradient))
        if self._comm.size > 1:
            yield Exchange(self._comm, back, ArrayReference(slot.send), out, kind)

    async def take(self, a: np.ndarray, slot: Buffers) -> float:
        """Take a slice of modes as the advecting field; returns the largest gradient here."""
        kernels, comm = self._kernels, self._comm
        if comm.size > 1:
            await kernels.messages[0].exchanged(comm, a, slot.receive, mpi_type(a.dtype))
        squares = [0.0]
        await parallel(
            lambda block: squares.append(kernels.take(slot, a, self.gradient, block)), range(len(kernels.blocks))
        )
        return max(squares) ** 0.5
