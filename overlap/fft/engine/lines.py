"""FFTW's plans, made and executed by address.

pyfftw executes plans by one call from Python each. Compiled code needs the address of a plan, and that of the function
that executes it on other arrays; both are made here. Wisdom belongs to the library, so it is shared with pyfftw (see
`library`).

FFTW_MEASURE takes up to 0.2 s for a transform of a block, FFTW_PATIENT 2 s: they time hundreds of plans. By default an
in-place transform gets the plan of a search that stops at the first suitable codelet of each step (FFTW_ALLOW_PRUNING;
a few ms). For an out-of-place transform there is a second short search, over other loops over the lines, and the faster
of the two plans is kept. Wisdom contains only the plan that was kept, so a transform that is planned again gets the
same plan.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ...compiled.memory import address_of
from ...timing import in_turns, seconds_of
from .fftw import fftw_of, learned, relearn

EFFORTS = {"measure": 0, "exhaustive": 1 << 3, "patient": 1 << 5, "estimate": 1 << 6}
DESTROY_INPUT, PRESERVE_INPUT = 1 << 0, 1 << 4
FORWARD, BACKWARD = -1, 1
WISDOM_ONLY, PRUNED = 1 << 21, 1 << 20
# A narrow search, and one that is wide in splitting the loops over lines but narrow otherwise.
NARROW = EFFORTS["measure"] | PRUNED
WIDE = EFFORTS["patient"] | PRUNED | sum(1 << bit for bit in (9, 11, 12, 14, 18, 19))
WIDE_S = 0.1  # limit of the second search: twice its time for real lines on an idle core
ROUNDS, ROUND_POINTS = 5, 2**14  # rounds in which two plans are compared, and points transformed in a round


class _Dimension(ctypes.Structure):
    """FFTW's fftw_iodim64: length, and strides of input and output in elements."""

    _fields_ = [(name, ctypes.c_ssize_t) for name in ("n", "input", "output")]


class LineTransform:
    """FFTs along one axis of an array, unnormalised.

    The plan can be executed on other arrays of the same shape and strides whose addresses are equal modulo
    `fftw.REQUIRED_ALIGNMENT`, in place or out of place as planned: ``function(plan, source, target)`` executes it.
    """

    def __init__(
        self,
        source: np.ndarray,  # an array for planning, which overwrites it
        target: np.ndarray,  # another one, or `source` for a transform in place; one of the two may be real
        axis: int,
        forward: bool,
        effort: str | None,  # FFTW's planning effort; None: the faster of two quick searches
        keep: bool = False,  # an out-of-place transform does not overwrite its source
        # The data come from memory, block after block, and the points of a line are far apart. FFTW times a block that
        # stays in the cache, and so prefers plans that transform one line after the other, which are then twice as slow
        # as those that transform all lines of a block at once. So the plan of the second search is taken for every
        # effort except "estimate", which makes the same plan in every run.
        streamed: bool = False,
        # FFTW's number of a real-to-real kind, applied to real and imaginary parts separately.
        real_kind: int | None = None,
    ) -> None:
        self._fftw = fftw_of(source.dtype)
        kinds = {"cc": "dft", "fc": "dft_r2c", "cf": "dft_c2r"}
        kind = "r2r" if real_kind is not None else kinds[source.dtype.kind + target.dtype.kind]
        self._destroy = self._fftw.function("destroy_plan")
        make = self._fftw.function(f"plan_guru64_{kind}", ctypes.c_void_p)
        self._fftw.plan_with_one_thread()
        physical = source if kind != "dft_c2r" else target
        parts = 2 if kind == "r2r" and source.dtype.kind == "c" else 1  # numbers of an element for the plan
        dimensions = [
            _Dimension(length, source_stride * parts // source.itemsize, target_stride * parts // target.itemsize)
            for length, source_stride, target_stride in zip(physical.shape, source.strides, target.strides)
        ]
        line = dimensions.pop(axis)
        if parts > 1:
            dimensions.append(_Dimension(parts, 1, 1))
        # Batched axes by descending strides, so that FFTW need not search for an order.
        batch = sorted(dimensions, key=lambda dimension: dimension.output, reverse=True)
        kept = PRESERVE_INPUT if keep else DESTROY_INPUT
        direction: list[Any] = [ctypes.c_int(FORWARD if forward else BACKWARD)] if kind == "dft" else []
        if real_kind is not None:
            direction = [ctypes.byref(ctypes.c_int(real_kind))]

        def planned(flags: int) -> int | None:
            known = made(flags | WISDOM_ONLY)
            if known is None and not flags & WISDOM_ONLY:
                self._fftw.searched += 1
                known = made(flags)
            return known

        def made(flags: int) -> int | None:
            return make(
                1,
                ctypes.byref(line),
                len(batch),
                (_Dimension * len(batch))(*batch),
                ctypes.c_void_p(address_of(source)),
                ctypes.c_void_p(address_of(target)),
                *direction,
                ctypes.c_uint(flags | kept),
            )

        execute = self._fftw.function(f"execute_{kind}")
        self.function: int = ctypes.cast(execute, ctypes.c_void_p).value or 0
        self._execute = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)(self.function)
        if streamed and effort != "estimate":
            plan = planned(WIDE) or planned(NARROW)
        elif effort:
            plan = planned(EFFORTS[effort])
        else:
            plan = planned(NARROW) if source is target else self._faster(planned, source, target)
        if plan is None:
            raise RuntimeError(
                f"expected FFTW to plan axis {axis} of {physical.shape} {source.dtype}, received no plan"
            )
        self.plan: int = plan

    def __del__(self) -> None:
        if getattr(self, "plan", None) is not None:
            self._destroy(ctypes.c_void_p(self.plan))

    def _faster(self, planned: Callable[[int], int | None], source: np.ndarray, target: np.ndarray) -> int | None:
        """Return the plan that wisdom has, or the faster plan of two searches."""
        if known := planned(WIDE | WISDOM_ONLY) or planned(NARROW | WISDOM_ONLY):
            return known
        before = learned()
        limit = self._fftw.function("set_timelimit")
        limit(ctypes.c_double(WIDE_S))
        challenger = planned(WIDE)
        limit(ctypes.c_double(-1.0))
        if challenger is None:  # a length with large prime factors
            return planned(NARROW)
        after = learned()
        relearn(before)  # else the second search would find the first one's plan
        plans = challenger, planned(NARROW)
        source[...] = 0
        target[...] = 0
        arrays, runs = (address_of(source), address_of(target)), 1 + ROUND_POINTS // source.size
        times_s = in_turns(
            [partial(seconds_of, partial(self._execute, plan, *arrays), runs) for plan in plans], range(ROUNDS)
        )
        self._destroy(ctypes.c_void_p(challenger))
        if times_s[0].min() >= times_s[1].min():
            return plans[1]
        held = learned()
        relearn(after)
        if known := planned(WIDE | WISDOM_ONLY):
            self._destroy(ctypes.c_void_p(plans[1]))
            return known
        relearn(held)  # the second search ran out of time, and has dropped wisdom
        return plans[1]

    def execute(self, source: np.ndarray, target: np.ndarray) -> None:
        """Execute the plan from Python, without the GIL."""
        self._execute(self.plan, address_of(source), address_of(target))
