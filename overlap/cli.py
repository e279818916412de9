"""The commands: `overlap info | links | bench | tune | demo | trace | predict`.

Exit status: 0; 1 when the work failed; 2 for arguments that make no sense; 130 after Ctrl-C; of
`overlap links`, the command's own.
"""

import argparse
import json
import math
import os
import signal
import sys
import traceback

from . import launch, links, model, trace
from .bench.cases import WORKLOADS, Case
from .bench.commands import CommandError, bench, demo, environment, need, quick
from .bench.report import machine, packages, place, title
from .bench.tuning import DEFAULT_FILE, tune
from .errors import InputError, LinksUnavailable

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
    if rank > 0 and options.run in (_trace, _predict):
        return 0        # one reader is enough
    options.after_dashes = command
    try:
        return options.run(options, parser) or 0
    except _FAILURES as error:
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
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
        MPI.COMM_WORLD.Abort(1)
        raise


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

    def add(name, run, words):
        command = commands.add_parser(name, help=words, description=words)
        command.set_defaults(run=run)
        return command

    info = add("info", _info, "say what is installed here and what works")
    info.add_argument("--ranks", type=_count, default=2)

    on_links = add("links", _links, "run a command as MPI ranks on shaped links: ... -- COMMAND")
    on_links.add_argument("--hosts", type=_count, default=2)
    on_links.add_argument("--ranks", type=_count, help="in all; default: one per host")
    on_links.add_argument("--rate", type=_rate, default="2gbit", help="of each host's link")
    on_links.add_argument("--burst", type=_count, metavar="BYTES", default=96 * 1024,
                          help="that an idle link lets through at once")
    on_links.add_argument("--deadline", type=_seconds, metavar="S")

    measured = add("bench", _bench, "measure one job against the model and against others")
    for name in ("depth", "chunk", "in-flight"):
        measured.add_argument(f"--{name}", type=_count, help="forced; default: chosen by the plan")
    measured.add_argument("--overlap", choices=("auto", "off", "block", "poll"), default="auto",
                          help="forced for the automatic plan")
    measured.add_argument("--peer", choices=("mpi4py-fft",), help="time it too")
    measured.add_argument("--reference", action="store_true",
                          help="time the C + OpenMP program too (in a checkout)")
    measured.add_argument("--json", metavar="FILE", help="write the report there")
    measured.add_argument("--rounds", type=_count, default=9)

    tuned = add("tune", _tune, "search for the fastest settings of a job and keep them in a file")
    tuned.add_argument("--budget", type=_seconds, default=30.0, metavar="S", help="time to take")
    tuned.add_argument("--file", metavar="FILE", help="the tuning file; default: what "
                       f"OVERLAP_TUNING names, else {DEFAULT_FILE}")

    shown = add("demo", _demo, "see communication disappear on this machine")
    shown.add_argument("--out", metavar="DIR", default="demo-report")
    shown.add_argument("--quick", action="store_true", help="small sizes, a few seconds")
    shown.add_argument("--rates", nargs="*", type=_rate, default=["2gbit", "4gbit"],
                       help="of the shaped links; none: shared memory alone")
    shown.add_argument("--threads", type=_count, default=1, help="per rank")
    shown.add_argument("--rounds", type=_count, default=5)

    for command in (measured, tuned):
        command.add_argument("workload", choices=WORKLOADS, help="forward transform, or the spectral "
                             "operation (4 inverse transforms, product, 1 forward transform)")
        command.add_argument("--link", default="shm", type=lambda text: text if text == "shm"
                             else _rate(text), help="rate of shaped links, or shm (default)")
        command.add_argument("--dtype",
                             help="of real space; default: c16, and f8 for the operation")
        command.add_argument("--threads", type=_count, default=1, help="per rank")

    for command in (measured, tuned, shown):
        command.add_argument("--slices", type=_count, default=64)
        command.add_argument("--shape", nargs=2, type=_count, default=(512, 512),
                             metavar=("NY", "NX"))
        command.add_argument("--ranks", type=_count, default=2)
        command.add_argument("--burst", type=_count, metavar="BYTES", help="as of links")

    for command in (measured, shown):
        command.add_argument("--deadline", type=_seconds, default=600.0, metavar="S",
                             help="for each case")

    drawn = add("trace", _trace, "summarise and draw a timeline written before")
    drawn.add_argument("file", metavar="FILE.json")
    drawn.add_argument("--png", metavar="OUT", help="picture; the suffix chooses the format")
    drawn.add_argument("--title", default="")

    guess = add("predict", _predict, "what the timing model says, of times given or measured")
    guess.add_argument("report", nargs="?", metavar="REPORT.json", help="of bench or demo")
    guess.add_argument("--compute-s", type=float, metavar="C")
    guess.add_argument("--communication-s", type=float, metavar="T")
    guess.add_argument("--threads", type=_count, default=1, metavar="N")
    guess.add_argument("--slices", type=_count, metavar="S", help="count pipeline fill and drain")
    return parser


def _count(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected an integer >= 1, received {text}")
    return value


def _seconds(text):
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected seconds > 0, received {text}")
    return value


def _rate(text):
    try:
        links.parse_rate(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


# --- the commands ---------------------------------------------------------------------------------

def _info(options, parser):
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
        rows += [(f"rank {rank}", f"host {place['host']}, cores {_ranges(place['cores'])}")
                 for rank, place in enumerate(found["ranks"])]
    elif reason:
        rows.append(("MPI", f"ranks cannot be started: {reason}"))
    if not launch.under_mpi():
        rows.append(("shaped links", links.unavailable_reason() or "work"))
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:{width}}  {value}")
    return 0 if reason is None else 1


def _ranges(numbers):
    """[0, 1, 2, 5] as "0-2,5"."""
    runs = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{low}" if low == high else f"{low}-{high}" for low, high in runs)


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
    """The case that the options describe, and the rate of its links or None."""
    link = None if options.link == "shm" else options.link
    dtype = options.dtype or {"fft2": "c16", "operation": "f8"}[options.workload]
    try:
        return Case(workload=options.workload, slices=options.slices, shape=options.shape,
                    dtype=dtype, threads=options.threads, **settings,
                    link=link or ("mpiexec" if launch.under_mpi() else "shm")), link
    except ValueError as error:
        parser.error(str(error))


def _bench(options, parser):
    case, link = _case(options, parser, rounds=options.rounds, overlap=options.overlap,
                       depth=options.depth, chunk=options.chunk, in_flight=options.in_flight,
                       peer=options.peer is not None)
    bench(case, command=["overlap", *sys.argv[1:]], ranks=options.ranks, link=link,
          burst=options.burst, deadline_s=options.deadline, with_reference=options.reference,
          json_path=options.json)


def _tune(options, parser):
    case, link = _case(options, parser)
    tune(case, budget_s=options.budget, path=options.file, ranks=options.ranks, link=link,
         burst=options.burst)


def _demo(options, parser):
    case = Case(workload="operation", slices=options.slices, shape=options.shape, dtype="f8",
                threads=options.threads, rounds=options.rounds)
    rates = options.rates
    if options.quick:
        case, rates = quick(case), rates[:1]
    demo(case, command=["overlap", *sys.argv[1:]], ranks=options.ranks, rates=rates,
         out=options.out, burst=options.burst, deadline_s=options.deadline)


def _trace(options, parser):
    spans = trace.read_chrome(options.file)
    print("milliseconds\nrank       wall  computing  communicating  both at once")
    for row in trace.summary(spans):
        print(f"{row.rank:4}  {1e3 * row.wall_s:9.2f}  {1e3 * row.compute_s:9.2f}  "
              f"{1e3 * row.communicate_s:13.2f}  {1e3 * row.both_s:12.2f}")
    if options.png:
        need("matplotlib")
        try:
            trace.draw(spans, options.png, title=options.title)
        except ValueError as error:
            raise CommandError(str(error)) from None
        print(f"written: {options.png}")


def _predict(options, parser):
    given = options.compute_s is not None and options.communication_s is not None
    if given == (options.report is not None):
        parser.error("expected either --compute-s and --communication-s, or a report")
    if given:
        try:
            print("\n".join(_prediction(options.compute_s, options.communication_s,
                                        options.threads, options.slices)))
        except ValueError as error:
            parser.error(str(error))
        return
    for record in _read_report(options.report):
        items = math.ceil(record["slices"] / record["auto_choice"]["chunk"])
        print(f"{title(record)}; {place(record)}")
        print("\n".join("  " + line for line in _prediction(
            record["C_s"], record["T_s"], record["threads"], items,
            measured={name: record[f"{name}_s"] for name in ("off", "block", "poll")})))


def _prediction(C, T, threads, slices, measured=None):
    """Lines of the model's table for C and T in seconds, on N threads."""
    rows = [("off", "no overlap: C + T", model.no_overlap_s(C, T), model.no_overlap_s(C, T)),
            ("block", "blocking calls: C + T/N, or T", model.block_s(C, T, threads),
             model.block_s(C, T, threads, slices=slices)),
            ("poll", "sleeping communicator: max(C, T)", model.poll_s(C, T),
             model.poll_s(C, T, slices=slices, threads=threads))]
    lines = [f"C = {1e3 * C:.2f} ms, T = {1e3 * T:.2f} ms, N = {threads}, "
             f"T/C = {T / C if C else math.inf:.3g}"]
    for name, words, wall_s, filled_s in rows:
        line = f"{words:34} {1e3 * wall_s:10.2f} ms"
        if slices is not None:
            line += f"  with fill and drain of {slices} {1e3 * filled_s:10.2f} ms"
        if measured is not None:
            line += f"  measured {1e3 * measured[name]:10.2f} ms"
        lines.append(line)
    bound = (C + T) / max(C, T) if max(C, T) else 1.0
    lines.append(f"{'best speed-up, sleeping':34} {bound:10.2f} x")
    at_s = model.best_speedup_at(C, threads)
    where = "never more" if math.isinf(at_s) else f"at T = {1e3 * at_s:.2f} ms"
    lines.append(f"{'best speed-up, blocking: 2 - 1/N':34} {model.best_speedup(threads):10.2f} x, "
                 f"{where}")
    return lines


def _read_report(path):
    with open(path, encoding="utf-8") as file:
        try:
            content = json.load(file)
            return [record for record in content["cases"] if record["C_s"] >= 0]
        except (ValueError, KeyError, TypeError) as error:
            raise CommandError(f"cannot read the report {path!r}: expected JSON written by "
                               f"`overlap bench` or `overlap demo` ({error!r})") from None
