"""How long a rank computes and how long it waits, counted call by call.

A step of a slice is timed where it runs, and added to its slot, which belongs to one thread at a time. What is
left of a call's time, of all threads that compute in it, is waiting: for messages, for other ranks, for the end.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

CALLS, WALL_NS, COMPUTING_NS, THREADS_NS = range(4)  # words; compiled code counts its calls itself


@dataclass
class Load:
    """What one rank has done in calls of pipelines that ended well.

    Attributes
    ----------
    calls : int
    wall_s : float
        Time of these calls, from the moment at which all ranks have made them.
    computing_s : float
        Time in steps of slices, of all threads together.
    threads_s : float
        The calls' time, each multiplied by the number of threads that could compute in it.
    words : array of int
        The same, times in nanoseconds.

    Examples
    --------
    >>> with overlap.FFT2(comm, (4, 16, 16)) as plan:
    ...     spectrum = plan.forward(plan.real.empty())
    ...     load = plan.runtime.loads()[comm.rank]
    >>> load.calls >= 1, 0 <= load.waiting <= 1
    (True, True)
    """

    words: array[int] = field(default_factory=lambda: array("q", bytes(32)))

    @property
    def calls(self) -> int:
        """Tell how many calls there were."""
        return self.words[CALLS]

    @property
    def wall_s(self) -> float:
        """Tell how long they have taken, in seconds."""
        return 1e-9 * self.words[WALL_NS]

    @property
    def computing_s(self) -> float:
        """Tell how long threads have computed, in seconds."""
        return 1e-9 * self.words[COMPUTING_NS]

    @property
    def threads_s(self) -> float:
        """Tell how long threads could have computed, in seconds."""
        return 1e-9 * self.words[THREADS_NS]

    def add(self, wall_s: float, computing_s: float, threads: int) -> None:
        """Count one call."""
        words, wall_ns = self.words, int(1e9 * wall_s)
        words[CALLS] += 1
        words[WALL_NS] += wall_ns
        words[COMPUTING_NS] += int(1e9 * computing_s)
        words[THREADS_NS] += threads * wall_ns

    @property
    def waiting(self) -> float:
        """The share of the time in which the threads that compute have not, 0 to 1."""
        return max(0.0, 1.0 - self.computing_s / self.threads_s) if self.threads_s else 0.0

    def __str__(self) -> str:
        return f"waits {100 * self.waiting:.0f} % of the time"
