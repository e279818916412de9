"""Makes a conductivity field from a seed: log10(lambda) is a Gaussian random field with mean 0 and a given largest
magnitude."""

from __future__ import annotations

import numpy as np

from overlap import Blocks


def conductivity(
    shape: tuple[int, ...], seed: int, contrast: float, length: float = 4.0, period: int = 64
) -> np.ndarray:
    """Make the field of the whole grid.

    White noise of a cube of `period` cells, periodic, is filtered by exp(-(k length)^2 / 4) in Fourier space, which
    makes exp(-(r / length)^2 / 2) its correlation, roughly; its logarithm is scaled so that the largest magnitude is
    `contrast`. The cube is repeated along all axes.

    Parameters
    ----------
    shape : (nz, ny, nx)
    seed : int
    contrast : float
        Largest magnitude of log10(lambda).
    length : float
        Correlation length in cells.
    period : int
        Edge of the cube; at most the longest edge of the grid is used.
    """
    edge = min(period, max(shape))
    noise = np.random.default_rng(seed).standard_normal((edge,) * 3)
    k = 2 * np.pi * np.fft.fftfreq(edge)
    squares = k[:, None, None] ** 2 + k[:, None] ** 2 + k[: edge // 2 + 1] ** 2  # the modes that rfftn keeps
    smooth = np.fft.irfftn(np.fft.rfftn(noise) * np.exp(-squares * length**2 / 4), noise.shape, axes=(0, 1, 2))
    smooth -= smooth.mean()
    smooth *= contrast / abs(smooth).max()
    places = [np.arange(cells) % edge for cells in shape]
    return 10 ** smooth[np.ix_(*places)]


def uniform_head(n: int, blocks: Blocks, rank: int) -> np.ndarray:
    """Return the exact discrete head of a rank's cells for lambda = 1 and q = 1: -n^2 / 2 + k (k + 1) / 2 in layer k of
    n."""
    part = blocks.part(rank)
    k = np.arange(part[0].start, part[0].stop)
    cells = [side.stop - side.start for side in part]
    return np.broadcast_to((-n * n / 2 + k * (k + 1) / 2)[:, None, None], cells).reshape(-1)
