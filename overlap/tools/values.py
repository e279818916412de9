"""Functions that read the values of arguments. They import neither MPI nor plans, so a program can begin early."""

from __future__ import annotations

import argparse
import math
import os

from .. import files
from . import links


def count(text: str) -> int:
    """Read an integer >= 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected an integer >= 1, received {text}")
    return value


def output(text: str) -> str:
    """Check before anything is measured that a file can be written; return its name."""
    if problem := files.unwritable(text):
        raise argparse.ArgumentTypeError(f"cannot write {text}: {problem}")
    return text


def folder(text: str) -> str:
    """Check before anything is measured that files can be written to a folder, or that it can be made."""
    there = os.path.abspath(text)
    while not os.path.lexists(there):
        there = os.path.dirname(there)
    if not os.path.isdir(there) or not os.access(there, os.W_OK | os.X_OK):
        raise argparse.ArgumentTypeError(
            f"cannot write to a folder {text}: {there} is no folder that can be written to"
        )
    return text


def seconds(text: str) -> float:
    """Read a finite time > 0."""
    return _positive(text, "seconds")


def speed(text: str) -> float:
    """Read a finite speed > 0, in any unit."""
    return _positive(text, "a speed")


def _positive(text: str, what: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected {what} > 0, received {text}")
    return value


def slow_rank(text: str) -> tuple[int, float]:
    """Read ``RANK:SHARE``, a rank and the share of its core that it keeps."""
    rank, _, share = text.partition(":")
    return int(rank), float(share)


def rate(text: str) -> str:
    """Check a link's rate, in the format of `links.parse_rate`; return it as text."""
    try:
        links.parse_rate(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def link(text: str) -> str | None:
    """Check a link's rate; return None for "shm", shared memory."""
    return None if text == "shm" else rate(text)
