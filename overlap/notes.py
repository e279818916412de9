"""Lines on standard error about what would make a program faster, each printed once."""

from __future__ import annotations

import os
import sys

NOTES_VARIABLE = "OVERLAP_NOTES"
_printed: set[str] = set()


def note(text: str) -> None:
    """Print a line, once in this process; nothing if the environment variable OVERLAP_NOTES is empty."""
    if text not in _printed and os.environ.get(NOTES_VARIABLE) != "":
        _printed.add(text)
        print(f"overlap: {text}", file=sys.stderr, flush=True)
