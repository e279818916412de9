"""Arguments that several commands take: their types, and those of what is measured."""

import argparse
import math

from . import links
from .bench.cases import JOBS


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


def add_workload(parser):
    """``workload`` and ``--dtype``."""
    parser.add_argument("workload", choices=JOBS, help="; ".join(
        f"{name}: {job.title}" for name, job in JOBS.items()))
    parser.add_argument("--dtype", help="of real space; default: c16, and f8 for the operation")


def add_size(parser):
    """``--slices`` and ``--shape``."""
    parser.add_argument("--slices", type=count, default=64)
    parser.add_argument("--shape", nargs=2, type=count, default=(512, 512), metavar=("NY", "NX"))


def add_link(parser):
    """``--link``."""
    parser.add_argument("--link", type=link, default="shm",
                        help="rate of shaped links, or shm (default)")


def add_limits(parser):
    """``--burst`` and ``--deadline``, of each case."""
    parser.add_argument("--burst", type=count, metavar="BYTES", help="as of links")
    parser.add_argument("--deadline", type=seconds, default=600.0, metavar="S",
                        help="for each case")
