"""`overlap scale run | submit | template | report`: arguments, and what they call."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from ... import files
from ...errors import InputError
from .. import options, values
from ..bench.cases import MODES, Case
from ..bench.jobs import JOBS
from ..bench.solvers import MATRICES, SOLVERS
from . import scaling_report, solver_scaling
from .run import run
from .submit import ENVIRONMENT, SCHEDULERS, JobLayout, fields, own_template, script

SCALED = {name: SOLVERS[name] for name in solver_scaling.MAIN}


def add_commands(parser: argparse.ArgumentParser) -> None:
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
