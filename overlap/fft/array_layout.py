"""`ArrayLayout`: the requested layout of the arrays of a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, Literal

from ..arrays import Weights
from ..checks import choice_problem
from .arguments import ORDERS, integers, shown
from .engine.axis import REAL_KINDS
from .function import dealias_problem

SIDES = ("real", "spectrum")


@dataclass(frozen=True)
class ArrayLayout:
    """The layout of a plan's arrays in memory and over the ranks.

    The layout determines shapes and distributions, except for the resolved grid itself. `Settings` affect the speed
    only. ``plan.real`` and ``plan.spectrum`` show the result. Plans also accept a dict of these fields:
    ``layout={"grid": (2, 4)}``.

    Attributes
    ----------
    order : {"natural", "transposed"}
        Axes of the spectrum. Natural: ``(..., ny, nx)``, ``(..., nz, ny, nx)``. Transposed:
        ``(..., nx, ny)``, ``(..., ny, nx, nz)``. The axes that are split are the same in both.
    grid : (int, int), optional
        P and Q, the process grid of an `FFT3`. None: the plan chooses.
    restore : bool
        Split the spectrum over the ranks as real space is split. This doubles the number of exchanges.
    dealias : {None, "3/2"} or tuple of int
        ``"3/2"``: in real space there are ceil(3 n / 2) points per direction; modes beyond the resolved ones, and the
        Nyquist modes of even n, are dropped. Values are those of the same function. (`pointwise` does this for its own
        fields.) A tuple gives the numbers of points, at least those of the resolved grid; an axis for which both are
        equal keeps all of its modes.
    weights : sequence of numbers or "measure", optional
        One positive number per rank, such as its speed. A rank's share of each split axis is in proportion to its
        weight (`overlap.arrays.shares`). There are as many messages as with even shares. On a P x Q grid the weight of
        a coordinate is the sum of its ranks' weights. A share may be empty. ``"measure"`` takes the weights of the
        plan's tuning file, or measures them, as `FFT2.balance` does, when the plan is made.
    shares : dict, optional
        The exact lengths: ``{"real": {-2: (8, 8, 1)}, "spectrum": {-1: (6, 3, 0)}}`` names, for split axes of the
        arrays of real space and of the spectrum, the lengths of the parts of all ranks along it, in order. They take
        precedence over the weights. An `FFT3` with shares needs its grid named. On a grid finer than the plan's own,
        axes are split in proportion to the shares. The record keeps the shares as tuples.
    modes : tuple of int, optional
        How many modes of each transformed axis the spectrum keeps; all by default. The m modes are, in `numpy.fft`'s
        order, those of m points: 0, 1, ... and ..., -2, -1, at most (m - 1) // 2 in magnitude; 0 to (m - 1) // 2 along
        the axis of half a spectrum. The Nyquist mode of an even m has no partner, and is zero. The other modes are
        dropped after the FFTs along the first axis that drops them, and never sent; `backward` treats them as zeros.
        Values are those of the transform of all points.

    Examples
    --------
    >>> layout = overlap.ArrayLayout(order="transposed")
    >>> with overlap.FFT2(comm, (4, 16, 12), layout=layout) as plan:
    ...     plan.spectrum.global_shape
    (4, 12, 16)
    """

    order: str = "natural"
    grid: tuple[int, int] | None = None
    restore: bool = False
    dealias: str | tuple[int, ...] | None = None
    weights: Weights | Literal["measure"] = None
    shares: Mapping[str, Mapping[int, Sequence[int]]] | tuple[Any, ...] | None = None
    modes: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        # numpy's integers become Python's, so that equal records have the same text on all ranks.
        object.__setattr__(self, "grid", integers(self.grid) or self.grid)
        if not isinstance(self.dealias, str):
            object.__setattr__(self, "dealias", integers(self.dealias) or self.dealias)
        object.__setattr__(self, "modes", integers(self.modes) or self.modes)
        object.__setattr__(self, "shares", _as_tuples(self.shares))

    @property
    def shares_of(self) -> dict[str, dict[int, tuple[int, ...]]]:
        """Return the shares of each side's axes, of a layout without a problem."""
        pairs: Any = self.shares or ()  # pairs
        return {side: dict(axes) for side, axes in pairs}


def _as_tuples(shares: Any) -> Any:
    """Return shares as tuples, which can be compared and hashed; a value that is no dict of shares as it is."""
    if shares is None:
        return None
    try:
        sides = {
            side: sorted((index(axis), integers(each)) for axis, each in dict(axes).items())
            for side, axes in dict(shares).items()
        }
        return tuple((side, tuple(axes)) for side, axes in sorted(sides.items()))
    except Exception:  # a user's object can raise anything
        return shares


def shares_problem(layout: ArrayLayout) -> str | None:
    """Return what is wrong with the form of the shares, or None; whether they fit the arrays is not checked."""
    shares = layout.shares
    if shares is None or (isinstance(shares, tuple) and shares == _as_tuples(shares) and {*dict(shares)} <= {*SIDES}):
        return None
    return (
        'expected shares to be None or a dict such as {"real": {-2: (8, 8, 1)}, "spectrum": {-1: (6, 3, 0)}}, received '
        f"{shown(shares)}"
    )


def grid_problem(layout: ArrayLayout, ranks: int) -> str | None:
    """Return what is wrong with the process grid of a layout of an `FFT3` over some ranks, or None."""
    grid = layout.grid
    if grid is None and layout.shares and ranks > 1:
        return "expected grid together with shares, which belong to its rows and columns, received grid=None"
    if grid is not None:
        sizes = integers(grid)
        if sizes is None or len(sizes) != 2 or min(sizes) < 1 or sizes[0] * sizes[1] != ranks:
            return (
                f"expected grid to be two integers whose product is {ranks}, the number of "
                f"ranks, or None, received {shown(grid)}"
            )
    return None


def lying_problem(layout: ArrayLayout, points: tuple[int, ...], kinds: tuple[str, ...]) -> str | None:
    """Return what is wrong with a layout for a plan that transforms axes of these points and kinds, or None."""
    if not isinstance(layout.restore, bool):
        return f"expected restore to be True or False, received {shown(layout.restore)}"
    return (
        choice_problem("order", layout.order, ORDERS)
        or dealias_problem(points, layout.dealias, kinds)
        or _modes_problem(layout, points, kinds)
    )


def _modes_problem(layout: ArrayLayout, points: tuple[int, ...], kinds: tuple[str, ...]) -> str | None:
    modes = layout.modes
    if modes is None:
        return None
    counts = integers(modes)
    if counts is None or len(counts) != len(points) or not all(1 <= m <= n for m, n in zip(counts, points)):
        return f"expected modes to be None, or from 1 to {points} for each transformed axis, received {shown(modes)}"
    if layout.dealias is not None:
        return f"expected modes or dealias, received both: {modes} and {layout.dealias}"
    if walls := [kind for kind, n, m in zip(kinds, points, counts) if kind in REAL_KINDS and n != m]:
        return f"expected all modes along axes of {' and '.join(map(repr, walls))}, received modes={modes} of {points}"
    return None


def default_problem(layout: ArrayLayout, plan: str, names: tuple[str, ...]) -> str | None:
    """Return what is wrong with fields of a layout that have only one allowed value in a plan, or None."""
    for name in names:
        value, only = getattr(layout, name), getattr(ArrayLayout, name)
        if value is not only and not (isinstance(value, str) and value == only):
            return f"expected a layout with {name}={only!r}, as {plan} has no other, received {shown(value)}"
    return None
