"""`Transform`: serial transforms with exchanges between them, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ...arrays import refuse_masks
from ...errors import InputError
from .libfft import Serial
from .pencil import Pencil


class Transform:
    """One direction of any parallel transform; call it.

    Parameters
    ----------
    xfftn : sequence of Serial
        Serial transforms, such as ``FFT(...).forward``.
    transfer : sequence of callable
        Exchanges between them, such as ``Transfer(...).forward``.
    pencil : sequence of Pencil
        The pencils of the input and of the result.

    Attributes
    ----------
    input_array, output_array : ndarray
        The local arrays of the first serial transform and of the last one: the plan's own.
    input_pencil, output_pencil : Pencil
    """

    def __init__(
        self,
        xfftn: Iterable[Serial],
        transfer: Iterable[Callable[[np.ndarray, np.ndarray], None]],
        pencil: Iterable[Pencil],
    ) -> None:
        self._xfftn, self._transfer = tuple(xfftn), tuple(transfer)
        self._pencil: Sequence[Pencil] = tuple(pencil)
        if len(self._xfftn) != len(self._transfer) + 1 or len(self._pencil) != 2:
            raise InputError(
                "expected one serial transform more than exchanges, and two pencils, received "
                f"{len(self._xfftn)}, {len(self._transfer)} and {len(self._pencil)}"
            )

    def __repr__(self) -> str:
        (before, after), types = self._pencil, self.dtypes
        return (
            f"<{type(self).__name__} of {before.shape} {types[0]}, here {before.subshape}, "
            f"to {after.shape} {types[1]}, here {after.subshape}>"
        )

    @property
    def input_array(self) -> np.ndarray:
        return self._xfftn[0].input_array

    @property
    def output_array(self) -> np.ndarray:
        return self._xfftn[-1].output_array

    @property
    def dtypes(self) -> tuple[np.dtype, np.dtype]:
        """The data types of the input and of the result."""
        return self.input_array.dtype, self.output_array.dtype

    @property
    def input_pencil(self) -> Pencil:
        return self._pencil[0]

    @property
    def output_pencil(self) -> Pencil:
        return self._pencil[1]

    def __call__(
        self, input_array: ArrayLike | None = None, output_array: np.ndarray | None = None, **options: Any
    ) -> np.ndarray:
        """Transform (collective).

        Parameters
        ----------
        input_array : array_like, optional
            The local part; by default the plan's own array.
        output_array : ndarray, optional
            Where to copy the result to.
        options
            For every serial transform: ``normalize=False`` leaves out the division by the number of points,
            which is the default forward, ``normalize=True`` makes it, backward.

        Returns
        -------
        ndarray
            `output_array`, or the plan's own.

        Raises
        ------
        InputError
            On this rank, when an array is masked.
        """
        refuse_masks(input_array=input_array, output_array=output_array)
        if input_array is not None:
            self.input_array[...] = input_array
        for serial, exchange, following in zip(self._xfftn, self._transfer, self._xfftn[1:]):
            serial(**options)
            exchange(serial.output_array, following.input_array)
        self._xfftn[-1](**options)
        if output_array is None:
            return self.output_array
        output_array[...] = self.output_array
        return output_array

    def describe(self) -> str:
        """Tell what it is made of, as text."""
        return f"{len(self._xfftn)} serial transform(s), with {len(self._transfer)} exchange(s) that nothing hides"

    def release(self) -> None:
        """Nothing: it holds no resources."""
