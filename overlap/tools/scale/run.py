"""`overlap scale run`: measures one piece of work on a matrix of ranks x workers x ways to wait.

Every point of the matrix is a case of `overlap.tools.bench`: results are checked first, and the rounds of
its modes are interleaved. Without a launcher each point gets fresh ranks, pinned to cores of their
own, on shared memory or on shaped links. Under a launcher (a job of a scheduler) a point takes the
first ranks of the allocation, which the launcher has placed and bound; the others sleep meanwhile.

Passes go through the matrix forth and back, and pool the rounds of a point. So times of different numbers of ranks,
too, are measured close to each other.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from .. import launch
from ..bench import report as reports
from ..bench.cases import Case
from ..bench.session import Session, need, refuse_links_under_mpi
from .merge import pool
from .scaling_report import show

_JOB_IDS = {"slurm": "SLURM_JOB_ID", "pbs": "PBS_JOBID", "pjm": "PJM_JOBID"}


def run(
    case: Case,
    *,
    command: Sequence[str],
    ranks: Sequence[int] | None,
    workers: Sequence[int],
    path: str,
    link: str | None = None,
    passes: int = 1,
    burst: int | None = None,
    deadline_s: float | None = None,
) -> None:
    """Measure the matrix, write it to a report after every point, print its table.

    Parameters
    ----------
    case : Case
        The work and its modes; ranks, workers and links are those of the matrix.
    command : list of str
        For the report.
    ranks : sequence of int or None
        None: all ranks that mpiexec started, or one per core.
    workers : sequence of int
        Per rank.
    path : str
        Where the report is written.
    link : str, optional
        Rate of shaped links; shared memory without.
    passes : int
    burst, deadline_s
        What `launch.run_ranks` takes, for each point.

    Raises
    ------
    CommandError, LaunchError, LinksUnavailable
    """
    need("rich")
    refuse_links_under_mpi(link)
    under_mpi = launch.under_mpi()
    if ranks is None and not under_mpi:
        ranks = range(1, len(os.sched_getaffinity(0)) + 1)
    points = [(rank_count, each) for each in workers for rank_count in ranks or (None,)]
    session = Session(command, burst, deadline_s)
    session.report["job"] = scheduler_job()
    if not under_mpi:
        reports.write(session.report, path, complete=False)  # fails now if it must, not after an hour
    record = None
    with session.progress(passes * len(points)):
        for number in range(passes):
            for rank_count, each in points if number % 2 == 0 else reversed(points):
                record = session.measure(
                    replace(case, workers=each, link=link or ("mpiexec" if under_mpi else "shm")), link, rank_count
                )
                if record is not None:
                    reports.write(session.report, path, complete=False)
    if record is None:
        return
    session.report["cases"] = pool(session.report["cases"])
    reports.write(session.report, path)
    show(session.report["cases"], session.report["notes"], [path])


def scheduler_job(environ: Mapping[str, str] = os.environ) -> dict[str, str] | None:
    """Return the scheduler's job that this process belongs to, {"scheduler", "id"}, or None."""
    return next(
        ({"scheduler": name, "id": environ[variable]} for name, variable in _JOB_IDS.items() if variable in environ),
        None,
    )
