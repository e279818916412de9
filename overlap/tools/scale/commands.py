"""`overlap scale run | submit | template | report`: arguments, and calls."""

import shlex
import sys
from pathlib import Path

from ...errors import InputError
from .. import options as arguments
from ..bench.cases import MODES, Case
from . import report as reports
from .run import run
from .submit import ENVIRONMENT, SCHEDULERS, Layout, fields, own_template, script


def add_commands(parser):
    """Add the commands to the parser of `overlap scale`."""
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def add(name, function, words, **defaults):
        command = commands.add_parser(name, help=words, description=words)
        command.set_defaults(run=function, **defaults)
        return command

    here = add("run", _run, "measure a matrix of ranks x threads x overlap modes, on this machine "
               "or inside a scheduler's job")
    here.add_argument("--ranks", nargs="+", type=arguments.count,
                      help="default: 1 to the number of cores; in a job, all of its ranks")
    here.add_argument("--threads", nargs="+", type=arguments.count, default=[1],
                      help="worker threads per rank")
    here.add_argument("--json", metavar="FILE", default="scale.json", help="the report")
    arguments.add_link(here)
    arguments.add_limits(here)

    there = add("submit", _submit, "write job scripts, one per number of nodes", one_rank=True)
    there.add_argument("--scheduler", choices=SCHEDULERS, required=True)
    there.add_argument("--mpi", choices=ENVIRONMENT, required=True, help="the MPI library")
    there.add_argument("--nodes", nargs="+", type=arguments.count, required=True)
    there.add_argument("--ranks-per-node", type=arguments.count, default=1)
    there.add_argument("--cores-per-node", type=arguments.count, required=True)
    there.add_argument("--dedicated-core", action="store_true",
                       help="leave one core of each rank to its communicator thread")
    there.add_argument("--time", default="0:30:00", metavar="H:MM:SS")
    there.add_argument("--queue", help="partition, queue or resource group")
    there.add_argument("--account", help="account, project or group")
    there.add_argument("--setup", default="", metavar="LINES",
                       help="shell lines before the run, such as module load ...")
    there.add_argument("--python", default=sys.executable, help="on the nodes; default: this one")
    there.add_argument("--template", metavar="FILE", help="instead of the scheduler's own, for "
                       "which see `overlap scale template`")
    there.add_argument("--out", metavar="DIR", default="scale", help="for scripts and reports")

    for command in (here, there):
        arguments.add_workload(command)
        arguments.add_size(command)
        command.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES),
                             help="off always is among them")
        command.add_argument("--rounds", type=arguments.count, default=5)
        command.add_argument("--passes", type=arguments.count, default=1,
                             help="over the whole matrix")

    plain = add("template", _template, "print a scheduler's template, to be edited", one_rank=True)
    plain.add_argument("scheduler", choices=SCHEDULERS)

    shown = add("report", _report, "merge reports; draw time, acceleration and gain against ranks",
                one_rank=True)
    shown.add_argument("files", nargs="+", metavar="FILE.json")
    shown.add_argument("--out", metavar="DIR", default="scale-report")


def _case(options, parser):
    try:
        return Case(workload=options.workload, slices=options.slices, shape=options.shape,
                    dtype=options.dtype, rounds=options.rounds, modes=options.modes)
    except ValueError as error:
        parser.error(str(error))


def _run(options, parser):
    run(_case(options, parser), command=["overlap", *sys.argv[1:]], ranks=options.ranks,
        threads=options.threads, path=options.json, link=options.link, passes=options.passes,
        burst=options.burst, deadline_s=options.deadline)


def _submit(options, parser):
    case = _case(options, parser)
    try:
        scripts = {}
        for nodes in sorted(set(options.nodes)):
            layout = Layout(nodes=nodes, ranks_per_node=options.ranks_per_node,
                            cores_per_node=options.cores_per_node,
                            dedicated_core=options.dedicated_core)
            path = Path(options.out).absolute() / f"scale-{nodes}.sh"
            values = fields(
                layout, scheduler=options.scheduler, mpi=options.mpi, name=f"overlap-{nodes}",
                command=_command(options, case, layout, path.with_suffix(".json")),
                time=options.time, queue=options.queue, account=options.account,
                setup=options.setup)
            scripts[path] = script(values, scheduler=options.scheduler, template=options.template)
    except InputError as error:
        parser.error(str(error))
    Path(options.out).mkdir(parents=True, exist_ok=True)
    for path, text in scripts.items():
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
        print(f"{SCHEDULERS[options.scheduler]} {shlex.quote(str(path))}")
    print(f"then: overlap scale report {shlex.quote(options.out)}/scale-*.json")


def _command(options, case, layout, json_path):
    """What each rank of a script runs."""
    return [options.python, "-m", "overlap", "scale", "run", case.workload,
            "--ranks", str(layout.ranks), "--threads", str(layout.threads),
            "--slices", str(case.slices), "--shape", *map(str, case.shape),
            "--dtype", case.dtype, "--modes", *case.modes, "--rounds", str(case.rounds),
            "--passes", str(options.passes), "--json", str(json_path)]


def _template(options, parser):
    print(own_template(options.scheduler), end="")


def _report(options, parser):
    reports.report(options.files, options.out)
