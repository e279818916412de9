"""`SpectralOperators`: derivatives, energies and products of fields that a plan has transformed."""

from __future__ import annotations

from collections.abc import Sequence
from math import tau
from typing import Any

import numpy as np

from ..arrays import DistArray
from ..errors import InputError
from ..ranks.objects import Described
from .engine.axis import REAL_KINDS

MOST_ORDER = 64  # largest order of a derivative


class SpectralOperators(Described):
    """Differentiate, multiply and measure spectral fields of an `FFT2` or `FFT3` in a box.

    Made by the plan's `operators`. All arrays are of the plan's spectrum, batch axes included. Vectors are sequences of
    one such array per transformed axis, in the order of the axes: (y, x) or (z, y, x).

    Derivatives multiply a mode by i k, with k = 2 pi m / L for mode number m and length L. The Nyquist mode of an even
    number of points has no odd derivative that belongs to a real field: it becomes 0. Even orders keep it.

    Along an axis with a cosine or sine transform, L is the distance of the walls and k = pi j / L for j half waves.
    There is `laplacian`, `inverse_laplacian` and every even derivative. An odd derivative turns cosines into sines,
    which the plan does not have: along such an axis it raises `InputError`, and so do `gradient`, `divergence` and
    `curl`. The energies raise it too, because the weights of modes depend on the transform.

    Attributes
    ----------
    lengths : tuple of float

    Examples
    --------
    >>> with overlap.FFT2(comm, (1, 16, 16), dtype="f8") as plan:
    ...     ops = plan.operators()
    ...     u = plan.forward(plan.real.from_function(lambda y, x: np.sin(2 * x)))
    ...     second = plan.backward(ops.laplacian(u)) / plan.backward(u)
    ...     round(float(second[0, 0, 1]), 6), [round(float(e), 6) for e in ops.energy_spectrum(u)[1][:4]]
    (-4.0, [0.0, 0.0, 0.25, 0.0])
    """

    def __init__(
        self,
        plan: Any,
        points: tuple[int, ...],  # along the transformed axes whose modes are resolved
        kinds: tuple[str, ...],  # of transforms along these axes
        # Factor by which the sum of all squared moduli of a spectrum becomes the mean square in real space.
        mean_square: float,
        lengths: tuple[float, ...],  # of the box along the transformed axes
        dealias: Any,  # as of `FFT2.pointwise`, for `product`
    ) -> None:
        self.lengths = lengths
        self._plan, self._points, self._mean_square, self._dealias = plan, points, mean_square, dealias
        self._kinds = kinds
        self._multiplied: Any = None  # made by the first product
        self._of_spectrum: object = None  # the spectrum of the wavenumbers; a plan's shares may change

    def _title(self) -> str:
        return f"SpectralOperators of lengths {self.lengths}, dealias {self._dealias!r}, of {self._plan._title()}"

    def _has_ended(self) -> bool:
        return self._plan._has_ended()

    def wavenumbers(self) -> tuple[np.ndarray, ...]:
        """Return the plan's `wavenumbers` in the box: k of this rank's modes along every axis (local)."""
        self._update()
        return self._k

    def derivative(self, field: DistArray, axis: int, order: int = 1) -> DistArray:
        """Differentiate along a transformed axis (local).

        Parameters
        ----------
        field : DistArray
        axis : int
            From the end: -1 is x, -2 is y, -3 is z.
        order : int
            From 1 to 64.

        Returns
        -------
        DistArray

        Raises
        ------
        InputError
            On this rank: `axis` or `order` is out of its range, or `order` is odd along an axis with a cosine or sine
            transform.
        """
        count = len(self.lengths)
        if not isinstance(axis, (int, np.integer)) or not -count <= axis < 0:
            raise InputError(f"expected axis to be one of {', '.join(map(str, range(-count, 0)))}, received {axis!r}")
        if not isinstance(order, (int, np.integer)) or not 1 <= order <= MOST_ORDER:
            raise InputError(f"expected order to be an integer from 1 to {MOST_ORDER}, received {order!r:.80}")
        if order % 2 and self._kinds[axis] in REAL_KINDS:
            raise InputError(
                f"expected an even order along axis {axis}, as odd derivatives of a {self._kinds[axis]!r} are not of "
                f"its series, received {order}"
            )
        self._update()
        if order % 2 == 0:
            return self._times((-1.0) ** (order // 2) * self._k[axis] ** int(order), field)
        return self._times(1j * (-1.0) ** (order // 2) * self._odd_k[axis] ** int(order), field)

    def gradient(self, field: DistArray) -> tuple[DistArray, ...]:
        """Differentiate along every transformed axis (local): a vector.

        Parameters
        ----------
        field : DistArray
            A field of the plan's spectrum.

        Returns
        -------
        tuple of DistArray
        """
        return tuple(self.derivative(field, axis) for axis in range(-len(self.lengths), 0))

    def divergence(self, vector: Sequence[DistArray]) -> DistArray:
        """Compute the divergence of a vector (local).

        Parameters
        ----------
        vector : sequence of DistArray
            (y, x) or (z, y, x) components.

        Returns
        -------
        DistArray
        """
        axes = range(-len(self.lengths), 0)
        first, *terms = (self.derivative(part, axis) for part, axis in zip(self._vector(vector), axes))
        for term in terms:
            first += term
        return first

    def curl(self, vector: Sequence[DistArray]) -> Any:
        """Compute the curl of a vector (local).

        Parameters
        ----------
        vector : sequence of DistArray
            (y, x) or (z, y, x) components.

        Returns
        -------
        DistArray or tuple of DistArray
            In two dimensions the scalar d(v_y)/dx - d(v_x)/dy; in three the (z, y, x) components.
        """
        parts = self._vector(vector)
        d = self.derivative
        if len(parts) == 2:
            v_y, v_x = parts
            return d(v_y, -1) - d(v_x, -2)
        v_z, v_y, v_x = parts
        return d(v_y, -1) - d(v_x, -2), d(v_x, -3) - d(v_z, -1), d(v_z, -2) - d(v_y, -3)

    def laplacian(self, field: DistArray) -> DistArray:
        """Apply the Laplacian (local).

        Parameters
        ----------
        field : DistArray
            A field of the plan's spectrum.

        Returns
        -------
        DistArray
        """
        self._update()
        return self._times(-self._square, field)

    def inverse_laplacian(self, field: DistArray) -> DistArray:
        """Return f with lap f = `field` (local). A constant mode of `field` is ignored, and that of f is 0.

        Parameters
        ----------
        field : DistArray
            A field of the plan's spectrum.

        Returns
        -------
        DistArray
        """
        self._update()
        with np.errstate(divide="ignore"):
            factor = np.where(self._square > 0, -1.0 / self._square, 0.0)
        return self._times(factor, field)

    def product(self, one: DistArray, other: DistArray) -> DistArray:
        """Multiply two fields in real space (collective); the first call plans the transform.

        Parameters
        ----------
        one, other : DistArray
            A field of the plan's spectrum.

        Returns
        -------
        DistArray
        """
        if self._multiplied is None:
            self._multiplied = self._plan.pointwise(_product, inputs=2, dealias=self._dealias)
        result: DistArray = self._multiplied(one, other)
        return result

    def energy(self, *fields: DistArray) -> Any:
        """Compute half the mean square in real space of some fields, by Parseval's theorem (collective).

        Parameters
        ----------
        *fields : DistArray
            For the kinetic energy: the components of a velocity.

        Returns
        -------
        float or ndarray of float
            One value for every field of the batch, in the shape of the batch axes; the same on all ranks.

        Raises
        ------
        InputError
            On all ranks: an argument is no array of the spectrum, ranks pass different numbers of fields, or the plan
            has cosine or sine transforms.
        """
        _, energies = self._energies(fields)
        count = len(self.lengths)
        local = energies.sum(axis=tuple(range(-count, 0)))
        return self._summed(local)[()]

    def energy_spectrum(self, *fields: DistArray) -> tuple[np.ndarray, np.ndarray]:
        """Sum the energy over shells of wavenumbers (collective).

        Shell s has the modes with round(abs(k) / k_1) = s, where k_1 is the smallest wavenumber of the box, 2 pi over
        its largest length. The sum over all shells is the sum of `energy` over the batch.

        Parameters
        ----------
        *fields : DistArray
            See `energy`.

        Returns
        -------
        k : ndarray of float
            Middle of every shell: s k_1.
        energy : ndarray of float
            Energy of every shell, summed over the batch; the same on all ranks.
        """
        square, energies = self._energies(fields)
        smallest = tau / max(self.lengths)
        shells = np.rint(np.sqrt(square) / smallest).astype(np.intp)
        batch = tuple(range(energies.ndim - square.ndim))
        energies = energies.sum(axis=batch)
        count = self._shells(smallest)
        sums = self._summed(np.bincount(shells.reshape(-1), energies.reshape(-1), count))
        return smallest * np.arange(count), sums

    # ---- internals --------------------------------------------------------------------

    def _update(self) -> None:
        """Compute the wavenumbers of this rank's modes, if these have changed."""
        plan = self._plan
        plan._check_in_use()
        if self._of_spectrum is plan.spectrum:
            return
        modes = plan.wavenumbers()  # in a box of length 2 pi
        self._k = plan.wavenumbers(self.lengths)
        self._odd_k = tuple(np.where(2 * np.abs(mode) == n, 0.0, k) for n, mode, k in zip(self._points, modes, self._k))
        self._square = sum(k**2 for k in self._k)
        self._counts = 1.0 if plan.real.dtype.kind == "c" else counts_of_half(modes[-1], self._points[-1])
        self._of_spectrum = plan.spectrum

    def _times(self, factor: Any, field: DistArray) -> DistArray:
        if problem := self._plan.spectrum.problem(field, "field"):
            raise InputError(problem)
        return field * factor.astype(field.dtype if np.iscomplexobj(factor) else field.real.dtype)

    def _vector(self, vector: Sequence[DistArray]) -> tuple[DistArray, ...]:
        count = len(self.lengths)
        try:
            parts = tuple(vector)
        except TypeError:
            parts = ()
        if isinstance(vector, np.ndarray) or len(parts) != count:
            raise InputError(f"expected a vector, {count} arrays, received a {type(vector).__name__}")
        return parts

    def _energies(self, fields: Sequence[DistArray]) -> tuple[np.ndarray, np.ndarray]:
        """Return k^2 of this rank's modes, and the energy of each mode, of the shape of a local array."""
        self._update()
        spectrum = self._plan.spectrum
        with self._plan.runtime.collective_section(f"an energy, {self._plan._known_as}"):
            if {*REAL_KINDS} & {*self._kinds}:
                raise InputError(f"expected a plan of Fourier transforms for energies, received one of {self._kinds}")
            for field in fields or (None,):
                if problem := spectrum.problem(field, "field"):
                    raise InputError(problem)
            self._plan.runtime.preflight(fields=len(fields), lengths=self.lengths)
            # The root of the factor, as a power of two, comes before the squares, which then fit if the energy does.
            root = 2.0 ** int(np.frexp(self._mean_square**0.5)[1])
            energies = np.zeros(spectrum.shape)
            for field in fields:
                values = np.asarray(field)
                for part in (values.real, values.imag):
                    square = np.multiply(part, root, dtype=float)
                    square *= square
                    energies += square
        energies *= 0.5 * self._counts * (self._mean_square / root**2)
        return np.broadcast_to(self._square, spectrum.shape[-len(self.lengths) :]), energies

    def _shells(self, smallest: float) -> int:
        largest = sum((tau / length * (n // 2)) ** 2 for n, length in zip(self._points, self.lengths)) ** 0.5
        return int(np.rint(largest / smallest)) + 1

    def _summed(self, local: Any) -> np.ndarray:
        """Add up arrays of all ranks, in the order of the ranks."""
        parts: list[Any] = self._plan.runtime.coordinator.allgather(np.asarray(local))
        total: np.ndarray = np.sum(parts, axis=0)
        return total


def lengths_problem(lengths: Sequence[float], points: Sequence[int], dtype: np.dtype) -> str | None:
    """Return why the squares of the wavenumbers of a box leave the range of the fields' type, or None."""
    limits = np.finfo(dtype)
    with np.errstate(over="ignore", under="ignore"):
        steps = tau / np.array(lengths)
        largest, smallest = np.square(steps * points).sum(), np.square(steps / 4).min()  # with walls, steps are smaller
    if limits.tiny <= smallest and largest <= limits.max:
        return None
    return f"expected lengths whose wavenumbers have squares in the range of {dtype}, received {tuple(lengths)}"


def counts_of_half(modes: np.ndarray, points: int) -> np.ndarray:
    """Return how many modes of the whole spectrum each mode of half a spectrum represents: 2, at the ends 1."""
    return np.where((modes == 0) | (2 * modes == points), 1.0, 2.0)


def _product(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return one * other
