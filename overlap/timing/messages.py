"""The time of one exchange as a function of its size: a straight line, and its fit to measurements."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from .. import checks


@dataclass(frozen=True, slots=True)
class LatencyBandwidth:
    """Time of an exchange as a straight line over its size: L + nbytes/W.

    Attributes
    ----------
    latency_s : float
        L in seconds, >= 0.
    bandwidth_Bps : float
        W in bytes per second, > 0; infinity if time does not grow with size.

    Raises
    ------
    ValueError
        A value is out of its range.

    Examples
    --------
    >>> from overlap.timing.messages import LatencyBandwidth
    >>> link = LatencyBandwidth(latency_s=1e-5, bandwidth_Bps=1e9)
    >>> round(link.time_s(1e6), 6)
    0.00101
    """

    latency_s: float
    bandwidth_Bps: float

    def __post_init__(self) -> None:
        checks.seconds("latency_s", self.latency_s)
        checks.positive("bandwidth_Bps", self.bandwidth_Bps)

    def time_s(self, nbytes: float) -> float:
        """Return the seconds that one exchange of `nbytes` bytes takes.

        Parameters
        ----------
        nbytes : float
            Bytes of the exchange.

        Returns
        -------
        float
            Seconds.
        """
        return self.latency_s + nbytes / self.bandwidth_Bps


def fit_message_time(nbytes: Iterable[float], seconds: Iterable[float]) -> LatencyBandwidth:
    """Fit latency and bandwidth to measured exchanges.

    Minimises the sum of ((L + n/W - t)/t)^2 over L >= 0, 1/W >= 0. The errors are relative, because otherwise the
    largest messages alone would determine the latency.

    Parameters
    ----------
    nbytes : sequence of int
        Size of each exchange in bytes; at least two different ones. If the sizes are the bytes that a rank sends, W is
        the rate per rank.
    seconds : sequence of float
        Measured time of each exchange, all > 0.

    Returns
    -------
    LatencyBandwidth
        `bandwidth_Bps` is infinity when the times do not grow with the size.

    Raises
    ------
    ValueError
        The sequences differ in length, or hold fewer than two sizes or a time that is not > 0.

    Examples
    --------
    >>> from overlap.timing.messages import fit_message_time
    >>> link = fit_message_time([1e3, 1e6], [1.1e-5, 1.01e-3])
    >>> round(1e6 * link.latency_s, 3), round(link.bandwidth_Bps / 1e9, 3)
    (10.0, 1.0)
    """
    nbytes, seconds = [float(n) for n in nbytes], [float(t) for t in seconds]
    if len(nbytes) != len(seconds):
        raise ValueError(f"seconds: expected one time per size, {len(nbytes)}, received {len(seconds)}")
    for n, t in zip(nbytes, seconds):
        if not (math.isfinite(n) and n >= 0):
            raise ValueError(f"nbytes: expected finite sizes >= 0, received {n!r}")
        if not (math.isfinite(t) and t > 0):
            raise ValueError(f"seconds: expected finite times > 0, received {t!r}")
    if len(set(nbytes)) < 2:
        raise ValueError(f"nbytes: expected at least two different sizes, received {sorted(set(nbytes))}")
    # In relative terms every measurement reads 1 = L a + (1/W) b with a = 1/t and b = n/t.
    a = [1 / t for t in seconds]
    b = [n / t for n, t in zip(nbytes, seconds)]
    saa, sab, sbb = (math.fsum(x * y for x, y in zip(u, v)) for u, v in ((a, a), (a, b), (b, b)))
    sa, sb = math.fsum(a), math.fsum(b)
    determinant = saa * sbb - sab * sab
    latency_s = (sa * sbb - sb * sab) / determinant
    s_per_byte = (sb * saa - sa * sab) / determinant
    # The problem is convex: if one unknown is negative, it is 0 at the minimum.
    if latency_s < 0:
        latency_s, s_per_byte = 0.0, sb / sbb
    elif s_per_byte <= 0:
        latency_s, s_per_byte = sa / saa, 0.0
    return LatencyBandwidth(latency_s, 1 / s_per_byte if s_per_byte > 0 else math.inf)
