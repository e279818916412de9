"""Arguments that several commands take: their types, and those of what is measured."""

import argparse
import math

from ..fft.plan import ORDERS
from . import links
from .bench.jobs import JOBS


def count(text):
    """An integer >= 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected an integer >= 1, received {text}")
    return value


def seconds(text):
    """A finite time > 0."""
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected seconds > 0, received {text}")
    return value


def rate(text):
    """A link's rate, as `links.parse_rate` reads it; stays text."""
    try:
        links.parse_rate(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def link(text):
    """A rate, or "shm" for none: shared memory."""
    return None if text == "shm" else rate(text)


def add_workload(parser, jobs=tuple(JOBS)):
    """``workload`` and ``--dtype``."""
    parser.add_argument("workload", choices=jobs, help="; ".join(
        f"{name}: {JOBS[name].title}{JOBS[name].detail}" for name in jobs))
    parser.add_argument("--dtype", help="of real space; default: c16 of transforms, else f8")


def add_size(parser):
    """``--slices`` and ``--shape``."""
    parser.add_argument("--slices", type=count, help="planes, fields, or points in v; default: 64, 1, 32")
    parser.add_argument("--shape", nargs="+", type=count, metavar="N",
                        help="NY NX of a plane (default: 512 512), NZ NY NX of a field, or "
                        "PLANES NKY NKX of the nonlinear term")


def add_layout(parser):
    """``--order`` and ``--grid``."""
    parser.add_argument("--order", choices=ORDERS, default="natural", help="of the spectrum")
    parser.add_argument("--grid", nargs=2, type=count, metavar=("P", "Q"),
                        help="of the ranks, for fft3; default: chosen by the plan")


def add_link(parser):
    """``--link``."""
    parser.add_argument("--link", type=link, default="shm",
                        help="rate of shaped links, or shm (default)")


def add_limits(parser):
    """``--burst`` and ``--deadline``, of each case."""
    parser.add_argument("--burst", type=count, metavar="BYTES", help="as of links")
    parser.add_argument("--deadline", type=seconds, default=600.0, metavar="S",
                        help="for each case")
