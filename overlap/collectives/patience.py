"""Bounded waits for what MPI does: a rank that waits looks for failures, runs signal handlers and keeps the
deadline.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from ..abort import abort
from ..errors import ClosedError, InputError, RankError
from .window import Window

_LOOK_S = 0.005  # between two looks for failures
_PATIENCE_S = 0.02  # a wait that is longer gives its core away
_SLEEP_S = 0.0005


class Patience:
    """How a rank waits.

    Parameters
    ----------
    window : Window
        Where failures of this node's ranks are seen.
    deadline_s : float or None
        Seconds that a wait may take, before the job is aborted.
    """

    def __init__(self, window: Window, deadline_s: float | None) -> None:
        self._window, self._deadline_s = window, deadline_s

    def until(self, done: Callable[[], object], who: str) -> None:
        """Ask until it is done; `who` is waited for."""
        since = looked = time.monotonic()
        while not done():
            os.sched_yield()
            now = time.monotonic()
            if now - looked < _LOOK_S:
                continue
            looked = now
            self.raise_failure()
            self.limit(now - since, "a collective", who)

    def limit(self, waited_s: float, what: str, who: str) -> None:
        """Abort the job after the deadline; sleep a little where a wait is long."""
        if self._deadline_s is not None and waited_s > self._deadline_s:
            abort(
                f"{what} has not completed in {waited_s:.1f} s (deadline_s={self._deadline_s:g}): {who} does not take "
                "part"
            )
        if waited_s > _PATIENCE_S:
            time.sleep(_SLEEP_S)

    def raise_failure(self) -> None:
        """Raise what has made the instance unusable, if anything has."""
        if self._window.closed:
            raise ClosedError("expected open collectives, received a call after free()")
        if (failure := self._window.failure()) is None:
            return
        rank, text = failure
        if text:
            raise InputError(text)
        raise RankError(rank, "it has left a collective by an exception", "(raised on that rank)")
