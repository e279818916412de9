"""What fails on one rank fails on all of them: the reports that ranks exchange, and the one exception made of them.

A `Coordinator` has its ranks exchange reports when a header has shown a failure (`Coordinator.collective_section`);
for a user's communicator its door does so (`door.collective_section`). Where there is no coordinator, as for what
coordinators are made of, `together` takes a step on all ranks of a communicator.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, TypeVar

import numpy as np
from mpi4py import MPI

from ..errors import InputError, OverlapError, RankError, formatted
from .failures import RankFailure, heard, identity_of

LAST = 100  # failures that a report names; one that is older has reached all ranks long ago
UNCLOSED = "its process has ended without close()"
T = TypeVar("T")  # what a step makes


def _last_heard() -> frozenset[str]:
    return frozenset(islice(reversed(heard), LAST))


@dataclass(frozen=True)
class Report:
    """What one rank reports to the others."""

    leaving: bool  # this is the rank's last header
    header: dict[str, str] | None = None  # the call that the rank is about to make, if no rank has failed
    failure: tuple[str, str] | None = None  # the failure on the rank: one line, and the traceback
    is_input: bool = False  # the failure is an `InputError`, for which the line is enough
    is_named: bool = False  # several ranks have raised it together, and the line names those that are wrong
    identity: str = ""  # names a failure between two calls, on all ranks and communicators
    # The identities of the last failures that the rank has raised, or has reported itself.
    heard: frozenset[str] = field(default_factory=_last_heard)

    def renewed(self) -> Report:
        """Return the report with all failures that the rank has raised meanwhile."""
        return replace(self, heard=_last_heard())


class Exchange:
    """Exchanges the reports of all ranks, without a wait unless `wait` is called. Collective.

    Two exchanges may be under way at once, on two communicators, and the ranks may begin them in any order.
    """

    def __init__(self, comm: MPI.Intracomm, report: Report) -> None:
        self._comm, self._sent = comm, pickle.dumps(report)
        self._lengths = np.zeros(comm.size, np.int64)
        self._received: bytearray | None = None
        self._request = comm.Iallgather(np.array([len(self._sent)], np.int64), self._lengths)

    def is_complete(self) -> bool:
        """Go on without a wait; return whether the reports of all ranks are there."""
        return self._request.Test() and (self._received is not None or self._send().Test())

    def wait(self) -> list[Report]:
        """Wait for the reports, and return those of all ranks."""
        self._request.Wait()
        if self._received is None:
            self._send().Wait()
        content, ends = memoryview(self._received or b""), np.cumsum(self._lengths)
        return [pickle.loads(content[end - length : end]) for length, end in zip(self._lengths, ends)]

    def _send(self) -> MPI.Request:
        self._received = bytearray(int(self._lengths.sum()))
        self._request = self._comm.Iallgatherv(self._sent, [self._received, self._lengths, MPI.BYTE])
        return self._request


def failure_report(error: BaseException | None, leaving: bool) -> Report:
    """Make this rank's report: of its failure, or of none."""
    if error is None:
        return Report(leaving)
    summary, traceback_text = formatted(error)
    if isinstance(error, InputError) and not leaving:  # in a call that all ranks make together
        # What was raised on one rank alone, for instance for its own subdomain, names no rank that anybody knows.
        text = str(error).removeprefix("rank 0: ") if error._ranks == 1 else str(error)
        return Report(leaving, failure=(text, traceback_text), is_input=True, is_named=error._ranks > 1)
    return Report(leaving, failure=(summary, traceback_text))


def report_between_calls(error: BaseException, leaving: bool) -> Report:
    """Make this rank's report of a failure between two calls, which all its communicators send."""
    return replace(failure_report(error, leaving), identity=identity_of(error))


def is_old(reports: list[Report]) -> bool:
    """Return whether the header is void: every rank that is in a call there has raised all failures already."""
    failed = [report for report in reports if report.failure is not None]
    # A rank that reports a failure is in no call, so it raises none here. It may not have heard of the others' yet,
    # because what it has sent on another communicator may end after this.
    called = [report for report in reports if report.failure is None]
    return bool(failed) and all(
        not report.leaving and report.identity and all(report.identity in other.heard for other in called)
        for report in failed
    )


def hear(reports: list[Report]) -> None:
    """Note that this rank has learnt of what has failed."""
    heard.update((report.identity, None) for report in reports if report.identity)


def common_error(reports: list[Report], here: int) -> OverlapError | None:
    """Make the one exception of all ranks, of which this is rank `here`; None if no rank has failed and all leave."""
    ranks: dict[tuple[str, bool], list[int]] = {}  # text of a failure, and whether it names ranks -> ranks
    for rank, report in enumerate(reports):
        if report.failure is None:
            continue
        if not report.is_input:
            return RankFailure(rank, *report.failure, identity=report.identity).error()
        ranks.setdefault((report.failure[0], report.is_named), []).append(rank)
    if ranks:
        size = len(reports)
        error = InputError(
            "; ".join(
                summary if is_named and len(failed) == size else f"{_named(failed, size)}: {summary}"
                for (summary, is_named), failed in ranks.items()
            )
        )
        error._is_elsewhere, error._ranks = here != min(map(min, ranks.values())), size
        return error
    gone = [rank for rank, report in enumerate(reports) if report.leaving]
    if len(gone) == len(reports):
        return None
    return RankError(gone[0], UNCLOSED, "(it ended without an exception)")


def _named(ranks: list[int], size: int) -> str:
    """Return the names of some ranks, for a message."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return "all ranks" if len(ranks) == size else f"ranks {', '.join(map(str, ranks))}"


def together(comm: MPI.Comm, step: Callable[[], T]) -> T:
    """Take a step on all ranks of a communicator, and return what it returns here (collective).

    The step waits for no other rank. If it raises on some ranks, all raise the same `InputError` or `RankError`.
    """
    made: Any = None
    error = None
    try:
        made = step()
    except Exception as problem:
        error = problem
    reports = comm.allgather(failure_report(error, leaving=False))
    if (
        any(report.failure is not None for report in reports)
        and (common := common_error(reports, comm.rank)) is not None
    ):
        raise common from error
    return made
