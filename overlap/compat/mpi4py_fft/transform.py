"""`Transform`: serial transforms and exchanges, one after the other; `PipelinedTransform`: as a pipeline."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ...checks import mask_problem, truth_problem
from ...errors import InputError, formatted, repr_of
from ...fft.arguments import axes_of_array
from ...fft.array_spec import ArraySpec
from ...fft.engine.fftw import zeros
from ...fft.transform import FieldTransform
from ...ranks.objects import Described
from ...ranks.resource import Calls, closed_error, marked_call
from ...runtime import Runtime
from .libfft import Serial
from .pencil import Pencil


class Transform(Described):
    """One direction of any parallel transform; call it to transform.

    Parameters
    ----------
    xfftn : sequence of Serial
        Serial transforms, such as ``FFT(...).forward``.
    transfer : sequence of callable
        Exchanges between them, such as ``Transfer(...).forward``.
    pencil : sequence of Pencil
        The pencils of the input and of the result.
    runtime : Runtime, optional
        The runtime of a plan, by which a failure on one rank raises on all. Not an argument of mpi4py-fft.
    axes : sequence of int, optional
        The axes that a plan transforms. Not an argument of mpi4py-fft.
    known_as : str
        Tells the transforms of a runtime apart, on all ranks alike. Not an argument of mpi4py-fft.

    Attributes
    ----------
    input_array, output_array : ndarray
        The plan's own arrays: those of the first and of the last serial transform.
    input_pencil, output_pencil : Pencil
    """

    def __init__(
        self,
        xfftn: Iterable[Serial],
        transfer: Iterable[Callable[[np.ndarray, np.ndarray], None]],
        pencil: Iterable[Pencil],
        runtime: Runtime | None = None,
        axes: Sequence[int] = (),
        known_as: str = "",
    ) -> None:
        self._xfftn, self._transfer = tuple(xfftn), tuple(transfer)
        self._pencil: Sequence[Pencil] = tuple(pencil)
        self._runtime, self._axes, self._known_as, self._released = runtime, axes, known_as, False
        self._calls = Calls() if runtime is None else runtime.coordinator._calls
        if len(self._xfftn) != len(self._transfer) + 1 or len(self._pencil) != 2:
            raise InputError(
                "expected one serial transform more than exchanges, and two pencils, received "
                f"{len(self._xfftn)}, {len(self._transfer)} and {len(self._pencil)}"
            )

    def _title(self) -> str:
        (before, after), types = self._pencil, self.dtypes
        return (
            f"{type(self).__name__} of {before.shape} {types[0]}, here {before.subshape}, "
            f"to {after.shape} {types[1]}, here {after.subshape}"
        )

    def _has_ended(self) -> bool:
        return self._released

    @property
    def input_array(self) -> np.ndarray:
        return self._xfftn[0].input_array

    @property
    def output_array(self) -> np.ndarray:
        return self._xfftn[-1].output_array

    @property
    def dtypes(self) -> tuple[np.dtype, np.dtype]:
        """Return the data types of the input and of the result."""
        return self.input_array.dtype, self.output_array.dtype

    @property
    def input_pencil(self) -> Pencil:
        return self._pencil[0]

    @property
    def output_pencil(self) -> Pencil:
        return self._pencil[1]

    @marked_call
    def __call__(
        self, input_array: ArrayLike | None = None, output_array: np.ndarray | None = None, **options: Any
    ) -> np.ndarray:
        """Transform (collective).

        Parameters
        ----------
        input_array : array_like, optional
            The local part; by default the plan's own array.
        output_array : ndarray, optional
            An array to which the result is copied.
        options
            Passed to every serial transform: ``normalize=False`` omits the division by the number of points, which is
            the default forward; ``normalize=True`` makes it backward, too. A plan also accepts ``axes``, which must be
            the axes that it transforms.

        Returns
        -------
        ndarray
            `output_array`, or the plan's own array.

        Raises
        ------
        InputError
            If an argument is bad; on all ranks, if the transform belongs to a plan.
        """
        if self._released:
            raise closed_error("PFFT", "destroyed", False)
        problem = arguments_problem(self.output_array.shape, input_array, output_array, options)
        if self._axes:
            problem = problem or axes_problem(options.pop("axes", None), self._axes, self.input_array.ndim)
        if self._runtime is None:
            return self._transformed(problem, input_array, output_array, options)
        with self._runtime.collective_section(f"a call of {self._known_as}"):
            return self._transformed(problem, input_array, output_array, options)

    def _transformed(
        self, problem: str | None, input_array: Any, output_array: np.ndarray | None, options: Mapping[str, Any]
    ) -> np.ndarray:
        if problem is None and input_array is not None:
            problem = copy_problem(self.input_array, input_array)
        if problem is not None:
            raise InputError(problem)
        for serial, exchange, following in zip(self._xfftn, self._transfer, self._xfftn[1:]):
            serial(**options)
            if self._runtime is not None:
                self._runtime.preflight()  # without it an exchange would wait for a rank that has failed
            exchange(serial.output_array, following.input_array)
        self._xfftn[-1](**options)
        if output_array is None:
            return self.output_array
        output_array[...] = self.output_array
        return output_array

    def describe(self) -> str:
        """Return the parts of the transform, as text."""
        return f"{len(self._xfftn)} serial transform(s), with {len(self._transfer)} exchange(s) that nothing hides"

    def release(self) -> None:
        """Raise in later calls, because the plan and the communicators of the exchanges have been freed."""
        self._released = True


def arguments_problem(
    shape: tuple[int, ...], input_array: object, output_array: object, options: Mapping[str, Any]
) -> str | None:
    """Return what is wrong with a call's arguments, or None; `shape` is the local shape of the result."""
    problem = mask_problem(input_array=input_array, output_array=output_array)
    if problem := problem or truth_problem("normalize", options.get("normalize")):
        return problem
    if output_array is None or (
        isinstance(output_array, np.ndarray)
        and output_array.shape == shape
        and output_array.dtype.kind in "iufc"
        and output_array.flags.writeable
    ):
        return None
    of = f" of {output_array.shape} and {output_array.dtype}" if isinstance(output_array, np.ndarray) else ""
    return (
        f"expected output_array to be a writeable array of numbers, of local shape {shape}, "
        f"received {type(output_array).__name__}{of}"
    )


def axes_problem(axes: Any, known: Sequence[int], count: int) -> str | None:
    """Return what is wrong with the axes of a call, for a plan that transforms `known` axes of `count`, or None."""
    if axes is None or set(axes_of_array(axes, count) or ()) == set(known):
        return None
    return f"expected the axes of the plan, {tuple(known)}, or None, received {repr_of(axes)}"


def copy_problem(own: np.ndarray, input_array: Any) -> str | None:
    """Copy a call's input to the plan's own array; return what is wrong with it, or None."""
    try:
        own[...] = input_array
    except Exception as error:  # a user's object can raise anything
        return f"expected input_array to fit a local shape of {own.shape}: {formatted(error)[0]}"
    return None


class PipelinedTransform(Transform):
    """One direction of a plan, with exchanges hidden behind serial transforms; call it to transform.

    Attributes
    ----------
    input_array, output_array : ndarray
        The plan's own local arrays, used if a call passes none. The input array of one direction is the output array of
        the other; see `OwnArrays`.
    input_pencil, output_pencil : Pencil
    """

    def __init__(
        self,
        volume: FieldTransform,
        arrays: OwnArrays,
        sides: tuple[int, int],
        pencils: Sequence[Pencil],
        scale: float,
        normalize: bool,
        axes: Sequence[int],
    ) -> None:
        self._volume, self._arrays, self._sides, self._pencil, self._axes = volume, arrays, sides, pencils, axes
        self._scale, self._normalize = scale, normalize
        self._calls = volume.runtime.coordinator._calls

    def _has_ended(self) -> bool:
        return self._volume._has_ended()

    @property
    def input_array(self) -> np.ndarray:
        return self._arrays.used(self._sides[0])

    @property
    def output_array(self) -> np.ndarray:
        return self._arrays.used(self._sides[1])

    @property
    def dtypes(self) -> tuple[np.dtype, np.dtype]:
        return tuple(spec.dtype for spec in (*self._volume.inputs, *self._volume.outputs))

    @marked_call
    def __call__(
        self,
        input_array: ArrayLike | None = None,
        output_array: np.ndarray | None = None,
        *,
        normalize: bool | None = None,
        axes: Sequence[int] | None = None,
        **unknown: Any,
    ) -> np.ndarray:
        """Transform (collective).

        Parameters
        ----------
        input_array : array_like, optional
            The local part, which does not change. By default the plan's own array.
        output_array : ndarray, optional
            An array for the result. By default the plan's own array, which the next call overwrites.
        normalize : bool, optional
            Divide by the number of points.
        axes : sequence of int, optional
            Must be the axes that the plan transforms; accepted for programs that pass them to other functions, too.

        Returns
        -------
        ndarray
            `output_array`, or the plan's own.
        """
        arrays, (source_side, target_side) = self._arrays, self._sides
        if output_array is not None and axes is None and not unknown and (normalize is None or type(normalize) is bool):
            self._choose_scale(normalize)
            if self._volume.repeated((input_array,), output_array):  # arrays that fit need no further check
                arrays.given(source_side, input_array)
                arrays.given(target_side, output_array)
                return output_array
        source_spec, target_spec = self._volume.inputs[0], self._volume.outputs[0]
        problem = (
            f"expected no option but normalize and axes, received {sorted(unknown)}"
            if unknown
            else axes_problem(axes, self._axes, len(source_spec.shape))
            or arguments_problem(target_spec.shape, input_array, output_array, {"normalize": normalize})
        )
        # Arrays that do not fit are copied from or to the plan's own arrays.
        source, target = None, output_array
        if problem is None and input_array is not None:
            if (
                isinstance(input_array, np.ndarray)
                and source_spec.problem(input_array, "input_array") is None
                and (output_array is None or not np.may_share_memory(input_array, output_array))
            ):
                source = input_array
            else:
                source = arrays.own(source_side)
                problem = copy_problem(source, input_array)
        if problem is not None:
            self._volume.refuse(problem)
        if source is None:
            source = arrays.used(source_side)
        if target is None:
            target = arrays.result(target_side)
        elif target.dtype != target_spec.dtype or np.may_share_memory(source, target):
            target = arrays.own(target_side)
        if np.may_share_memory(source, target):  # the user has passed one of the plan's own arrays
            source = source.copy()
        self._choose_scale(normalize)
        arrays.given(source_side, source)
        self._volume(source, out=target)
        arrays.given(target_side, target)
        if output_array is None:
            return target
        if target is not output_array:
            output_array[...] = target
        return output_array

    def _choose_scale(self, normalize: bool | None) -> None:
        self._volume.scale = self._scale if (self._normalize if normalize is None else normalize) else 1.0

    def describe(self) -> str:
        """Return the settings and the memory that they take, as text."""
        return self._volume.describe()

    def release(self) -> None:
        self._volume.release()
        self._arrays.forget()


class OwnArrays:
    """The plan's own arrays, which hold the last input and the last output, whatever arrays a call uses.

    A copy of either costs up to a tenth of a call. So an array is filled by every call only if the user has asked for
    it, or during the first calls of a plan. Otherwise the plan only keeps a reference to the array of the last call. If
    the user asks for its own array later, it is filled with the present content of that array, and a warning is issued.
    """

    YOUNG = 6  # number of first calls in which the plan's own arrays are filled

    def __init__(self, specs: Sequence[ArraySpec]) -> None:
        self._specs = specs  # of the input and of the result
        self._own: list[np.ndarray | None] = [None, None]
        # The user's arrays whose values are missing in the plan's own.
        self._last: list[np.ndarray | None] = [None, None]
        self._asked = [False, False]
        self._calls = [0, 0]

    def own(self, side: int) -> np.ndarray:
        """Return the plan's own array, as it is."""
        array = self._own[side]
        if array is None:
            spec = self._specs[side]
            array = self._own[side] = zeros(spec.shape, spec.dtype)
        return array

    def used(self, side: int) -> np.ndarray:
        """Return the plan's own array for the user, filled now and by all later calls."""
        own, last = self.own(side), self._last[side]
        self._asked[side] = True
        if last is not None:
            self._last[side] = None
            own[...] = last
            warnings.warn(
                "the plan's own arrays had not been requested and were no longer filled: this one is now filled with "
                "the present content of the array of the last call (read input_array and output_array once at the "
                "beginning to have them filled by every call)",
                RuntimeWarning,
                stacklevel=3,
            )
        return own

    def result(self, side: int) -> np.ndarray:
        """Return the plan's own array for a result that the user receives."""
        self._last[side] = None
        return self.used(side)

    def given(self, side: int, array: Any) -> None:
        """Note that what an array holds has gone in or come out."""
        if array is self._last[side]:
            return
        own = self._own[side]
        if own is not None and np.may_share_memory(array, own):
            self._last[side] = None
        elif self._asked[side] or self._calls[side] < self.YOUNG:
            self._calls[side] += 1
            self.own(side)[...] = array
        else:
            self._last[side] = array

    def forget(self) -> None:
        """Drop references to the user's arrays."""
        self._last = [None, None]
