"""What failed on one rank, as the other ranks raise it, and how long a rank waits for one that does not come."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from .abort import abort
from .errors import InputError, OverlapError, RankError, formatted

_PATIENCE_S = 0.02  # a wait that is longer gives its core away
_SLEEP_S = 0.0005
_INPUT, _OTHER = "input", "other"


class Failure(NamedTuple):
    """An exception of one rank.

    Attributes
    ----------
    rank : int
        Where it was raised.
    summary : str
        All its text if it is an `InputError`, else its last lines.
    traceback_text : str or None
        None for an `InputError`, which is raised on all ranks alike.
    """

    rank: int
    summary: str
    traceback_text: str | None = None

    @classmethod
    def of(cls, rank: int, error: BaseException) -> Failure:
        """Describe an exception that was raised on a rank."""
        return cls(rank, str(error)) if isinstance(error, InputError) else cls(rank, *formatted(error))

    def error(self) -> OverlapError:
        """Return what the other ranks raise."""
        if self.traceback_text is None:
            return InputError(self.summary)
        return RankError(self.rank, self.summary, self.traceback_text)

    def packed(self, limit: int | None = None) -> bytes:
        """Return it as bytes, `limit` of them at most: of a traceback the end is kept."""
        kind = _INPUT if self.traceback_text is None else _OTHER
        first = "\0".join((str(self.rank), kind, self.summary.replace("\0", " "), "")).encode(errors="replace")[:limit]
        rest = (self.traceback_text or "").encode(errors="replace")
        return first + (rest if limit is None else rest[max(0, len(rest) - (limit - len(first))) :])

    @classmethod
    def unpacked(cls, content: bytes) -> Failure:
        """Return what `packed` has made bytes of."""
        rank, kind, summary, *rest = content.decode(errors="replace").split("\0", 3)
        return cls(int(rank), summary, None if kind == _INPUT else "".join(rest))


class Patience:
    """How a rank waits for others.

    Parameters
    ----------
    deadline_s : float or None
        Seconds that a wait may take before the job is aborted; None sets no limit.
    """

    def __init__(self, deadline_s: float | None) -> None:
        self._deadline_s = deadline_s

    def limit(self, waited_s: float, what: str, who: Callable[[], str]) -> None:
        """Abort the job after the deadline: `what` is late, as `who` says; sleep a little where a wait is long."""
        if self._deadline_s is not None and waited_s > self._deadline_s:
            abort(
                f"{what} has not completed in {waited_s:.1f} s (deadline_s={self._deadline_s:g}): "
                f"{who()} does not take part"
            )
        if waited_s > _PATIENCE_S:
            time.sleep(_SLEEP_S)
