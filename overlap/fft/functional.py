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
from typing import Any

import numpy as np
from mpi4py import MPI

from ..arrays import DistArray, mask_problem, same_ranks
from ..errors import InputError
from ..ranks.interrupts import held_signals, holding_signals
from ..ranks.kept_with import KeptWith
from ..ranks.resource import Calls, marked_call
from ..runtime import Runtime
from .arguments import shown
from .engine.fftw import complex_of
from .fft2 import FFT2
from .fft3 import FFT3
from .fftn import FFTN
from .fourier import FourierPlan
from .function_request import (
    FunctionRequest,
    Kind,
    Options,
    fitted,
    global_shape_of,
    real_space,
    request_of,
    serving_split,
    stays_split,
)
from .transform import Transform

KEPT = 8  # plans per communicator
_EXACT = {int, str, type(None)}
_EXACT_OR_TUPLE = _EXACT | {tuple}


class _Kept:
    """A plan that is kept.

    Attributes
    ----------
    plan : FFT2, FFT3 or FFTN
    used : int
        Number of the last call on this rank that used it.
    """

    def __init__(self, plan: FourierPlan) -> None:
        self.plan, self.used = plan, 0


class _Plans:
    """The plans of a communicator that were used last, and their runtimes by number of workers.

    For each request, the ranks agree once on a plan. From then on each rank looks the plan up by its own request,
    without messages, and calls it. At the header of the call all ranks learn whether one of them calls another plan or
    has found none; if so, they agree anew.

    Attributes
    ----------
    served : dict
        This rank's requests -> kept plan and its transform.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self._runtimes: dict[int, Runtime] = {}
        self._kept: dict[tuple, _Kept] = {}  # the keys are the same on all ranks
        self._count = 0
        self.served: dict[tuple, tuple[_Kept, Transform]] = {}

    @property
    def _calls(self) -> Calls:
        return self.base.coordinator.calls

    @property
    def base(self) -> Runtime:
        """Return the runtime on which all ranks synchronize (collective the first time)."""
        return self._runtime(1)

    @marked_call
    def call(self, kept: _Kept, run: Transform, x: np.ndarray) -> DistArray:
        """Call a transform of a kept plan (collective).

        Raises
        ------
        InputError
            On all ranks, if one of them is about to do something else: with `disagreement`.
        """
        self._count = kept.used = self._count + 1
        base = self.base
        if run.runtime is base:
            return run(x)
        with held_signals():  # both headers belong to one call
            base.coordinator.enter(run.known_as, {})
            return run(x)

    def find(self, request: FunctionRequest, shape: tuple[int, ...], dtype: np.dtype, split: int | None) -> _Kept:
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
                oldest = min(self._kept, key=lambda other: self._kept[other].used)
                self._drop(self.base.coordinator.bcast(oldest))  # the ranks' counts may differ after a failed call
            self._kept[key] = _Kept(plan)
        return self._kept[key]

    def serve(self, asked: tuple, kept: _Kept, run: Transform) -> None:
        """Note that a plan serves a request, after all ranks have agreed on it."""
        if len(self.served) > 8 * KEPT:
            self.served.clear()
        self.served[asked] = kept, run

    def _drop(self, key: tuple) -> None:
        """Close a plan."""
        dropped = self._kept[key]
        try:
            dropped.plan.close()
        finally:
            if dropped.plan.closed:  # else it is in a call
                del self._kept[key]
                self.served = {asked: found for asked, found in self.served.items() if found[0] is not dropped}

    def _runtime(self, workers: int) -> Runtime:
        """Return the runtime with `workers` workers; make it if there is none (collective)."""
        if workers not in self._runtimes:
            self._runtimes[workers] = Runtime(self._comm, workers=workers, deadline_s=600.0)
        return self._runtimes[workers]

    def close(self) -> None:
        """Close all plans, then all runtimes (collective)."""
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
    if not isinstance(rendezvous, MPI.Intracomm) or rendezvous == MPI.COMM_NULL:
        raise InputError(f"expected a DistArray, or comm to be an mpi4py.MPI.Intracomm, received comm={shown(comm)}")
    plans, ranks = _plans.of(rendezvous), rendezvous.size
    base = plans.base  # the same runtime for any request, because ranks with different requests must synchronize
    with base.coordinator.calls.marked():
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
    # From here on all ranks have the same request, and the plan reports errors on all of them. Finding a plan is no
    # call of the kept plans: it may close one.
    kept = plans.find(request, shape, dtype, serving)
    with base.coordinator.calls.marked():
        run = kept.plan.forward if kind.forward else kept.plan.backward
        wanted = run.inputs[0]
        if wanted.global_shape != held_shape or (serving is not None and stays_split(request, shape, ranks)):
            given = fitted(wanted, given, request, held_shape, base)
        if asked is not None and given is x:
            plans.serve(asked, kept, run)
        return plans.call(kept, run, given)


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
