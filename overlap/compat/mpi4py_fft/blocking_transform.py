"""`Transform`: serial transforms with exchanges between them, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ...checks import mask_problem, truth_problem
from ...errors import InputError, formatted, repr_of
from ...fft.arguments import axes_of_array
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
        self._calls = Calls() if runtime is None else runtime.coordinator.calls
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
