"""`TimeStepper`: Runge-Kutta methods of fourth order for spectral equations dy/dt = L y + N(t, y)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import InputError, repr_of

SCHEMES = ("etdrk4", "ifrk4", "rk4")
CONTOUR_POINTS = 64  # on a circle around every L dt, so that the integrals are exact except for rounding

Nonlinear = Callable[[float, Any], Any]


class TimeStepper:
    """Advance spectral fields in time: dy/dt = L y + N(t, y), with L a number for every mode.

    N is a function that calls transforms of a plan, such as its `pointwise`. L is often stiff; two of the schemes
    integrate it exactly:

    * ``"etdrk4"``: exponential time differencing (S. M. Cox and P. C. Matthews, J. Comput. Phys. 176, 2002, 430), its
      coefficients as contour integrals (A.-K. Kassam and L. N. Trefethen, SIAM J. Sci. Comput. 26, 2005, 1214);
    * ``"ifrk4"``: the classical method for exp(-L t) y, an integrating factor;
    * ``"rk4"``: the classical method, for L y and N alike.

    Parameters
    ----------
    linear : array_like or sequence of array_like
        L of this rank's modes, for instance ``-viscosity * k**2``. It broadcasts to a local array of the spectrum; if
        the state is a tuple of fields, pass one for each field.
    nonlinear : callable
        ``nonlinear(t, state)`` returns N in the form of the state, and does not change the state. Called four times for
        each step, on all ranks.
    dt : float
        Length of a step.
    scheme : {"etdrk4", "ifrk4", "rk4"}

    Raises
    ------
    InputError
        On this rank, if an argument is bad. Only `nonlinear` may be collective.

    Examples
    --------
    >>> with overlap.FFT2(comm, (1, 16, 16), dtype="f8") as plan:
    ...     ky, kx = plan.wavenumbers()
    ...     w = plan.forward(plan.real.from_function(lambda y, x: np.sin(x)))
    ...     stepper = overlap.TimeStepper(-0.1 * (kx**2 + ky**2), lambda t, w: 0 * w, dt=0.1)
    ...     w, t = stepper.run(w, steps=10)
    ...     u = plan.backward(w)
    >>> round(float(u.max() / np.exp(-0.1)), 6)
    1.0
    """

    def __init__(self, linear: Any, nonlinear: Nonlinear, dt: float, scheme: str = "etdrk4") -> None:
        if scheme not in SCHEMES:
            raise InputError(f"expected scheme to be one of {', '.join(SCHEMES)}, received {scheme!r}")
        try:
            step_s = float(dt)
        except (TypeError, ValueError):
            step_s = float("nan")
        if not np.isfinite(step_s) or step_s <= 0:
            raise InputError(f"expected dt to be a positive number, received {repr_of(dt)}")
        if not callable(nonlinear):
            raise InputError(f"expected nonlinear to be a function, received {repr_of(nonlinear)}")
        self.dt, self.scheme = step_s, scheme
        self._several = isinstance(linear, (tuple, list))
        parts = [np.asarray(one) for one in (linear if self._several else [linear])]
        if any(one.dtype.kind not in "iufc" for one in parts):
            raise InputError(f"expected linear to be numbers, received {', '.join(str(one.dtype) for one in parts)}")
        if any(np.isnan(one).any() for one in parts):
            raise InputError("expected linear to be numbers, received some that are not (nan)")
        self._nonlinear = nonlinear
        self._factors = [_FACTORS[scheme](one, step_s) for one in parts]
        self._double = True

    def step(self, t: float, state: Any) -> Any:
        """Advance by one step (collective, if `nonlinear` is).

        Parameters
        ----------
        t : float
            Time of `state`.
        state : DistArray or tuple of DistArray

        Returns
        -------
        DistArray or tuple of DistArray
            The state at ``t + dt``, in new arrays.

        Raises
        ------
        InputError
            On this rank, if the state does not have the form of `linear`.
        """
        fields = self._fields(state)
        # Factors in double precision would convert these fields to doubles.
        if self._double and all(field.dtype in ("f4", "c8") for field in fields):
            self._double = False
            for factors in self._factors:
                factors.in_single_precision()
        stepped = getattr(self, f"_{self.scheme}")(t, fields)
        return tuple(stepped) if self._several else stepped[0]

    def run(self, state: Any, steps: int, t: float = 0.0, each: Callable[[float, Any], object] | None = None) -> Any:
        """Advance by several steps (collective, if `nonlinear` is).

        Parameters
        ----------
        state : DistArray or tuple of DistArray
        steps : int
        t : float
            Time of `state`.
        each : callable, optional
            ``each(t, state)``, called after every step.

        Returns
        -------
        state : DistArray or tuple of DistArray
        t : float
        """
        if not isinstance(steps, (int, np.integer)) or steps < 0:
            raise InputError(f"expected steps to be an integer of at least 0, received {steps!r:.80}")
        start = t
        for number in range(steps):
            state = self.step(t, state)
            t = start + (number + 1) * self.dt
            if each is not None:
                each(t, state)
        return state, t

    def _fields(self, state: Any) -> list[Any]:
        fields = list(state) if isinstance(state, (tuple, list)) else [state]
        if not all(isinstance(field, (np.ndarray, np.generic)) and field.dtype.kind in "fc" for field in fields):
            raise InputError(f"expected fields of real or complex numbers, received {repr_of(state):.80}")
        if isinstance(state, (tuple, list)) != self._several or len(fields) != len(self._factors):
            expected = f"a tuple of {len(self._factors)} fields" if self._several else "one field"
            raise InputError(f"expected the state to be {expected}, as linear is, received {repr_of(state):.80}")
        return fields

    def _n(self, t: float, fields: list[Any]) -> list[Any]:
        return self._fields(self._nonlinear(t, tuple(fields) if self._several else fields[0]))

    def _etdrk4(self, t: float, y: list[Any]) -> list[Any]:
        h, each = self.dt, range(len(y))
        factors = self._factors
        n_y = self._n(t, y)
        a = [f.half * y[i] + f.q * n_y[i] for i, f in zip(each, factors)]
        n_a = self._n(t + h / 2, a)
        b = [f.half * y[i] + f.q * n_a[i] for i, f in zip(each, factors)]
        n_b = self._n(t + h / 2, b)
        c = [f.half * a[i] + f.q * (2 * n_b[i] - n_y[i]) for i, f in zip(each, factors)]
        n_c = self._n(t + h, c)
        return [
            f.whole * y[i] + f.first * n_y[i] + f.middle * (n_a[i] + n_b[i]) + f.last * n_c[i]
            for i, f in zip(each, factors)
        ]

    def _ifrk4(self, t: float, y: list[Any]) -> list[Any]:
        h, each = self.dt, range(len(y))
        factors = self._factors
        n_y = self._n(t, y)
        half = [f.half * y[i] for i, f in zip(each, factors)]
        n_a = self._n(t + h / 2, [half[i] + h / 2 * f.half * n_y[i] for i, f in zip(each, factors)])
        n_b = self._n(t + h / 2, [half[i] + h / 2 * n_a[i] for i in each])
        n_c = self._n(t + h, [f.half * (half[i] + h * n_b[i]) for i, f in zip(each, factors)])
        return [
            f.whole * (y[i] + h / 6 * n_y[i]) + h / 3 * f.half * (n_a[i] + n_b[i]) + h / 6 * n_c[i]
            for i, f in zip(each, factors)
        ]

    def _rk4(self, t: float, y: list[Any]) -> list[Any]:
        h, each = self.dt, range(len(y))

        def slope(at: float, fields: list[Any]) -> list[Any]:
            return [
                f.linear * field + n for f, field, n in zip(self._factors, fields, self._n(at, fields), strict=True)
            ]

        one = slope(t, y)
        two = slope(t + h / 2, [y[i] + h / 2 * one[i] for i in each])
        three = slope(t + h / 2, [y[i] + h / 2 * two[i] for i in each])
        four = slope(t + h, [y[i] + h * three[i] for i in each])
        return [y[i] + h / 6 * (one[i] + 2 * (two[i] + three[i]) + four[i]) for i in each]


class _Factors:
    """The factors of one field of the state: L itself."""

    def __init__(self, linear: np.ndarray, dt: float) -> None:
        self.linear = linear

    def in_single_precision(self) -> None:
        """Convert all factors, for fields of single precision."""
        for name, factor in vars(self).items():
            setattr(self, name, factor.astype("c8" if factor.dtype.kind == "c" else "f4"))


class _Exponentials(_Factors):
    """exp(L dt / 2) and exp(L dt)."""

    def __init__(self, linear: np.ndarray, dt: float) -> None:
        super().__init__(linear, dt)
        self.half = np.exp(linear * (dt / 2))
        self.whole = np.exp(linear * dt)


class _EtdFactors(_Exponentials):
    """The factors of ETDRK4, as Kassam and Trefethen name the terms: q, and those of the last combination."""

    def __init__(self, linear: np.ndarray, dt: float) -> None:
        super().__init__(linear, dt)
        z = linear * dt
        sums = [np.zeros(z.shape, complex) for _ in range(4)]
        for number in range(CONTOUR_POINTS):  # a loop, because the arrays are as large as a field
            r = z + np.exp(2j * np.pi * (number + 0.5) / CONTOUR_POINTS)
            e = np.exp(r)
            sums[0] += (np.exp(r / 2) - 1) / r
            sums[1] += (-4 - r + e * (4 - 3 * r + r**2)) / r**3
            sums[2] += 2 * (2 + r + e * (r - 2)) / r**3
            sums[3] += (-4 - 3 * r - r**2 + e * (4 - r)) / r**3
        factors = [dt / CONTOUR_POINTS * one for one in sums]
        if linear.dtype.kind != "c":
            factors = [one.real for one in factors]
        self.q, self.first, self.middle, self.last = factors


_FACTORS: dict[str, Callable[[np.ndarray, float], Any]] = {
    "etdrk4": _EtdFactors,
    "ifrk4": _Exponentials,
    "rk4": _Factors,
}
