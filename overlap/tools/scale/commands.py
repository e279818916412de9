"""`overlap scale run | submit | template | report`: arguments, and what they call.

Every point of the matrix of `run` (ranks x workers x ways to wait) is a case of `overlap.tools.bench`: results are
checked first, and the rounds of its modes are interleaved. Without a launcher each point gets fresh ranks, pinned to
cores of their own, on shared memory or on shaped links. Under a launcher (a job of a scheduler) a point takes the first
ranks of the allocation, which the launcher has placed and bound; the others sleep meanwhile. Passes go through the
matrix forth and back, and pool the rounds of a point. So times of different numbers of ranks, too, are measured close
to each other.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ... import files
from ...errors import InputError
from .. import launch, options, values
from ..bench import report as reports
from ..bench.jobs import JOBS, MODES, Case
from ..bench.session import Session, need, refuse_links_under_mpi
from ..bench.solvers import MATRICES, SOLVERS
from . import scaling_report, solver_scaling
from .scaling_report import pool, show
from .submit import ENVIRONMENT, SCHEDULERS, JobLayout, fields, own_template, script

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


SCALED = {name: SOLVERS[name] for name in solver_scaling.MAIN}


def add_scale(parser: argparse.ArgumentParser) -> None:
    """Add the commands to the parser of `overlap scale`."""
    add = options.adder(parser.add_subparsers(title="commands", required=True, metavar="COMMAND"))

    run_parser = add(
        "run",
        _run,
        "measure a workload with all given numbers of ranks and workers and ways to wait, here or in a scheduler's job",
        "overlap scale run operation --ranks 1 2 4 --json scale.json",
        "srun overlap scale run operation --ranks 2 4 8",
        "overlap scale run cg --matrix elastic --weak --shape 32 32 32 --picture scaling.png",
    )
    run_parser.add_argument(
        "--ranks",
        nargs="+",
        type=values.count,
        help="numbers of ranks; default: 1 to the number of cores; in a job, all of its ranks",
    )
    run_parser.add_argument(
        "--workers", nargs="+", type=values.count, default=[1], help="numbers of worker threads per rank; default: 1"
    )
    run_parser.add_argument(
        "--json",
        metavar="FILE",
        type=values.output,
        default="scale.json",
        help="write the report to this file; default: scale.json",
    )
    run_parser.add_argument(
        "--matrix",
        choices=MATRICES,
        default=MATRICES[0],
        help="matrix of a sparse solver, as in `overlap bench`; default: poisson",
    )
    run_parser.add_argument(
        "--weak", action="store_true", help="for a sparse solver: give each rank a grid of --shape (weak scaling)"
    )
    run_parser.add_argument(
        "--picture",
        metavar="FILE",
        type=values.output,
        help="for a sparse solver: draw time and acceleration to this file",
    )
    options.add_link(run_parser)
    options.add_limits(run_parser)

    submit_parser = add(
        "submit",
        _submit,
        "write job scripts, one per number of nodes",
        "overlap scale submit operation --scheduler slurm --mpi openmpi --nodes 1 2 4 --cores-per-node 48",
        one_rank=True,
    )
    submit_parser.add_argument("--scheduler", choices=SCHEDULERS, required=True, help="scheduler that runs the scripts")
    submit_parser.add_argument("--mpi", choices=ENVIRONMENT, required=True, help="MPI library that the jobs run under")
    submit_parser.add_argument(
        "--nodes", nargs="+", type=values.count, required=True, help="numbers of nodes: one job for each"
    )
    submit_parser.add_argument(
        "--ranks-per-node", type=values.count, default=1, help="number of ranks on each node; default: 1"
    )
    submit_parser.add_argument("--cores-per-node", type=values.count, required=True, help="number of cores of a node")
    submit_parser.add_argument(
        "--dedicated-core", action="store_true", help="leave one core of each rank to its communicator thread"
    )
    submit_parser.add_argument(
        "--time", default="0:30:00", metavar="H:MM:SS", help="time limit of each job; default: 0:30:00"
    )
    submit_parser.add_argument("--queue", help="partition, queue or resource group of the jobs")
    submit_parser.add_argument("--account", help="account, project or group that the jobs belong to")
    submit_parser.add_argument(
        "--setup", default="", metavar="LINES", help="shell lines that each script runs first, such as module load ..."
    )
    submit_parser.add_argument(
        "--python", default=sys.executable, help="Python on the nodes; default: the one that runs this command"
    )
    submit_parser.add_argument(
        "--template",
        metavar="FILE",
        help="use this template instead of the scheduler's, which `overlap scale template` prints",
    )
    submit_parser.add_argument(
        "--out", metavar="DIR", default="scale", help="folder of scripts and reports; default: scale"
    )

    for command in (run_parser, submit_parser):
        options.add_workload(command, JOBS | (SCALED if command is run_parser else {}))
        options.add_size(command)
        command.add_argument(
            "--modes",
            nargs="+",
            choices=MODES,
            default=list(MODES),
            help="ways to wait; off is always measured; default: all",
        )
        command.add_argument("--rounds", type=values.count, default=5, help="number of rounds; default: 5")
        command.add_argument(
            "--passes", type=values.count, default=1, help="how often the whole matrix is measured; default: 1"
        )

    plain = add(
        "template",
        _template,
        "print the template of a scheduler's job script, for you to edit",
        "overlap scale template slurm > site.sh",
        one_rank=True,
    )
    plain.add_argument("scheduler", choices=SCHEDULERS, help="the scheduler")

    shown = add(
        "report",
        _report,
        "merge reports; draw time, acceleration and gain over the number of ranks",
        "overlap scale report scale/scale-1.json scale/scale-2.json --out figures",
        one_rank=True,
    )
    shown.add_argument("files", nargs="+", metavar="FILE.json", help="reports of `overlap scale run`")
    shown.add_argument(
        "--out", metavar="DIR", default="scale-report", help="folder of table and figures; default: scale-report"
    )


def _case(given: argparse.Namespace, parser: argparse.ArgumentParser) -> Case:
    try:
        return Case(
            workload=given.workload,
            slices=given.slices,
            shape=given.shape,
            dtype=given.dtype,
            rounds=given.rounds,
            modes=given.modes,
        )
    except ValueError as error:
        parser.error(str(error))


def _run(given: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    if given.workload in SCALED:
        options.check_grid(given, parser)
        solver_scaling.run(
            given.workload,
            command=["overlap", *sys.argv[1:]],
            ranks=given.ranks,
            workers=given.workers,
            path=given.json,
            weak=given.weak,
            shape=given.shape,
            matrix=given.matrix,
            rounds=given.rounds,
            link=given.link,
            drawing=given.picture,
            burst=given.burst,
            deadline_s=given.deadline,
        )
        return
    if given.weak or given.picture or given.matrix != MATRICES[0]:
        parser.error(
            f"--weak, --picture, --matrix: expected a workload of {', '.join(SCALED)}, received {given.workload}"
        )
    run(
        _case(given, parser),
        command=["overlap", *sys.argv[1:]],
        ranks=given.ranks,
        workers=given.workers,
        path=given.json,
        link=given.link,
        passes=given.passes,
        burst=given.burst,
        deadline_s=given.deadline,
    )


def _submit(given: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    case = _case(given, parser)
    try:
        scripts = {}
        for nodes in sorted(set(given.nodes)):
            layout = JobLayout(
                nodes=nodes,
                ranks_per_node=given.ranks_per_node,
                cores_per_node=given.cores_per_node,
                dedicated_core=given.dedicated_core,
            )
            path = Path(given.out).absolute() / f"scale-{nodes}.sh"
            values = fields(
                layout,
                scheduler=given.scheduler,
                mpi=given.mpi,
                name=f"overlap-{nodes}",
                command=_command(given, case, layout, path.with_suffix(".json")),
                time=given.time,
                queue=given.queue,
                account=given.account,
                setup=given.setup,
            )
            scripts[path] = script(values, scheduler=given.scheduler, template=given.template)
    except InputError as error:
        parser.error(str(error))
    Path(given.out).mkdir(parents=True, exist_ok=True)
    for path, text in scripts.items():
        files.write(path, text)
        path.chmod(0o755)
        print(f"{SCHEDULERS[given.scheduler]} {shlex.quote(str(path))}")
    print(f"then: overlap scale report {shlex.quote(given.out)}/scale-*.json")


def _command(given: argparse.Namespace, case: Case, layout: JobLayout, json_path: Path) -> list[str]:
    """Make the command that each rank of a job script runs."""
    return [
        given.python,
        "-m",
        "overlap",
        "scale",
        "run",
        case.workload,
        "--ranks",
        str(layout.ranks),
        "--workers",
        str(layout.workers),
        "--slices",
        str(case.slices),
        "--shape",
        *map(str, case.shape),
        "--dtype",
        case.dtype,
        "--modes",
        *case.modes,
        "--rounds",
        str(case.rounds),
        "--passes",
        str(given.passes),
        "--json",
        str(json_path),
    ]


def _template(given: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    print(own_template(given.scheduler), end="")


def _report(given: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    scaling_report.report(given.files, given.out)
