"""Paths at which there is no file that could be read or replaced."""

import os
from pathlib import Path


def _made(make):
    """Something else is at the path."""

    def at(path):
        make(path)
        return path

    return at


def _below_a_file(path):
    path.write_text("")
    return path / "file"


# What is there -> a function that puts it at a free path, if need be, and returns the path to use.
NO_FILES = {
    "folder": _made(os.mkdir),
    "pipe": _made(os.mkfifo),
    "loop": _made(lambda path: path.symlink_to(path)),
    "device": lambda path: Path("/dev/zero"),
    "NUL": lambda path: Path(f"{path}\0"),
    "surrogate": lambda path: Path(f"{path}\ud800"),
    "no folder": lambda path: path / "file",
    "below a file": _below_a_file,
}
