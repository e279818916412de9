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
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from ..arrays import DistArray, mask_problem, same_ranks
from ..errors import InputError
from ..runtime import Runtime
from ..runtime.kept_with import KeptWith
from .arguments import shown
from .engine.fftw import complex_of
from .fft2 import FFT2
from .fft3 import FFT3
from .fftn import FFTN
from .fourier import FourierPlan
from .function_request import Kind, Request, fitted, global_shape_of, real_space, request_of, serving_split, stays_split

KEPT = 8  # plans per communicator


class _Plans:
    """The plans of a communicator that were used last, and their runtimes by number of workers."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self._runtimes: dict[int, Runtime] = {}
        self._plans: OrderedDict[tuple, FourierPlan] = OrderedDict()
        self._served: dict[tuple, tuple] = {}  # on one rank: request -> key of a plan

    def serving(self, asked: tuple) -> FourierPlan | None:
        """Return, on one rank, the plan that has served the same request before, without checks or messages."""
        key = self._served.get(asked)
        if key is None or key not in self._plans:
            return None
        self._plans.move_to_end(key)
        return self._plans[key]

    def remember(self, asked: tuple) -> None:
        """Note that the plan found last serves a request, so that `serving` returns it."""
        if len(self._served) > 8 * KEPT:
            self._served.clear()
        self._served[asked] = next(reversed(self._plans))

    def find(self, request: Request, shape: tuple[int, ...], dtype: np.dtype, split: int | None) -> FourierPlan:
        """Return the plan for a request; make it if it is not among the kept ones (collective).

        It is an `FFTN` whose arrays in real space are split along `split`; if that is None, an `FFT2` or `FFT3`.
        """
        axes, options = request.axes, request.options
        key = shape, dtype, *options.values(), request.workers, axes, split
        if key not in self._plans:
            runtime = self.runtime(request.workers)
            if split is not None:
                self._plans[key] = FFTN(runtime, shape, dtype, axes=axes, split=split, **options)
            elif len(axes) == 2:
                self._plans[key] = FFT2(runtime, shape, dtype, **options)
            else:
                self._plans[key] = FFT3(runtime, shape, dtype, layout={"grid": (1, self._comm.size)}, **options)
            if len(self._plans) > KEPT:
                self._plans.popitem(last=False)[1].close()
        self._plans.move_to_end(key)
        return self._plans[key]

    def runtime(self, workers: int) -> Runtime:
        """Return the runtime with `workers` workers; make it if there is none (collective)."""
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
    """Close the plans that the functions have kept (collective over all communicators of their calls).

    Examples
    --------
    >>> import overlap.fft
    >>> spectrum = overlap.fft.fft2(np.ones((2, 8, 8)), comm)
    >>> overlap.fft.close_plans()
    """
    for plans in _plans.every:
        plans.close()


atexit.register(close_plans)


def _transform(
    kind: Kind,
    x: Any,
    comm: MPI.Intracomm | None,
    s: Sequence[int] | None,
    axes: Sequence[int] | None,
    norm: str | None,
    workers: int | None,
    split: int | None,
    exchange: str | None,
) -> DistArray:
    """Transform an array, as any of the functions does."""
    # On one rank, a request that was made before in the same way needs no further check.
    asked = None
    where = comm if type(x) is np.ndarray else x.comm if type(x) is DistArray and comm is None else None
    if (
        type(where) is MPI.Intracomm
        and where
        and where.size == 1
        and s is workers is split is exchange is None
        and type(axes) is tuple
        and {*map(type, axes)} == {int}
        and (norm is None or type(norm) is str)
    ):
        asked = kind.name, x.shape, x.dtype, norm, axes
        known = _plans.of(where).serving(asked)
        if known is not None:
            return known.forward(x) if kind.forward else known.backward(x)
    # If the array has a communicator, the ranks synchronize on that: so all of them raise if one passed another `comm`.
    own = x.comm if isinstance(x, DistArray) else None
    rendezvous = comm if own is None else own
    if not isinstance(rendezvous, MPI.Intracomm) or rendezvous == MPI.COMM_NULL:
        raise InputError(f"expected a DistArray, or comm to be an mpi4py.MPI.Intracomm, received comm={shown(comm)}")
    plans = _plans.of(rendezvous)
    base = plans.runtime(1)  # of any request: ranks with different requests must synchronize on the same runtime
    with base.collective_section(f"transforming an array, {kind.name}"):  # an error of one rank raises on all
        if comm is not None and not same_ranks(comm, rendezvous):
            raise InputError(f"expected comm to be that of x, or None, received {shown(comm)}")
        if problem := mask_problem(x=x):
            raise InputError(problem)
        array: np.ndarray = x if isinstance(x, DistArray) else np.asarray(x)
        request = request_of(kind, array, rendezvous.size, s, axes, norm, workers, split, exchange)
        base.preflight(**request.agreed())
        held_shape = global_shape_of(request, base)
        shape, dtype = real_space(kind, request, held_shape)
        serving = None if request.usual else serving_split(kind, request, shape, rendezvous.size)
        given = array.astype(dtype if kind.forward else complex_of(dtype), copy=False)
    # From here on all ranks have the same request, and the plan reports errors on all of them.
    plan = plans.find(request, shape, dtype, serving)
    run: Any = plan.forward if kind.forward else plan.backward
    if asked is not None and given is x:
        plans.remember(asked)
    wanted = run.inputs[0]
    if wanted.global_shape != held_shape or (serving is not None and stays_split(request, shape, rendezvous.size)):
        with base.collective_section("fitting an array"):
            given = fitted(wanted, given, request, held_shape)
        if base.coordinator.maximum(int(given.local_slice != wanted.local_slice)):
            given = given.redistribute(wanted, exchange=exchange)
    return run(given)


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
        return _transform(kind, x, comm, None if n is None else (n,), (axis,), norm, workers, split, exchange)

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
        return _transform(kind, x, comm, s, axes, norm, workers, split, exchange)

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
