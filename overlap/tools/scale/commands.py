"""`overlap scale run | submit | template | report`: arguments, and what they call."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from ... import files
from ...errors import InputError
from .. import options
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
        "measure a matrix of ranks x workers x waiting modes, on this machine or inside a scheduler's job",
        "overlap scale run operation --ranks 1 2 4 --json scale.json",
        "srun overlap scale run operation --ranks 2 4 8",
        "overlap scale run cg --matrix elastic --weak --shape 32 32 32 --picture scaling.png",
    )
    run_parser.add_argument(
        "--ranks", nargs="+", type=options.count, help="default: 1 to the number of cores; in a job, all of its ranks"
    )
    run_parser.add_argument("--workers", nargs="+", type=options.count, default=[1], help="per rank")
    run_parser.add_argument("--json", metavar="FILE", type=options.output, default="scale.json", help="the report")
    run_parser.add_argument(
        "--matrix",
        choices=MATRICES,
        default=MATRICES[0],
        help="of a sparse solver, as for `overlap bench`; default: poisson",
    )
    run_parser.add_argument("--weak", action="store_true", help="of a sparse solver: the shape is that of each rank")
    run_parser.add_argument(
        "--picture", metavar="FILE", type=options.output, help="of a sparse solver: draw time and acceleration"
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
    submit_parser.add_argument("--scheduler", choices=SCHEDULERS, required=True, help="whose job script")
    submit_parser.add_argument("--mpi", choices=ENVIRONMENT, required=True, help="the MPI library")
    submit_parser.add_argument(
        "--nodes", nargs="+", type=options.count, required=True, help="one number, or several: a job for each"
    )
    submit_parser.add_argument("--ranks-per-node", type=options.count, default=1, help="default: 1")
    submit_parser.add_argument("--cores-per-node", type=options.count, required=True, help="that a node has")
    submit_parser.add_argument(
        "--dedicated-core", action="store_true", help="leave one core of each rank to its communicator thread"
    )
    submit_parser.add_argument(
        "--time", default="0:30:00", metavar="H:MM:SS", help="limit of each job; default: 0:30:00"
    )
    submit_parser.add_argument("--queue", help="partition, queue or resource group")
    submit_parser.add_argument("--account", help="account, project or group")
    submit_parser.add_argument(
        "--setup", default="", metavar="LINES", help="shell lines before the run, such as module load ..."
    )
    submit_parser.add_argument("--python", default=sys.executable, help="on the nodes; default: this one")
    submit_parser.add_argument(
        "--template", metavar="FILE", help="instead of the scheduler's own, for which see `overlap scale template`"
    )
    submit_parser.add_argument("--out", metavar="DIR", default="scale", help="for scripts and reports")

    for command in (run_parser, submit_parser):
        options.add_workload(command, JOBS | (SCALED if command is run_parser else {}))
        options.add_size(command)
        command.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES), help="off always is among them")
        command.add_argument("--rounds", type=options.count, default=5, help="of measuring; default: 5")
        command.add_argument("--passes", type=options.count, default=1, help="over the whole matrix")

    plain = add(
        "template",
        _template,
        "print a scheduler's template, to be edited",
        "overlap scale template slurm > site.sh",
        one_rank=True,
    )
    plain.add_argument("scheduler", choices=SCHEDULERS, help="whose template")

    shown = add(
        "report",
        _report,
        "merge reports; draw time, acceleration and gain against ranks",
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
    """Make the command that each rank of a script runs."""
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
