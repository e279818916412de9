"""Plans of the usual transforms: ``plan = rfftn(array, axes=axes); spectrum = plan()``.

Each function here makes a plan and transforms nothing. Only `irfftn` and `hfftn` use `s`, the lengths of the output
along `axes`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ....arrays import refuse_masks
from ....errors import InputError
from .factory import get_planned_FFT
from .plans import FFTWPlan, get_normalization
from .utilities import (
    C2C_BACKWARD,
    C2C_FORWARD,
    C2R,
    FFTW_MEASURE,
    FFTW_PRESERVE_INPUT,
    FFTW_REDFT00,
    FFTW_REDFT01,
    FFTW_REDFT10,
    FFTW_REDFT11,
    FFTW_RODFT00,
    FFTW_RODFT01,
    FFTW_RODFT10,
    FFTW_RODFT11,
    R2C,
    aligned,
    aligned_like,
    dct_type,
    dst_type,
    get_alignment,
    idct_type,
    idst_type,
)

__all__ = [
    "aligned",
    "aligned_like",
    "dctn",
    "dstn",
    "fftn",
    "get_alignment",
    "get_normalization",
    "hfftn",
    "idctn",
    "idstn",
    "ifftn",
    "ihfftn",
    "inverse",
    "irfftn",
    "rfftn",
]


Planner = Callable[..., FFTWPlan]


def _check(array: np.ndarray, kinds: str, name: str) -> None:
    refuse_masks(**{name: array})
    if array.dtype.char not in kinds:
        raise InputError(f"expected {name} to be of a type among {', '.join(kinds)}, received {array.dtype}")


def _output(input_array: np.ndarray, shape: Sequence[int], char: str, output_array: np.ndarray | None) -> np.ndarray:
    """Return the output array: the given one, or a new one with the alignment of the input."""
    if output_array is None:
        return aligned(shape, get_alignment(input_array), np.dtype(char))
    if output_array.shape != tuple(shape) or output_array.dtype.char != char:
        raise InputError(
            f"expected output_array of shape {tuple(shape)} and dtype {np.dtype(char)}, received "
            f"{output_array.shape} and {output_array.dtype}"
        )
    return output_array


Sizes = tuple[Sequence[int], str, Sequence[int]]
"""Shape and type of the output, and the shape whose points determine the normalization."""


def _planner(kind: int, taken: str, sizes: Callable[..., Sizes]) -> Planner:
    """Make a planning function of one kind of transform, for arrays of the types `taken`."""

    def plan(
        input_array: np.ndarray,
        s: Sequence[int] | None = None,
        axes: Sequence[int] = (-1,),
        threads: int = 1,
        flags: int | Sequence[int] = (FFTW_MEASURE,),
        output_array: np.ndarray | None = None,
    ) -> FFTWPlan:
        _check(input_array, taken, "input_array")
        shape, char, points = sizes(input_array, s, axes, flags)
        output_array = _output(input_array, shape, char, output_array)
        scale = get_normalization(kind, points, axes)
        return get_planned_FFT(input_array, output_array, axes, kind, threads, flags, scale)

    return plan


def _complex(kind: int) -> Planner:
    return _planner(kind, "FDG", lambda array, s, axes, flags: (array.shape, array.dtype.char, array.shape))


def _to_modes() -> Planner:
    def sizes(array: np.ndarray, s: Sequence[int] | None, axes: Sequence[int], flags: int | Sequence[int]) -> Sizes:
        shape = list(array.shape)
        shape[axes[-1]] = shape[axes[-1]] // 2 + 1
        return shape, array.dtype.char.upper(), array.shape

    return _planner(R2C, "fdg", sizes)


def _from_modes() -> Planner:
    def sizes(array: np.ndarray, s: Sequence[int] | None, axes: Sequence[int], flags: int | Sequence[int]) -> Sizes:
        if FFTW_PRESERVE_INPUT in np.atleast_1d(flags):
            raise InputError(
                "expected flags without FFTW_PRESERVE_INPUT: a complex-to-real transform overwrites its input"
            )
        shape = list(array.shape)
        if s is None:
            shape[axes[-1]] = 2 * shape[axes[-1]] - 2
        else:
            for length, axis in zip(s, axes, strict=True):
                shape[axis] = int(length)
        if shape[axes[-1]] // 2 + 1 != array.shape[axes[-1]]:
            raise InputError(
                f"expected s with half as many points as {2 * array.shape[axes[-1]] - 2} or one more "
                f"along axis {axes[-1]}, received {s}"
            )
        return shape, array.dtype.char.lower(), shape

    return _planner(C2R, "FDG", sizes)


def _real(kinds: Mapping[int, int]) -> Planner:
    def plan(
        input_array: np.ndarray,
        s: Sequence[int] | None = None,
        axes: Sequence[int] = (-1,),
        type: int = 2,
        threads: int = 1,
        flags: int | Sequence[int] = (FFTW_MEASURE,),
        output_array: np.ndarray | None = None,
    ) -> FFTWPlan:
        _check(input_array, "fdg", "input_array")
        if type not in kinds:
            raise InputError(f"expected type to be 1, 2, 3 or 4, received {type!r}")
        output_array = _output(input_array, input_array.shape, input_array.dtype.char, output_array)
        kind = [kinds[type]] * len(axes)
        scale = get_normalization(kind, input_array.shape, axes)
        return get_planned_FFT(input_array, output_array, axes, kind, threads, flags, scale)

    return plan


def _named(plan: Planner, name: str, what: str) -> Planner:
    """Make a planning function with its name and a docstring."""
    plan.__name__ = plan.__qualname__ = name
    plan.__doc__ = (
        f"Plan {what}; see `FFTWPlan`.\n\n    Parameters\n    ----------\n"
        "    input_array : ndarray\n        Planning may overwrite it.\n"
        "    s, axes, threads, flags, output_array\n        See the module."
    )
    return plan


fftn = _named(_complex(C2C_FORWARD), "fftn", "a complex forward transform")
ifftn = _named(_complex(C2C_BACKWARD), "ifftn", "a complex backward transform")
rfftn = _named(_to_modes(), "rfftn", "a real-to-complex transform")
irfftn = _named(_from_modes(), "irfftn", "a complex-to-real transform")
ihfftn = _named(_to_modes(), "ihfftn", "a transform to a spectrum of half the modes")
hfftn = _named(_from_modes(), "hfftn", "a transform from a spectrum of half the modes")
dctn = _named(_real(dct_type), "dctn", "cosine transforms of a `type` from 1 to 4")
idctn = _named(_real(idct_type), "idctn", "the inverses of cosine transforms of a `type`")
dstn = _named(_real(dst_type), "dstn", "sine transforms of a `type` from 1 to 4")
idstn = _named(_real(idst_type), "idstn", "the inverses of sine transforms of a `type`")

inverse = {
    FFTW_RODFT11: FFTW_RODFT11,
    FFTW_REDFT11: FFTW_REDFT11,
    FFTW_RODFT01: FFTW_RODFT10,
    FFTW_RODFT10: FFTW_RODFT01,
    FFTW_REDFT01: FFTW_REDFT10,
    FFTW_REDFT10: FFTW_REDFT01,
    FFTW_RODFT00: FFTW_RODFT00,
    FFTW_REDFT00: FFTW_REDFT00,
    rfftn: irfftn,
    irfftn: rfftn,
    fftn: ifftn,
    ifftn: fftn,
    dctn: idctn,
    idctn: dctn,
    dstn: idstn,
    idstn: dstn,
    hfftn: ihfftn,
    ihfftn: hfftn,
}
"""The inverse of every kind of real-to-real transform and of every function here."""
