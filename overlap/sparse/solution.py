"""What a solver returns."""

from __future__ import annotations

from typing import Any

import numpy as np


class Solution(tuple[np.ndarray, int]):
    """scipy's pair ``x, info``, and what else is known.

    Attributes
    ----------
    x : ndarray
        This rank's part of the solution.
    info : int
        0 where the stopping rule was met, else the iterations made.
    iterations : int
    residuals : ndarray
        Norm of b - A x by the recursion: at the start, and after each iteration.
    true_residual : float
        Norm of b - A x, computed from x at the end.
    hidden : float
        Share of the halo's exchange that products with A hid, (C + T - t)/min(C, T) of the means over the ranks (`overlap.timing.model.hidden`); of the
        solver's own products, not of a preconditioner's. NaN where that is not known: of few products, of one rank, or where A
        is no `Matrix`.
    """

    x: np.ndarray
    info: int
    iterations: int
    residuals: np.ndarray
    true_residual: float
    hidden: float

    def __new__(
        cls, x: np.ndarray, residuals: list[float], limit: float, true_residual: float, hidden: float = np.nan
    ) -> Solution:
        iterations = len(residuals) - 1
        info = 0 if residuals[-1] <= limit else iterations
        found = super().__new__(cls, (x, info))
        found.x, found.info, found.iterations = x, info, iterations
        found.residuals, found.true_residual, found.hidden = np.array(residuals), true_residual, hidden
        return found

    def __getnewargs__(self) -> tuple[Any, ...]:
        limit = np.inf if self.info == 0 else -1.0
        return self.x, list(self.residuals), limit, self.true_residual, self.hidden
