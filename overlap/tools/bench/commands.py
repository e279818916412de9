"""`overlap bench | tune | demo`: arguments, and what they call."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .. import launch, options, values
from . import report
from .demo import CHOOSING_S, SLICES, demo
from .jobs import JOBS, MODES, Case
from .record import disturbed, doubt
from .reference import reference
from .session import Session, need, refuse_links_under_mpi
from .solvers import MATRICES, SOLVERS
from .table import console

DEFAULT_FILE = "overlap-tuning.json"
RANKS = 2  # if the user does not say how many
WIDTH = 110  # of what `overlap tune` prints, in characters
TUNABLE = {name: JOBS[name] for name in ("fft2", "operation", "fft3")}


def add_bench(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `overlap bench`."""
    parser.set_defaults(run=_bench)
    size = parser.add_argument_group("the job")
    options.add_workload(size, JOBS | SOLVERS)
    options.add_size(size)
    options.add_workers(size)
    _add_ranks(size)
    ffts = parser.add_argument_group(f"for {', '.join(JOBS)}")
    ffts.add_argument(
        "--wait", choices=MODES, default="auto", help="way to wait of the column auto; default: the plan chooses"
    )
    for name, words in (
        ("depth", "number of slices in flight"),
        ("chunk", "number of slices per message"),
        ("in-flight", "largest number of exchanges in flight"),
    ):
        ffts.add_argument(f"--{name}", type=values.count, help=f"{words}; default: the plan chooses")
    options.add_layout(ffts)
    options.add_exchange(ffts)
    ffts.add_argument(
        "--calls", type=values.count, help="number of calls that are timed together; default: 1, or 10 for fft3"
    )
    ffts.add_argument("--peer", choices=("mpi4py-fft",), help="time this library in the same rounds")
    ffts.add_argument(
        "--reference", action="store_true", help="time a C + OpenMP program in the same rounds; needs a checkout"
    )
    solvers = parser.add_argument_group(f"for {', '.join(SOLVERS)}")
    solvers.add_argument(
        "--matrix",
        choices=MATRICES,
        default=MATRICES[0],
        help="poisson: 7 points (default); elastic: 3 x 3 blocks at 27 points, for spmv and cg; rock: diffusion with "
        "coefficients from 1e-5 to 1e5, for mgcg",
    )
    solvers.add_argument(
        "--delay",
        type=values.seconds,
        default=0.0,
        metavar="S",
        help="also measure iterations of cg in which each sum over all ranks takes this many seconds longer",
    )
    how = parser.add_argument_group("links and measurement")
    options.add_link(how)
    options.add_limits(how)
    how.add_argument("--rounds", type=values.count, help="number of rounds; default: 9, or 3 for fft3, 7 for nonlinear")
    how.add_argument("--json", metavar="FILE", type=values.output, help="write the report to this file")


def add_tune(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `overlap tune`."""
    parser.set_defaults(run=_tune)
    parser.add_argument(
        "--budget", type=values.seconds, default=30.0, metavar="S", help="seconds to search; default: 30"
    )
    parser.add_argument(
        "--file",
        metavar="FILE",
        type=values.output,
        help=f"the tuning file; default: what OVERLAP_TUNING names, else {DEFAULT_FILE}",
    )
    parser.add_argument("--balance", action="store_true", help="first find shares in proportion to the ranks' speeds")
    options.add_workload(parser, TUNABLE)
    options.add_exchange(parser)
    options.add_link(parser)
    _add_case(parser)


def add_demo(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `overlap demo`."""
    parser.set_defaults(run=_demo)
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=values.folder,
        default="demo-report",
        help="folder of the report; default: demo-report",
    )
    parser.add_argument(
        "--full",
        action="store_true",
        help="measure more planes in all ways to wait, and on links on which communicating takes as long as computing; "
        "takes some minutes",
    )
    parser.add_argument(
        "--rates",
        nargs="*",
        type=values.rate,
        default=["2gbit", "4gbit"],
        help="rates of the shaped links; without a rate: shared memory alone",
    )
    parser.add_argument("--rounds", type=values.count, default=5, help="number of rounds; default: 5")
    _add_case(parser)


def _add_case(parser: argparse._ActionsContainer) -> None:
    """Add what `overlap tune` and `overlap demo` take."""
    options.add_size(parser)
    options.add_limits(parser)
    options.add_workers(parser)
    _add_ranks(parser)


def _add_ranks(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--ranks", type=values.count, help=f"number of MPI ranks; default: {RANKS}")


def _ranks(given: argparse.Namespace, parser: argparse.ArgumentParser) -> int | None:
    """Return how many ranks to start, or None if mpiexec has started them."""
    if not launch.under_mpi():
        return given.ranks or RANKS
    if given.ranks is not None:
        parser.error(f"--ranks: expected none under mpiexec, which has started all ranks, received {given.ranks}")
    return None


# --- bench ----------------------------------------------------------------------------------------


def _case(given: argparse.Namespace, parser: argparse.ArgumentParser, **settings: Any) -> Case:
    """Make the case that the arguments describe."""
    try:
        return Case(
            workload=given.workload,
            slices=given.slices,
            dtype=given.dtype,
            workers=given.workers,
            exchange=given.exchange,
            **{"shape": given.shape} | settings,
            link=given.link or ("mpiexec" if launch.under_mpi() else "shm"),
        )
    except ValueError as error:
        parser.error(str(error))


_OF_FFTS = (
    "dtype",
    "exchange",
    "order",
    "grid",
    "kinds",
    "wait",
    "depth",
    "chunk",
    "in_flight",
    "calls",
    "peer",
    "reference",
)
_OF_SOLVERS = "matrix", "delay"


def _bench(given: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    for name in _OF_FFTS if given.workload in SOLVERS else _OF_SOLVERS:
        if getattr(given, name) != parser.get_default(name):
            others = JOBS if given.workload in SOLVERS else SOLVERS
            option = "--" + name.replace("_", "-")
            parser.error(f"{option}: expected a workload of {', '.join(others)}, received {given.workload}")
    if given.workload in SOLVERS:
        _solver(given, parser)
        return
    shapes = [given.shape] if given.shape else JOBS[given.workload].shapes
    names = "rounds", "calls", "order", "grid", "kinds", "wait", "depth", "chunk", "in_flight"
    settings = {name: getattr(given, name) for name in names} | {"peer": given.peer is not None}
    cases = [_case(given, parser, shape=shape, **settings) for shape in shapes]
    ranks = _ranks(given, parser)
    need("rich")
    refuse_links_under_mpi(given.link)
    session = Session(_command(), given.burst, given.deadline)
    with session.progress(len(cases)):
        for case in cases:
            record = session.measure(case, given.link, ranks)
            if record is not None and given.reference:
                record |= reference(case, ranks or RANKS, given.link)
    if not session.report["cases"]:
        return
    session.print()
    if given.json is not None:
        report.write(session.report, given.json)


def _command() -> list[str]:
    return ["overlap", *sys.argv[1:]]


def _solver(given: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Measure a halo or a sparse solver, and print one line for each result."""
    options.check_grid(given, parser)
    refuse_links_under_mpi(given.link)
    asked = {
        "workload": given.workload,
        "shape": given.shape or SOLVERS[given.workload].shape,
        "planes": given.slices or 8,
        "rounds": given.rounds or 9,
        "matrix": given.matrix,
        "delay_s": given.delay,
        "workers": given.workers,
    }
    session = Session(_command(), given.burst, given.deadline)
    events = session.run("solver", asked, given.link, _ranks(given, parser), given.workers)
    if "record" not in events:
        return
    record = events["record"] | {"link": given.link or "shm"}
    for name, value in record.items():
        if isinstance(value, float):
            print(f"{name:16} {1e3 * value:.3f} ms" if name.endswith("_s") else f"{name:16} {value:.2f}")
        elif name != "seconds":
            print(f"{name:16} {value}")
    if given.json:
        content = session.report | {"mpi": events["environment"], "solvers": [record]}
        del content["cases"]  # readers of cases expect transforms
        report.write(content, given.json)


# --- demo -----------------------------------------------------------------------------------------


def _demo(given: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    case = Case(
        workload="operation",
        slices=given.slices,
        shape=given.shape,
        dtype="f8",
        workers=given.workers,
        rounds=given.rounds,
    )
    if not given.full:
        case = replace(case, slices=given.slices or SLICES, modes=("off", "auto"), choosing_s=CHOOSING_S)
    demo(
        case,
        command=_command(),
        ranks=_ranks(given, parser),
        rates=given.rates,
        full=given.full,
        out=given.out,
        burst=given.burst,
        deadline_s=given.deadline,
    )


# --- tune -----------------------------------------------------------------------------------------


def _tune(given: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Tune a case on ranks of its own, or on those that mpiexec started; print the settings that were tried."""
    case = _case(given, parser)
    need("rich")
    refuse_links_under_mpi(given.link)
    path = os.path.abspath(given.file or os.environ.get("OVERLAP_TUNING") or DEFAULT_FILE)
    asked = {"budget_s": given.budget, "path": path, "balance": given.balance, **case.as_dict()}
    session = Session(_command(), given.burst, given.deadline)
    with session.progress(1):
        events = session.run("tune", asked, given.link, _ranks(given, parser), given.workers)
    if "balanced" in events:
        console(WIDTH).print(events["balanced"] + "; plans use them with layout={'weights': 'measure'}", markup=False)
    if "tuned" in events:
        _show_trials(events["tuned"], path)


def _show_trials(transforms: Mapping[str, dict[str, Any]], path: str) -> None:
    from rich.table import Table

    shown = console(WIDTH)
    for name, record in transforms.items():
        table = Table(title=name, title_justify="left", box=None)
        table.add_column("settings tried, fastest first")
        table.add_column("measured", justify="right")
        table.add_column("model", justify="right")
        for settings, seconds, model_s in record["trials"]:
            chosen = settings == record["chosen"]
            table.add_row(
                settings, f"{1e6 * seconds:.1f} us/slice", f"{1e6 * model_s:.1f}", style="bold" if chosen else ""
            )
        if record["trials"]:
            shown.print(table)
        shown.print(
            f"{name}: {record['chosen']}: {record['gain']:.2f}x the speed of the default "
            f"({record['default']}); {record['tried']} settings tried\n",
            markup=False,
        )
        if disturbed(record["spread"]):
            took = f"times of the same settings differed by {100 * record['spread']:.0f} %"
            shown.print(doubt(name, took, "the gain means little") + "\n", style="bold red", markup=False)
    shown.print(
        f"written: {path}; plans use it with tuning={path!r}, or with OVERLAP_TUNING set", markup=False, soft_wrap=True
    )
