"""FFTW's plans, made and executed by address in the very library that pyfftw loaded.

pyfftw executes plans one call from Python at a time. What compiled code executes needs a plan's address, and
that of the function that executes it on other arrays; both come from here. Wisdom is the library's, hence
shared with pyfftw.
"""

from __future__ import annotations

import ctypes
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from .fftw import complex_of

EFFORTS = {"measure": 0, "exhaustive": 1 << 3, "patient": 1 << 5, "estimate": 1 << 6}
DESTROY_INPUT, PRESERVE_INPUT = 1 << 0, 1 << 4
FORWARD, BACKWARD = -1, 1


class _Dimension(ctypes.Structure):
    """FFTW's fftw_iodim64: length, and strides of input and output in elements."""

    _fields_ = [(name, ctypes.c_ssize_t) for name in ("n", "input", "output")]


class LineTransform:
    """FFTs along one axis of an array, unnormalised.

    It can be executed on other arrays of the same shape and strides whose addresses have the same
    remainder by `fftw.REQUIRED_ALIGNMENT`, in place or not as it was planned.

    Parameters
    ----------
    source, target : ndarray
        Overwritten by planning. Complex both, or real on the real-space side. One in place.
    axis : int
    forward : bool
    effort : str
    keep : bool
        Leave the source as it is, where it is not the target.

    Attributes
    ----------
    function, plan : int
        Addresses: ``function(plan, source, target)`` executes it.
    """

    def __init__(self, source: np.ndarray, target: np.ndarray, axis: int, forward: bool,
                 effort: str | None, keep: bool = False) -> None:
        self._library, prefix = _library(complex_of(source.dtype).itemsize == 8)
        kind = {"cc": "dft", "fc": "dft_r2c", "cf": "dft_c2r"}[source.dtype.kind + target.dtype.kind]
        self._destroy = getattr(self._library, prefix + "destroy_plan")
        make = getattr(self._library, f"{prefix}plan_guru64_{kind}")
        make.restype = ctypes.c_void_p
        physical = source if kind != "dft_c2r" else target
        dimensions = [_Dimension(length, here // source.itemsize, there // target.itemsize)
                      for length, here, there in zip(physical.shape, source.strides, target.strides)]
        line = dimensions.pop(axis)
        # Batched axes, those with the longer strides first: FFTW need not look for an order then.
        batch = sorted(dimensions, key=lambda one: one.output, reverse=True)
        flags = EFFORTS[effort or "measure"] | (PRESERVE_INPUT if keep else DESTROY_INPUT)
        direction = [ctypes.c_int(FORWARD if forward else BACKWARD)] if kind == "dft" else []
        plan = make(1, ctypes.byref(line), len(batch), (_Dimension * len(batch))(*batch),
                    ctypes.c_void_p(_address(source)), ctypes.c_void_p(_address(target)),
                    *direction, ctypes.c_uint(flags))
        if plan is None:
            raise RuntimeError(f"expected FFTW to plan axis {axis} of {physical.shape} "
                               f"{source.dtype}, received no plan")
        self.plan: int = plan
        execute = getattr(self._library, f"{prefix}execute_{kind}")
        self.function: int = ctypes.cast(execute, ctypes.c_void_p).value or 0
        self._execute = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)(self.function)

    def __del__(self) -> None:
        if getattr(self, "plan", None) is not None:
            self._destroy(ctypes.c_void_p(self.plan))

    def execute(self, source: np.ndarray, target: np.ndarray) -> None:
        """Execute it from Python, without the GIL."""
        self._execute(self.plan, _address(source), _address(target))


@cache
def _library(single: bool) -> tuple[Any, str]:
    """The FFTW of a precision that is loaded, and how its functions' names begin.

    Loaded as one whose functions hold the GIL: planning is no matter for two threads at a time.
    """
    name = r"libfftw3f" if single else r"libfftw3"
    pattern = re.compile(rf"/.*/{name}(-[0-9a-f]+)?\.so[.0-9]*$", re.MULTILINE)
    found = pattern.search(Path("/proc/self/maps").read_text())
    if found is None:
        raise ImportError(f"expected pyfftw to have loaded the library {name}, found none")
    return ctypes.PyDLL(found.group()), "fftwf_" if single else "fftw_"


def _address(array):
    return array.__array_interface__["data"][0]
