"""Computing and waiting time of a rank, counted call by call.

The thread that runs a step of a slice adds the step's time to its slot, which belongs to one thread at a time. The rest
of a call's time, summed over all threads that compute in it, is waiting: for messages, for other ranks, for the end.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

CALLS, WALL_NS, COMPUTING_NS, THREADS_NS = range(4)  # words; compiled code counts its calls itself


@dataclass(repr=False)
class Load:
    """Computing and waiting time of one rank, in calls of pipelines that have ended without an error.

    Attributes
    ----------
    calls : int
    wall_s : float
        Time of these calls, each from the moment at which all ranks had made it.
    computing_s : float
        Time in steps of slices, of all threads together.
    threads_s : float
        The calls' time, each multiplied by the number of threads that could compute in it.
    words : array of int
        These four values, with times in nanoseconds.

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
        """Return the number of calls."""
        return self.words[CALLS]

    @property
    def wall_s(self) -> float:
        """Return the time of the calls in seconds."""
        return 1e-9 * self.words[WALL_NS]

    @property
    def computing_s(self) -> float:
        """Return the time that threads have computed, in seconds."""
        return 1e-9 * self.words[COMPUTING_NS]

    @property
    def threads_s(self) -> float:
        """Return the time that threads could have computed, in seconds."""
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
        """Return the share of `threads_s` in which the threads did not compute, 0 to 1."""
        return max(0.0, 1.0 - self.computing_s / self.threads_s) if self.threads_s else 0.0

    def __repr__(self) -> str:
        return (
            f"<Load: {self.calls} call(s) in {self.wall_s:.3g} s, computing {self.computing_s:.3g} s of "
            f"{self.threads_s:.3g} s of threads; {self.waits()}>"
        )

    def waits(self) -> str:
        """Return the share of the time in which the threads did not compute, as text."""
        return f"waits {100 * self.waiting:.0f} % of the time"
