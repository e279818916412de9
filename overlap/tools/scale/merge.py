"""Merges reports of one piece of work into one record for each point of the matrix."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from ...errors import InputError
from ..bench import report, table
from ..bench.record import Record, pooled


def merge(paths: Sequence[str | os.PathLike[str]]) -> tuple[list[Record], list[str], list[dict[str, Any]]]:
    """Read reports and pool their cases.

    Returns
    -------
    records : list of dict
        One for each link, number of workers and number of ranks, in this order.
    notes : list of str
        Remarks for the reader.
    sources : list of dict
        The reports, without their cases, with their ``file``.

    Raises
    ------
    InputError
        A file is no complete report of this version, or the reports are of different work.
    OSError
    """
    contents = {str(path): report.read(path) for path in paths}
    works: dict[str, str] = {}
    records: list[Record] = []
    notes: list[str] = []
    for path, content in contents.items():
        for record in content["cases"]:
            works.setdefault(table.work(record), path)
            records.append(record)
        if not content["complete"]:
            notes.append(f"{path} is incomplete: its run did not end")
        notes += content["notes"]
    if len(works) > 1:
        raise InputError(
            "expected reports of the same work, received "
            + "; ".join(f"{work} in {path}" for work, path in works.items())
        )
    if not records:
        raise InputError(f"expected reports with cases, received none in {', '.join(contents)}")
    for what, read in (
        ("machines", lambda content: content["machine"]["cpu"]),
        ("commits", lambda content: content["commit"]),
        ("MPI libraries", lambda content: (content["mpi"] or {}).get("library")),
    ):
        if len(distinct := sorted({str(read(content)) for content in contents.values()})) > 1:
            notes.append(f"the reports are of several {what}: {', '.join(distinct)}")
    sources = [
        {"file": path} | {key: value for key, value in content.items() if key != "cases"}
        for path, content in contents.items()
    ]
    return pool(records), notes, sources


def pool(records: Sequence[Record]) -> list[Record]:
    """Make one record per point of the matrix, sorted by link, workers and ranks."""
    records = sorted(records, key=lambda record: (*_panel(record), record["ranks"]))
    return [
        pooled(list(same))
        for _, same in groupby(records, key=lambda record: (*_panel(record), record["ranks"], record["modes"]))
    ]


def _panel(record: Record) -> tuple[bool, str, int]:
    return record["link"] != "shm", record["link"], record["workers"]


def panels(records: Sequence[Record]) -> list[list[Record]]:
    """Group the records of each link and number of workers, by growing numbers of ranks."""
    return [list(same) for _, same in groupby(records, key=_panel)]


def caption(record: Record) -> str:
    """Return the caption of a panel."""
    return f"{table.place(record)}, N = {record['workers']} worker(s) per rank"
