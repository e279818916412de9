"""`generate_xdmf`: XDMF files, by which ParaView and VisIt find the arrays in an HDF5 file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import InputError

Kind = tuple[int, str | None]  # a group of arrays: the number of axes shown, and the part of the array

FILE = """<?xml version="1.0" encoding="utf-8"?>
<Xdmf xmlns:xi="http://www.w3.org/2001/XInclude" Version="2.1">
  <Domain>
    <Grid Name="Structured Grid" GridType="Collection" CollectionType="Temporal">
      <Time TimeType="List"><DataItem Format="XML" Dimensions="{count}"> {times} </DataItem></Time>
{grids}
    </Grid>
  </Domain>
</Xdmf>
"""
GRID = """      <Grid GridType="Uniform">
{geometry}
        <Topology Dimensions="{dimensions}" Type="3D{co}RectMesh"/>
{attributes}
      </Grid>"""
ATTRIBUTE = """        <Attribute Name="{name}" Center="Node">
          <DataItem Format="HDF" NumberType="Float" Precision="{precision}" Dimensions="{dimensions}">
            {file}:/{path}
          </DataItem>
        </Attribute>"""
NUMBERS = """          <DataItem Format="XML" NumberType="Float" Precision="8" Dimensions="{count}">
            {numbers}
          </DataItem>"""


def generate_xdmf(h5filename: str, periodic: bool | Sequence[bool] = True, order: str = "paraview") -> None:
    """Write XDMF files beside an HDF5 file of `HDF5File` (on one rank).

    ``name.xdmf`` shows all whole arrays of 2 or 3 axes at all steps, ``name_slice_4_slice.xdmf`` those parts of
    arrays.

    Parameters
    ----------
    h5filename : str
    periodic : bool or sequence of bool
        Whether the last point of an axis is one spacing before the domain's end.
    order : {"paraview", "visit"}
        VisIt needs the axes of two-dimensional arrays in reverse order.

    Raises
    ------
    InputError
        If an array is complex, or `order` is neither of these.

    Examples
    --------
    >>> from overlap.compat.mpi4py_fft import DistArray, HDF5File, generate_xdmf
    >>> u = DistArray((8, 8, 8), val=1.0)
    >>> file = HDF5File("fields.h5", mode="w")
    >>> file.write(0, {"u": [u]})
    >>> generate_xdmf("fields.h5")
    """
    import h5py

    if order.lower() not in ("paraview", "visit"):
        raise InputError(f"expected order to be 'paraview' or 'visit', received {order!r}")
    with h5py.File(h5filename, "r") as file:
        for kind, steps in _found(file).items():
            names = [name for paths in steps.values() for name in paths]
            shown = _Shown(file, Path(h5filename).name, names[0].split("/")[0], kind, periodic, order.lower())
            grids = [shown.grid(paths) for _, paths in sorted(steps.items())]
            text = FILE.format(count=len(steps), times=" ".join(map(str, sorted(steps))), grids="\n".join(grids))
            stem = h5filename.removesuffix(".h5")
            Path(stem + ("" if kind[1] is None else f"_{kind[1]}") + ".xdmf").write_text(text)


def _found(file: Any) -> dict[Kind, dict[int, list[str]]]:
    """Return the scalar arrays of two and three axes, as a dict: kind (axes, slice or None) -> step -> paths."""
    paths: dict[Kind, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))

    def look(path: str, item: Any) -> None:
        parts = path.split("/")
        if hasattr(item, "shape") and parts[1] in ("2D", "3D") and file[parts[0]].attrs["rank"] == 0:
            if item.dtype.kind == "c":
                raise InputError(f"expected real arrays to show, received {path!r} of {item.dtype}")
            kind = int(parts[1][0]), parts[2] if len(parts) == 4 else None
            paths[kind][int(parts[-1])].append(path)

    file.visititems(look)
    return paths


class _Shown:
    """Arrays of one kind: whole arrays, or the same slice of arrays."""

    def __init__(
        self, file: Any, filename: str, group: str, kind: Kind, periodic: bool | Sequence[bool], order: str
    ) -> None:
        self.file, self.filename, self.group = file, filename, file[group]
        dimensions, name = kind
        axes = ["slice"] * dimensions if name is None else name.split("_")
        shape = [int(length) for length in self.group.attrs["shape"]]
        one_plane = len(axes) == 3 and axes.count("slice") == 2  # a plane, which is shown at its place in space
        self.axes = [axis for axis, item in enumerate(axes) if item == "slice" or one_plane]
        self.at = {axis: int(axes[axis]) for axis in self.axes if axes[axis] != "slice"}
        self.lengths = {axis: 1 if axis in self.at else shape[axis] for axis in self.axes}
        self.spans = {axis: shape[axis] - (not _of_axis(periodic, axis)) for axis in self.axes}
        self.reversed = order == "visit" and len(self.axes) == 2

    def grid(self, paths: Sequence[str]) -> str:
        lengths = [1] * (3 - len(self.axes)) + list(self.lengths.values())
        dimensions = " ".join(map(str, lengths))
        attributes = [
            ATTRIBUTE.format(
                name=path.split("/")[0],
                precision=self.file[path].dtype.itemsize,
                dimensions=dimensions,
                file=self.filename,
                path=path,
            )
            for path in paths
        ]
        mesh = "mesh" in self.group
        return GRID.format(
            geometry=self.mesh() if mesh else self.domain(),
            dimensions=dimensions,
            co="" if mesh else "Co",
            attributes="\n".join(attributes),
        )

    def domain(self) -> str:
        """Return the geometry by origins and spacings."""
        axes = self.axes[::-1] if self.reversed else self.axes
        origins, spacings = [], []
        for axis in axes:
            origin, length = self.group[f"domain/x{axis}"][...]
            spacings.append(length / max(1, self.spans[axis]))
            origins.append(origin + self.at.get(axis, 0) * spacings[-1])
        kind = "ORIGIN_DXDYDZ"[: 7 + 2 * len(axes)]
        return "\n".join(
            [
                f'        <Geometry Type="{kind}">',
                *(
                    NUMBERS.format(count=len(axes), numbers=" ".join(map(repr, map(float, values))))
                    for values in (origins, spacings)
                ),
                "        </Geometry>",
            ]
        )

    def mesh(self) -> str:
        """Return the geometry by coordinates; the fastest axis comes first."""
        axes = self.axes if self.reversed else self.axes[::-1]
        items = [self._coordinates(axis) for axis in axes]
        items += [NUMBERS.format(count=1, numbers=0)] * (3 - len(axes))
        return "\n".join(['        <Geometry Type="VXVYVZ">', *items, "        </Geometry>"])

    def _coordinates(self, axis: int) -> str:
        values = self.group[f"mesh/x{axis}"]
        if axis in self.at:
            return NUMBERS.format(count=1, numbers=float(values[self.at[axis]]))
        return (
            f'          <DataItem Format="HDF" NumberType="Float" Precision="{values.dtype.itemsize}" '
            f'Dimensions="{len(values)}">\n            {self.filename}:{values.name}\n          </DataItem>'
        )


def _of_axis(periodic: bool | Sequence[bool], axis: int) -> bool:
    values = np.asarray(periodic)
    return bool(values[axis] if values.ndim else values)
