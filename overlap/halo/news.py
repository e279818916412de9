"""What failed, told to all ranks of a halo: they look for it whenever they wait for long."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from ..abort import abort
from ..errors import InputError, OverlapError, RankError, formatted
from ..runtime.control.own_control import OwnControl

TAG = 8
_PATIENCE_S = 0.02  # a wait that is longer gives its core away
_SLEEP_S = 0.0005


class News:
    """Failures of ranks, on a communicator that carries nothing else with their tag.

    Parameters
    ----------
    control : OwnControl
        Its deadline is how long a rank may wait for others in one round.
    waiting_for : callable
        The ranks that it waits for.
    """

    def __init__(self, control: OwnControl, waiting_for: Callable[[], list[int]]) -> None:
        self._control, self._comm = control, control.comm
        self._deadline_s, self._waiting_for = control.deadline_s, waiting_for
        self._told: list[MPI.Request] = []
        self._heard: set[int] = set()
        self._since = 0.0
        self.failure: BaseException | None = None

    def begin(self) -> None:
        """Begin to wait, unless this rank has been waiting."""
        self._since = self._since or time.monotonic()

    def end(self) -> None:
        """End to wait."""
        self._since = 0.0

    def tell(self, error: BaseException) -> None:
        """Let every other rank raise what this one raises."""
        if self.failure is None:
            self.failure = error
            news = (str(error),) if isinstance(error, InputError) else (self._comm.rank, *formatted(error))
            self._told = [
                self._comm.isend(news, other, TAG) for other in range(self._comm.size) if other != self._comm.rank
            ]

    def forget(self) -> None:
        """Forget what has failed, when all news of it were taken."""
        self.failure = None
        self._told.clear()
        self._heard.clear()
        self.end()

    def __call__(self, raised: int = 0, *_: int) -> None:
        """Raise another rank's failure, keep the deadline: a rank that waits calls this now and then.

        Compiled code calls it once more when it has `raised`: there is nothing left to do then.
        """
        if raised:
            return
        status = MPI.Status()
        if self._comm.Iprobe(MPI.ANY_SOURCE, TAG, status):
            source = status.Get_source()
            news: Any = self._comm.recv(source=source, tag=TAG)
            self._heard.add(source)
            error: OverlapError = InputError(*news) if len(news) == 1 else RankError(*news)
            self.failure = error
            raise error
        self.begin()
        waited_s = time.monotonic() - self._since
        if self._deadline_s is not None and waited_s > self._deadline_s:
            ranks = ", ".join(map(str, self._waiting_for()))
            abort(
                f"a halo exchange has not completed in {waited_s:.1f} s (deadline_s={self._deadline_s:g}): "
                f"rank {ranks} does not take part"
            )
        if waited_s > _PATIENCE_S:
            time.sleep(_SLEEP_S)

    def free(self) -> None:
        """Take all news that are under way. Collective."""
        anybody = self._control.allgather(bool(self._told))
        with self._control.watching("taking the news that are under way") as comm:
            for other, told in enumerate(anybody):
                if told and other not in self._heard and other != comm.rank:
                    comm.recv(source=other, tag=TAG)
            MPI.Request.waitall(self._told)
