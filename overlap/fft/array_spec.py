"""`ArraySpec`: shape, type and distribution of the input or output arrays of a transform."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import tau
from typing import Any

import numpy as np

from ..arrays import (
    DistArray,
    Distribution,
    collective_section,
    mask_problem,
    overlaps_itself,
    placed_as,
    refuse_masks,
    same_ranks,
    scatter,
)
from ..checks import function_problem
from ..errors import InputError
from .engine.axis import REAL_KINDS
from .engine.fftw import empty


class ArraySpec:
    """Shape, data type and distribution of the arrays on one side of a transform; plans make them.

    Attributes
    ----------
    shape, global_shape : tuple of int
        Shape of this rank's part, and of the whole array.
    local_slice : tuple of slice
        Where this rank's part lies in the global array.
    dtype : numpy.dtype
    axes : tuple of int
        The axes that are split over the ranks.
    slices : int
        Planes or fields: the product of the batch's lengths.
    dimensions : int
        Number of axes that do not belong to the batch.

    Examples
    --------
    >>> with overlap.FFT2(comm, (4, 16, 12), dtype="f8") as plan:
    ...     plan.spectrum.global_shape, plan.spectrum.axes
    ((4, 16, 7), (2,))
    """

    def __init__(
        self,
        comm: Any,
        batch: Sequence[int],  # lengths of the leading axes
        shape: Sequence[int],  # global shape of one plane or field
        # This rank's part of every axis that is split; axes are counted from the end (-1, -2, ...).
        parts: dict[int, slice],
        dtype: Any,
        *,
        natural: bool = True,  # the axes are in natural order, (y, x) or (z, y, x)
        contiguous: bool = False,  # only C-contiguous arrays are accepted, because MPI reads and writes them directly
        spectral: bool = False,  # elements are modes and not points
        kinds: Sequence[str] = (),  # of transforms along every axis that does not belong to the batch; by default FFTs
        # The axes, counted from the end, that are transformed as two axes each: the length of that which is last in
        # memory, and whether it is the first of the two.
        taken_apart: dict[int, tuple[int, bool]] | None = None,
    ) -> None:
        self.comm = comm
        self.dtype = np.dtype(dtype)
        self.natural = natural and not any(turned for _, turned in (taken_apart or {}).values())
        self._taken_apart = taken_apart or {}
        self.contiguous = contiguous
        self.spectral, self._kinds = spectral, kinds or ("c2c",) * len(shape)
        self.global_shape = (*batch, *shape)
        self.slices = int(np.prod(batch, dtype=int))
        where = [slice(0, length) for length in self.global_shape]
        for axis, part in parts.items():
            where[axis] = part
        self.axes = tuple(sorted(len(where) + axis for axis in parts))
        self.dimensions = len(shape)
        self.local_slice = tuple(where)
        self.distribution = Distribution(self.global_shape, self.axes, self.local_slice)
        self.shape = self.distribution.shape

    def __repr__(self) -> str:
        ranges = ", ".join(f"{part.start}:{part.stop}" for part in self.local_slice)
        return (
            f"<ArraySpec: global shape {self.global_shape}, {self.dtype}, split along axes {self.axes}; "
            f"this rank holds [{ranges}]>"
        )

    def wrap(self, array: np.ndarray) -> DistArray:
        """Return the local `array` as a `DistArray`.

        Parameters
        ----------
        array : ndarray
            Has the local shape; not copied.

        Returns
        -------
        DistArray

        Raises
        ------
        InputError
            On this rank, if `array` has another shape or is a masked array.
        """
        refuse_masks(array=array)
        array = np.asarray(array)
        if array.shape != self.shape:
            raise InputError(f"expected an array of local shape {self.shape}, received {array.shape}")
        return placed_as(DistArray, array, self.comm, self.distribution)

    def empty(self) -> DistArray:
        """Make an uninitialised, aligned `DistArray`.

        Returns
        -------
        DistArray
        """
        return self.wrap(empty(self.shape, self.dtype))

    def scatter(self, array: Any, root: int = 0) -> DistArray:
        """Distribute a global array that one rank has (collective).

        Parameters
        ----------
        array : array_like
            On rank `root`, of shape `global_shape`; the other ranks may give None. Converted to `dtype` where numpy
            converts by itself ("same_kind").
        root : int

        Returns
        -------
        DistArray
            A new one: this rank's part.

        Raises
        ------
        InputError
            On all ranks: the array has another shape, or a dtype whose values cannot all be converted; `root` is no
            rank.
        """
        return self.wrap(scatter(self.comm, array, self.distribution, self.dtype, root))

    def grid(self, lengths: float | Sequence[float] | None = None) -> tuple[np.ndarray, ...]:
        """Compute the coordinates of this rank's points (local).

        Along a periodic axis of n points and length L these are ``L * j / n``, j = 0 ... n - 1. Along one with a cosine
        or sine transform, L lies between the walls: ``L * (j + 1/2) / n`` for types 2 and 4, ``L * j / (n - 1)`` for
        "dct1", ``L * (j + 1) / (n + 1)`` for "dst1", ``L * j / n`` for "dct3" and ``L * (j + 1) / n`` for "dst3".

        Parameters
        ----------
        lengths : float or sequence of float, optional
            Lengths of the box, one for each transformed axis or one for all; 2 pi by default.

        Returns
        -------
        y, x or z, y, x : ndarray of float
            Shapes that broadcast to a local plane or field.

        Raises
        ------
        InputError
            On this rank: lengths that are not positive, or too many of them; arrays of the spectrum have no points.
        """
        if self.spectral:
            raise InputError("expected arrays of real space, which have points, received those of the spectrum")
        count = self.dimensions
        coordinates = []
        for axis, length in enumerate(box_lengths(lengths, count), -count):
            points, part = self.global_shape[axis], self.local_slice[axis]
            first = 0.0
            if wall := REAL_KINDS.get(self._kinds[axis]):
                points, first = points + wall.beyond, wall.first_point
            shape = [1] * count
            shape[axis] = -1
            coordinates.append((length / points * (first + np.arange(part.start, part.stop))).reshape(shape))
        return tuple(coordinates)

    def from_function(self, function: Callable[..., Any], lengths: float | Sequence[float] | None = None) -> DistArray:
        """Fill a new array with a function of the coordinates (collective).

        Parameters
        ----------
        function : callable
            ``function(y, x)`` or ``function(z, y, x)`` with the arrays of `grid`, coordinates and no indices (as
            `numpy.fromfunction` gives); returns values that broadcast to the local shape, batch axes included.
        lengths : float or sequence of float, optional
            See `grid`.

        Returns
        -------
        DistArray

        Raises
        ------
        InputError, RankError
            On all ranks: the function fails on some rank, or returns values that do not fit there.
        """
        filled = self.empty()
        with collective_section(self.comm, "from_function") as agreed:
            if problem := function_problem("function", function):
                raise InputError(problem)
            coordinates = self.grid(lengths)
            agreed.update(lengths=box_lengths(lengths, self.dimensions))
            returned = function(*coordinates)
            refuse_masks(values=returned)
            values = np.asarray(returned)
            if not np.can_cast(values.dtype, self.dtype, "same_kind"):
                raise InputError(f"expected values that can be cast to {self.dtype}, received {values.dtype}")
            try:
                np.asarray(filled)[...] = values
            except ValueError:
                raise InputError(
                    f"expected values that broadcast to the local shape {self.shape}, received shape {values.shape}"
                ) from None
        return filled

    def problem(self, array: Any, name: str) -> str | None:
        """Return why a local array does not fit this specification, as text, or None."""
        if not isinstance(array, np.ndarray):
            return f"expected {name} to be a numpy array, received {type(array).__name__}"
        if masked := mask_problem(**{name: array}):
            return masked
        same = isinstance(array, DistArray) and (array.shape == self.shape or array.global_shape == self.global_shape)
        if same and (misplaced := self.place_problem(array, name)):
            return misplaced
        if array.shape != self.shape or array.dtype != self.dtype:
            return (
                f"expected {name} of local shape {self.shape} and dtype {self.dtype}, received "
                f"{array.shape} and {array.dtype}"
            )
        if self.contiguous and not array.flags.c_contiguous:
            return f"expected {name} of local shape {self.shape} and C-contiguous, received strides {array.strides}"
        return None

    def target_problem(self, array: Any, name: str) -> str | None:
        """Return why an array cannot receive a result of this specification, as text, or None."""
        if problem := self.problem(array, name):
            return problem
        if not array.flags.writeable:
            return f"expected {name} to be writeable, received a read-only array"
        if overlaps_itself(array):
            return f"expected {name} with a place in memory for each element, received strides {array.strides}"
        return None

    def place_problem(self, array: Any, name: str) -> str | None:
        """Return why the distribution of an array does not fit this specification, as text, or None."""
        received, wanted = array.distribution, self.distribution
        # The axes are not compared: a split axis that one rank has completely counts as whole.
        if received is not wanted and (received.global_shape, received.local_slice) != (
            wanted.global_shape,
            wanted.local_slice,
        ):
            return f"expected {name} of {wanted}, received a DistArray of {received}: use DistArray.redistribute"
        if array.comm is not None and not same_ranks(array.comm, self.comm):
            return (
                f"expected {name} distributed over the ranks of the plan, in their order, received a DistArray of "
                "another communicator"
            )
        return None

    def as_transformed(self, planes: np.ndarray) -> np.ndarray:
        """View an array with joined batch axes in the order of the transforms: (batch, z, y, x), or (batch, y, x)."""
        if not self._taken_apart:
            return planes if self.natural else np.moveaxis(planes, -1, 1)
        for axis in range(-self.dimensions, 0):  # counted from the end; these have not moved yet
            if axis in self._taken_apart:
                each, turned = self._taken_apart[axis]
                place = planes.ndim + axis
                lengths = planes.shape
                planes = planes.reshape((*lengths[:place], lengths[place] // each, each, *lengths[place + 1 :]))
                planes = planes.swapaxes(place, place + 1) if turned else planes
        return planes

    def planes(self, array: np.ndarray) -> np.ndarray:
        """Return the array with its batch axes joined: a view where strides allow, else a copy."""
        return np.asarray(array).reshape((self.slices, *self.shape[-self.dimensions :]))


def box_lengths(lengths: float | Sequence[float] | None, count: int) -> tuple[float, ...]:
    """Return the lengths of a box with `count` axes, each 2 pi by default; raise what is wrong with them."""
    try:
        box = np.broadcast_to(np.asarray(tau if lengths is None else lengths, float), (count,))
        good = bool(np.all(np.isfinite(box) & (box > 0)))
    except (TypeError, ValueError):
        good = False
    if not good:
        raise InputError(f"expected a positive length, or one for each of {count} axes, received {lengths!r:.80}")
    return tuple(box.tolist())
