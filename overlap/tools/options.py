"""Arguments that several commands take. Imports plans only where an argument of theirs is added."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from textwrap import fill
from typing import Any, Protocol

from . import launch, values

HELP_WIDTH = 78


class Add(Protocol):
    """Adds a command: its name, the function that runs it, its help text, examples, and default values."""

    def __call__(
        self, name: str, run: Callable[..., int | None] | None, words: str, *examples: str, **defaults: Any
    ) -> argparse.ArgumentParser:
        """Return the command's parser."""


def adder(commands: Any) -> Add:
    """Make the function that adds commands to the subparsers of a parser.

    The command's parser is among its defaults, as ``parser``, so that errors which the command finds later show its
    usage.
    """

    def add(
        name: str, run: Callable[..., int | None] | None, words: str, *examples: str, **defaults: Any
    ) -> argparse.ArgumentParser:
        command: argparse.ArgumentParser = commands.add_parser(
            name,
            help=words,
            description=fill(words, HELP_WIDTH),
            epilog="\n  ".join(["examples:" if len(examples) > 1 else "example:", *examples]),
            formatter_class=argparse.RawDescriptionHelpFormatter,  # keeps the lines of the examples
        )
        command.set_defaults(run=run, parser=command, **defaults)
        return command

    return add


def dtype(text: str) -> str:
    """Check the name of a data type of real space; return it as text."""
    from ..fft.arguments import dtype_problem

    if problem := dtype_problem(text):
        raise argparse.ArgumentTypeError(problem)
    return text


def add_workload(parser: argparse._ActionsContainer, jobs: Mapping[str, Any]) -> None:
    """Add ``workload`` and ``--dtype``."""
    parser.add_argument(
        "workload",
        choices=tuple(jobs),
        help="; ".join(f"{name}: {job.title}{job.detail}" for name, job in jobs.items()),
    )
    parser.add_argument("--dtype", help="data type in real space; default: c16 for transforms, else f8")


def add_size(parser: argparse._ActionsContainer) -> None:
    """Add ``--slices`` and ``--shape``."""
    parser.add_argument(
        "--slices", type=values.count, help="number of planes (default: 64), fields (1) or points in v (32)"
    )
    parser.add_argument(
        "--shape",
        nargs="+",
        type=values.count,
        metavar="N",
        help="NY NX of a plane (default: 512 512), NZ NY NX of a field or grid, PLANES NKY NKX of the nonlinear term",
    )


def check_grid(given: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """End with an error if ``--shape`` is not the shape of a grid for halos and sparse solvers."""
    if given.shape is not None and (len(given.shape) != 3 or min(given.shape) < 3):
        parser.error(f"--shape: expected three numbers >= 3 with workload {given.workload}, received {given.shape}")


def add_layout(parser: argparse._ActionsContainer) -> None:
    """Add ``--order``, ``--grid`` and ``--kinds``."""
    from ..fft.arguments import ORDERS

    parser.add_argument(
        "--order", choices=ORDERS, default="natural", help="order of the spectrum's axes; default: natural"
    )
    parser.add_argument(
        "--grid",
        nargs=2,
        type=values.count,
        metavar=("P", "Q"),
        help="grid of ranks, for fft3; default: the plan chooses",
    )
    parser.add_argument(
        "--kinds",
        nargs="+",
        metavar="KIND",
        help="kinds of the transforms along y and x, or z, y and x, such as dct2 c2c r2c",
    )


def add_exchange(parser: argparse._ActionsContainer) -> None:
    """Add ``--exchange``."""
    from ..arrays.exchange import EXCHANGES

    parser.add_argument(
        "--exchange", choices=EXCHANGES[1:], help="send doubles as singles; default: do not convert numbers"
    )


def add_link(parser: argparse._ActionsContainer) -> None:
    """Add ``--link``."""
    parser.add_argument(
        "--link",
        type=values.link,
        default="shm",
        help="rate of shaped links between the ranks, such as 2gbit, or shm for shared memory (default)",
    )


def add_limits(parser: argparse._ActionsContainer) -> None:
    """Add ``--burst`` and ``--deadline``, which apply to each case."""
    parser.add_argument(
        "--burst",
        type=values.count,
        metavar="BYTES",
        help="size of the token bucket of a link: an idle link passes this many bytes at once",
    )
    parser.add_argument(
        "--deadline",
        type=values.seconds,
        default=launch.DEADLINE_S,
        metavar="S",
        help=f"seconds after which a case is ended; default: {launch.DEADLINE_S:g}",
    )


def add_workers(parser: argparse._ActionsContainer) -> None:
    """Add ``--workers``."""
    parser.add_argument("--workers", type=values.count, default=1, help="worker threads per rank; default: 1")
