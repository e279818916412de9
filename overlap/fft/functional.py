"""FFTs as functions with `scipy.fft`'s names and arguments, whose plans are made when needed, and kept.

``overlap.fft.fft2(u)`` transforms a `DistArray` and returns one, along any axes, in any order. The array is split along
one axis. If that axis is not transformed, nothing is exchanged and the result is split along the same axis. Otherwise
the result is split along another axis: along the second one if the last two or three axes are transformed in order, and
along the last one of other axes. If no other axis has at least as many points as there are ranks, the axis stays split.
The inverse functions accept the results of the forward ones. If the array is split along an axis for which there is no
plan, an error is raised; use `DistArray.redistribute` then.

A plain array is this rank's part (if the split is uneven, the first parts are one longer) and does not know which axis
is split. The forward functions assume the first transformed axis. For the inverse functions rows could be mistaken for
columns too easily, so the axis must be given, ``ifft2(part, comm, split=-1)``, unless `comm` has one rank only. All
functions are collective.

The last eight plans of every communicator are kept; `close_plans` closes them, as does the end of the communicator or
the interpreter.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral
from operator import index
from typing import Any

import numpy as np
from mpi4py import MPI

from ..arrays import DistArray, Distribution, block, mask_problem, same_ranks
from ..arrays.exchange import exchange_problem
from ..checks import choice_problem
from ..errors import InputError
from ..ranks.interrupts import held_signals, holding_signals
from ..ranks.kept_with import KeptWith
from ..ranks.resource import Calls, marked_call
from ..runtime import Runtime
from .arguments import NORMS, axes_of_array, integers, shown
from .array_spec import ArraySpec
from .engine.fftw import complex_of
from .engine.six_step import two_factors
from .fft2 import FFT2
from .fft3 import FFT3
from .fftn import FFTN, staying_split
from .fourier import FourierPlan
from .transform import Transform

Options = tuple[Sequence[int] | None, Sequence[int] | None, str | None, int | None, int | None, str | None]
"""Options of a function: `s`, `axes`, `norm`, `workers`, `split` and `exchange`."""


@dataclass(frozen=True)
class Kind:
    """One of the functions."""

    name: str
    forward: bool
    real: bool
    count: int | None  # number of axes by default

    def real_split(self, axes: tuple[int, ...], held: int, stays: bool) -> int | None:
        """Return the axis that is split in real space if the argument is split along `held`; None if there is none.

        An axis that is not transformed stays split. If the axis is transformed, another one is split after the
        exchange, or it stays split: see `FFTN`.
        """
        if held not in axes or (stays and not (self.real and held == axes[-1])):
            return held
        if self.forward:
            return None if self.real and held == axes[-1] else held
        if held == axes[-1]:
            return axes[0] if len(axes) > 1 else None
        return axes[-1] if held == axes[-2] and not self.real else None


@dataclass(frozen=True)
class FunctionRequest:
    """The request of one rank, checked as far as a rank can check it alone."""

    shape: tuple[int, ...]  # of the local part
    dtype: np.dtype
    where: Distribution | None  # the distribution of the array, if known
    held: int  # the axis along which `x` is split
    axes: tuple[int, ...]  # the transformed axes
    usual: bool  # an `FFT2` or `FFT3` serves the request
    s: tuple[int, ...] | None
    norm: str | None
    workers: int
    exchange: str | None

    @property
    def options(self) -> dict[str, Any]:
        """Return the arguments of the plan that serves the request."""
        return {"norm": self.norm, "exchange": self.exchange}

    def agreed(self) -> dict[str, Any]:
        """Return the values that must be equal on all ranks, by argument names."""
        shape = list(self.shape) if self.where is None else list(self.where.global_shape)
        if self.where is None:
            shape[self.held] = -1
        return {
            "x": "an ndarray" if self.where is None else "a DistArray",
            "shape of x": shape,
            "dtype of x": self.dtype.str,
            "axes": self.axes,
            "split": self.held,
            "s": self.s,
            "workers": self.workers,
            **self.options,
        }


def serving_split(kind: Kind, request: FunctionRequest, shape: tuple[int, ...], ranks: int) -> int:
    """Return the axis along which the `FFTN` for a request with this global shape is split in real space."""
    if ranks == 1:
        return request.axes[0]
    serving = kind.real_split(request.axes, request.held, stays_split(request, shape, ranks))
    if serving is None:
        raise InputError(
            f"expected x to be split along another axis for {kind.name} along {request.axes}, received one split along "
            f"axis {request.held}: use DistArray.redistribute"
        )
    return serving


def stays_split(request: FunctionRequest, shape: tuple[int, ...], ranks: int) -> bool:
    """Return whether the split axis stays split while it is transformed, so that its shares may not be even."""
    apart = staying_split(shape, request.axes, (request.held,), (ranks,))
    return bool(apart) and (len(shape) == 1 or two_factors(shape[request.held], ranks) is not None)


def fitted(
    spec: ArraySpec, given: np.ndarray, request: FunctionRequest, shape: tuple[int, ...], runtime: Runtime
) -> np.ndarray:
    """Return an array with the lengths and the distribution of a plan's arrays (collective).

    Zeros are added at its ends, or the ends are cut off; then it is redistributed. If no rank needs any of this, the
    array itself is returned.
    """
    coordinator = runtime.coordinator
    with runtime.collective_section("fitting an array"):
        if request.where is not None:
            parts = list(request.where.local_slice)
        else:
            parts = [slice(0, length) for length in shape]
            parts[request.held] = block(shape[request.held], coordinator.size)[coordinator.rank]
        if not coordinator.maximum(int((shape, tuple(parts)) != (spec.global_shape, spec.local_slice))):
            return given
        where = []
        for part, length, wanted in zip(parts, shape, spec.global_shape):
            start = min(part.start, wanted) if part.start < length else wanted
            where.append(slice(start, wanted if part.stop == length else max(start, min(part.stop, wanted))))
        found = np.zeros([part.stop - part.start for part in where], given.dtype)
        kept = tuple(slice(0, min(lengths)) for lengths in zip(given.shape, found.shape))
        found[kept] = np.asarray(given)[kept]
        placed = DistArray(found, spec.comm, spec.global_shape, (request.held,), where)
    if coordinator.maximum(int(placed.local_slice != spec.local_slice)):
        placed = placed.redistribute(spec, exchange=request.exchange)
    return placed


def request_of(
    kind: Kind,
    array: np.ndarray,
    ranks: int,
    s: Sequence[int] | None,
    axes: Sequence[int] | None,
    norm: str | None,
    workers: int | None,
    split: int | None,
    exchange: str | None,
) -> FunctionRequest:
    """Check the arguments of this rank."""
    dimensions = array.ndim
    lengths = None if s is None else integers(s) or ()
    if axes is None:
        axes = range(-dimensions if lengths is None else -len(lengths), 0)
    chosen = axes_of_array(axes, dimensions)
    if chosen is None:
        raise InputError(
            f"expected axes from {-dimensions} to {dimensions - 1}, one or more and each once, received "
            f"axes={shown(axes)}"
        )
    count = len(chosen)
    if problem := choice_problem("norm", norm, NORMS) or exchange_problem(exchange):
        raise InputError(problem)
    if lengths is not None and (len(lengths) != count or min(lengths) < 1):
        raise InputError(f"expected s to be {count} positive integers or None, received {shown(s)}")
    if array.dtype.kind not in "?biufc":
        raise InputError(f"expected an array of numbers, received {array.dtype}")
    if kind.real and kind.forward and array.dtype.kind == "c":
        raise InputError(f"expected a real array, received {array.dtype}")
    where = array.distribution if isinstance(array, DistArray) else None
    in_order = count in (2, 3) and chosen == tuple(range(dimensions - count, dimensions))
    usual = chosen[1 if in_order and not kind.forward else 0]  # the split axis of the plans for the last axes
    held = usual
    if split is not None:
        try:
            held = range(dimensions)[index(split)]
        except (TypeError, IndexError):
            raise InputError(
                f"expected split to be one of {dimensions} axes, or None, received {shown(split)}"
            ) from None
    if ranks > 1 and where is not None:
        if len(where.axes) != 1:
            raise InputError(
                f"expected x to be split along one axis, received one split along {where.axes}: use "
                "DistArray.redistribute"
            )
        if split is not None and held != where.axes[0]:
            raise InputError(f"expected split to be None or {where.axes[0]}, as of x, received split={split}")
        (held,) = where.axes
    elif ranks > 1 and not kind.forward and split is None and dimensions > 1:
        result_split = usual if in_order else chosen[-1]
        raise InputError(
            "expected a DistArray, or split to name the axis along which x is split over the ranks, received a plain "
            "array"
            + f": the result of {kind.name.removeprefix('i')} is split along axis {result_split} of {dimensions}, "
            f"split={result_split}" * (count > 1)
        )
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, Integral)):
        raise InputError(f"expected workers to be a positive integer or None, received {shown(workers)}")
    threads = 1 if workers is None else int(workers)
    usually = in_order and (ranks == 1 or held == usual)
    return FunctionRequest(array.shape, array.dtype, where, held, chosen, usually, lengths, norm, threads, exchange)


def real_space(kind: Kind, request: FunctionRequest, held_shape: tuple[int, ...]) -> tuple[tuple[int, ...], np.dtype]:
    """Return shape and type in real space of the plan for an array of this global shape."""
    lengths = list(held_shape)
    if kind.real and not kind.forward:
        lengths[request.axes[-1]] = 2 * (lengths[request.axes[-1]] - 1)
    for axis, length in zip(request.axes, request.s or ()):
        lengths[axis] = length
    dtype = request.dtype.newbyteorder("=")
    if dtype.kind not in "fc":  # the types that scipy converts
        dtype = np.dtype(float)
    elif dtype == np.float16:
        dtype = np.dtype(np.float32)
    spectral = complex_of(dtype)
    return tuple(lengths), np.empty(0, spectral).real.dtype if kind.real else spectral


def global_shape_of(request: FunctionRequest, runtime: Runtime) -> tuple[int, ...]:
    """Find the shape of the whole array (collective)."""
    if request.where is not None:
        return request.where.global_shape
    shape, axis = request.shape, request.held
    lengths = runtime.coordinator.allgather(shape[axis])
    total = sum(lengths)
    if lengths != [part.stop - part.start for part in block(total, runtime.coordinator.size)]:
        raise InputError(
            f"expected even parts along axis {axis}, of which the first are longer by one if the split is uneven, "
            f"received {lengths}"
        )
    return (*shape[:axis], total, *shape[axis + 1 :])


KEPT = 8  # plans per communicator
_EXACT = {int, str, type(None)}
_EXACT_OR_TUPLE = _EXACT | {tuple}


class _Plans:
    """The plans of a communicator that were used last, and their runtimes by number of workers.

    For each request, the ranks agree once on a plan. From then on each rank looks the plan up by its own request,
    without messages, and calls it. At the header of the call all ranks learn whether one of them calls another plan or
    has found none; if so, they agree anew.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self._calls = Calls()  # of the functions, in any thread: not of the plans alone, which a call may drop
        self._runtimes: dict[int, Runtime] = {}
        self._kept: dict[tuple, FourierPlan] = {}  # the keys are the same on all ranks
        self._used: dict[FourierPlan, int] = {}  # number of the last call on this rank of every kept plan
        self._count = 0
        self.served: dict[tuple, tuple[FourierPlan, Transform]] = {}  # this rank's requests -> plan and its transform

    @property
    def base(self) -> Runtime:
        """Return the runtime on which all ranks synchronize (collective the first time)."""
        return self._runtime(1)

    @marked_call
    def call(self, plan: FourierPlan, run: Transform, x: np.ndarray) -> DistArray:
        """Call a transform of a kept plan (collective).

        If a rank is about to do something else, all ranks raise an `InputError` with `disagreement`.
        """
        self._count = self._used[plan] = self._count + 1
        base = self.base
        if run.runtime is base:
            return run(x)
        with held_signals():  # both headers belong to one call
            base.coordinator.enter(run.known_as, {})
            return run(x)

    def find(self, request: FunctionRequest, shape: tuple[int, ...], dtype: np.dtype, split: int | None) -> FourierPlan:
        """Return the plan for a request; make it if it is not among the kept ones (collective).

        It is an `FFTN` whose arrays in real space are split along `split`; if that is None, an `FFT2` or `FFT3`.
        """
        axes, options, runtime = request.axes, request.options, self._runtime(request.workers)
        key = shape, dtype, *options.values(), request.workers, axes, split
        if key not in self._kept:
            plan: FourierPlan
            if split is not None:
                plan = FFTN(runtime, shape, dtype, axes=axes, split=split, **options)
            elif len(axes) == 2:
                plan = FFT2(runtime, shape, dtype, **options)
            else:
                plan = FFT3(runtime, shape, dtype, layout={"grid": (1, self._comm.size)}, **options)
            if len(self._kept) == KEPT:
                oldest = min(self._kept, key=lambda other: self._used[self._kept[other]])
                self._drop(self.base.coordinator.bcast(oldest))  # the ranks' counts may differ after a failed call
            self._kept[key], self._used[plan] = plan, 0
        return self._kept[key]

    def serve(self, asked: tuple, plan: FourierPlan, run: Transform) -> None:
        """Note that a plan serves a request, after all ranks have agreed on it."""
        if len(self.served) > 8 * KEPT:
            self.served.clear()
        self.served[asked] = plan, run

    def _drop(self, key: tuple) -> None:
        dropped = self._kept[key]
        try:
            dropped.close()
        finally:
            if dropped.closed:  # else it is in a call
                del self._kept[key], self._used[dropped]
                self.served = {asked: found for asked, found in self.served.items() if found[0] is not dropped}

    def _runtime(self, workers: int) -> Runtime:
        """Return the runtime with `workers` workers; make it if there is none (collective)."""
        if workers not in self._runtimes:
            self._runtimes[workers] = Runtime(self._comm, workers=workers, deadline_s=600.0)
        return self._runtimes[workers]

    def close(self) -> None:
        """Close all plans, then all runtimes (collective)."""
        with self._calls.closing("closing the plans of the functions"):
            while self._kept:
                self._drop(next(reversed(self._kept)))
            while self._runtimes:
                workers, runtime = next(reversed(self._runtimes.items()))
                try:
                    runtime.close()
                finally:
                    if runtime.closed:  # else it is in a call
                        del self._runtimes[workers]


_plans = KeptWith(_Plans)


def close_plans() -> None:
    """Close the plans that the functions have kept (collective over all communicators of their calls).

    Raises
    ------
    BusyError
        A function is under way in another thread; its plans stay open.

    Examples
    --------
    >>> import overlap.fft
    >>> spectrum = overlap.fft.fft2(np.ones((2, 8, 8)), comm)
    >>> overlap.fft.close_plans()
    """
    for plans in _plans.every:
        plans.close()


atexit.register(close_plans)


def _transform(kind: Kind, x: Any, comm: MPI.Intracomm | None, options: Options) -> DistArray:
    """Transform an array, as any of the functions does."""
    placed = type(x) is DistArray
    where = x.comm if placed and (comm is None or comm is x.comm) else comm if type(x) is np.ndarray else None
    asked, met = None, False
    if isinstance(where, MPI.Intracomm) and where and _are_exact(options):
        place = x.distribution if placed else None
        shape, split = (x.shape, None) if place is None else (place.global_shape, place.axes)
        asked = kind.name, shape, split, x.dtype, options
        plans = _plans.of(where)
        found = plans.served.get(asked)
        if found is not None and (place is None or place == found[1].inputs[0].distribution):
            try:
                return plans.call(*found, x)
            except InputError as error:
                met = error.disagreement
                if not met:
                    raise
    return _agreed(asked, met, kind, x, comm, options)


def _are_exact(options: Options) -> bool:
    """Return whether options can be looked up: 1.0 and True are equal to 1, but are no axes or lengths."""
    s, axes = options[:2]
    return (
        _EXACT_OR_TUPLE.issuperset(map(type, options))
        and (type(axes) is not tuple or _EXACT.issuperset(map(type, axes)))
        and (type(s) is not tuple or _EXACT.issuperset(map(type, s)))
    )


@holding_signals
def _agreed(
    asked: tuple | None, met: bool, kind: Kind, x: Any, comm: MPI.Intracomm | None, options: Options
) -> DistArray:
    """Agree with all ranks on a plan for the request, and transform.

    From then on the plan serves requests like `asked`, if that is not None. If `met`, the ranks have disagreed at the
    header of a plan's call just before.
    """
    # If the array has a communicator, the ranks synchronize on that: so all of them raise if one passed another `comm`.
    own = x.comm if isinstance(x, DistArray) else None
    rendezvous = comm if own is None else own
    if not isinstance(rendezvous, MPI.Intracomm):
        raise InputError(f"expected a DistArray, or comm to be an mpi4py.MPI.Intracomm, received comm={shown(comm)}")
    plans, ranks = _plans.of(rendezvous), rendezvous.size
    with plans._calls.marked():
        base = plans.base  # the same runtime for any request, because ranks with different requests must synchronize
        if not met:
            try:
                base.coordinator.enter("looking for a plan", {})
            except InputError as error:
                if not error.disagreement:
                    raise
                # Other ranks have called the plan that serves their request. They disagree there, and come here.
        with base.collective_section(f"transforming an array, {kind.name}"):  # an error of one rank raises on all
            if comm is not None and not same_ranks(comm, rendezvous):
                raise InputError(f"expected comm to be that of x, or None, received {shown(comm)}")
            if problem := mask_problem(x=x):
                raise InputError(problem)
            array: np.ndarray = x if isinstance(x, DistArray) else np.asarray(x)
            request = request_of(kind, array, ranks, *options)
            base.preflight(**request.agreed())
            held_shape = global_shape_of(request, base)
            shape, dtype = real_space(kind, request, held_shape)
            serving = None if request.usual else serving_split(kind, request, shape, ranks)
            given = array.astype(dtype if kind.forward else complex_of(dtype), copy=False)
        # From here on all ranks have the same request, and the plan reports errors on all of them.
        plan = plans.find(request, shape, dtype, serving)
        run = plan.forward if kind.forward else plan.backward
        wanted = run.inputs[0]
        # Where an axis stays split, its shares may not be even, or it may be another one than `held`.
        elsewhere = ranks > 1 and wanted.axes != (request.held,)
        uneven = serving is not None and stays_split(request, shape, ranks)
        if wanted.global_shape != held_shape or elsewhere or uneven:
            given = fitted(wanted, given, request, held_shape, base)
        if asked is not None and given is x:
            plans.serve(asked, plan, run)
        return plans.call(plan, run, given)


_SHAPES = {(True, True): (4, 8, 5), (True, False): (4, 8, 14)}  # results of the example in the docstring
_LONGER = "Zeros are added at the ends of `x`, or its ends are cut off"
_OUTPUT = {False: f"{_LONGER}.", True: f"{_LONGER},\n        along the last one to half as many modes."}
_SEVERAL = """s : sequence of int, optional
        Points of the transforms. {output}
    axes : sequence of int, optional
        Any, each once, in any order.
    norm"""
_ONE = """n : int, optional
        Points of the transforms. {output}
    axis : int
    norm"""


def _function(kind: Kind) -> Callable[..., DistArray]:
    default = None if kind.count is None else tuple(range(-kind.count, 0))

    def function_of_one(
        x: Any,
        comm: MPI.Intracomm | None = None,
        *,
        n: int | None = None,
        axis: int = -1,
        norm: str | None = None,
        overwrite_x: bool = False,
        workers: int | None = None,
        split: int | None = None,
        exchange: str | None = None,
    ) -> DistArray:
        return _transform(kind, x, comm, (None if n is None else (n,), (axis,), norm, workers, split, exchange))

    def function_of_several(
        x: Any,
        comm: MPI.Intracomm | None = None,
        *,
        s: Sequence[int] | None = None,
        axes: Sequence[int] | None = default,
        norm: str | None = None,
        overwrite_x: bool = False,
        workers: int | None = None,
        split: int | None = None,
        exchange: str | None = None,
    ) -> DistArray:
        return _transform(kind, x, comm, (s, axes, norm, workers, split, exchange))

    function: Any = function_of_one if kind.count == 1 else function_of_several
    lengths = (_ONE if kind.count == 1 else _SEVERAL).format(output=_OUTPUT[kind.real and not kind.forward])
    function.__name__ = function.__qualname__ = kind.name
    function.__doc__ = f"""Transform as `scipy.fft.{kind.name}` does, over MPI ranks (collective).

    Parameters
    ----------
    x : DistArray or ndarray
        Distributed, or this rank's part; unchanged.
    comm : mpi4py.MPI.Intracomm, optional
        By default that of `x`.
    {lengths} : {{"backward", "ortho", "forward"}}, optional
    overwrite_x : bool
        Without effect.
    workers : int, optional
        Threads per rank; default: 1.
    split : int, optional
        The axis of a plain array `x` that is split over the ranks: {_split_in_words(kind)}
    exchange : {{None, "f4"}}
        ``"f4"``: doubles are sent as singles, as of `FFT2`.

    Returns
    -------
    DistArray

    Raises
    ------
    InputError
        The arguments cannot be served, or differ between ranks; the message says which.

    Examples
    --------
    >>> import overlap.fft
    >>> result = overlap.fft.{kind.name}(np.ones((4, 8, 8)), comm{", split=0" if kind.count == 1 else ""})
    >>> result.global_shape
    {_SHAPES.get((kind.real, kind.forward), (4, 8, 8))}
    >>> overlap.fft.close_plans()
    """
    return function


def _split_in_words(kind: Kind) -> str:
    if kind.forward:
        return "by default the first transformed one."
    return "on several ranks it must be given, if `x` has more than one."


fft = _function(Kind("fft", True, False, 1))
ifft = _function(Kind("ifft", False, False, 1))
rfft = _function(Kind("rfft", True, True, 1))
irfft = _function(Kind("irfft", False, True, 1))
fft2 = _function(Kind("fft2", True, False, 2))
ifft2 = _function(Kind("ifft2", False, False, 2))
rfft2 = _function(Kind("rfft2", True, True, 2))
irfft2 = _function(Kind("irfft2", False, True, 2))
fftn = _function(Kind("fftn", True, False, None))
ifftn = _function(Kind("ifftn", False, False, None))
rfftn = _function(Kind("rfftn", True, True, None))
irfftn = _function(Kind("irfftn", False, True, None))
