"""`PipelinedTransform`: one direction of a plan as a pipeline, with the interface of a `Transform`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ...fft.array_spec import ArraySpec
from ...fft.engine.fftw import zeros
from ...fft.transform import FieldTransform
from ...ranks.resource import marked_call
from .blocking_transform import Transform, arguments_problem, axes_problem, copy_problem
from .pencil import Pencil


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
        self._calls = volume.runtime.coordinator.calls

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

    Parameters
    ----------
    specs : list of ArraySpec
        The specs of the input and of the result.
    """

    YOUNG = 6  # number of first calls in which the plan's own arrays are filled

    def __init__(self, specs: Sequence[ArraySpec]) -> None:
        self._specs = specs
        self._own: list[np.ndarray | None] = [None, None]
        self._last: list[np.ndarray | None] = [
            None,
            None,
        ]  # the user's arrays whose values are missing in the plan's own
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
