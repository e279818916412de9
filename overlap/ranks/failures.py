"""Failures of one rank: how the other ranks are notified and raise them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from ..errors import InputError, OverlapError, RankError, RankLost, formatted, portable

_INPUT, _LOSS, _STAYS, _OTHER = "input", "loss", "stays", "other"

# Failures that this rank has raised, by their identities: a failure is reported wherever the other ranks may come next,
# but they raise it once.
heard: dict[str, None] = {}  # in the order in which they were raised
_numbers = itertools.count()
_CAUSES = 20  # exceptions of a chain among which the failure is looked for


def identity_of(error: BaseException, given: str = "") -> str:
    """Return the identity of the failure that an exception reports, which this rank has heard.

    If it has none, it gets the one that is `given`, or a new one.
    """
    identity = _known_identity(error)
    if not identity:
        identity = given or f"{MPI.COMM_WORLD.rank}.{next(_numbers)}"
        with suppress(Exception):  # without an identity it is reported as another failure the next time
            error._overlap_failure = identity  # type: ignore[attr-defined]  # the exception carries it
    heard[identity] = None
    return identity


def _known_identity(error: BaseException) -> str:
    """Return the identity of an exception, or of the one that has caused it; "" if there is none."""
    cause: BaseException | None = error
    for _ in range(_CAUSES):
        if cause is None:
            break
        with suppress(Exception):  # an exception of the user's, of which anything may raise
            if isinstance(known := vars(cause).get("_overlap_failure"), str):
                return known
        cause = cause.__cause__ or cause.__context__
    return ""


class RankFailure(NamedTuple):
    """An exception of one rank."""

    rank: int  # where it was raised
    summary: str  # the whole text of an `InputError`, else the exception's last lines
    traceback_text: str | None = None  # none of an `InputError`, which is raised on all ranks alike
    is_loss: bool = False  # the exception is a `RankLost`, due to another rank
    identity: str = ""  # names the failure on all ranks and communicators; see `heard`
    stays: bool = False  # it was raised outside of the object that tells it, which the rank does not leave

    @classmethod
    def of(cls, rank: int, error: BaseException) -> RankFailure:
        """Describe an exception that was raised on a rank; it has an identity if `identity_of` was called before."""
        if isinstance(error, InputError):
            return cls(rank, portable(str(error)), identity=_known_identity(error))
        return cls(rank, *formatted(error), isinstance(error, RankLost), _known_identity(error))

    def error(self) -> OverlapError:
        """Return the error that the other ranks raise."""
        error: InputError | RankError
        if self.traceback_text is None:
            error = InputError(self.summary)
            error._is_elsewhere = True
        else:
            error = RankError(self.rank, self.summary, self.traceback_text)
        if self.identity:
            heard[self.identity] = None
            error._overlap_failure = self.identity  # type: ignore[union-attr]  # if it leaves a block in turn
        return error

    def packed(self, limit: int | None = None) -> bytes:
        """Return the failure as at most `limit` bytes; a longer traceback loses its beginning."""
        kind = _INPUT if self.traceback_text is None else _LOSS if self.is_loss else _STAYS if self.stays else _OTHER
        first = "\0".join((str(self.rank), kind, self.identity, self.summary, "")).encode()[:limit]
        rest = (self.traceback_text or "").encode()
        return first + (rest if limit is None else rest[max(0, len(rest) - (limit - len(first))) :])

    @classmethod
    def unpacked(cls, content: bytes) -> RankFailure:
        """Return the failure that `packed` has turned into bytes."""
        rank, kind, identity, summary, *rest = content.decode(errors="replace").split("\0", 4)
        text = None if kind == _INPUT else "".join(rest)
        return cls(int(rank), summary, text, kind == _LOSS, identity, kind == _STAYS)


class FailureChannel:
    """Sends failures of this rank to other ranks, which check for them in long waits.

    No other message on the communicator has this tag.
    """

    def __init__(self, comm: MPI.Intracomm, tag: int) -> None:
        self._comm, self._tag = comm, tag
        self._sent, self._received = np.zeros((2, comm.size), np.int64)
        self._requests: list[MPI.Request] = []

    def notify(self, rank: int, content: bytes) -> None:
        """Send a message to a rank: a packed `RankFailure`, or data that belong to one."""
        self._requests = [request for request in self._requests if not request.Test()]
        self._requests.append(self._comm.Isend([content, MPI.BYTE], rank, self._tag))
        self._sent[rank] += 1

    def received(self) -> Iterator[tuple[int, bytes]]:
        """Yield the messages that have arrived, each with the rank that sent it."""
        status = MPI.Status()
        while self._comm.Iprobe(MPI.ANY_SOURCE, self._tag, status):
            yield status.source, self._taken(status)

    def end(self) -> None:
        """Receive all messages that are still under way (collective)."""
        status = MPI.Status()
        for rank, sent in enumerate(self._comm.alltoall(self._sent.tolist())):
            for _ in range(sent - self._received[rank]):
                self._comm.Probe(rank, self._tag, status)
                self._taken(status)
        MPI.Request.Waitall(self._requests)
        self._requests.clear()
        self._sent[:] = self._received[:] = 0

    def _taken(self, status: MPI.Status) -> bytes:
        content, rank = bytearray(status.Get_count(MPI.BYTE)), status.source
        self._comm.Recv([content, MPI.BYTE], rank, self._tag)
        self._received[rank] += 1
        return bytes(content)
