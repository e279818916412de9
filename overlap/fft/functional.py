"""FFTs as functions with `scipy.fft`'s names and arguments: plans are made when they are first needed, and kept.

``overlap.fft.fft2(u)`` transforms a `DistArray` and returns one, along any axes, in any order. The array is split along
one axis. If that axis is not transformed, nothing is exchanged and the result is split alike. Else the result is split
along another axis: along the second one of the last two or three axes in order, and along the last one of others;
where no other axis is as long as there are ranks, it stays split. The inverse functions take what the forward ones
give. What can't be served from where the array is split is refused (`DistArray.redistribute` mends that).

A plain array, this rank's part with the first parts one longer where the split is uneven, does not say which axis is
split. The forward functions take it for the first transformed one. The inverse ones would be given rows for columns
too easily: they want to be told, ``ifft2(part, comm, split=-1)``, unless `comm` has one rank only. All functions are
collective.

The last eight plans of every communicator are kept; `close_plans` closes them, as does the end of the communicator or
the interpreter.
"""

from __future__ import annotations

import atexit
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral
from operator import index
from typing import Any

import numpy as np
from mpi4py import MPI

from ..arrays import DistArray, Distribution, block, mask_problem, same_ranks
from ..errors import InputError
from ..runtime import Runtime
from ..runtime.kept_with import KeptWith
from .arguments import NORMS, axes_of_array, choice_problem, integers, shown
from .array_spec import ArraySpec
from .engine.fftw import complex_of
from .engine.six_step import two_factors
from .fft2 import FFT2
from .fft3 import FFT3
from .fftn import FFTN, staying_split
from .fourier import FourierPlan

KEPT = 8  # plans per communicator


class _Plans:
    """The plans of a communicator, those used last, and their runtimes by number of workers."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self._runtimes: dict[int, Runtime] = {}
        self._plans: OrderedDict[tuple, FourierPlan] = OrderedDict()

    def find(self, request: _Request, shape: tuple[int, ...], dtype: np.dtype, split: int | None) -> FourierPlan:
        """Return the plan for a request, made now if it is not among those that are kept (collective).

        It is an `FFTN` that is split along an axis in real space; if that is None, an `FFT2` or `FFT3`.
        """
        norm, axes = request.norm, request.axes
        key = shape, dtype, norm, request.workers, axes, split
        if key not in self._plans:
            runtime = self.runtime(request.workers)
            if split is not None:
                self._plans[key] = FFTN(runtime, shape, dtype, axes=axes, split=split, norm=norm)
            elif len(axes) == 2:
                self._plans[key] = FFT2(runtime, shape, dtype, norm=norm)
            else:
                self._plans[key] = FFT3(runtime, shape, dtype, norm=norm, layout={"grid": (1, self._comm.size)})
            if len(self._plans) > KEPT:
                self._plans.popitem(last=False)[1].close()
        self._plans.move_to_end(key)
        return self._plans[key]

    def runtime(self, workers: int) -> Runtime:
        """Return the runtime with so many workers, made now if there is none (collective)."""
        if workers not in self._runtimes:
            self._runtimes[workers] = Runtime(self._comm, workers=workers, deadline_s=600.0)
        return self._runtimes[workers]

    def close(self) -> None:
        """Close all plans, then all runtimes (collective)."""
        while self._plans:
            self._plans.popitem()[1].close()
        while self._runtimes:
            self._runtimes.popitem()[1].close()


_plans = KeptWith(_Plans)


def close_plans() -> None:
    """Close the plans that the functions have kept (collective over every communicator that they were called on).

    Examples
    --------
    >>> import overlap.fft
    >>> spectrum = overlap.fft.fft2(np.ones((2, 8, 8)), comm)
    >>> overlap.fft.close_plans()
    """
    for plans in _plans.every:
        plans.close()


atexit.register(close_plans)


@dataclass(frozen=True)
class _Kind:
    """One of the functions."""

    name: str
    forward: bool
    real: bool
    count: int | None  # of axes, by default

    def real_split(self, shape: tuple[int, ...], axes: tuple[int, ...], held: int, ranks: int) -> int | None:
        """Return the axis that is split in real space, where the argument is split along `held`; None if there is none.

        An axis that is not transformed stays split. Others change places in the exchange, or stay: see `FFTN`.
        """
        stays = staying_split(shape, axes, (held,), (ranks,)) and (two_factors(shape[held], ranks) or len(shape) == 1)
        if held not in axes or (stays and not (self.real and held == axes[-1])):
            return held
        if self.forward:
            return None if self.real and held == axes[-1] else held
        if held == axes[-1]:
            return axes[0] if len(axes) > 1 else None
        return axes[-1] if held == axes[-2] and not self.real else None


@dataclass(frozen=True)
class _Request:
    """What one rank asks for, checked as far as a rank can do that alone.

    Attributes
    ----------
    shape : tuple of int
        Shape of the local part.
    where : Distribution or None
        How the array is distributed, if it knows that.
    held : int
        The axis along which `x` is split.
    axes : tuple of int
        Those that are transformed.
    usual : bool
        An `FFT2` or `FFT3` serves the request.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    where: Distribution | None
    held: int
    axes: tuple[int, ...]
    usual: bool
    s: tuple[int, ...] | None
    norm: str | None
    workers: int

    def agreed(self) -> dict[str, Any]:
        """Return what must be the same on all ranks, by the arguments' names."""
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
            "norm": self.norm,
            "workers": self.workers,
        }


def _transform(
    kind: _Kind,
    x: Any,
    comm: MPI.Intracomm | None,
    s: Sequence[int] | None,
    axes: Sequence[int] | None,
    norm: str | None,
    workers: int | None,
    split: int | None,
) -> DistArray:
    """Do what any of the functions does."""
    # Ranks whose array knows its communicator meet there: all of them are told if one was given another for `comm`.
    own = x.comm if isinstance(x, DistArray) else None
    rendezvous = comm if own is None else own
    if not isinstance(rendezvous, MPI.Intracomm) or rendezvous == MPI.COMM_NULL:
        raise InputError(f"expected a DistArray, or comm to be an mpi4py.MPI.Intracomm, received comm={shown(comm)}")
    plans = _plans.of(rendezvous)
    base = plans.runtime(1)  # whatever is asked for: ranks that ask for different things must meet somewhere
    with base.collective_section(f"transforming an array, {kind.name}"):  # what is wrong on one rank is refused on all
        if comm is not None and not same_ranks(comm, rendezvous):
            raise InputError(f"expected comm to be that of x, or None, received {shown(comm)}")
        if problem := mask_problem(x=x):
            raise InputError(problem)
        array: np.ndarray = x if isinstance(x, DistArray) else np.asarray(x)
        request = _request(kind, array, rendezvous.size, s, axes, norm, workers, split)
        base.preflight(**request.agreed())
        held_shape = _global_shape(request, base)
        shape, dtype = _real_space(kind, request, held_shape)
        serving = None if request.usual else _serving(kind, request, shape, rendezvous.size)
        given = array.astype(dtype if kind.forward else complex_of(dtype), copy=False)
    # All ranks ask for the same from here on: what they are refused, or what fails, the plan tells all of them.
    plan = plans.find(request, shape, dtype, serving)
    run: Any = plan.forward if kind.forward else plan.backward
    # An axis that stays split may be so in other shares than even ones.
    if run.inputs[0].global_shape != held_shape or (serving == request.held and serving in request.axes):
        given = _fitted(run.inputs[0], given, request, held_shape, base)
    return run(given)


def _serving(kind: _Kind, request: _Request, shape: tuple[int, ...], ranks: int) -> int:
    """Return the axis along which the `FFTN` that serves a request is split in real space, of that global shape."""
    if ranks == 1:
        return request.axes[0]
    serving = kind.real_split(shape, request.axes, request.held, ranks)
    if serving is None:
        raise InputError(
            f"expected x to be split along another axis for {kind.name} along {request.axes}, received one split along "
            f"axis {request.held}: use DistArray.redistribute"
        )
    return serving


def _fitted(
    spec: ArraySpec, given: np.ndarray, request: _Request, shape: tuple[int, ...], runtime: Runtime
) -> DistArray:
    """Return an array of some global shape in the lengths and shares of a plan's arrays (collective).

    Zeros are added at its ends, or the ends are cut off.
    """
    if request.where is not None:
        parts = list(request.where.local_slice)
    else:
        parts = [slice(0, length) for length in shape]
        parts[request.held] = block(shape[request.held], spec.comm.size)[spec.comm.rank]
    where = []
    for part, length, wanted in zip(parts, shape, spec.global_shape):
        start = min(part.start, wanted) if part.start < length else wanted
        where.append(slice(start, wanted if part.stop == length else max(start, min(part.stop, wanted))))
    fitted = np.zeros([part.stop - part.start for part in where], given.dtype)
    kept = tuple(slice(0, min(lengths)) for lengths in zip(given.shape, fitted.shape))
    fitted[kept] = np.asarray(given)[kept]
    found = DistArray(fitted, spec.comm, spec.global_shape, (request.held,), where)
    differs = found.distribution.local_slice != spec.local_slice
    return found.redistribute(spec) if runtime.coordinator.maximum(int(differs)) else found


def _request(
    kind: _Kind,
    array: np.ndarray,
    ranks: int,
    s: Sequence[int] | None,
    axes: Sequence[int] | None,
    norm: str | None,
    workers: int | None,
    split: int | None,
) -> _Request:
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
    if problem := choice_problem(norm=(norm, NORMS)):
        raise InputError(problem)
    if lengths is not None and (len(lengths) != count or min(lengths) < 1):
        raise InputError(f"expected s to be {count} positive integers or None, received {shown(s)}")
    if array.dtype.kind not in "?biufc":
        raise InputError(f"expected an array of numbers, received {array.dtype}")
    if kind.real and kind.forward and array.dtype.kind == "c":
        raise InputError(f"expected a real array, received {array.dtype}")
    where = array.distribution if isinstance(array, DistArray) else None
    in_order = count in (2, 3) and chosen == tuple(range(dimensions - count, dimensions))
    usual = chosen[1 if in_order and not kind.forward else 0]  # where the plans for the last axes have it split
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
        given = usual if in_order else chosen[-1]
        raise InputError(
            "expected a DistArray, or split to name the axis along which x is split over the ranks, received a plain "
            "array"
            + f": what {kind.name.removeprefix('i')} gives is split along axis {given} of {dimensions}, split={given}"
            * (count > 1)
        )
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, Integral)):
        raise InputError(f"expected workers to be a positive integer or None, received {shown(workers)}")
    threads = 1 if workers is None else int(workers)
    usually = in_order and (ranks == 1 or held == usual)
    return _Request(array.shape, array.dtype, where, held, chosen, usually, lengths, norm, threads)


def _real_space(kind: _Kind, request: _Request, held_shape: tuple[int, ...]) -> tuple[tuple[int, ...], np.dtype]:
    """Return shape and type in real space of the plan that is needed for an array of some global shape."""
    lengths = list(held_shape)
    if kind.real and not kind.forward:
        lengths[request.axes[-1]] = 2 * (lengths[request.axes[-1]] - 1)
    for axis, length in zip(request.axes, request.s or ()):
        lengths[axis] = length
    dtype = request.dtype.newbyteorder("=")
    if dtype.kind not in "fc":  # as scipy does
        dtype = np.dtype(float)
    elif dtype == np.float16:
        dtype = np.dtype(np.float32)
    spectral = complex_of(dtype)
    return tuple(lengths), np.empty(0, spectral).real.dtype if kind.real else spectral


def _global_shape(request: _Request, runtime: Runtime) -> tuple[int, ...]:
    """Find the shape of the whole array (collective)."""
    if request.where is not None:
        return request.where.global_shape
    shape, axis = request.shape, request.held
    lengths = runtime.coordinator.allgather(shape[axis])
    total = sum(lengths)
    if lengths != [part.stop - part.start for part in block(total, runtime.coordinator.size)]:
        raise InputError(
            f"expected parts along axis {axis} of which the first are one longer where the split is uneven, "
            f"received {lengths}"
        )
    return (*shape[:axis], total, *shape[axis + 1 :])


_SHAPES = {(True, True): (4, 8, 5), (True, False): (4, 8, 14)}  # of the example in the docstring
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


def _function(kind: _Kind) -> Callable[..., DistArray]:
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
    ) -> DistArray:
        return _transform(kind, x, comm, None if n is None else (n,), (axis,), norm, workers, split)

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
    ) -> DistArray:
        return _transform(kind, x, comm, s, axes, norm, workers, split)

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

    Returns
    -------
    DistArray

    Raises
    ------
    InputError
        What is asked for cannot be served, or the ranks ask for different things; the message names it.

    Examples
    --------
    >>> import overlap.fft
    >>> result = overlap.fft.{kind.name}(np.ones((4, 8, 8)), comm{", split=0" if kind.count == 1 else ""})
    >>> result.global_shape
    {_SHAPES.get((kind.real, kind.forward), (4, 8, 8))}
    >>> overlap.fft.close_plans()
    """
    return function


def _split_in_words(kind: _Kind) -> str:
    if kind.forward:
        return "by default the first transformed one."
    return "on several ranks it must be given, if `x` has more than one."


fft = _function(_Kind("fft", True, False, 1))
ifft = _function(_Kind("ifft", False, False, 1))
rfft = _function(_Kind("rfft", True, True, 1))
irfft = _function(_Kind("irfft", False, True, 1))
fft2 = _function(_Kind("fft2", True, False, 2))
ifft2 = _function(_Kind("ifft2", False, False, 2))
rfft2 = _function(_Kind("rfft2", True, True, 2))
irfft2 = _function(_Kind("irfft2", False, True, 2))
fftn = _function(_Kind("fftn", True, False, None))
ifftn = _function(_Kind("ifftn", False, False, None))
rfftn = _function(_Kind("rfftn", True, True, None))
irfftn = _function(_Kind("irfftn", False, True, None))
