"""The commands: `overlap info | links | bench | tune | demo | scale | trace | predict`.

Exit status: 0; 1 when the work failed; 2 for arguments that make no sense; 130 after Ctrl-C; of
`overlap links`, the command's own.
"""

import argparse
import math
import os
import signal
import sys
import traceback

from ..errors import InputError, LinksUnavailable
from ..timing.simulate import WORKLOADS, Machine, Workload
from . import launch, links, timeline
from .bench.cases import MODES, Case
from .bench.commands import CommandError, bench, demo, environment, measure, need, quick
from .bench.jobs import JOBS
from .bench.report import machine, packages, place, ranges, read, title
from .bench.tuning import DEFAULT_FILE, TUNABLE, tune
from .options import (
    add_layout,
    add_limits,
    add_link,
    add_size,
    add_workload,
    count,
    rate,
    seconds,
)
from .predict import closed_forms, draw, strong_scaling, table, write_json
from .scale.commands import add_commands as add_scale

_FAILURES = (CommandError, InputError, LinksUnavailable, launch.LaunchError, OSError)


def main(argv=None):
    """Run a command.

    Parameters
    ----------
    argv : list of str, optional
        Arguments; by default those of this process.

    Returns
    -------
    int
        Exit status.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    if launch.under_mpi():
        return _as_rank(argv)
    previous = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        return _run(argv)
    except KeyboardInterrupt:
        print("overlap: interrupted", file=sys.stderr)
        return 130
    finally:
        signal.signal(signal.SIGTERM, previous)


def _run(argv, rank=0):
    parser = make_parser()
    argv, command = _split_command(argv)
    options = parser.parse_args(argv)
    if command is not None and options.run is not _links:
        parser.error(f"only `overlap links` takes a command after --, received {command}")
    if rank > 0 and getattr(options, "one_rank", False):
        return 0
    options.after_dashes = command
    try:
        return options.run(options, parser) or 0
    except _FAILURES as error:
        if launch.under_mpi() and isinstance(error, OSError):
            raise       # of this rank alone
        print(f"overlap: error: {error}", file=sys.stderr)
        return 1


def _as_rank(argv):
    """As one of mpiexec's ranks: only rank 0 says something, and a failure ends all of them."""
    from mpi4py import MPI
    rank = MPI.COMM_WORLD.rank
    if rank > 0:
        sys.stdout = sys.stderr = open(os.devnull, "w")
    try:
        return _run(argv, rank)
    except SystemExit:
        raise           # arguments, alike on all ranks
    except BaseException as error:
        if isinstance(error, OSError):
            print(f"overlap: error: {error}", file=sys.__stderr__, flush=True)
        else:
            traceback.print_exc(file=sys.__stderr__)
        MPI.COMM_WORLD.Abort(1)
        return 1


def _split_command(argv):
    """What is before the first ``--``, and what after it (None without one)."""
    if "--" not in argv:
        return argv, None
    at = argv.index("--")
    return argv[:at], argv[at + 1:]


# --- arguments ------------------------------------------------------------------------------------

def make_parser():
    """The parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="overlap", description="Hides MPI communication behind computation.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def add(name, run, words, **defaults):
        command = commands.add_parser(name, help=words, description=words)
        command.set_defaults(run=run, **defaults)
        return command

    info = add("info", _info, "say what is installed here and what works")
    info.add_argument("--ranks", type=count, default=2)
    info.add_argument("--measure", metavar="FILE.toml",
                      help="measure the machine for `overlap predict`, and write what was found")
    info.add_argument("--link", type=rate, help="measure shaped links of that rate")

    on_links = add("links", _links, "run a command as MPI ranks on shaped links: ... -- COMMAND")
    on_links.add_argument("--hosts", type=count, default=2)
    on_links.add_argument("--ranks", type=count, help="in all; default: one per host")
    on_links.add_argument("--rate", type=rate, default="2gbit", help="of each host's link")
    on_links.add_argument("--burst", type=count, metavar="BYTES", default=96 * 1024,
                          help="that an idle link lets through at once")
    on_links.add_argument("--deadline", type=seconds, metavar="S")

    measured = add("bench", _bench, "measure one job against the model and against others")
    for name in ("depth", "chunk", "in-flight"):
        measured.add_argument(f"--{name}", type=count, help="forced; default: chosen by the plan")
    measured.add_argument("--wait", choices=MODES, default="auto",
                          help="forced for the automatic plan")
    measured.add_argument("--peer", choices=("mpi4py-fft",), help="time it too")
    measured.add_argument("--reference", action="store_true",
                          help="time the C + OpenMP program too (in a checkout)")
    measured.add_argument("--json", metavar="FILE", help="write the report there")
    measured.add_argument("--rounds", type=count, help="default: 9, 3 of fft3, 7 of nonlinear")
    measured.add_argument("--calls", type=count, help="that follow each other and are timed as "
                          "one; default: 1, or 10 of fft3")
    add_layout(measured)

    tuned = add("tune", _tune, "search for the fastest settings of a job and keep them in a file")
    tuned.add_argument("--budget", type=seconds, default=30.0, metavar="S", help="time to take")
    tuned.add_argument("--file", metavar="FILE", help="the tuning file; default: what "
                       f"OVERLAP_TUNING names, else {DEFAULT_FILE}")

    shown = add("demo", _demo, "see communication disappear on this machine")
    shown.add_argument("--out", metavar="DIR", default="demo-report")
    shown.add_argument("--quick", action="store_true", help="small sizes, a few seconds")
    shown.add_argument("--rates", nargs="*", type=rate, default=["2gbit", "4gbit"],
                       help="of the shaped links; none: shared memory alone")
    shown.add_argument("--threads", type=count, default=1, help="per rank")
    shown.add_argument("--rounds", type=count, default=5)

    add_workload(measured)
    add_workload(tuned, TUNABLE)
    for command in (measured, tuned):
        add_link(command)
        command.add_argument("--threads", type=count, default=1, help="per rank")

    for command in (measured, tuned, shown):
        add_size(command)
        add_limits(command)
        command.add_argument("--ranks", type=count, default=2)

    add_scale(add("scale", None, "strong scaling: measure it here or on a cluster, and draw it"))

    drawn = add("trace", _trace, "summarise and draw a timeline written before", one_rank=True)
    drawn.add_argument("file", metavar="FILE.json")
    drawn.add_argument("--png", metavar="OUT", help="picture; the suffix chooses the format")
    drawn.add_argument("--title", default="")

    guess = add("predict", _predict, "what the timing model says, of times given or measured",
                one_rank=True)
    guess.add_argument("report", nargs="?", metavar="REPORT.json", help="of bench, demo or scale")
    guess.add_argument("--compute-s", type=float, metavar="C")
    guess.add_argument("--communication-s", type=float, metavar="T")
    guess.add_argument("--threads", type=count, default=1, metavar="N")
    guess.add_argument("--slices", type=count, metavar="S",
                       help="count pipeline fill and drain; slices of the workload")
    guess.add_argument("--workload", choices=WORKLOADS, help="simulate it on --machine")
    guess.add_argument("--machine", metavar="FILE.toml",
                       help="written by `overlap info --measure`, or by hand")
    guess.add_argument("--shape", nargs=2, type=count, default=(512, 512), metavar=("NY", "NX"))
    guess.add_argument("--dtype", help="of real space; default: c16, and f8 for the operation")
    guess.add_argument("--ranks", nargs="+", type=count, default=[2],
                       help="one number, or several for strong scaling")
    guess.add_argument("--wait", choices=("off", "block", "poll"), default="poll")
    guess.add_argument("--depth", type=count, default=16)
    guess.add_argument("--in-flight", type=count)
    guess.add_argument("--chunk", type=count, help="slices per message; default: the fastest")
    guess.add_argument("--json", metavar="FILE", help="write the table there")
    guess.add_argument("--png", metavar="FILE", help="draw it")
    return parser


# --- the commands ---------------------------------------------------------------------------------

def _info(options, parser):
    if options.measure:
        measure(options.measure, ranks=options.ranks, link=options.link)
        return 0
    if options.link:
        parser.error("--link: expected with --measure")
    computer, reason = machine(), None
    try:
        found = environment(options.ranks)
    except (CommandError, launch.LaunchError) as error:
        found, reason = None, str(error)
    rows = [(name, version) for name, version in packages().items()]
    rows.append(("python", f"{computer['python']}, {sys.executable}"))
    rows.append(("machine", f"{computer['cpu']}, {computer['cores']} core(s), "
                 f"{computer['system']}"))
    if found is not None:
        rows.append(("FFTW", found["fftw"]))
        rows.append(("MPI", f"{found['library']} (standard {found['standard']})"))
        rows.append(("thread level", found["thread_level"]))
        rows += [(f"rank {rank}", f"host {place['host']}, cores {ranges(place['cores'])}")
                 for rank, place in enumerate(found["ranks"])]
    elif reason:
        rows.append(("MPI", f"ranks cannot be started: {reason}"))
    if not launch.under_mpi():
        rows.append(("shaped links", links.unavailable_reason() or "work"))
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:{width}}  {value}")
    return 0 if reason is None else 1


def _links(options, parser):
    if not options.after_dashes:
        parser.error("expected a command: overlap links ... -- COMMAND")
    if launch.under_mpi():
        raise CommandError("mpiexec started this process already: expected to start the ranks")
    try:
        return links.run(options.after_dashes, hosts=options.hosts, ranks=options.ranks,
                         rate=options.rate, burst=options.burst, deadline_s=options.deadline)
    except ValueError as error:
        parser.error(str(error))


def _case(options, parser, **settings):
    """The case that the options describe."""
    try:
        return Case(workload=options.workload, slices=options.slices, dtype=options.dtype,
                    threads=options.threads, **{"shape": options.shape} | settings,
                    link=options.link or ("mpiexec" if launch.under_mpi() else "shm"))
    except ValueError as error:
        parser.error(str(error))


def _bench(options, parser):
    shapes = [options.shape] if options.shape else JOBS[options.workload].shapes
    cases = [_case(options, parser, shape=shape, rounds=options.rounds, calls=options.calls,
                   order=options.order, grid=options.grid, wait=options.wait,
                   depth=options.depth, chunk=options.chunk, in_flight=options.in_flight,
                   peer=options.peer is not None) for shape in shapes]
    bench(cases, command=["overlap", *sys.argv[1:]], ranks=options.ranks, link=options.link,
          burst=options.burst, deadline_s=options.deadline, with_reference=options.reference,
          json_path=options.json)


def _tune(options, parser):
    tune(_case(options, parser), budget_s=options.budget, path=options.file,
         ranks=options.ranks, link=options.link, burst=options.burst, deadline_s=options.deadline)


def _demo(options, parser):
    case = Case(workload="operation", slices=options.slices, shape=options.shape, dtype="f8",
                threads=options.threads, rounds=options.rounds)
    rates = options.rates
    if options.quick:
        case, rates = quick(case), rates[:1]
    demo(case, command=["overlap", *sys.argv[1:]], ranks=options.ranks, rates=rates,
         out=options.out, burst=options.burst, deadline_s=options.deadline)


def _trace(options, parser):
    spans = timeline.read_chrome(options.file)
    print("milliseconds\nrank       wall  computing  communicating  both at once")
    for row in timeline.summary(spans):
        print(f"{row.rank:4}  {1e3 * row.wall_s:9.2f}  {1e3 * row.compute_s:9.2f}  "
              f"{1e3 * row.communicate_s:13.2f}  {1e3 * row.both_s:12.2f}")
    if options.png:
        need("matplotlib")
        try:
            timeline.draw(spans, options.png, title=options.title)
        except ValueError as error:
            raise CommandError(str(error)) from None
        print(f"written: {options.png}")


def _predict(options, parser):
    if options.workload is not None:
        _simulate(options, parser)
        return
    given = options.compute_s is not None and options.communication_s is not None
    if given == (options.report is not None):
        parser.error("expected either --compute-s and --communication-s, or a report")
    if given:
        try:
            print("\n".join(closed_forms(options.compute_s, options.communication_s,
                                        options.threads, options.slices)))
        except ValueError as error:
            parser.error(str(error))
        return
    for record in read(options.report)["cases"]:
        items = math.ceil(record["slices"] / record["auto_choice"]["chunk"])
        print(f"{title(record)}; {place(record)}")
        print("\n".join("  " + line for line in closed_forms(
            record["C_s"], record["T_s"], record["threads"], items,
            measured={mode: record[f"{mode}_s"] for mode in ("off", "block", "poll")})))


def _simulate(options, parser):
    if options.machine is None or options.report is not None:
        parser.error("--workload: expected --machine, and no report")
    if options.png:
        need("matplotlib")
    need("greenlet")
    workload = Workload(
        workload=options.workload, slices=options.slices or 64, shape=tuple(options.shape),
        dtype=options.dtype or WORKLOADS[options.workload][-1])
    machine = Machine.read(options.machine)
    rows = strong_scaling(
        workload, machine, options.ranks, threads=options.threads, wait=options.wait,
        depth=options.depth, in_flight=options.in_flight, chunk=options.chunk,
        compute_s=options.compute_s)
    ny, nx = workload.shape
    title = (f"{workload.workload}, {workload.slices} x {ny} x {nx} {workload.dtype}, "
             f"{options.threads} thread(s) per rank, {options.wait}; {machine.name}")
    print(f"{title}; milliseconds")
    print("\n".join(table(rows)))
    if options.json:
        write_json(rows, options.json)
    if options.png:
        draw({options.wait: rows}, options.png, title)
