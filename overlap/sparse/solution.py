"""The result of a solver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


class Solution(tuple[np.ndarray, int]):
    """SciPy's pair ``x, info``, with further attributes.

    Attributes
    ----------
    x : ndarray
        This rank's part of the solution.
    info : int
        0 if x meets the stopping rule, by the residual computed from x. Otherwise SciPy's code of a breakdown (-10 and
        -11, of `bicgstab`), or the number of iterations made, at least 1.
    converged : bool
        Whether `info` is 0. The residual of the recursion may meet the rule although x does not: because of rounding
        errors, or for a singular matrix and a right side outside of its range.
    tolerance : float
        The norm at which to stop, max(rtol norm(b), atol).
    iterations : int
    residuals : ndarray
        Norm of b - A x by the recursion: at the start, and after each iteration.
    true_residual : float
        Norm of b - A x, computed from x at the end.
    hidden : float
        Share of the halo's exchange that products with A hid, 0 to 1: (C + T - t)/min(C, T) of the means over the ranks
        (`overlap.timing.model.hidden_share`). It counts the solver's own products, not a preconditioner's. NaN if the
        share is not known: after few products, on one rank, if A is no `Matrix`, or if the times contradict each other,
        as where an exchange takes next to no time.

    Examples
    --------
    >>> from overlap.sparse import cg, diffusion
    >>> blocks = overlap.Blocks((8 * comm.size, 8, 8), grid=(comm.size, 1, 1))
    >>> with diffusion(comm, blocks, 1.0, fixed=[(0, 0)]) as A:
    ...     b = np.ones(512)
    ...     solution = cg(A, b, rtol=1e-8)
    >>> x, info = solution
    >>> solution.converged, solution.true_residual <= solution.tolerance
    (True, True)
    """

    x: np.ndarray
    info: int
    converged: bool
    tolerance: float
    iterations: int
    residuals: np.ndarray
    true_residual: float
    hidden: float

    def __new__(
        cls,
        x: np.ndarray,
        residuals: Sequence[float],
        tolerance: float,
        true_residual: float,
        hidden: float = np.nan,
        breakdown: int = 0,
    ) -> Solution:
        """Make a solution from the residuals of the recursion, the norm at which to stop, and the code of a
        breakdown."""
        iterations = len(residuals) - 1
        converged = true_residual <= tolerance
        info = 0 if converged else breakdown or max(iterations, 1)
        solution = super().__new__(cls, (x, info))
        solution.x, solution.info, solution.converged, solution.tolerance = x, info, converged, tolerance
        solution.iterations, solution.residuals = iterations, np.array(residuals)
        solution.true_residual, solution.hidden = true_residual, hidden
        return solution

    def __repr__(self) -> str:
        ended = "converged" if self.converged else f"not converged (info {self.info})"
        return (
            f"<Solution, {ended}: {self.iterations} iteration(s), residual {self.true_residual:.3g}, tolerance "
            f"{self.tolerance:.3g}; here {self.x.shape} {self.x.dtype}>"
        )

    def __getnewargs__(self) -> tuple[Any, ...]:
        breakdown = min(self.info, 0)
        return self.x, list(self.residuals), self.tolerance, self.true_residual, self.hidden, breakdown
