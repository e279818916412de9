"""Which threads run a call: a short call is over before all threads have woken.

Each rank chooses by itself which thread calls MPI and which threads compute, because the MPI calls are the same.
"""

from __future__ import annotations

INLINE = "alone"  # the calling thread does everything
INLINE_WITH_WORKERS = "helped"  # the calling thread calls MPI and is worker 0; the other workers compute beside it
COMMUNICATOR_THREAD = "threads"  # the communicator thread calls MPI, all workers compute
SHORT_S = 5e-3  # a shorter call may be faster with fewer threads: all placements are tried,
SHORT_SLICE_S = 50e-6  # as for shorter slices, each of which threads pass to each other,
TRIES = 3  # trials of each: the first one touches new memory or starts the threads


class PlacementChoice:
    """Chooses the placement of a pipeline's calls from the times of its last calls on this rank.

    Parameters
    ----------
    workers : int
    local : bool
        There is nothing to hide, and slices wait for each other only by an `await`.
    """

    def __init__(self, workers: int, local: bool = False) -> None:
        inline = [INLINE_WITH_WORKERS, INLINE] if workers > 1 else [INLINE]
        self._several = inline if local else [COMMUNICATOR_THREAD, *inline]  # placements for several slices
        self._single = inline[0]
        self._count: int | None = None  # slices
        self._taken_s: dict[tuple[str, str], list[float]] = {}  # (way to wait, placement) -> times of the first calls

    def next(self, count: int, wait: str) -> str:
        """Choose the placement of the next call, which has `count` slices."""
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
        """Note the time of a call that has ended without an error."""
        taken_s = self._taken_s.get((wait, placement))
        if count != self._count or taken_s is None:
            return
        if len(taken_s) < TRIES:
            taken_s.append(seconds)
        elif seconds > 2 * _short_s(count) and placement != self._several[0]:
            self._count = None  # calls have become longer: try all placements again


def _short_s(count: int) -> float:
    """Return the time below which a call of `count` slices may be faster with fewer threads."""
    return max(SHORT_S, SHORT_SLICE_S * count)
