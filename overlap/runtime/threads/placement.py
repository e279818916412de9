"""Which threads run a call: a short one is over before all of them have woken.

Who talks to MPI and who computes is each rank's own choice: the MPI calls are the same.
"""

from __future__ import annotations

INLINE = "alone"  # the calling thread does everything
INLINE_WITH_WORKERS = "helped"  # the calling thread talks to MPI and is worker 0; the other workers compute beside it
COMMUNICATOR_THREAD = "threads"  # the communicator thread talks to MPI, all workers compute
SHORT_S = 5e-3  # a call that takes less may be faster with fewer threads: all placements are tried,
SHORT_SLICE_S = 50e-6  # as they are for slices that take less, of which threads hand each other every one,
TRIES = 3  # so often: the first call touches new memory, or starts the threads


class PlacementChoice:
    """What the last calls of one pipeline have taken on this rank, for every placement.

    Parameters
    ----------
    workers : int
    local : bool
        There is nothing to hide, and no slice waits for another one but by an `await`.
    """

    def __init__(self, workers: int, local: bool = False) -> None:
        here = [INLINE_WITH_WORKERS, INLINE] if workers > 1 else [INLINE]
        self._several = here if local else [COMMUNICATOR_THREAD, *here]  # for several slices
        self._single = here[0]
        self._count: int | None = None  # slices
        self._taken_s: dict[tuple[str, str], list[float]] = {}  # (way to wait, placement) -> of the first calls

    def next(self, count: int, wait: str) -> str:
        """Choose the placement of the next call, of so many slices."""
        if wait == "off":
            return INLINE
        if count <= 1:
            return self._single
        if count != self._count:
            self._count = count
            self._taken_s.clear()
        best = []
        for placement in self._several:
            taken_s = self._taken_s.setdefault((wait, placement), [])
            if len(taken_s) < TRIES:
                return placement
            best.append(min(taken_s))
            if best[-1] > _short_s(count):
                return self._several[0]
        return self._several[best.index(min(best))]

    def took(self, count: int, wait: str, placement: str, seconds: float) -> None:
        """Note what a call has taken that has ended well."""
        taken_s = self._taken_s.get((wait, placement))
        if count != self._count or taken_s is None:
            return
        if len(taken_s) < TRIES:
            taken_s.append(seconds)
        elif seconds > 2 * _short_s(count) and placement != self._several[0]:
            self._count = None  # the calls have become longer


def _short_s(count: int) -> float:
    """Return what a call of so many slices takes at most that may be faster with fewer threads."""
    return max(SHORT_S, SHORT_SLICE_S * count)
