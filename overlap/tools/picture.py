"""Writes matplotlib's figures to files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from .. import files


def save(figure: Any, path: str | os.PathLike[str], dpi: int = 130) -> None:
    """Write a `matplotlib.figure.Figure` to a file, whole or not at all; the suffix chooses the format, by default PNG.

    Raises
    ------
    ValueError
        Matplotlib has no format for the suffix.
    OSError
        The file cannot be written.
    """
    with files.replacing(path) as partial:
        figure.savefig(partial, dpi=dpi, format=Path(path).suffix.removeprefix(".") or "png")
