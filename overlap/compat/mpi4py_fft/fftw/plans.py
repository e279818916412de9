"""`FFTWPlan`: a plan of FFTW, on two arrays that it keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ....arrays import refuse_masks
from ....errors import InputError
from .utilities import (
    C2C_BACKWARD,
    C2C_FORWARD,
    C2R,
    FFTW_DESTROY_INPUT,
    FFTW_ESTIMATE,
    FFTW_EXHAUSTIVE,
    FFTW_FORWARD,
    FFTW_MEASURE,
    FFTW_PATIENT,
    FFTW_REDFT00,
    FFTW_RODFT00,
    FFTW_RODFT11,
    FFTW_UNALIGNED,
    FFTW_WISDOM_ONLY,
    R2C,
    flag_dict,
)

REAL_KINDS = {value: name for name, value in flag_dict.items() if name.startswith(("FFTW_REDFT", "FFTW_RODFT"))}
COMPLEX_SIDES = {C2C_FORWARD: (True, True), C2C_BACKWARD: (True, True), R2C: (False, True), C2R: (True, False)}
# FFTW preserves the input by default where it can, and FFTW_CONSERVE_MEMORY concerns only its own memory.
FLAGS = (FFTW_DESTROY_INPUT, FFTW_UNALIGNED, FFTW_EXHAUSTIVE, FFTW_PATIENT, FFTW_ESTIMATE, FFTW_WISDOM_ONLY)

_time_limit_s: float | None = None  # limit for planning; global, like FFTW's own limit


class FFTWPlan:
    """A plan of FFTW; call it to transform.

    Parameters
    ----------
    input_array, output_array : ndarray
        The plan's own arrays, which planning may overwrite.
    axes : sequence of int
        The last one is the axis along which real data have half the modes.
    kind : int or sequence of int
        C2C_FORWARD, C2C_BACKWARD, R2C or C2R; or for each of `axes` a kind of cosine or sine transform.
    threads : int
    flags : int or sequence of int
    normalization : float
        Factor of results in calls with ``normalize=True``.

    Raises
    ------
    InputError
        If FFTW has no such transform of such arrays.
    """

    def __init__(
        self,
        input_array: np.ndarray,
        output_array: np.ndarray,
        axes: Sequence[int] = (-1,),
        kind: int | Sequence[int] = FFTW_FORWARD,
        threads: int = 1,
        flags: int | Sequence[int] = FFTW_MEASURE,
        normalization: float = 1.0,
    ) -> None:
        self.input_array, self.output_array = input_array, output_array
        self._scale = normalization
        self._plan: Any = None  # pyFFTW's plan; None if an array is empty
        direction: str | tuple[str, ...]
        kinds = [int(axis_kind) for axis_kind in np.atleast_1d(kind)]
        is_complex = input_array.dtype.kind == "c", output_array.dtype.kind == "c"
        if is_complex == COMPLEX_SIDES.get(kinds[0]):
            direction = "FFTW_FORWARD" if kinds[0] in (C2C_FORWARD, R2C) else "FFTW_BACKWARD"
        elif is_complex == (False, False) and REAL_KINDS.keys() >= {*kinds}:
            direction = tuple(REAL_KINDS[axis_kind] for axis_kind in kinds)
        else:
            raise InputError(
                f"expected a complex, real-to-complex, cosine or sine transform, received kind {kind} "
                f"from {input_array.dtype} to {output_array.dtype} (FFTW_R2HC, FFTW_HC2R and "
                "FFTW_DHT are not supported)"
            )
        if 0 in input_array.shape or 0 in output_array.shape:
            return
        asked = 0
        for flag in np.atleast_1d(flags):
            asked |= int(flag)
        import pyfftw  # takes long

        names = {value: name for name, value in flag_dict.items() if value in FLAGS}
        flag_names = [names[flag] for flag in FLAGS if asked & flag]
        if not asked & (FFTW_ESTIMATE | FFTW_PATIENT | FFTW_EXHAUSTIVE):
            flag_names.append("FFTW_MEASURE")
        try:
            self._plan = pyfftw.FFTW(
                input_array,
                output_array,
                axes=tuple(map(int, axes)),
                direction=direction,
                flags=tuple(flag_names),
                threads=threads,
                planning_timelimit=_time_limit_s,
            )
        except (TypeError, ValueError, RuntimeError, IndexError) as error:
            raise InputError(
                f"expected arrays and axes that FFTW can plan for, received {input_array.shape} "
                f"{input_array.dtype}, {output_array.shape} {output_array.dtype} and axes {axes}: "
                f"{error}"
            ) from None

    def __call__(
        self,
        input_array: np.ndarray | None = None,
        output_array: np.ndarray | None = None,
        implicit: bool = True,
        normalize: bool = False,
        **unused: object,
    ) -> np.ndarray:
        """Transform.

        Parameters
        ----------
        input_array, output_array : ndarray, optional
            By default the plan's own arrays.
        implicit : bool
            Transform the given arrays directly if they have the strides and alignment of the plan's own; the input may
            be overwritten. Otherwise the input is copied, and the plan's own output holds the result, too.
        normalize : bool
            Multiply the result by `get_normalization`.

        Returns
        -------
        ndarray
            `output_array`, or the plan's own.

        Raises
        ------
        InputError
            If an array is masked.
        """
        refuse_masks(input_array=input_array, output_array=output_array)
        source = self.input_array if input_array is None else input_array
        target = self.output_array if output_array is None else output_array
        if self._plan is not None and not (implicit and self._execute_on(source, target)):
            if input_array is not None:
                self.input_array[...] = input_array
            self._plan.execute()
            if normalize:
                self.output_array *= self._scale
            if output_array is not None:
                output_array[...] = self.output_array
        elif normalize:
            target *= self._scale
        return target

    def _execute_on(self, source: np.ndarray, target: np.ndarray) -> bool:
        """Transform some arrays directly, if the plan can; return whether it has done so."""
        try:
            self._plan.update_arrays(source, target)
        except (TypeError, ValueError):
            return False
        try:
            self._plan.execute()
        finally:
            self._plan.update_arrays(self.input_array, self.output_array)
        return True

    def update_arrays(self, input_array: np.ndarray, output_array: np.ndarray) -> None:
        """Use other arrays, of the same shapes, strides, types and alignments, as the plan's own."""
        if self._plan is not None:
            try:
                self._plan.update_arrays(input_array, output_array)
            except (TypeError, ValueError) as error:
                raise InputError(f"expected arrays like the plan's own: {error}") from None
        self.input_array, self.output_array = input_array, output_array

    def get_normalization(self) -> float:
        """Return the factor by which results are scaled if a call asks for it."""
        return self._scale

    def print_plan(self) -> None:
        """Print the plan."""
        print(self._plan)

    def destroy(self) -> None:
        """Free FFTW's plan."""
        self._plan = None


def set_timelimit(limit: float) -> None:
    """Limit the time of planning one transform to about `limit` seconds; a negative number sets no limit."""
    global _time_limit_s
    _time_limit_s = float(limit) if limit >= 0 else None


def get_normalization(kind: int | Sequence[int], shape: Sequence[int], axes: Sequence[int]) -> float:
    """Return 1 divided by the factor by which a transform and its inverse, both unscaled, multiply.

    Parameters
    ----------
    kind : int or sequence of int
        For all `axes`, or one per axis.
    shape : sequence of int
        The shape of the forward transform's input.
    axes : sequence of int
    """
    kinds = np.broadcast_to(kind, len(axes))
    factor = 1
    for axis_kind, axis in zip(kinds, axes):
        length = int(shape[axis])
        factor *= (
            2 * (length - 1)
            if axis_kind == FFTW_REDFT00
            else 2 * (length + 1)
            if axis_kind == FFTW_RODFT00
            else 2 * length
            if FFTW_REDFT00 < axis_kind <= FFTW_RODFT11
            else length
        )
    return 1 / factor
