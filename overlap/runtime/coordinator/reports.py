"""What ranks tell each other where a header shows that not all is well, and the one exception that they make of it."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import InputError, OverlapError, RankError, formatted

UNCLOSED = "its process has ended without close()"


@dataclass(frozen=True)
class Report:
    """What one rank tells the others.

    Attributes
    ----------
    leaving : bool
        This is the rank's last header.
    header : dict, optional
        What it is about to do, where nobody has failed.
    failure : tuple of (str, str), optional
        What has failed there: one line, and the traceback.
    is_input : bool
        That is an `InputError`, of which the line says it all.
    """

    leaving: bool
    header: dict[str, str] | None = None
    failure: tuple[str, str] | None = None
    is_input: bool = False


def failure_report(error: BaseException | None, leaving: bool) -> Report:
    """Report what has failed here, if anything has."""
    if error is None:
        return Report(leaving)
    summary, traceback_text = formatted(error)
    if isinstance(error, InputError) and not leaving:  # of a call that all ranks make together
        return Report(leaving, failure=(str(error), traceback_text), is_input=True)
    return Report(leaving, failure=(summary, traceback_text))


def common_error(reports: list[Report]) -> OverlapError | None:
    """Make the one exception of all ranks; None where nothing has failed, and all of them leave."""
    ranks: dict[str, list[int]] = {}  # by what they say
    for rank, report in enumerate(reports):
        if report.failure is None:
            continue
        if not report.is_input:
            return RankError(rank, *report.failure)
        ranks.setdefault(report.failure[0], []).append(rank)
    if ranks:
        return InputError("; ".join(f"{_named(some, len(reports))}: {summary}" for summary, some in ranks.items()))
    gone = [rank for rank, report in enumerate(reports) if report.leaving]
    if len(gone) == len(reports):
        return None
    return RankError(gone[0], UNCLOSED, "(it ended without an exception)")


def _named(ranks: list[int], size: int) -> str:
    """Name some ranks, for a message."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return "all ranks" if len(ranks) == size else f"ranks {', '.join(map(str, ranks))}"
