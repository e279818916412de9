"""`FFT`: transforms of this rank's arrays along some of their axes, by one of several libraries."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol, overload

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from ...arrays import refuse_masks
from ...errors import InputError
from . import fftw

BACKENDS = ("fftw", "pyfftw", "numpy", "scipy", "mkl_fft")
PADDED = 1 + 1e-6  # smaller factors mean no padding

Pair = tuple[Callable[..., Any], Callable[..., Any]]
"""A forward and a backward function, with the interface of a backend."""
Transforms = Mapping[tuple[int, ...], Pair]
Padding = bool | float | Sequence[float] | None


class SerialPlan(Protocol):
    """A plan of a backend: one direction, between two arrays that it keeps."""

    input_array: np.ndarray
    output_array: np.ndarray

    def __call__(self, *args: Any, **options: Any) -> object:
        """Transform."""


class FFT:
    """A serial transform and its inverse.

    Parameters
    ----------
    shape : int or sequence of int
        Shape of the forward transform's input; with padding, that of the finer grid.
    axes : None, int or sequence of int
        All by default. Real input has half the modes along the last one.
    dtype : dtype
        Type of the forward transform's input: "f", "d", "g" or "F", "D", "G".
    padding : False, number or sequence of numbers
        The factor by which the input's grid is finer than that of the result: along the only axis, or one number per
        axis of the array.
    backend : {"fftw", "pyfftw", "numpy", "scipy", "mkl_fft"}
    transforms : dict, optional
        ``{axes: (forward, backward)}``: other transforms of the backend along these axes.
    planner_effort, overwrite_input, threads : optional
        Options of FFTW; by default ``"FFTW_MEASURE"``, ``"FFTW_DESTROY_INPUT"``, 1.

    Attributes
    ----------
    forward, backward : Serial
        The forward transform divides by the number of points unless called with ``normalize=False``, the backward one
        only with ``normalize=True``.
    M : float
        The factor of that division.

    Raises
    ------
    InputError
    """

    def __init__(
        self,
        shape: int | Sequence[int],
        axes: int | Sequence[int] | None = None,
        dtype: DTypeLike = float,
        padding: Padding = False,
        backend: str = "fftw",
        transforms: Transforms | None = None,
        **options: Any,
    ) -> None:
        self.shape = [int(length) for length in np.atleast_1d(shape)]
        count = len(self.shape)
        self.axes = [int(axis) for axis in np.atleast_1d(range(count) if axes is None else axes)]
        if not self.axes or not all(-count <= axis < count for axis in self.axes):
            raise InputError(f"expected axes from {-count} to {count - 1}, received {axes!r}")
        self.axes = [axis % count for axis in self.axes]
        self.dtype, self.backend, self.padding = np.dtype(dtype), backend, padding
        if len({*self.axes}) < len(self.axes) or self.dtype.char not in "fdgFDG":
            raise InputError(
                f"expected axes, each once, and a real or complex floating type, received {axes!r} and {self.dtype}"
            )
        self.padding_factor = 1.0
        if padding is not False and padding is not None:
            factors = np.asarray(padding, float)
            self.padding_factor = float(factors[self.axes[-1]] if factors.ndim else factors)
        if backend not in PLANNERS:
            raise InputError(f"backend {backend!r} is not supported: expected one of {BACKENDS}")
        chosen = (transforms or {}).get(tuple(self.axes))
        self.fwd, self.bck = PLANNERS[backend](tuple(self.shape), self.axes, self.dtype, chosen, options)
        self.M = (
            self.fwd.get_normalization()
            if isinstance(self.fwd, fftw.FFT)
            else 1 / np.prod([float(self.shape[axis]) for axis in self.axes])
        )
        source, modes = self.fwd.input_array, self.fwd.output_array
        self.real_transform = source.dtype.kind == "f" and source.shape != modes.shape
        if abs(self.padding_factor - 1) > 1e-8:
            if len(self.axes) > 1:
                raise InputError(f"expected one axis with padding, received axes {self.axes}")
            modes = fftw.aligned(self._resolved_shape(), dtype=modes.dtype)
        self.forward = Serial(self._forward, source, modes)
        self.backward = Serial(self._backward, modes, source)

    def _resolved_shape(self) -> list[int]:
        shape, axis = list(self.shape), self.axes[-1]
        shape[axis] = int(np.round(shape[axis] / self.padding_factor))
        if self.real_transform:
            shape[axis] = shape[axis] // 2 + 1
        return shape

    def _forward(self, normalize: bool = True, **options: Any) -> None:
        self.fwd(None, None, **options)
        modes = self.forward.output_array
        if modes is not self.fwd.output_array:
            _truncate(self.fwd.output_array, modes, self.axes[-1], self.real_transform)
        if normalize:
            modes *= self.M

    def _backward(self, normalize: bool = False, **options: Any) -> None:
        modes = self.backward.input_array
        if modes is not self.bck.input_array:
            _pad(modes, self.bck.input_array, self.axes[-1], self.real_transform)
        self.bck(None, None, **options)
        if normalize:
            self.backward.output_array *= self.M


class MadeLater(Sequence[FFT]):
    """A sequence whose items are made at their first use, by one function each."""

    def __init__(self, makers: Sequence[Callable[[], FFT]]) -> None:
        self._makers = makers
        self._made: dict[int, FFT] = {}

    def __len__(self) -> int:
        return len(self._makers)

    @overload
    def __getitem__(self, index: int) -> FFT: ...

    @overload
    def __getitem__(self, index: slice) -> list[FFT]: ...

    def __getitem__(self, index: int | slice) -> FFT | list[FFT]:
        if isinstance(index, slice):
            return [self[number] for number in range(len(self))[index]]
        number = range(len(self))[index]
        if number not in self._made:
            self._made[number] = self._makers[number]()
        return self._made[number]


class Serial:
    """One direction of an `FFT`; call it to transform.

    Attributes
    ----------
    input_array, output_array : ndarray
        The transform's own arrays.
    """

    def __init__(self, execute: Callable[..., None], input_array: np.ndarray, output_array: np.ndarray) -> None:
        self.xfftn = execute
        self.input_array, self.output_array = input_array, output_array

    def __call__(
        self, input_array: ArrayLike | None = None, output_array: np.ndarray | None = None, **options: Any
    ) -> np.ndarray:
        """Transform.

        Parameters
        ----------
        input_array : array_like, optional
            By default the transform's own array.
        output_array : ndarray, optional
            An array to which the result is copied.
        normalize : bool, optional
            Divide by the number of points.

        Raises
        ------
        InputError
            If an array is masked.
        """
        refuse_masks(input_array=input_array, output_array=output_array)
        if input_array is not None:
            self.input_array[...] = input_array
        self.xfftn(**options)
        if output_array is None:
            return self.output_array
        output_array[...] = self.output_array
        return output_array


def _along(axis: int, part: int | slice, ndim: int) -> tuple[int | slice, ...]:
    return tuple(part if other_axis == axis else slice(None) for other_axis in range(ndim))


def _truncate(fine: np.ndarray, modes: np.ndarray, axis: int, half: bool) -> None:
    """Copy the resolved modes; if their number is even, the highest is the sum of the two modes of the fine grid."""
    at = functools.partial(_along, axis, ndim=modes.ndim)
    count = modes.shape[axis]
    if half:
        modes[...] = fine[at(slice(0, count))]
        if count % 2 == 0:
            modes[at(count - 1)] = 2 * modes[at(count - 1)].real
        return
    modes[...] = 0
    modes[at(slice(0, count // 2 + 1))] = fine[at(slice(0, count // 2 + 1))]
    if count > 1:
        modes[at(slice(-(count // 2), None))] += fine[at(slice(-(count // 2), None))]


def _pad(modes: np.ndarray, fine: np.ndarray, axis: int, half: bool) -> None:
    """Copy the modes to the finer grid; if their number is even, the highest is split between two modes there."""
    at = functools.partial(_along, axis, ndim=modes.ndim)
    count = modes.shape[axis]
    fine[...] = 0
    if half:
        fine[at(slice(0, count))] = modes
        if count % 2 == 0:
            fine[at(count - 1)] = fine[at(count - 1)].real / 2
        return
    fine[at(slice(0, count // 2 + 1))] = modes[at(slice(0, count // 2 + 1))]
    if count > 1:
        fine[at(slice(-(count // 2), None))] = modes[at(slice(-(count // 2), None))]
    if count % 2 == 0:
        fine[at(count // 2)] *= 0.5
        fine[at(-(count // 2))] *= 0.5


# ---- backends: the plans of both directions, on the same two arrays ---------------------------


def _plan_fftw(
    shape: tuple[int, ...], axes: list[int], dtype: np.dtype, transforms: Pair | None, options: dict[str, Any]
) -> tuple[SerialPlan, SerialPlan]:
    complete: dict[str, Any] = {"planner_effort": "FFTW_MEASURE", "overwrite_input": "FFTW_DESTROY_INPUT", "threads": 1}
    if not complete.keys() >= options.keys():
        raise InputError(f"expected no options but {', '.join(complete)}, received {sorted(options)}")
    complete |= {name: value for name, value in options.items() if value is not None}
    real = dtype.kind == "f"
    forward, backward = transforms or ((fftw.rfftn, fftw.irfftn) if real else (fftw.fftn, fftw.ifftn))
    effort, overwrite = (fftw.flag_dict[complete[name]] for name in ("planner_effort", "overwrite_input"))
    lengths = [shape[axis] for axis in axes]
    source = fftw.aligned(shape, dtype=dtype)
    fwd: fftw.FFT = forward(source, s=lengths, axes=axes, threads=complete["threads"], flags=(effort, overwrite))
    bck: fftw.FFT = backward(
        fwd.output_array,
        s=lengths,
        axes=axes,
        threads=complete["threads"],
        flags=(effort,) if real else (effort, overwrite),
        output_array=source,
    )
    source[...] = 0
    fwd.output_array[...] = 0
    return fwd, bck


def _plan_pyfftw(
    shape: tuple[int, ...], axes: list[int], dtype: np.dtype, transforms: Pair | None, options: dict[str, Any]
) -> tuple[SerialPlan, SerialPlan]:
    from pyfftw import builders

    real = dtype.kind == "f"
    forward, backward = transforms or ((builders.rfftn, builders.irfftn) if real else (builders.fftn, builders.ifftn))
    complete = {
        "avoid_copy": True,
        "overwrite_input": True,
        "auto_align_input": True,
        "auto_contiguous": True,
        "threads": 1,
    } | {name: value for name, value in options.items() if value is not None}
    lengths = [shape[axis] for axis in axes]
    source = fftw.aligned(shape, dtype=dtype)
    fwd = forward(source, s=lengths, axes=axes, **complete)
    modes = fwd.output_array
    if real:
        del complete["overwrite_input"]
    bck = backward(modes, s=lengths, axes=axes, **complete)
    fwd.update_arrays(source, modes)
    bck.update_arrays(modes, source)
    source[...] = 0
    modes[...] = 0
    return fwd, _Call(lambda: bck(normalise_idft=False), modes, source)


class _Call:
    """A plan that calls a function of its own two arrays, for backends without plans."""

    def __init__(self, execute: Callable[[], object], input_array: np.ndarray, output_array: np.ndarray) -> None:
        self._execute, self.input_array, self.output_array = execute, input_array, output_array

    def __call__(self, *args: Any, **options: Any) -> None:
        self._execute()


def _plan_numpy(
    shape: tuple[int, ...], axes: list[int], dtype: np.dtype, transforms: Pair | None, options: dict[str, Any]
) -> tuple[SerialPlan, SerialPlan]:
    return _plan_functions(np.fft, "s", shape, axes, dtype, transforms)


def _plan_scipy(
    shape: tuple[int, ...], axes: list[int], dtype: np.dtype, transforms: Pair | None, options: dict[str, Any]
) -> tuple[SerialPlan, SerialPlan]:
    from scipy import fftpack

    return _plan_functions(fftpack, "shape", shape, axes, dtype, transforms or (fftpack.fftn, fftpack.ifftn))


def _plan_mkl(
    shape: tuple[int, ...], axes: list[int], dtype: np.dtype, transforms: Pair | None, options: dict[str, Any]
) -> tuple[SerialPlan, SerialPlan]:
    try:
        library = import_module("mkl_fft.interfaces.numpy_fft")
    except ImportError as error:
        raise InputError(f"backend 'mkl_fft' is not supported here: {error}") from None
    return _plan_functions(library, "s", shape, axes, dtype, transforms)


def _plan_functions(
    library: Any, lengths_as: str, shape: tuple[int, ...], axes: list[int], dtype: np.dtype, transforms: Pair | None
) -> tuple[SerialPlan, SerialPlan]:
    """Make plans of functions like numpy's: forward unscaled, backward divided by the number of points."""
    real = dtype.kind == "f"
    forward, backward = transforms or ((library.rfftn, library.irfftn) if real else (library.fftn, library.ifftn))
    options = {lengths_as: [shape[axis] for axis in axes], "axes": axes}
    points = np.prod([float(shape[axis]) for axis in axes])
    source = fftw.aligned(shape, dtype=dtype, fill=0)
    result = forward(source, **options)
    precise = dtype.char.upper() if result.dtype.kind == "c" else dtype.char.lower()
    modes = fftw.aligned(result.shape, dtype=precise, fill=0)

    def forth() -> None:
        modes[...] = forward(source, **options)

    def back() -> None:
        values = backward(modes, **options)
        source[...] = (values.real if real else values) * points

    return _Call(forth, source, modes), _Call(back, modes, source)


PLANNERS = {
    "fftw": _plan_fftw,
    "pyfftw": _plan_pyfftw,
    "numpy": _plan_numpy,
    "scipy": _plan_scipy,
    "mkl_fft": _plan_mkl,
}
