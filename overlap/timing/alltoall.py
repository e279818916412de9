"""Models of the all-to-alls of a distributed 3-D FFT, with a few parameters, and fits of these.

Both models are sums of counts (of messages, of bytes) times their costs, so a fit is a small least-squares problem in
the logarithms of the times, with costs >= 0. `plain_counts` is Takahashi's model (volumetric parallel 3-D FFT,
equations 4 and 5) in these terms:

    T = messages L + bytes 1/W

`node_counts` takes into account that `cores` ranks share a node's memory and network card, and that MPI sends a large
message only after a handshake with the receiver:

    T = (small messages) l + (large messages) L + (bytes leaving a node) 1/W
        + (bytes copied in a node) 1/M

where only messages to other nodes count, and data that a rank keeps for itself are a copy, too. Ranks are numbered
along the first axis of the grid first, and fill one node after another. [derived]
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import prod

import numpy as np

from ..checks import amount, count
from .messages import LatencyBandwidth


def plain_counts(points: float, grid: Sequence[int], itemsize: int = 16) -> tuple[float, float]:
    """Count the messages of a rank, and the bytes in them.

    Parameters
    ----------
    points : int or float
        Points of the global array.
    grid : tuple of int
        ``(P, Q)``: one all-to-all along each axis; ``(P,)``: one among all ranks.
    itemsize : int
        Bytes per point.

    Returns
    -------
    tuple of float
        Counts to be multiplied by L and by 1/W.

    Raises
    ------
    ValueError
        A count or size is out of its range.

    Examples
    --------
    >>> from overlap.timing import alltoall
    >>> alltoall.plain_counts(2**20, (4, 4))
    (6, 1572864.0)
    """
    amount("points", points)
    count("itemsize", itemsize)
    for axis in grid:
        count("grid", axis)
    share = itemsize * points / prod(grid)
    return sum(axis - 1 for axis in grid), sum(share * (axis - 1) / axis for axis in grid)


def alltoall_s(points: float, grid: Sequence[int], link: LatencyBandwidth, itemsize: int = 16) -> float:
    """Return the time of the all-to-alls along the axes of a grid, in the plain model.

    Parameters
    ----------
    points, grid, itemsize
        See `plain_counts`.
    link : LatencyBandwidth
        L and W of one message.

    Returns
    -------
    float
        Seconds.

    Raises
    ------
    ValueError
        A count or size is out of its range.

    Examples
    --------
    >>> from overlap.timing import alltoall
    >>> from overlap.timing.messages import LatencyBandwidth
    >>> link = LatencyBandwidth(latency_s=1e-5, bandwidth_Bps=1e9)
    >>> round(alltoall.alltoall_s(2**20, (4, 4), link), 6)
    0.001633
    """
    messages, nbytes = plain_counts(points, grid, itemsize)
    return messages * link.latency_s + nbytes / link.bandwidth_Bps


def node_counts(
    points: float, grid: Sequence[int], itemsize: int = 16, cores: int = 16, large_nbytes: int = 8192
) -> tuple[float, float, float, float]:
    """Count small and large messages to other nodes, bytes leaving a node, and bytes copied in a node.

    Parameters
    ----------
    points, grid, itemsize
        See `plain_counts`. An all-to-all along an axis of length 1 is a copy.
    cores : int
        Ranks of a node.
    large_nbytes : int
        Size from which a message is large.

    Returns
    -------
    tuple of float
        Counts to be multiplied by l, L, 1/W and 1/M.

    Examples
    --------
    >>> from overlap.timing import alltoall
    >>> alltoall.node_counts(2**20, (4, 4), cores=4)
    (0.0, 3.0, 3145728.0, 5242880.0)
    """
    share = itemsize * points / prod(grid)
    active = min(cores, prod(grid))
    small = large = leaving = copied = 0.0
    stride = 1
    for axis in grid:
        near = min(axis, max(1, active // stride))  # partners in the node, including the rank itself
        if share / axis < large_nbytes:
            small += axis - near
        else:
            large += axis - near
        leaving += active * share * (axis - near) / axis
        copied += active * share * near / axis
        stride *= axis
    return small, large, leaving, copied


def fit_costs(counts: Sequence[Sequence[float]], seconds: Sequence[float], rounds: int = 100) -> tuple[float, ...]:
    """Fit the costs to measured times: least squares of log(model/measured), no cost below 0.

    Parameters
    ----------
    counts : sequence of sequence of float
        One row of counts per measurement.
    seconds : sequence of float
        Measured, > 0.
    rounds : int
        Gauss-Newton steps.

    Returns
    -------
    tuple of float
        One cost per column of `counts`.

    Raises
    ------
    ValueError
        There are fewer measurements than costs, or a time is not > 0.

    Examples
    --------
    >>> from overlap.timing import alltoall
    >>> latency_s, s_per_byte = alltoall.fit_costs([(1, 1e3), (1, 1e6)], [1.1e-5, 1.01e-3])
    >>> round(1e6 * latency_s, 3)
    10.0
    """
    matrix, times = np.array(counts, float), np.array(seconds, float)
    rows, columns = matrix.shape
    if rows < columns or times.shape != (rows,):
        raise ValueError(
            f"seconds: expected one time per row of counts, at least {columns}, "
            f"received {times.shape} for {matrix.shape}"
        )
    if not (np.isfinite(times).all() and (times > 0).all()):
        raise ValueError("seconds: expected finite times > 0")
    costs = _positive_least_squares(matrix / times[:, None], np.ones(rows))
    for _ in range(rounds):
        # Near the current model m0, log(m/t) is about log(m0/t) + m/m0 - 1.
        model_s = np.maximum(matrix @ costs, 1e-6 * times)
        costs = (costs + _positive_least_squares(matrix / model_s[:, None], 1 - np.log(model_s / times))) / 2
    return tuple(costs.tolist())


def _positive_least_squares(matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the x >= 0 that minimises ``|matrix x - right|``, for a few unknowns.

    The problem is convex: its solution is the unconstrained solution for the unknowns that are above 0.
    """
    columns = matrix.shape[1]
    best, least = np.zeros(columns), np.inf
    for used in (list(subset) for number in range(1, columns + 1) for subset in combinations(range(columns), number)):
        scale = np.abs(matrix[:, used]).max(axis=0)
        scale[scale == 0] = 1.0
        solution = np.linalg.lstsq(matrix[:, used] / scale, right, rcond=None)[0] / scale
        error = float(((matrix[:, used] @ solution - right) ** 2).sum())
        if (solution >= 0).all() and error < least:
            least, best = error, np.zeros(columns)
            best[used] = solution
    return best
