"""`Output`: fields at several times in one HDF5 file, for pictures and restarts.

One rank writes. A field is sent to this rank in pieces (`FieldPieces`): while the rank writes one piece it receives
the next ones, and it never holds more than a few. So writing works with every h5py and every file system, and a step is
in the file wholly or not at all (`hdf5_file`), which HDF5's own parallel writing does not guarantee.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from math import prod
from operator import index as as_integer
from pathlib import Path
from typing import Any, Literal

import numpy as np
from mpi4py import MPI
from numpy.typing import ArrayLike

from ..arrays import DistArray, pieces
from ..arrays.distribution import overlapping, parts_problem, within
from ..arrays.exchange import dtype_sent, exchange_problem, rounded
from ..arrays.hdf5_storage import Axes, axes_of, hdf5, reading
from ..arrays.layout import Box, box_shape
from ..ranks.interrupts import holding_signals
from ..ranks.resource import marked_call
from ..runtime import Pipeline, Runtime
from ..runtime.on_runtime import OnRuntime
from . import hdf5_file, problems
from .problems import STEP, TIME, Stored

DEPTH = 4  # pieces in flight


def count(box: Box) -> int:
    """Count the elements of a box."""
    return prod(box_shape(box))


class FieldPieces:
    """The fields of one step, cut into pieces that are sent to the file's rank."""

    def __init__(
        self,
        arrays: Mapping[str, DistArray],
        stored: Mapping[str, Stored],
        held: Mapping[str, list[Box | None]],  # their `pieces.holders`
        file: Any,  # on rank 0: pieces are stored at the end of the first axis of the data sets
        exchange: str | None,
    ) -> None:
        self._arrays, self._held, self._file, self._exchange = arrays, held, file, exchange
        self._dtypes = {name: np.dtype(stored[name].dtype) for name in arrays}
        self.pieces = [
            (name, box) for name in arrays for box in pieces.boxes(stored[name].shape, self._dtypes[name].itemsize)
        ]

    def parts(self, piece: tuple[str, Box]) -> list[Box | None]:
        """Return the part of a piece that each rank sends."""
        name, box = piece
        return [None if held is None else overlapping(box, held) for held in self._held[name]]

    def counts(self, piece: tuple[str, Box]) -> list[int]:
        """Return the number of bytes of a piece that each rank sends."""
        size = self._dtypes[piece[0]].itemsize
        return [0 if part is None else size * count(part) for part in self.parts(piece)]

    def pack(self, piece: tuple[str, Box], rank: int, buffer: np.ndarray) -> None:
        """Copy this rank's part of a piece into the send buffer."""
        name, part = piece[0], self.parts(piece)[rank]
        if part is not None:
            array, dtype = self._arrays[name], self._dtypes[name]
            sent = np.asarray(array)[within(part, array.local_slice)]
            rounding = self._exchange if dtype.itemsize < sent.dtype.itemsize else None
            _view(buffer, dtype, part)[...] = rounded(sent, rounding)

    def store(self, piece: tuple[str, Box], received: np.ndarray, buffer: np.ndarray) -> None:
        """Write a piece to the file."""
        name, box = piece
        dtype, start = self._dtypes[name], 0
        whole = _view(buffer, dtype, box)
        for part in self.parts(piece):
            if part is not None:
                whole[within(part, box)] = _view(received[start:], dtype, part)
                start += dtype.itemsize * count(part)
        self._file[name][(-1, *box)] = whole


def _view(buffer: np.ndarray, dtype: np.dtype, box: Box) -> np.ndarray:
    """Return the beginning of a buffer as an array with the shape of a box."""
    return buffer[: dtype.itemsize * count(box)].view(dtype).reshape(box_shape(box))


def to_rank_0(runtime: Runtime) -> Pipeline:
    """Make the pipeline that brings pieces to rank 0 and writes them; call it with the pieces and `FieldPieces`."""
    comm = runtime.comm
    rank = comm.rank

    def buffers() -> list[np.ndarray]:
        return [np.empty(pieces.PIECE_NBYTES, np.uint8) for _ in range(1 if rank else 3)]

    def gathering(piece: tuple[str, Box], slot: list[np.ndarray], fields: FieldPieces) -> Any:
        counts = fields.counts(piece)
        return comm.Gatherv([slot[0], counts[rank], MPI.BYTE], None if rank else [slot[1], counts, MPI.BYTE], 0)

    async def program(piece: tuple[str, Box], slot: list[np.ndarray], fields: FieldPieces) -> None:
        fields.pack(piece, rank, slot[0])
        await gathering(piece, slot, fields)
        if rank == 0:
            fields.store(piece, slot[1], slot[2])

    return runtime.pipelined(program, buffers=buffers, skeleton=gathering, depth=DEPTH)


class Output(OnRuntime):
    """Fields at several times in one HDF5 file: written step by step, and read on any number of ranks.

    Making one, and every method, is collective.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm or Runtime
        The ranks over which the fields are distributed; for a plan ``plan.runtime``. From a communicator the output
        makes a runtime of its own.
    path : path
        Rank 0 writes it; all ranks must see it to read.
    mode : {"r", "w", "a"}
        "r" reads. "w" writes a new file, which replaces an old one with its first step. "a" appends to a file, or
        writes a new one if there is none. Steps can be read in every mode.
    attrs : dict, optional
        Numbers, texts and arrays that become attributes of a new file.
    dims : dict of str to sequence of str, optional
        Names of the axes of the fields that have some, in a new file: ``{"u": ("z", "y", "x")}``. By default
        ``u_axis_0``, ...
    coords : dict of str to array_like, optional
        Coordinates along the axes of these names, global.
    exchange : {None, "f4"}
        ``"f4"``: doubles travel, and are stored, as singles.

    Attributes
    ----------
    steps : list of int
        Those that are in the file, in increasing order.
    times : list of float
    fields : dict of str to Stored
    attrs : dict
        The attributes of the file.
    path : pathlib.Path
        Absolute, from the working directory that rank 0 has when the output is made.

    Raises
    ------
    InputError
        On all ranks: bad arguments, or such that differ; h5py is not installed.
    RankError
        On all ranks: the file cannot be opened, or is none that an `Output` has written.

    Notes
    -----
    The file has a data set for every field, whose first axis is the time, and ``time`` and ``step`` along it; all axes
    have names, as in netCDF-4, so h5py and xarray open it.

    A step is written behind the end of the file, where no reader looks. When it is on the disk, the few places that
    lead to it are changed. If the job dies before this change, the file has its earlier steps. If it dies during the
    change, a file ``path.undo`` remains, and the next `Output` of the file restores the earlier steps.

    Examples
    --------
    >>> with overlap.FFT2(comm, (4, 8, 8), dtype="f8") as plan:
    ...     u = plan.real.from_function(lambda y, x: np.sin(x))
    ...     with overlap.Output(plan.runtime, "run.h5", "w", attrs={"viscosity": 0.01}) as output:
    ...         output.write({"u": u, "energy": 0.5}, step=0, time=0.0)
    ...         output.write({"u": 2 * u, "energy": 2.0}, step=10, time=0.1)
    ...     with overlap.Output(plan.runtime, "run.h5") as output:
    ...         output.steps, output.read({"u": u}, step=10)
    ([0, 10], {'step': 10, 'time': 0.1, 'energy': 2.0})
    """

    _kind, _named = "Output", "an Output"

    @holding_signals
    def __init__(
        self,
        comm: MPI.Intracomm | Runtime,
        path: str | os.PathLike[str],
        mode: Literal["r", "w", "a"] = "r",
        *,
        attrs: Mapping[str, Any] | None = None,
        dims: Mapping[str, Sequence[str]] | None = None,
        coords: Mapping[str, ArrayLike] | None = None,
        exchange: str | None = None,
    ) -> None:
        super().__init__(comm)
        rt = self.runtime
        self._pipeline: Pipeline | None = None
        self.steps: list[int] = []
        self.times: list[float] = []
        self.fields: dict[str, Stored] = {}
        self.attrs: dict[str, Any] = {}
        with rt.collective_section("opening an Output", self.close):
            rt.preflight(
                problems.opening_problem(path, mode, attrs, dims, coords) or exchange_problem(exchange),
                path=problems.shown(path),
                mode=problems.shown(mode),
                attrs=repr(attrs),
                dims=repr(dims),
                coords=repr(coords),
                exchange=exchange,
            )
            hdf5()
            self.mode, self.exchange = mode, exchange
            self._dims = {name: tuple(names) for name, names in (dims or {}).items()}
            self._coords = {name: np.asarray(values) for name, values in (coords or {}).items()}
            found: Any = None
            if rt.coordinator.rank == 0:
                own_path = Path(path).absolute()  # the working directory may change, or be another one on other ranks
                found = own_path, hdf5_file.known(own_path, mode)
            self.path, known = rt.coordinator.bcast(found)
            if known is not None:
                self.steps, self.times, self.fields, self.attrs = known
            else:
                self.attrs = dict(attrs or {})

    # ---- the end -----------------------------------------------------------------------------

    def close(self) -> None:
        """Free the buffers, and the runtime if the output made it (collective); the file is already complete."""
        super().close()

    def _release(self, closing: ExitStack) -> None:
        self._pipeline = None

    def check_open(self) -> None:
        """Raise a `ClosedError` after `close`."""
        self._check_in_use()

    def _title(self) -> str:
        return f"Output {str(self.path)!r}: {len(self.steps)} step(s) of {', '.join(self.fields) or 'nothing'}"

    # ---- writing -----------------------------------------------------------------------------

    @marked_call
    @holding_signals
    def write(self, fields: Mapping[str, DistArray | complex], *, step: int, time: float) -> None:
        """Append a step (collective).

        Parameters
        ----------
        fields : dict of str to DistArray or number
            Fields and numbers by name: the same names, shapes and types in every step of a file. Numbers must be the
            same on all ranks.
        step : int
            Number of the step, larger than that of the step before.
        time : float

        Raises
        ------
        InputError
            On all ranks: bad arguments, or arguments that differ between ranks.
        RankError
            On all ranks, if the file cannot be written, for instance because the disk is full or because another
            `Output` has changed it since this one was opened; it keeps its earlier steps.
        SliceError
            Also with ``exchange="f4"``, if a finite number is larger than 3.4e38.
        RankLost
            With a runtime that survives losses. The file keeps its earlier steps; open it again with the runtime of the
            ranks that are left.
        """
        self.check_open()
        rt = self.runtime
        problem = self._writing_problem(fields, step, time)
        arrays: dict[str, DistArray] = {}
        like: dict[str, Stored] = {}
        if problem is None:
            arrays = {name: value for name, value in fields.items() if isinstance(value, DistArray)}
            like = self._like(fields)
        numbers = {name: repr(fields[name]) for name in like if name not in arrays}
        rt.preflight(
            problem,
            path=str(self.path),
            step=problems.shown(step),
            time=problems.shown(time),
            fields=list(like.items()),
            numbers=numbers,
        )
        held = self._holders(arrays)
        if self._pipeline is None:
            self._pipeline = to_rank_0(rt)
        with ExitStack() as stack:
            file: Any = None
            with self._one_error("opening the file of an Output"):
                if rt.coordinator.rank == 0:
                    file = stack.enter_context(
                        hdf5_file.changed(self.path, self.steps)
                        if self.steps
                        else hdf5_file.created(self.path, self.mode, like, self._axes, self.attrs, self.exchange)
                    )
                    hdf5_file.extend(file, len(self.steps), {**fields, STEP: step, TIME: time})
            moving = FieldPieces(arrays, like, held, file, self.exchange)
            self._pipeline(moving.pieces, moving)
            with self._one_error("writing the file of an Output"):
                stack.pop_all().close()
        self.steps.append(as_integer(step))
        self.times.append(float(time))
        self.fields = like

    def _writing_problem(self, fields: Any, step: Any, time: Any) -> str | None:
        """Return what is wrong with a step that is to be written, or None."""
        problem = (
            self._mode_problem()
            or problems.step_problem(step)
            or problems.time_problem(time)
            or problems.fields_problem(fields, self.runtime.comm.source, True)
        )
        if problem is not None:
            return problem
        like = self._like(fields)
        if not self.steps:
            return problems.layout_problem(like, self._axes)
        if step <= self.steps[-1]:
            return (
                f"expected a step after {self.steps[-1]}, the last one of {str(self.path)!r}, received {step}: "
                "see Output.truncate"
            )
        if like != self.fields:
            return f"expected the fields {problems.listed(self.fields)}, received {problems.listed(like)}"
        return None

    def _like(self, fields: Mapping[str, Any]) -> dict[str, Stored]:
        """Return the shape and type with which each field is stored."""
        stored = {}
        for name, value in fields.items():
            dtype, shape = np.asarray(value).dtype, value.global_shape if isinstance(value, DistArray) else ()
            doubles = dtype in (np.float64, np.complex128) and shape
            stored[name] = Stored(shape, dtype_sent(dtype, self.exchange if doubles else None).newbyteorder("=").str)
        return stored

    def _holders(self, arrays: Mapping[str, DistArray]) -> dict[str, list[Box | None]]:
        """Return the part of each field that every rank sends (collective); raise an `InputError` on all ranks if the
        parts do not make up the array."""
        everyone = self.runtime.coordinator.allgather([array.local_slice for array in arrays.values()])
        holders, problem = {}, None
        for number, (name, array) in enumerate(arrays.items()):
            parts = [boxes[number] for boxes in everyone]
            holders[name] = pieces.holders(parts)
            if problem is None and (problem := parts_problem(parts, array.global_shape)):
                problem = f"{name}: {problem}"
        self.runtime.preflight(problem)
        return holders

    def _axes(self, name: str, shape: tuple[int, ...]) -> Axes:
        """Return names and coordinates of the axes of a field."""
        names = self._dims.get(name, [f"{name}_axis_{axis}" for axis in range(len(shape))])
        return axes_of(shape, name, names, {axis: self._coords[axis] for axis in names if axis in self._coords})

    @marked_call
    @holding_signals
    def truncate(self, step: int) -> None:
        """Remove the steps after `step` (collective), because a run that continues from `step` writes them again.

        Parameters
        ----------
        step : int

        Raises
        ------
        InputError, RankError
            As for `write`; also if every step of the file comes after `step`.
        """
        self.check_open()
        problem = self._mode_problem() or problems.step_problem(step)
        if problem is None and not (self.steps and self.steps[0] <= step):
            problem = f"expected a step that keeps one of {problems.series(self.steps)}, received {step}"
        self.runtime.preflight(problem, path=str(self.path), step=problems.shown(step))
        count = sum(written <= step for written in self.steps)
        with self._one_error("truncating the file of an Output"):
            if self.runtime.coordinator.rank == 0 and count < len(self.steps):
                with hdf5_file.changed(self.path, self.steps) as file:
                    for name in (TIME, STEP, *self.fields):
                        file[name].resize(count, 0)
        del self.steps[count:], self.times[count:]

    # ---- reading -----------------------------------------------------------------------------

    @marked_call
    @holding_signals
    def read(self, fields: Mapping[str, DistArray], step: int | None = None) -> dict[str, Any]:
        """Fill fields with those of a step (collective), on any number of ranks.

        Every rank reads its own part.

        Parameters
        ----------
        fields : dict of str to DistArray
            Some or all of the fields in the file, distributed in any way.
        step : int, optional
            One of `steps`; the last one by default.

        Returns
        -------
        dict
            The ``"step"``, its ``"time"``, and the numbers that were written with it, by name.

        Raises
        ------
        InputError
            On all ranks, if there is no such step or field, if its shape differs, or if digits of its type would be
            lost.
        RankError
            On all ranks, if any rank cannot read the file, or if the step is not where it was when this `Output` was
            opened.
        """
        self.check_open()
        problem = self._reading_problem(fields, step)
        self.runtime.preflight(
            problem,
            path=str(self.path),
            step=problems.shown(step),
            names=None if problem is not None else sorted(fields),
        )
        index = len(self.steps) - 1 if step is None else self.steps.index(step)
        values: dict[str, Any] = {"step": self.steps[index], "time": self.times[index]}
        with self._one_error("reading the file of an Output"), reading(self.path) as file:
            hdf5_file.check_step(file, self.path, index, self.steps)
            for name, array in fields.items():
                local = np.asarray(array)
                for box in pieces.boxes(local.shape, local.itemsize):
                    local[box] = file[name][(index, *pieces.shifted(box, array.local_slice))]
            values |= {name: file[name][index].item() for name, stored in self.fields.items() if not stored.shape}
        return values

    def _reading_problem(self, fields: Any, step: Any) -> str | None:
        """Return what is wrong with fields that are to be read, or None."""
        problem = problems.fields_problem(fields, self.runtime.comm.source, False)
        if problem is None and step is not None:
            problem = problems.step_problem(step)
        if problem is not None:
            return problem
        if not self.steps or (step is not None and step not in self.steps):
            return f"expected a step of {str(self.path)!r}, which has {problems.series(self.steps)}, received {step}"
        refusals = (problems.stored_problem(field, name, self.fields, self.path) for name, field in fields.items())
        return next(filter(None, refusals), None)

    @contextmanager
    def _one_error(self, what: str) -> Iterator[None]:
        """Run a `with` block that may fail on some ranks, and then raise on all; other ranks wait for a slow disk
        without a deadline."""
        error: Exception | None = None
        try:
            yield
        except Exception as failure:
            error = failure
        self.runtime.enter(what, {}, error)

    def _mode_problem(self) -> str | None:
        if self.mode == "r":
            return f"expected an Output with mode 'w' or 'a', received one of {str(self.path)!r} with mode 'r'"
        return None
