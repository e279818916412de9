"""The commands: `overlap info | links | bench | tune | cache | demo | scale | trace | predict | advise`.

Exit status: 0 for success; 1 if the work failed; 2 for invalid arguments; 130 after Ctrl-C; 141 if the reader of the
output has gone. `overlap links` returns the status of its command.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from ..errors import InputError, LinksUnavailable
from ..files import CACHE_VARIABLE, user_folder
from . import dead_segments, launch, links, options, signals, values
from .advise import EXAMPLES, WORDS
from .bench.report import machine, packages, read
from .bench.session import CommandError, environment, measure_machine, need
from .bench.table import place, ranges, title

# numba, the plans and MPI take half a second to import: what needs them is imported by the command that needs it.


def add_cache(parser: argparse.ArgumentParser) -> None:
    """Add ``show`` and ``clear`` to the parser of `overlap cache`."""
    add = options.adder(parser.add_subparsers(title="commands", required=True, metavar="COMMAND"))
    add("show", _show_kept, "list the settings that are kept, by plan", "overlap cache show", one_rank=True)
    add("clear", _clear_kept, "remove all settings that are kept", "overlap cache clear", one_rank=True)


def _show_kept(given: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    place = user_folder()
    if place is None:
        print(f"nothing is kept: {CACHE_VARIABLE} is empty, or there is no home")
        return
    print(place)
    from ..fft.planning import tuning_file

    for path, entry in tuning_file.cached():
        if entry is None:
            print(f"{path.name}: damaged, counts as missing")
            continue
        plan, machine = entry["plan"], entry["machine"]
        what = " ".join(str(plan[name]) for name in ("kind", "shape", "dtype", "axes") if name in plan)
        print(f"{what}: {machine['hosts']} host(s), {machine['ranks_per_host']} rank(s) each, {machine['mpi']}")
        for name, kept in entry["transforms"].items():
            print(f"  {name}: {tuning_file.settings_of(kept)[0]}")
        print(f"  wisdom: {len(entry['wisdom'].splitlines())} lines")


def _clear_kept(given: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    from ..fft.planning import tuning_file

    print(f"{tuning_file.clear()} file(s) removed")


UNREAD = 128 + signal.SIGPIPE
_FAILURES = (CommandError, InputError, LinksUnavailable, launch.LaunchError, OSError)


_THREAD_LEVEL_NOTE = (
    " (overlap needs serialized and asks for that; mpi4py's default, multiple, costs MPICH 6 to 10 times in "
    "latency: set mpi4py.rc.thread_level = 'serialized' before your program imports mpi4py.MPI)"
)


def main(argv: Sequence[str] | None = None) -> int:
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
    with signals.ending_by_exception():
        try:
            return _run(argv)
        except KeyboardInterrupt:
            print("overlap: interrupted", file=sys.stderr)
            return 130


def _run(argv: list[str], rank: int = 0) -> int:
    argv, command = _split_command(argv)
    given = make_parser("".join(argv[:1])).parse_args(argv)
    if command is not None and given.run is not _links:
        given.parser.error(f"only `overlap links` takes a command after --, received {command}")
    if rank > 0 and getattr(given, "one_rank", False):
        return 0
    given.after_dashes = command
    try:
        status = given.run(given, given.parser) or 0
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # for instance `overlap cache show | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python flushes stdout when it exits
        return UNREAD
    except _FAILURES as error:
        if launch.under_mpi() and isinstance(error, OSError):
            raise  # this rank's own error: `_as_rank` aborts the job
        print(f"overlap: error: {error}", file=sys.stderr)
        return 1


def _as_rank(argv: list[str]) -> int:
    """Run as one of mpiexec's ranks: only rank 0 prints, and a failure ends all of them."""
    from mpi4py import MPI

    rank = MPI.COMM_WORLD.rank
    if rank > 0:
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (to the end)
    try:
        return _run(argv, rank)
    except SystemExit:
        raise  # from argparse, the same on all ranks
    except BaseException as error:
        if isinstance(error, OSError):
            print(f"overlap: error: {error}", file=sys.__stderr__, flush=True)
        else:
            traceback.print_exc(file=sys.__stderr__)
        MPI.COMM_WORLD.Abort(1)
        return 1


def _split_command(argv: list[str]) -> tuple[list[str], list[str] | None]:
    """Split arguments into those before the first ``--`` and those after it (None without one)."""
    if "--" not in argv:
        return argv, None
    at = argv.index("--")
    return argv[:at], argv[at + 1 :]


class _Version(argparse.Action):
    """Looks up the version only when it is asked for."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        from importlib import metadata

        print(f"overlap {metadata.version('overlap-mpi')}")
        parser.exit()


# --- arguments ------------------------------------------------------------------------------------


# Name of each command: the module whose function ``add_NAME`` adds its arguments, its help text, examples.
_COMMANDS = {
    "info": (
        ".cli",
        "report what is installed and what works on this machine",
        "overlap info",
        "srun -n 2 overlap info",
        "overlap info --measure here.toml --link 4gbit",
    ),
    "links": (
        ".cli",
        "run a command, which follows --, as MPI ranks on links of a chosen rate",
        "overlap links --rate 2gbit -- python halo.py",
        "overlap links --hosts 1 --ranks 2 --slow 1:0.5 -- python job.py",
    ),
    "bench": (
        ".bench.commands",
        "measure one job in every way to wait, beside the model and other programs",
        "overlap bench operation --link 2gbit",
        "overlap bench fft3 --shape 256 256 256 --link 4gbit --json fft3.json",
        "overlap bench fft3 --dtype f8 --kinds dct2 c2c r2c",
        "overlap bench cg --matrix elastic --shape 32 32 32 --workers 2",
    ),
    "tune": (
        ".bench.commands",
        "search for the fastest settings of a job and keep them in a file",
        "overlap tune operation --link 2gbit --file tuning.json --budget 30",
        "overlap tune fft2 --shape 256 256 --slices 128 --balance",
    ),
    "demo": (
        ".bench.commands",
        "show on this machine how communication is hidden",
        "overlap demo",
        "overlap demo --full --out report",
    ),
    "cache": (".cli", "show or clear the settings that plans have kept for later plans", "overlap cache show"),
    "scale": (
        ".scale.commands",
        "measure strong scaling, here or on a cluster, and draw it",
        "overlap scale run operation --ranks 1 2 4",
    ),
    "trace": (".cli", "sum up and draw a timeline", "overlap trace timeline.json --png timeline.png"),
    "predict": (
        ".cli",
        "print the timing model's prediction for given, measured or simulated times",
        "overlap predict --compute-s 1.2 --communication-s 0.8 --workers 16 --slices 256",
        "overlap predict report.json",
        "overlap predict --workload operation --machine here.toml --ranks 4 16 64 --workers 16",
    ),
    "advise": (".advise.commands", WORDS, *EXAMPLES),
}


def make_parser(command: str | None = None) -> argparse.ArgumentParser:
    """Make the parser of all commands; given one of them, the others have no arguments, and are not imported."""
    parser = argparse.ArgumentParser(prog="overlap", description="Hides MPI communication behind computation.")
    parser.epilog = "example: overlap demo; `overlap COMMAND --help` shows examples of a command"
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    add = options.adder(parser.add_subparsers(title="commands", required=True, metavar="COMMAND"))
    for name, (module, words, *examples) in _COMMANDS.items():
        added = add(name, None, words, *examples)
        if command in (None, name):
            getattr(import_module(module, __package__), f"add_{name}")(added)
    return parser


def add_info(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `overlap info`."""
    parser.set_defaults(run=_info)
    parser.add_argument("--ranks", type=values.count, default=2, help="number of ranks to start; default: 2")
    parser.add_argument(
        "--measure",
        metavar="FILE.toml",
        type=values.output,
        help="measure this machine and write its description, for `overlap predict --machine`",
    )
    parser.add_argument(
        "--link", type=values.rate, help="with --measure: measure shaped links of this rate, such as 4gbit"
    )
    parser.add_argument(
        "--clean", action="store_true", help="remove the shared memory that your dead jobs have left, and list it"
    )


def add_links(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `overlap links`."""
    parser.set_defaults(run=_links)
    parser.add_argument(
        "--hosts", type=values.count, default=2, help="number of simulated hosts (network namespaces); default: 2"
    )
    parser.add_argument("--ranks", type=values.count, help="number of ranks on all hosts; default: one per host")
    parser.add_argument("--rate", type=values.rate, default="2gbit", help="rate of each host's link; default: 2gbit")
    parser.add_argument(
        "--burst",
        type=values.count,
        metavar="BYTES",
        default=links.BURST,
        help=f"size of a link's token bucket: an idle link passes this many bytes at once; default: {links.BURST}",
    )
    parser.add_argument(
        "--slow",
        type=values.slow_rank,
        nargs="+",
        metavar="RANK:SHARE",
        default=[],
        help="slow these ranks down: each keeps only the given share of its core, 0.05 to 1",
    )
    parser.add_argument(
        "--speeds",
        type=values.speed,
        nargs="+",
        metavar="SPEED",
        help="one speed per rank: the fastest ranks keep their cores, the others a share in proportion to their speeds",
    )
    parser.add_argument(
        "--deadline",
        type=values.seconds,
        metavar="S",
        help="seconds after which the command is ended; default: no limit",
    )


def add_trace(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `overlap trace`."""
    parser.set_defaults(run=_trace, one_rank=True)
    parser.add_argument(
        "file", metavar="FILE.json", help="timeline, written by `timeline.write_chrome` or `overlap demo`"
    )
    parser.add_argument(
        "--png", metavar="OUT", type=values.output, help="draw the timeline to this file; its suffix chooses the format"
    )
    parser.add_argument("--title", default="", help="title of the picture")


def add_predict(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `overlap predict`."""
    from ..timing.simulate import WORKLOADS

    parser.set_defaults(run=_predict, one_rank=True)
    parser.add_argument(
        "report", nargs="?", metavar="REPORT.json", help="report of `overlap bench`, `demo` or `scale run`"
    )
    parser.add_argument("--compute-s", type=float, metavar="C", help="time of computing alone, in seconds")
    parser.add_argument("--communication-s", type=float, metavar="T", help="time of communicating alone, in seconds")
    parser.add_argument("--workers", type=values.count, metavar="N", help="worker threads per rank; default: 1")
    parser.add_argument(
        "--slices",
        type=values.count,
        metavar="S",
        help="number of slices; with --compute-s, count the pipeline's fill and drain for them",
    )
    parser.add_argument("--workload", choices=WORKLOADS, help="simulate this workload on the machine of --machine")
    parser.add_argument(
        "--machine",
        metavar="FILE.toml",
        help="description of a machine, written by `overlap info --measure` or by hand",
    )
    parser.add_argument(
        "--shape", nargs=2, type=values.count, metavar=("NY", "NX"), help="size of a plane; default: 512 512"
    )
    parser.add_argument(
        "--dtype", type=options.dtype, help="data type in real space; default: c16, or f8 for the operation"
    )
    parser.add_argument(
        "--ranks",
        nargs="+",
        type=values.count,
        help="number of ranks, or several numbers for strong scaling; default: 2",
    )
    parser.add_argument("--wait", choices=("off", "block", "poll"), help="how the communicator waits; default: poll")
    parser.add_argument("--depth", type=values.count, help="number of slices in flight; default: 16")
    parser.add_argument("--in-flight", type=values.count, help="largest number of exchanges in flight")
    parser.add_argument("--chunk", type=values.count, help="number of slices per message; default: the fastest")
    parser.add_argument("--json", metavar="FILE", type=values.output, help="write the table to this file")
    parser.add_argument("--png", metavar="FILE", type=values.output, help="draw the table to this file")


# --- the commands ---------------------------------------------------------------------------------


def _info(given: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    if given.measure:
        measure_machine(given.measure, ranks=given.ranks, link=given.link)
        return 0
    if given.link:
        parser.error("--link: expected with --measure")
    if given.clean:
        return _clean()
    computer, reason = machine(), None
    try:
        facts = environment(given.ranks)
    except (CommandError, launch.LaunchError) as error:
        facts, reason = None, str(error)
    rows = [(name, version) for name, version in packages().items()]
    rows.append(("python", f"{computer['python']}, {sys.executable}"))
    rows.append(("machine", f"{computer['cpu']}, {computer['cores']} core(s), {computer['system']}"))
    if facts is not None:
        rows.append(("FFTW", facts["fftw_library"]))
        if newer := facts["newer_fftw"]:
            rows.append(("newer FFTW", f"{newer}; OVERLAP_FFTW={newer.rpartition(' ')[2]} in the environment uses it"))
        rows.append(("MPI", f"{facts['library']} (standard {facts['standard']})"))
        rows.append(("thread level", facts["thread_level"] + _THREAD_LEVEL_NOTE))
        rows.append(("lost ranks", facts["lost_ranks"]))
        rows += [
            (f"rank {rank}", f"host {place['host']}, cores {ranges(place['cores'])}")
            for rank, place in enumerate(facts["ranks"])
        ]
    elif reason:
        rows.append(("MPI", f"ranks cannot be started: {reason}"))
    if not launch.under_mpi():
        rows.append(("shaped links", links.unavailable_reason() or "work"))
    if left := dead_segments.abandoned():
        size = _size(sum(left.values()))
        rows.append((str(dead_segments.FOLDER), f"{len(left)} segment(s) of dead jobs, {size}: overlap info --clean"))
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:{width}}  {value}")
    return 0 if reason is None else 1


def _clean() -> int:
    """Remove from this host the segments that dead jobs have left."""
    left = dead_segments.abandoned()
    dead_segments.remove(left)
    for name, nbytes in left.items():
        print(f"{dead_segments.FOLDER / name}  {_size(nbytes)}")
    if left:
        print(f"{len(left)} segment(s) of dead jobs removed, {_size(sum(left.values()))}")
    else:
        print(f"no segments of dead jobs in {dead_segments.FOLDER}")
    return 0


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**20:.1f} MiB" if nbytes >= 2**20 else f"{nbytes / 2**10:.0f} KiB"


def _links(given: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    if not given.after_dashes:
        parser.error("expected a command: overlap links ... -- COMMAND")
    if launch.under_mpi():
        raise CommandError("mpiexec started this process already: expected to start the ranks")
    shares = dict(given.slow)
    if given.speeds:
        ranks = given.ranks or given.hosts
        if given.slow or len(given.speeds) != ranks:
            parser.error(f"--speeds: expected {ranks} speeds, one per rank, and no --slow")
        shares = {
            rank: speed / max(given.speeds) for rank, speed in enumerate(given.speeds) if speed < max(given.speeds)
        }
    try:
        return links.run(
            given.after_dashes,
            hosts=given.hosts,
            ranks=given.ranks,
            rate=given.rate,
            burst=given.burst,
            shares=shares,
            deadline_s=given.deadline,
        )
    except ValueError as error:
        parser.error(str(error))


def _trace(given: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    from . import timeline

    spans = timeline.read_chrome(given.file)
    print("milliseconds\nrank       wall  computing  communicating  both at once   waits")
    for row in timeline.summary(spans):
        print(
            f"{row.rank:4}  {1e3 * row.wall_s:9.2f}  {1e3 * row.compute_s:9.2f}  "
            f"{1e3 * row.communicate_s:13.2f}  {1e3 * row.both_s:12.2f}  {100 * row.waiting:4.0f} %"
        )
    if given.png:
        need("matplotlib")
        try:
            timeline.draw(spans, given.png, title=given.title)
        except ValueError as error:
            raise CommandError(str(error)) from None
        print(f"written: {given.png}")


def _predict(given: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    from .predict import closed_forms, draw_forms, form_values, write_forms

    if given.workload is not None:
        _simulate(given, parser)
        return
    times = given.compute_s is not None and given.communication_s is not None
    if times == (given.report is not None):
        parser.error("expected either --compute-s and --communication-s, or a report")
    for name in ("machine", "shape", "dtype", "ranks", "wait", "depth", "in_flight", "chunk"):
        if getattr(given, name) is not None:
            parser.error(f"--{name.replace('_', '-')}: expected with --workload only, as it changes no given time")
    for name in () if times else ("workers", "slices"):
        if getattr(given, name) is not None:
            parser.error(f"--{name}: expected none with a report, which contains it, received {getattr(given, name)}")
    cases: dict[str, tuple[float, float, int, int | None, dict[str, float] | None]]
    if times:
        cases = {"given": (given.compute_s, given.communication_s, given.workers or 1, given.slices, None)}
    else:
        cases = {
            f"{title(record)}; {place(record)}": (
                record["C_s"],
                record["T_s"],
                record["workers"],
                math.ceil(record["slices"] / record["auto_choice"]["chunk"]),
                {mode: record[f"{mode}_s"] for mode in ("off", "block", "poll")},
            )
            for record in read(given.report)["cases"]
        }
    if given.png:
        need("matplotlib")
    try:
        width = shutil.get_terminal_size((120, 24)).columns
        for name, case in cases.items():
            heading, indent = ([], "") if times else ([name], "  ")
            print("\n".join(heading + [indent + line for line in closed_forms(*case, width - len(indent))]))
        values = {name: form_values(*case) for name, case in cases.items()}
    except ValueError as error:
        parser.error(str(error))
    if given.json:
        write_forms(values, given.json)
    if given.png:
        draw_forms(values, given.png)


def _simulate(given: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    from ..timing.simulate import WORKLOADS, Machine, Workload
    from .predict import draw, strong_scaling, table, write_json

    if given.machine is None or given.report is not None:
        parser.error("--workload: expected --machine, and no report")
    if given.png:
        need("matplotlib")
    workload = Workload(
        workload=given.workload,
        slices=given.slices or 64,
        shape=tuple(given.shape or (512, 512)),
        dtype=given.dtype or WORKLOADS[given.workload][-1],
    )
    machine, wait = Machine.read(given.machine), given.wait or "poll"
    for doubt in machine.doubts():
        print(f"overlap predict: warning: {given.machine}: {doubt}", file=sys.stderr)
    rows = strong_scaling(
        workload,
        machine,
        given.ranks or [2],
        workers=given.workers or 1,
        wait=wait,
        depth=given.depth or 16,
        in_flight=given.in_flight,
        chunk=given.chunk,
        compute_s=given.compute_s,
    )
    ny, nx = workload.shape
    title = (
        f"{workload.workload}, {workload.slices} x {ny} x {nx} {workload.dtype}, "
        f"{given.workers or 1} worker(s) per rank, {wait}; {machine.name}"
    )
    print(f"{title}; milliseconds")
    print(table(rows))
    if given.json:
        write_json(rows, given.json)
    if given.png:
        draw({wait: rows}, given.png, title)
