"""Requests to the functions of `overlap.fft`: checked, and in terms of plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from operator import index
from typing import Any

import numpy as np

from ..arrays import DistArray, Distribution, block
from ..arrays.exchange import exchange_problem
from ..checks import choice_problem
from ..errors import InputError
from ..runtime import Runtime
from .arguments import NORMS, axes_of_array, integers, shown
from .array_spec import ArraySpec
from .engine.fftw import complex_of
from .engine.six_step import two_factors
from .fftn import staying_split

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
    """The request of one rank, checked as far as a rank can check it alone.

    Attributes
    ----------
    shape : tuple of int
        Shape of the local part.
    where : Distribution or None
        The distribution of the array, if known.
    held : int
        The axis along which `x` is split.
    axes : tuple of int
        The transformed axes.
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
