"""Draw which rank holds what, for each layout: the plans themselves say it, on four ranks.

mpiexec -n 4 python docs/draw/layouts.py docs/ideas
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import mpi4py

mpi4py.rc.thread_level = "serialized"
from mpi4py import MPI
from svg import COLOURS, PAPER, Picture, darker, lighter

import overlap

RANKS = 4
QUICK = {"wait": "off", "effort": "estimate"}  # nothing is transformed: the plans are only asked
Box = tuple[slice, ...]

# File, kind of plan, shape, data type, layout, the names of the spectrum's axes.
PLANS: tuple[tuple[str, Any, tuple[int, ...], str, dict[str, Any], str], ...] = (
    ("fft2", overlap.FFT2, (3, 8, 8), "c16", {}, "z y x"),
    ("fft2_half", overlap.FFT2, (3, 8, 8), "f8", {}, "z y x"),
    ("fft2_transposed", overlap.FFT2, (3, 8, 8), "c16", {"order": "transposed"}, "z x y"),
    ("fft2_restored", overlap.FFT2, (3, 8, 8), "c16", {"restore": True}, "z y x"),
    ("fft2_weights", overlap.FFT2, (3, 8, 8), "c16", {"weights": (3, 2, 2, 1)}, "z y x"),
    ("fft3_slab_z", overlap.FFT3, (8, 8, 8), "c16", {"grid": (1, 4)}, "z y x"),
    ("fft3_slab_y", overlap.FFT3, (8, 8, 8), "c16", {"grid": (4, 1)}, "z y x"),
    ("fft3_pencil", overlap.FFT3, (8, 8, 8), "c16", {"grid": (2, 2)}, "z y x"),
    ("fft3_pencil_transposed", overlap.FFT3, (8, 8, 8), "c16", {"grid": (2, 2), "order": "transposed"}, "y x z"),
    ("fft3_pencil_restored", overlap.FFT3, (8, 8, 8), "c16", {"grid": (2, 2), "restore": True}, "z y x"),
    ("fft3_pencil_weights", overlap.FFT3, (8, 8, 8), "c16", {"grid": (2, 2), "weights": (3, 2, 2, 1)}, "z y x"),
)

SCALE, DEPTH = 17.0, (8.0, -6.5)  # of a point along x and y; along z, into the page


class Solid:
    """An array of three axes in oblique projection: the last axis to the right, the one before down, the first back."""

    def __init__(self, picture: Picture, left: float, top: float, shape: tuple[int, ...], apart: float) -> None:
        self.picture, self.shape, self.apart = picture, shape, apart
        self.left, self.top = left, top - DEPTH[1] * shape[0] * apart

    def at(self, z: float, y: float, x: float) -> tuple[float, float]:
        """Return where a corner of a point is drawn."""
        return (
            self.left + SCALE * x + DEPTH[0] * self.apart * z,
            self.top + SCALE * y + DEPTH[1] * self.apart * z,
        )

    def draw(self, boxes: list[Box], names: str) -> None:
        """Draw the box of every rank; those behind first."""
        pieces = []
        for rank, (z, y, x) in enumerate(boxes):
            if z.start < z.stop and y.start < y.stop and x.start < x.stop:
                planes = range(z.start, z.stop) if self.apart > 1 else [z.start]
                for plane in planes:
                    end = plane + 0.35 if self.apart > 1 else z.stop
                    pieces.append((-plane, -y.start, x.start, rank, (plane, end), y, x))
        for *_, rank, z, y, x in sorted(pieces, key=lambda piece: piece[:3]):
            self._piece(rank, z, y, x)
        depth, height, width = self.shape
        first, down, right = names.split()
        x, y = self.at(0, height, width / 2)
        self.picture.text(x, y + 15, f"{right} →", size=11)
        x, y = self.at(0, height / 2, 0)
        self.picture.text(x - 12, y + 4, f"{down} ↓", size=11)
        x, y = self.at(depth / 2, height, width)
        self.picture.text(x + 10, y + 7, f"↗ {first}", size=11, anchor="start")

    def _piece(self, rank: int, z: tuple[float, float], y: slice, x: slice) -> None:
        colour, gap = COLOURS[rank], 0.12
        (z0, z1), y0, y1, x0, x1 = z, y.start + gap / 2, y.stop - gap / 2, x.start + gap / 2, x.stop - gap / 2
        if self.apart == 1:
            z0, z1 = z0 + gap, z1 - gap
        faces = {
            "front": ([(z0, y0, x0), (z0, y0, x1), (z0, y1, x1), (z0, y1, x0)], colour),
            "top": ([(z0, y0, x0), (z0, y0, x1), (z1, y0, x1), (z1, y0, x0)], lighter(colour, 0.35)),
            "right": ([(z0, y0, x1), (z0, y1, x1), (z1, y1, x1), (z1, y0, x1)], darker(colour, 0.2)),
        }
        for corners, fill in faces.values():
            self.picture.polygon([self.at(*corner) for corner in corners], fill, "#444444", 0.6)
        # The number stands on a face that no other piece covers.
        face = "front" if z0 < 0.5 else "top" if y0 < 0.5 else "right"
        places = [self.at(*corner) for corner in faces[face][0]]
        across, down = (sum(place[axis] for place in places) / 4 for axis in (0, 1))
        if self.apart == 1 or z0 < 0.5:
            self.picture.text(across, down + 4, str(rank), size=12 if face == "front" else 10, bold=True)


def words_of(spec: Any) -> str:
    """Return the global shape as text."""
    return f"({', '.join(map(str, spec.global_shape))})"


def draw_plan(plan: Any, boxes: list[tuple[Box, Box]], names: str) -> Picture:
    """Draw a plan's arrays of real space and of the spectrum.

    Parameters
    ----------
    plan : FFT2 or FFT3
    boxes : list of (Box, Box)
        What each rank holds of both.
    names : str
        The names of the spectrum's axes, in their order.
    """
    apart = 3.0 if plan.real.dimensions == 2 else 1.0
    picture = Picture(560, 268)
    for left, title, spec, parts, axes in (
        (48.0, "plan.real", plan.real, [real for real, _ in boxes], "z y x"),
        (318.0, "plan.spectrum", plan.spectrum, [spectral for _, spectral in boxes], names),
    ):
        Solid(picture, left, 32, spec.global_shape, apart).draw(parts, axes)
        picture.text(left + 66, 20, f"{title}  {words_of(spec)}", size=12, bold=True)
    picture.arrow((252, 134), (288, 134), "forward")
    for rank in range(len(boxes)):
        picture.box(170 + 56 * rank, 248, 12, 12, COLOURS[rank])
        picture.text(187 + 56 * rank, 258, f"rank {rank}", size=11, anchor="start")
    return picture


def draw_blocks(blocks: overlap.Blocks) -> Picture:
    """Draw the local arrays of a two-dimensional grid of ranks; a ghost cell has the colour of its owner."""
    cell, picture = 19.0, Picture(560, 284)
    owner = {}
    for rank in range(blocks.size):
        y, x = blocks.part(rank)
        owner.update({(row, column): rank for row in range(y.start, y.stop) for column in range(x.start, x.stop)})
    rows, columns = blocks.shape
    for row in range(rows):
        for column in range(columns):
            picture.box(30 + cell * column, 60 + cell * row, cell, cell, COLOURS[owner[row, column]], "#666666")
    picture.text(30 + cell * columns / 2, 20, f"the global array  ({rows}, {columns})", bold=True)
    picture.text(370, 20, "what each rank holds, ghost cells pale", bold=True)
    for rank in range(blocks.size):
        part, (height, width) = blocks.part(rank), blocks.local_shape(rank)
        left = 270 + (width + 0.8) * cell * (part[1].start > 0)
        top = 34 + (height + 0.8) * cell * (part[0].start > 0)
        filled = {
            (row, column)
            for neighbour in blocks.neighbours(rank)
            for row in range(neighbour.receive[0].start, neighbour.receive[0].stop)
            for column in range(neighbour.receive[1].start, neighbour.receive[1].stop)
        }
        own_rows, own_columns = blocks.own(rank)
        for row in range(height):
            for column in range(width):
                place = row - own_rows.start + part[0].start, column - own_columns.start + part[1].start
                own = own_rows.start <= row < own_rows.stop and own_columns.start <= column < own_columns.stop
                fill = PAPER
                if own:
                    fill = COLOURS[rank]
                elif (row, column) in filled:
                    fill = lighter(COLOURS[owner[place]], 0.6)
                picture.box(left + cell * column, top + cell * row, cell, cell, fill, "#666666")
        picture.text(left + cell * width / 2, top + cell * height / 2 + 5, str(rank), size=14, bold=True)
    return picture


def pictures(comm: MPI.Intracomm) -> dict[str, str]:
    """Return all pictures by the name of their file, on rank 0; nothing elsewhere (collective).

    Raises
    ------
    InputError
        On all ranks, when there are not four of them.
    """
    if comm.size != RANKS:
        raise overlap.InputError(f"expected {RANKS} ranks, which the pictures show, received {comm.size}")
    found = {}
    with overlap.Runtime(comm) as runtime:
        for name, kind, shape, dtype, layout, names in PLANS:
            with kind(runtime, shape, dtype, layout=layout, settings=QUICK) as plan:
                boxes = comm.gather((plan.real.local_slice, plan.spectrum.local_slice))
                if boxes is not None:
                    found[f"{name}.svg"] = str(draw_plan(plan, boxes, names))
    if comm.rank == 0:
        found["blocks.svg"] = str(draw_blocks(overlap.Blocks((8, 8), grid=(2, 2))))
    return found


def main() -> None:
    """Write the pictures to the folder that the command line names."""
    for name, text in pictures(MPI.COMM_WORLD).items():
        Path(sys.argv[1], name).write_text(text)


if __name__ == "__main__":
    main()
