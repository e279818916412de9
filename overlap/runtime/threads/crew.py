"""Which threads run a call: a short one is over before all of them have woken.

Who talks to MPI and who computes is each rank's own choice: the MPI calls are the same.
"""

from __future__ import annotations

ALONE = "alone"  # the calling thread does everything
HELPED = "helped"  # the calling thread talks to MPI and is worker 0; the other workers compute beside it
THREADS = "threads"  # the communicator thread talks to MPI, all workers compute
SHORT_S = 5e-3  # a call that takes less may be faster with fewer threads: all crews are tried,
SHORT_SLICE_S = 50e-6  # as they are for slices that take less, of which threads hand each other every one,
TRIES = 3  # so often: the first call touches new memory, or starts the threads


class Crews:
    """What the last calls of one pipeline have taken on this rank, for every crew.

    Parameters
    ----------
    workers : int
    local : bool
        There is nothing to hide, and no slice waits for another one but by an `await`.
    """

    def __init__(self, workers: int, local: bool = False) -> None:
        here = [HELPED, ALONE] if workers > 1 else [ALONE]
        self._several = here if local else [THREADS, *here]  # for several slices
        self._single = here[0]
        self._count: int | None = None  # slices
        self._taken_s: dict[tuple[str, str], list[float]] = {}  # (way to wait, crew) -> of the first calls

    def next(self, count: int, wait: str) -> str:
        """Choose the crew of the next call, of so many slices."""
        if wait == "off":
            return ALONE
        if count <= 1:
            return self._single
        if count != self._count:
            self._count = count
            self._taken_s.clear()
        best = []
        for crew in self._several:
            taken_s = self._taken_s.setdefault((wait, crew), [])
            if len(taken_s) < TRIES:
                return crew
            best.append(min(taken_s))
            if best[-1] > _short_s(count):
                return self._several[0]
        return self._several[best.index(min(best))]

    def took(self, count: int, wait: str, crew: str, seconds: float) -> None:
        """Note what a call has taken that has ended well."""
        taken_s = self._taken_s.get((wait, crew))
        if count != self._count or taken_s is None:
            return
        if len(taken_s) < TRIES:
            taken_s.append(seconds)
        elif seconds > 2 * _short_s(count) and crew != self._several[0]:
            self._count = None  # the calls have become longer


def _short_s(count: int) -> float:
    """Return what a call of so many slices takes at most that may be faster with fewer threads."""
    return max(SHORT_S, SHORT_SLICE_S * count)
