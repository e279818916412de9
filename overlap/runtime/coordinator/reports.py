"""Reports that ranks exchange after a header has shown a failure, and the one exception that they make of them."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import InputError, OverlapError, RankError, formatted

UNCLOSED = "its process has ended without close()"


@dataclass(frozen=True)
class Report:
    """What one rank reports to the others.

    Attributes
    ----------
    leaving : bool
        This is the rank's last header.
    header : dict, optional
        The call that the rank is about to make, if no rank has failed.
    failure : tuple of (str, str), optional
        The failure on the rank: one line, and the traceback.
    is_input : bool
        The failure is an `InputError`, for which the line is enough.
    """

    leaving: bool
    header: dict[str, str] | None = None
    failure: tuple[str, str] | None = None
    is_input: bool = False


def failure_report(error: BaseException | None, leaving: bool) -> Report:
    """Make this rank's report: of its failure, or of none."""
    if error is None:
        return Report(leaving)
    summary, traceback_text = formatted(error)
    if isinstance(error, InputError) and not leaving:  # in a call that all ranks make together
        return Report(leaving, failure=(str(error), traceback_text), is_input=True)
    return Report(leaving, failure=(summary, traceback_text))


def common_error(reports: list[Report]) -> OverlapError | None:
    """Make the one exception of all ranks; None if no rank has failed and all of them leave."""
    ranks: dict[str, list[int]] = {}  # text of a failure -> ranks
    for rank, report in enumerate(reports):
        if report.failure is None:
            continue
        if not report.is_input:
            return RankError(rank, *report.failure)
        ranks.setdefault(report.failure[0], []).append(rank)
    if ranks:
        return InputError(
            "; ".join(f"{_named(failed_ranks, len(reports))}: {summary}" for summary, failed_ranks in ranks.items())
        )
    gone = [rank for rank, report in enumerate(reports) if report.leaving]
    if len(gone) == len(reports):
        return None
    return RankError(gone[0], UNCLOSED, "(it ended without an exception)")


def _named(ranks: list[int], size: int) -> str:
    """Return the names of some ranks, for a message."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return "all ranks" if len(ranks) == size else f"ranks {', '.join(map(str, ranks))}"
