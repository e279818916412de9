"""The geometry of a batched 2-D transform on slabs: pure integers.

In real space rows (y) are split over the ranks, in spectral space columns (x). The real-space grid
may be finer than the resolved one (de-aliasing): then only resolved columns are ever exchanged.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .partition import Segments, block, intersect, length_of, mode_segments


@dataclass(frozen=True)
class Slab:
    """Sizes and parts of one plane.

    Parameters
    ----------
    ny, nx : int
        The resolved grid.
    real : bool
        Real-space data are real: the spectrum holds ``nx // 2 + 1`` columns.
    size, rank : int
        The communicator's size, and this rank in it.
    my, mx : int
        The real-space grid, as fine as the resolved one or finer.

    Attributes
    ----------
    columns_all, fine_columns : int
        Columns of the resolved and of the finer grid's spectrum.
    rows, columns : list of slice
        Each rank's rows of the real-space grid and columns of the spectrum.
    row_segments : list of (slice, slice)
        Which rows of the spectrum are which on the finer grid; see `mode_segments`.
    column_segments : list of list of (slice, slice)
        The same for the columns of each rank, the first of each pair relative to the rank's own.
    """

    ny: int
    nx: int
    real: bool
    size: int
    rank: int
    my: int
    mx: int
    columns_all: int = field(init=False)
    fine_columns: int = field(init=False)
    rows: list[slice] = field(init=False)
    columns: list[slice] = field(init=False)
    row_segments: Segments = field(init=False)
    column_segments: list[Segments] = field(init=False)

    def __post_init__(self):
        columns_all = self.nx // 2 + 1 if self.real else self.nx
        columns = block(columns_all, self.size)
        segments = mode_segments(self.nx, self.mx, half=self.real)
        for name, value in (
                ("columns_all", columns_all),
                ("fine_columns", self.mx // 2 + 1 if self.real else self.mx),
                ("rows", block(self.my, self.size)),
                ("columns", columns),
                ("row_segments", mode_segments(self.ny, self.my)),
                ("column_segments", [intersect(part, segments) for part in columns])):
            object.__setattr__(self, name, value)

    @property
    def padded(self) -> bool:
        """Whether the real-space grid is finer than the resolved one."""
        return (self.my, self.mx) != (self.ny, self.nx)

    @property
    def my_rows(self) -> int:
        """This rank's number of rows."""
        return length_of(self.rows[self.rank])

    @property
    def my_columns(self) -> int:
        """This rank's number of columns."""
        return length_of(self.columns[self.rank])
