"""Options of a simulated run."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...checks import WAITS
from ...errors import InputError


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a simulated run; see the arguments of `overlap.Runtime`.

    Attributes
    ----------
    ranks : int
    workers : int
        Threads per rank that compute, each with a core; the first one exchanges, too.
    wait : {"off", "block", "poll"}
    depth : int
    in_flight : int or None
        None: `depth`.
    seed : int
        The seed of the jitter.
    speeds : tuple of float or None
        Speed of each rank relative to the machine's and the program's times; None: 1 for all ranks.

    Raises
    ------
    InputError
        A value is out of its range.

    Examples
    --------
    >>> from overlap.timing.simulate import Options
    >>> Options(ranks=16, workers=4, wait="block").limit
    8
    """

    ranks: int = 2
    workers: int = 1
    wait: str = "poll"
    depth: int = 8
    in_flight: int | None = None
    seed: int = 0
    speeds: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("ranks", "workers", "depth"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise InputError(f"{name}: expected an integer >= 1, received {getattr(self, name)!r}")
        if self.wait not in WAITS:
            raise InputError(f"wait: expected one of {', '.join(WAITS)}, received {self.wait!r}")
        if self.limit < 1:
            raise InputError(f"in_flight: expected an integer >= 1, received {self.in_flight!r}")
        if self.speeds is not None and (
            len(self.speeds) != self.ranks or not all(0 < speed < math.inf for speed in self.speeds)
        ):
            raise InputError(
                f"speeds: expected {self.ranks} finite numbers > 0, one per rank, received {self.speeds!r}"
            )

    @property
    def limit(self) -> int:
        """Return the largest number of exchanges in flight with ``wait="poll"``."""
        return self.depth if self.in_flight is None else self.in_flight
