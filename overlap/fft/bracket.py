"""`Bracket`: the nonlinear term of flux-tube and two-dimensional fluid codes, with whole planes per rank.

The Poisson bracket {a, f} = a_x f_y - a_y f_x of real fields, which are given by their resolved Fourier modes, is
computed pseudo-spectrally on a finer grid (2/3 rule). In spectral space ky is split over the ranks. Every slice of f is
redistributed as in the GKV plasma code: one all-to-all turns (some ky, all planes) into (all ky, some planes), each
rank transforms its planes without further messages, and a second all-to-all brings the result back. Only resolved modes
are sent; `FFT2.pointwise` sends both gradients, in one direction on the finer grid. No message needs packing, because
planes come before ky.

Two identities save work:

* f_x + i f_y is one complex field, whose modes are i (kx + i ky) times those of f, negative ky included: one complex
  transform yields both gradients. With A = a_x + i a_y and F = f_x + i f_y the bracket is Im(conj(A) F).
* The brackets of two planes are transformed to Fourier space as real and imaginary part of one field.

Planes are paired by their index. FFTW plans are for one pair and by default only estimated, hence the same in every
process. So results are the same to the last bit on any number of ranks.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from math import isfinite
from typing import Any

import numpy as np

from ..arrays import Layout
from ..arrays.exchange import exchange_problem, travelling
from ..errors import InputError
from ..ranks.interrupts import holding_signals
from ..ranks.objects import old_argument
from ..ranks.resource import marked_call
from ..runtime import parallel, worker_index
from ..runtime.on_runtime import PlanComm
from ..runtime.requests.operations import Operation, of_slices
from .arguments import integers, local_nbytes, memory_problem, path_problem, shown
from .array_layout import ArrayLayout, default_problem
from .array_spec import ArraySpec
from .constructor import of_plan
from .engine.fftw import fast_length, zeros
from .engine.plane_brackets import KY, PLANES, PlaneBrackets, exchanging_stages
from .engine.plane_composition import ONE, SlotBuffers
from .engine.program import ArrayReference
from .engine.stage import SourceArray
from .engine.steps import Call, Exchange
from .engine.tasks import Task
from .plan import Plan
from .planning.plan_cache import PlanCache
from .planning.settings import Settings, Tuned, settings_problem
from .pointwise import Pointwise
from .transform import Progress

DEPTH = 8
SLICE = Task(0, 0, ONE, kind="indices")  # of a slice program


class Bracket(Plan):
    """A plan for Poisson brackets {a, f} of real fields given by resolved modes, over MPI ranks.

    Making and calling a plan is collective. Within a slice program of your own, await `apply`.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm, Runtime or AsyncComm
        See `Plan`; ky is split over its ranks. If it is a communicator of some of a runtime's ranks only, the other
        ranks must make and call a plan of their own, with as many slices.
    shape : (int, int, int, int)
        Global ``(slices, planes, nky, nkx)``: modes ky = 0 ... nky - 1 (the others follow from
        f(-k) = conj f(k)) and kx = -K ... K, ascending, nkx = 2 K + 1, in units of `spacing`. A
        slice, of `planes` planes, is one message and one step of the pipeline.
    spacing : (float, float)
        dky and dkx.
    points : (int, int), optional
        Points of the real-space grid in y and x, at least 3 K + 1 for modes up to K; by default
        the next lengths that FFTW is fast at.
    layout : ArrayLayout or dict, optional
        The layout of the arrays, in which only the weights of the ranks can differ from the default. They determine
        each rank's share of ky outside of the exchanges, and of planes between them.
    settings : Settings or dict, optional
        The settings of calls that are not left to planning. The others are chosen in the first call, because slice
        programs of your own do not need them. `chunk` is 1. By default, `effort` is "estimate" (more effort may save a
        tenth of the time, but gives other last bits in every process), and `depth` is 8 if `wait` is given.
    tuning : str, optional
        A file that `tune` writes and later plans read, see `FFT2`. All ranks of the runtime must then have plans of the
        same shape; if they have not, the environment's file is not used.
    exchange : {None, "f4"}
        ``"f4"``: modes are sent in single precision, see `FFT2`, in both exchanges of a call and in `advect`.

    Attributes
    ----------
    spectrum : ArraySpec
        The arrays of a batch's modes, C-contiguous: this rank's part, and ``empty()`` to make them.
    advecting : ArraySpec
        The array of the modes of a, which has no slices.
    transform : Transform
        The transform that a call of the plan calls, with `settings`, `trials`, `compute`, `communicate` and the memory.
    points : (int, int)
    rows : slice
        This rank's ky.
    speed : float
        Largest \\|grad a\\| on this rank's planes of the advecting field.

    Raises
    ------
    InputError
        On all ranks, if an argument is bad or differs between ranks, or if the tuning file was cut off, has another
        version or is no tuning file.

    Examples
    --------
    >>> shape = (4, 2, 5, 9)  # 4 slices of 2 planes, ky = 0 ... 4, kx = -4 ... 4
    >>> with overlap.Bracket(comm, shape) as bracket:
    ...     f, a = bracket.spectrum.empty(), bracket.advecting.empty()
    ...     f[...], a[...] = 0, 0
    ...     bracket.advect(a)
    ...     result = bracket(f)
    >>> result.global_shape
    (4, 2, 5, 9)
    """

    _kind = "Bracket"

    @of_plan
    @holding_signals
    def __init__(
        self,
        comm: PlanComm,
        shape: Sequence[int],
        spacing: tuple[float, float] = (1.0, 1.0),
        *,
        points: tuple[int, int] | None = None,
        layout: ArrayLayout | dict[str, Any] | None = None,
        settings: Settings | dict[str, Any] | None = None,
        tuning: str | os.PathLike[str] | None = None,
        exchange: str | None = None,
    ) -> None:
        super().__init__(comm)
        with self._making():
            arrays, requested, path, problem = self._options(layout, settings, tuning)
            sizes: Any = integers(shape)
            coordinator = self.runtime.coordinator
            members = coordinator.ranks_of(self.comm)
            # Other ranks of the runtime may work on other shapes.
            all_ranks = coordinator.allgather((members, sizes, arrays))
            same = [rest for its_members, *rest in all_ranks if its_members == members]
            kinds = [(len(its_members or ()), *rest) for its_members, *rest in all_ranks]
            alike = kinds == kinds[:1] * len(kinds)
            if tuning is None and not alike:
                path = None
            problem = (
                _problem(sizes, shape, spacing, points)
                or problem
                or default_problem(arrays, "a Bracket", ("order", "grid", "restore", "dealias", "shares", "modes"))
                or _settings_problem(requested)
                or exchange_problem(exchange)
                or _disagreement("shape", [sizes for sizes, _ in same])
                or _disagreement("weights", [arrays.weights for _, arrays in same])
                or path_problem(path)
                or (path and _disagreement("ranks, shape and layout of a plan with a tuning file", kinds))
                or memory_problem(2 * local_nbytes(sizes, complex, self.comm.size))
                or memory_problem(local_nbytes(integers(points or ()) or (), complex, 1))  # one plane at least
            )
            self.runtime.preflight(
                problem,
                plan="Bracket",
                spacing=spacing,
                points=points,
                tuning=path,
                exchange=exchange,
                **asdict(requested),
            )
            self.shape: tuple[int, ...] = sizes
            _, _, nky, nkx = sizes
            self._spacing, self.exchange = spacing, exchange
            self.points: Any = integers(points or (fast_length(3 * (nky - 1) + 1), fast_length(3 * (nkx // 2) + 1)))
            self.speed = 0.0
            kind = self._look_up(
                path,
                arrays,
                complex,
                shape=list(sizes),
                points=list(self.points or ()),
                spacing=[float(step) for step in spacing],
                effort=requested.effort,
                exchange=exchange,
            )
            self._memory = (
                PlanCache(self.runtime, kind | {"requested": str(requested.given())}, complex) if alike else None
            )
            requested = replace(requested, chunk=1, effort=requested.effort or "estimate")
            if requested.wait != "auto":
                requested = replace(requested, depth=requested.depth or DEPTH)
            self._requested = requested
            self._place()
            self.transform = BracketTransform(self)
            self._keep("bracket", self.transform, BracketTransform)
            # A runtime may have several brackets, each on a part of its ranks: all measure if one does.
            if coordinator.maximum(int(self._measures)):
                self._balanced()

    def on(self, comm: PlanComm) -> Bracket:
        """Make a bracket like this one on other ranks, for instance fewer, with the same settings (collective).

        The settings are not searched again. Set the advecting field of the new plan with `advect`. This plan may have
        lost ranks.

        Parameters
        ----------
        comm : Runtime or AsyncComm
            As for the plan.

        Returns
        -------
        Bracket

        Raises
        ------
        ClosedError
            This plan was closed.
        """
        self._check_in_use()
        return Bracket(
            comm,
            self.shape,
            self._spacing,
            points=self.points,
            settings=replace(self.transform.settings, late=None, effort=self._requested.effort),
            tuning="",
            exchange=self.exchange,
        )

    def _place(self) -> None:
        slices, *modes = self.shape
        # Planes stay in pairs, whose brackets are transformed to Fourier space together.
        layout = Layout((None, None, 0, None), (self.comm.size,), self._weights, multiples=(1, 2, 1, 1))
        source = SourceArray(layout, (1, *modes), (self.comm.rank,), np.dtype(complex), contiguous=True)
        self._stages = exchanging_stages(source, self.exchange)
        self._messages = tuple(stage.message(ONE) for stage in self._stages)
        self._gradient: Any = zeros((self._stages[0].target_shape[PLANES], *self.points), complex)
        self.rows = layout.local_slice(source.shape, source.coordinates)[KY]
        parts: Any = {-2: self.rows}
        self.spectrum = ArraySpec(self.comm, (slices,), modes, parts, complex, contiguous=True, spectral=True)
        self.advecting = ArraySpec(self.comm, (), modes, parts, complex, contiguous=True, spectral=True)

        async def take(_: int, buffers: SlotBuffers, a: np.ndarray) -> None:
            await self._take(buffers, a)

        take.__qualname__ = f"advect of {self._known_as}"  # compared between the ranks
        self._advect: Any = self.runtime.pipelined(
            take, buffers=self.buffers, depth=1, wait="off" if self.runtime.workers == 1 else "poll"
        )

    def _share(self) -> float:
        return self._stages[0].target_shape[PLANES] / self.shape[PLANES]

    def _forget(self) -> None:
        self._advect = self._gradient = None

    def _title(self) -> str:
        return (
            f"Bracket of {self.shape[0]} slices of {self.shape[1]} planes, modes "
            f"{self.shape[2:]} on {self.points[0]} x {self.points[1]} points, "
            f"{self._sharers()}{travelling(self.exchange)}"
        )

    def _notes(self) -> list[str]:
        return [f"{self.nbytes / 2**20:.1f} MiB of gradients", *super()._notes()]

    @property
    def nbytes(self) -> int:
        """Return the memory of the advecting field's gradient on this rank, in bytes."""
        self._check_in_use()
        return int(self._gradient.nbytes)

    @property
    def nbytes_per_slot(self) -> int:
        """Return the memory of one slot on this rank, in bytes."""
        self._check_in_use()
        return sum(SlotBuffers.lengths(self._messages)) * self._messages[0].wire.dtype.itemsize

    # ---- calls -----------------------------------------------------------------------------------

    def advect(self, a: np.ndarray) -> None:
        """Set the advecting field a for all later calls (collective).

        Parameters
        ----------
        a : ndarray of complex
            This rank's modes, C-contiguous ``(planes, my ky, nkx)``.

        Raises
        ------
        InputError
            On all ranks, if the array of any rank does not fit.
        """
        self._check_in_use()
        self._advect((0,), a, problem=self.advecting.problem(a, "a"))

    def __call__(self, f: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Compute the brackets {a, f} of a batch, as one pipeline (collective).

        Parameters
        ----------
        f : ndarray of complex
            This rank's modes, C-contiguous ``(slices, planes, my ky, nkx)``.
        out : ndarray, optional
            An array like `f` for the brackets.

        Returns
        -------
        DistArray
            The brackets, or `out`.

        Raises
        ------
        InputError, SliceError
            See `Transform`.
        """
        return self.transform(f, out=out)

    def _before_tuning_or_balancing(self) -> None:
        self.transform.plan()

    # ---- slices ----------------------------------------------------------------------------------

    @marked_call
    def buffers(self) -> SlotBuffers:
        """Make the buffers of one slice in flight, for slice programs.

        Returns
        -------
        SlotBuffers
            To be passed to `apply`; make one for each slot of a pipeline.
        """
        self._check_in_use()
        return SlotBuffers.alone(self._messages, self._gradient)

    @of_slices
    async def apply(self, f: np.ndarray, out: np.ndarray, buffers: SlotBuffers, compute: bool | None = None) -> None:
        """Compute one slice's bracket in a slice program: await two all-to-alls (none on one rank); see `stagger`.

        Parameters
        ----------
        f, out : ndarray of complex
            This rank's modes, C-contiguous ``(planes, my ky, nkx)``.
        buffers : SlotBuffers
            Made by `buffers`.
        compute : bool, optional
            Deprecated. False: only exchange; use `operations` in a skeleton instead.

        Raises
        ------
        InputError
            An argument does not fit; in a slice program all ranks then raise a `SliceError`.
        """
        if compute is not None:
            old_argument("Bracket.apply", "compute", "a skeleton returns Bracket.operations(f, out, buffers)")
        await self._carry_out(self._steps(f, out, buffers), compute is None or compute)

    @marked_call
    def operations(self, f: np.ndarray, out: np.ndarray, buffers: SlotBuffers) -> list[Operation]:
        """Return the operations that `apply` awaits, for a skeleton; the parameters are those of `apply`.

        Parameters
        ----------
        f, out : ndarray of complex
        buffers : SlotBuffers

        Returns
        -------
        list of Operation

        Raises
        ------
        InputError
            See `apply`.
        """
        return [step.operation() for step in self._steps(f, out, buffers) if isinstance(step, Exchange)]

    def _steps(self, f: np.ndarray, out: np.ndarray, buffers: SlotBuffers) -> Iterator[Any]:
        """Yield the steps of one slice's bracket."""
        self._check_in_use()
        # MPI reads and writes these arrays directly; if one were too short, MPI would read or write beyond its end.
        if problem := self.advecting.problem(f, "f") or self.advecting.target_problem(out, "out"):
            raise InputError(problem)
        if not isinstance(buffers, SlotBuffers):
            raise InputError(f"expected buffers of this plan, received a {type(buffers).__name__}")
        return self.transform._kernels.steps(SLICE, buffers, ([_as_batch(f)], [_as_batch(out)]), (self._comm,))

    async def _take(self, buffers: SlotBuffers, a: np.ndarray) -> None:
        kernels, field, moduli = self.transform._kernels, _as_batch(a), [0.0]
        await self._carry_out(kernels.arriving(ONE, buffers, [field], (self._comm,)))
        await parallel(lambda block: moduli.append(kernels.take(buffers, field, block)), range(len(kernels.blocks)))
        self.speed = max(moduli)

    async def _carry_out(self, steps: Iterator[Any], compute: bool = True) -> None:
        """Carry out the steps of a slice in a slice program."""
        for step in steps:
            if isinstance(step, Exchange):
                await step.operation()
            elif not compute:
                continue
            elif isinstance(step, Call):
                step.function(array("q"))
            else:
                step.execute(self.transform.scratch()[worker_index()])


class BracketTransform(Pointwise):
    """The brackets of a batch with one advecting field; see `Bracket`.

    The settings that were left open are chosen in the first call.
    """

    def __init__(self, plan: Bracket) -> None:
        def made(effort: str | None) -> PlaneBrackets:
            return plan._kernel(
                (effort,),
                lambda: PlaneBrackets(
                    plan._stages, plan._gradient, plan._spacing, effort or "estimate", plan.runtime.workers
                ),
            )

        arrays = (plan.spectrum,)
        super().__init__(plan.runtime, (plan._comm,), made, plan._requested.effort, arrays, arrays)
        self.configuration.settings = plan._requested
        self._choose: Any = partial(plan._choose, "bracket")

    @marked_call
    def tune(self, budget_s: float = 30.0, progress: Progress | None = None) -> Tuned:
        self.plan()
        return super().tune(budget_s, progress)

    def release(self) -> None:
        super().release()
        self._choose = None

    def _call(self, what: str, arrays: tuple[Any, ...], out: Any) -> Any:
        self.plan()
        return super()._call(what, arrays, out)

    def plan(self) -> None:
        """Choose the settings that were left open, if that has not been done (collective)."""
        self.check_in_use()
        if not self.configuration.kinds:
            self._choose(self)


def _as_batch(planes: np.ndarray) -> ArrayReference:
    """Locate the planes of a slice as a batch of one slice."""
    return ArrayReference(np.asarray(planes)[None])


def _disagreement(name: str, values: list[Any]) -> str | None:
    """Return a text that lists the values of all ranks if they differ, or None."""
    if any(value != values[0] for value in values):
        return f"{name}: expected the same on all ranks, received {', '.join(map(repr, values))}"
    return None


def _problem(sizes: tuple[int, ...] | None, shape: Any, spacing: Any, points: Any) -> str | None:
    """Return what is wrong with the arguments or the installation, or None."""
    if sizes is None or len(sizes) != 4 or min(sizes) < 1 or sizes[3] % 2 == 0:
        return (
            f"expected shape (slices, planes, nky, nkx) of positive integers with an odd nkx, received {shown(shape)}"
        )
    try:
        good = len(spacing) == 2 and all(step > 0 and isfinite(step) for step in spacing)
    except Exception:  # a user's object can raise anything
        good = False
    if not good:
        return f"expected spacing (dky, dkx) of two positive numbers, received {shown(spacing)}"
    if points is not None:
        least = 3 * (sizes[2] - 1) + 1, 3 * (sizes[3] // 2) + 1
        grid = integers(points)
        if grid is None or len(grid) != 2 or grid[0] < least[0] or grid[1] < least[1]:
            return f"expected points of at least 3 K + 1 for modes up to K, {least}, received {shown(points)}"
    return None


def _settings_problem(settings: Settings) -> str | None:
    """Return what is wrong with the settings of a bracket, or None."""
    if settings.chunk not in (None, 1):
        return (
            f"expected a chunk of 1 or None, as a slice of a Bracket is one message, received {shown(settings.chunk)}"
        )
    return settings_problem(settings)
