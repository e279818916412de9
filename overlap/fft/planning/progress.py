"""A line on the terminal while plans are measured: who waits for seconds is told for what."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from .candidates import Tunable


@contextmanager
def progress_line(transform: Tunable) -> Iterator[None]:
    """Meanwhile rank 0 shows what is measured, if it writes to a terminal."""
    shown = transform.runtime.control.rank == 0 and sys.stderr.isatty()
    text = f"overlap: measuring {transform.name} ..."
    if shown:
        print(text, end="\r", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if shown:
            print(" " * len(text), end="\r", file=sys.stderr, flush=True)
