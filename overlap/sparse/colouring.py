"""Orders of elimination with many independent rows: the graph of the matrix is coloured so that neighbours differ."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..compiled import njit


def colours_of(starts: np.ndarray, columns: np.ndarray, wanted: int | None) -> np.ndarray:
    """Choose the colour of each row of a matrix with a symmetric pattern, from 0 on.

    Parameters
    ----------
    starts, columns : ndarray
        Compressed rows, with local columns only.
    wanted : int or None
        Colours of a cyclic reverse Cuthill-McKee order (CM-RCM): the levels of a breadth-first search, numbered from
        the last one, take the colours in turn; at most as many as there are levels. If two rows of a level are
        neighbours, or with None, each row in turn takes the first colour that no neighbour has: two colours for a
        7-point stencil, eight for 27 points.
    """
    if wanted is not None:
        levels = _levels(starts, columns)
        colours = (levels.max(initial=0) - levels) % max(2, min(wanted, int(levels.max(initial=0)) + 1))
        if _proper(starts, columns, colours):
            return colours
    return _greedy(starts, columns)


@njit
def _greedy(starts: Any, columns: Any) -> Any:
    """Give each row the first colour that no earlier neighbour has."""
    rows = len(starts) - 1
    colour = np.full(rows, -1, np.int64)
    taken = np.full(rows + 1, -1, np.int64)  # for each colour, the last row that has a neighbour of this colour
    for row in range(rows):
        for entry in range(starts[row], starts[row + 1]):
            neighbour_colour = colour[columns[entry]]
            if neighbour_colour >= 0:
                taken[neighbour_colour] = row
        chosen = 0
        while taken[chosen] == row:
            chosen += 1
        colour[row] = chosen
    return colour


@njit
def _levels(starts: Any, columns: Any) -> Any:
    """Return the levels of a breadth-first search from a row at the border of the graph, for each connected part."""
    rows = len(starts) - 1
    level = np.full(rows, -1, np.int64)
    queue = np.empty(rows, np.int64)
    for root in range(rows):
        if level[root] >= 0:
            continue
        begin = root
        for attempt in range(2):  # the row that a first search reaches last lies at the border: search again from it
            first, last = 0, 1
            queue[0] = begin
            level[begin] = 0
            while first < last:
                row = queue[first]
                first += 1
                for entry in range(starts[row], starts[row + 1]):
                    column = columns[entry]
                    if level[column] < 0:
                        level[column] = level[row] + 1
                        queue[last] = column
                        last += 1
            begin = queue[last - 1]
            if attempt == 0:
                for place in range(last):
                    level[queue[place]] = -1
    return level


@njit
def _proper(starts: Any, columns: Any, colour: Any) -> Any:
    """Return whether no two neighbours have the same colour."""
    for row in range(len(starts) - 1):
        for entry in range(starts[row], starts[row + 1]):
            if columns[entry] != row and colour[columns[entry]] == colour[row]:
                return False
    return True
