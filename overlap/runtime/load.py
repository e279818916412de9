"""How long a rank computes and how long it waits, counted call by call.

A step of a slice is timed where it runs, and added to its slot, which belongs to one thread at a time. What is
left of a call's time, of all threads that compute in it, is waiting: for messages, for other ranks, for the end.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Load:
    """What one rank has done in calls of pipelines that ended well.

    Attributes
    ----------
    calls : int
    wall_s : float
        Time of these calls, from the moment when all ranks have come to them.
    computing_s : float
        Time in steps of slices, of all threads together.
    threads_s : float
        The calls' time, each multiplied by the number of threads that could compute in it.

    Examples
    --------
    >>> with overlap.FFT2(comm, (4, 16, 16)) as plan:
    ...     spectrum = plan.forward(plan.real.empty())
    ...     load = plan.runtime.loads()[comm.rank]
    >>> load.calls >= 1, 0 <= load.waiting <= 1
    (True, True)
    """

    calls: int = 0
    wall_s: float = 0.0
    computing_s: float = 0.0
    threads_s: float = 0.0

    def add(self, wall_s: float, computing_s: float, threads: int) -> None:
        """Count one call."""
        self.calls += 1
        self.wall_s += wall_s
        self.computing_s += computing_s
        self.threads_s += threads * wall_s

    @property
    def waiting(self) -> float:
        """The share of the time in which the threads that compute have not, 0 to 1."""
        return max(0.0, 1.0 - self.computing_s / self.threads_s) if self.threads_s else 0.0

    def __str__(self) -> str:
        return f"waits {100 * self.waiting:.0f} % of the time"
