"""`Direction`: the common options of all stages and sweeps of a transform."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Direction:
    """The common options of all stages of a transform.

    Attributes
    ----------
    forward : bool
    effort : str or None
        FFTW planning effort.
    turned : int or None
        The axis that the first source (backward) or the last target (forward) has last in memory, if not
        the last one.
    by_index : bool
        A unit is one index of the axis that is cut.
    """

    forward: bool
    effort: str | None
    turned: int | None = None
    by_index: bool = False
