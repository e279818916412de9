"""`TimeStepper`: Runge-Kutta methods of fourth order for spectral equations dy/dt = L y + N(t, y)."""

from __future__ import annotations

from collections.abc import Callable, Generator
from copy import copy
from typing import Any, Self

import numpy as np

from ..checks import choice_problem, function_problem, number_problem
from ..errors import InputError, formatted, repr_of
from ..ranks.objects import Described

CONTOUR_POINTS = 64  # on a circle around every L dt, so that the integrals are exact except for rounding

Nonlinear = Callable[[float, Any], Any]


class TimeStepper(Described):
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
        ``nonlinear(t, state)`` returns N in the form of the state, and does not change the state. It may return the
        same arrays each time. Called four times for each step, on all ranks.
    dt : float
        Length of a step.
    scheme : {"etdrk4", "ifrk4", "rk4"}

    Attributes
    ----------
    dt : float
        Length of the next steps; assign it to change it.
    scheme : str

    Raises
    ------
    InputError
        On this rank, if an argument or an assigned `dt` is bad. Only `nonlinear` may be collective.

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
        problem = choice_problem("scheme", scheme, _SCHEMES, listed=False) or function_problem("nonlinear", nonlinear)
        if problem:
            raise InputError(problem)
        self._scheme, self._nonlinear = scheme, nonlinear
        self._several = isinstance(linear, (tuple, list))
        self._linear = [_numbers(one) for one in (linear if self._several else [linear])]
        if not self._linear:
            raise InputError(f"expected linear to be numbers for at least one field, received {linear!r}")
        self.dt = dt

    def _title(self) -> str:
        return f"TimeStepper {self._scheme!r}, dt {self._dt:g}, of {len(self._linear)} field(s)"

    @property
    def scheme(self) -> str:
        """Return the scheme's name."""
        return self._scheme

    @property
    def dt(self) -> float:
        """Return the length of a step."""
        return self._dt

    @dt.setter
    def dt(self, dt: float) -> None:
        if problem := number_problem("dt", dt, positive=True):
            raise InputError(problem)
        step = float(dt)
        self._factors = [{"f8": _SCHEMES[self._scheme][0](one, step)} for one in self._linear]
        self._dt = step

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
            On this rank, if the state does not have the form of `linear`, or `nonlinear` returns other shapes.
        """
        fields = self._fields(state)
        for field, linear in zip(fields, self._linear):
            if linear.shape != field.shape and not _broadcasts(linear.shape, field.shape):
                raise InputError(
                    f"expected linear of a shape that broadcasts to that of the field, {field.shape}, received "
                    f"{linear.shape}"
                )
        h = self._dt
        stages = [_SCHEMES[self._scheme][1](f, h, y) for f, y in zip(self._factors_of(fields), fields)]
        fields = [next(stage) for stage in stages]
        for at in (t, t + h / 2, t + h / 2, t + h):
            fields = [stage.send(n) for stage, n in zip(stages, self._n(at, fields))]
        return tuple(fields) if self._several else fields[0]

    def run(self, state: Any, steps: int, t: float = 0.0, each: Callable[[float, Any], object] | None = None) -> Any:
        """Advance by several steps (collective, if `nonlinear` is).

        Parameters
        ----------
        state : DistArray or tuple of DistArray
        steps : int
        t : float
            Time of `state`.
        each : callable, optional
            ``each(t, state)``, called after every step; it may assign `dt`.

        Returns
        -------
        state : DistArray or tuple of DistArray
        t : float
        """
        if isinstance(steps, bool) or not isinstance(steps, (int, np.integer)) or steps < 0:
            raise InputError(f"expected steps to be an integer of at least 0, received {steps!r:.80}")
        start, number = t, 0  # time and steps since `dt` has changed: products do not add up rounding errors
        for _ in range(steps):
            dt = self._dt
            state = self.step(t, state)
            number += 1
            t = start + number * dt
            if each is not None:
                each(t, state)
                if self._dt != dt:
                    start, number = t, 0
        return state, t

    def _fields(self, state: Any, whose: str = "the state to be") -> list[Any]:
        fields = list(state) if isinstance(state, (tuple, list)) else [state]
        if not all(isinstance(field, (np.ndarray, np.generic)) and field.dtype.kind in "fc" for field in fields):
            raise InputError(f"expected {whose} fields of real or complex numbers, received {repr_of(state):.80}")
        if isinstance(state, (tuple, list)) != self._several or len(fields) != len(self._linear):
            expected = f"a tuple of {len(self._linear)} fields" if self._several else "one field"
            raise InputError(f"expected {whose} {expected}, as linear is, received {repr_of(state):.80}")
        return fields

    def _factors_of(self, fields: list[Any]) -> list[Any]:
        """Return the factors in each field's precision: doubles would convert a field of singles to doubles."""
        found = []
        for field, each in zip(fields, self._factors):
            precision = "f4" if field.dtype in ("f4", "c8") else "f8"
            if precision not in each:
                each[precision] = each["f8"].in_single_precision()
            found.append(each[precision])
        return found

    def _n(self, t: float, fields: list[Any]) -> list[Any]:
        """Return the nonlinear terms. The next call may overwrite them."""
        returned = self._nonlinear(t, tuple(fields) if self._several else fields[0])
        terms = self._fields(returned, "nonlinear to return")
        for term, field in zip(terms, fields):
            if term.shape != field.shape:
                raise InputError(
                    f"expected nonlinear to return fields of the state's shape, {field.shape}, received {term.shape}"
                )
        return terms


def _numbers(linear: Any) -> np.ndarray:
    """Return one field's L in double precision."""
    try:
        given = np.asarray(linear)
    except Exception as error:  # nested lists of different lengths; a user's object can raise anything
        raise InputError(f"expected linear to be an array of numbers, received {formatted(error)[0]}") from None
    if given.dtype.kind not in "iufc":
        raise InputError(f"expected linear to be numbers, received {repr_of(linear):.80}")
    if not np.isfinite(given).all():
        raise InputError("expected linear to be finite numbers, received some that are not")
    return given.astype(np.result_type(given, "f8"), copy=False)


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, to) == to
    except ValueError:
        return False


class _Factors:
    """The factors of one field of the state: L itself."""

    def __init__(self, linear: np.ndarray, dt: float) -> None:
        self.linear = linear

    def in_single_precision(self) -> Self:
        """Return these factors for fields of single precision."""
        single = copy(self)
        for name, factor in vars(self).items():
            setattr(single, name, factor.astype("c8" if factor.dtype.kind == "c" else "f4"))
        return single


class _Exponentials(_Factors):
    """exp(L dt / 2) and exp(L dt)."""

    def __init__(self, linear: np.ndarray, dt: float) -> None:
        super().__init__(linear, dt)
        with np.errstate(over="ignore", invalid="ignore"):
            self.half = np.exp(linear * (dt / 2))
            self.whole = np.exp(linear * dt)
        if not np.isfinite(self.whole).all():
            raise InputError(
                f"expected linear and dt with finite exp(L dt), received L = {linear.real.max():g} and dt={dt:g}"
            )


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


# ---- one step of one field --------------------------------------------------------------------
# A generator yields the states at which it needs N, sent to it, and at last the end of the step. It uses N before it
# yields the next state, because N may come in the same array each time.

_Stages = Generator[Any, Any, None]


def _sum(own: Any, other: Any) -> Any:
    """Return the sum of an array of ours and another one, in our array if both have one type."""
    if own.dtype != other.dtype:
        return own + other
    own += other
    return own


def _etdrk4(f: _EtdFactors, h: float, y: Any) -> _Stages:
    n = yield y
    b, change = f.half * y, f.q * n
    a = b + change
    c = f.half * a - change
    del change
    end = f.whole * y + f.first * n
    n = yield a
    del a
    b = _sum(b, f.q * n)
    end = _sum(end, f.middle * n)
    n = yield b
    del b
    c = _sum(c, 2 * (f.q * n))
    end = _sum(end, f.middle * n)
    n = yield c
    yield _sum(end, f.last * n)


def _ifrk4(f: _Exponentials, h: float, y: Any) -> _Stages:
    n = yield y
    half, change = f.half * y, f.half * n
    a = half + h / 2 * change
    change = 0.5 * change
    n = yield a
    del a
    change = _sum(change, n)
    n = yield half + h / 2 * n
    change = _sum(change, n)
    n = yield f.half * (half + h * n)
    yield f.half * (half + h / 3 * change) + h / 6 * n


def _rk4(f: _Factors, h: float, y: Any) -> _Stages:
    one = (yield y) + f.linear * y
    at = y + h / 2 * one
    two = (yield at) + f.linear * at
    at = y + h / 2 * two
    three = (yield at) + f.linear * at
    at = y + h * three
    four = (yield at) + f.linear * at
    yield y + h / 6 * (one + 2 * (two + three) + four)


_SCHEMES: dict[str, tuple[Callable[[np.ndarray, float], Any], Callable[[Any, float, Any], _Stages]]] = {
    "etdrk4": (_EtdFactors, _etdrk4),
    "ifrk4": (_Exponentials, _ifrk4),
    "rk4": (_Factors, _rk4),
}
