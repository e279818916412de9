"""Programs: the memory operations of a sweep, written once and executed many times without the GIL.

A `View` describes an array without its address: shape, strides, type, and its offset from the start of a base. Bases (a
source, a target, a message, scratch memory, ...) are passed as addresses when a program is executed
(`compiled.execute`). So a program serves every field, slot and worker. An `ArrayReference` has an array's address, and
`Buffers` are those of a slot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...compiled import copy_table
from ...compiled.copy_table import bits_of, box_lines, converting, instruction, strides_of
from ...compiled.execute import ADD, CALL, REPEAT, ZERO
from ...compiled.memory import address_of
from ...runtime.loop.words import BASES, RECEIVE, SEND
from .fftw import ALIGNMENT, REQUIRED_ALIGNMENT
from .lines import LineTransform

GAP_NBYTES = 96  # between lines in scratch memory


@dataclass(frozen=True)
class View:
    """An array at an offset from the start of a base."""

    base: int  # number of the base
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in bytes
    dtype: np.dtype
    offset: int = 0  # bytes from the start of the base
    step: int = 0  # bytes by which it moves on with every turn of a repetition
    aligned: bool = True  # the base is aligned as FFTW requires
    spare: bool = False  # the data are read only once, and may be overwritten by the reader
    # If not 0, doubles that are copied to the view are rounded to singles, and the word at this address becomes 1 if
    # one of them is too large.
    rounding: int = 0

    @classmethod
    def of(cls, base: int, array: np.ndarray) -> View:
        """Return the view of an array that is at the start of a base."""
        return cls(base, array.shape, array.strides, array.dtype)

    @classmethod
    def contiguous(cls, base: int, shape: tuple[int, ...], dtype: np.dtype, first: int = 0) -> View:
        """Make a C-contiguous view, `first` elements after the start of the base."""
        return cls(base, tuple(shape), strides_of(shape, dtype.itemsize), dtype, first * dtype.itemsize)

    @classmethod
    def of_lines(cls, base: int, shape: tuple[int, ...], axis: int, dtype: np.dtype) -> View:
        """Make a view with contiguous lines along an axis and a gap after each.

        Without the gaps, lines whose length is a power of two would compete for the same places in the cache.
        """
        other_lengths = shape[:axis] + shape[axis + 1 :]
        line = -(-shape[axis] * dtype.itemsize // REQUIRED_ALIGNMENT) * REQUIRED_ALIGNMENT
        strides = strides_of(other_lengths, line + GAP_NBYTES)
        return cls(base, tuple(shape), (*strides[:axis], dtype.itemsize, *strides[axis:]), dtype)

    @property
    def nbytes(self) -> int:
        """Return the bytes from the first element to the end of the last one."""
        if 0 in self.shape:
            return 0
        return sum((count - 1) * stride for count, stride in zip(self.shape, self.strides)) + self.dtype.itemsize

    @property
    def size(self) -> int:
        """Return the number of elements."""
        return int(np.prod(self.shape, dtype=int))

    def __getitem__(self, where: slice | tuple[slice, ...]) -> View:
        """Return the part that slices select, one per axis from the first one on."""
        where = where if isinstance(where, tuple) else (where,)
        shape, offset = list(self.shape), self.offset
        for axis, selection in enumerate(where):
            start, stop, _ = selection.indices(self.shape[axis])
            shape[axis] = max(0, stop - start)
            offset += start * self.strides[axis]
        part = object.__new__(View)  # like `replace`, but three times as fast: programs have thousands of parts
        part.__dict__.update(self.__dict__, shape=tuple(shape), offset=offset)
        return part

    def is_like(self, other: View) -> bool:
        """Return whether FFT plans made on the aligned view `other` can be executed on this one."""
        return (
            self.dtype == other.dtype
            and not self.rounding
            and self.shape == other.shape
            and self.aligned
            and (self.offset | self.step) % REQUIRED_ALIGNMENT == 0
            and all(
                length == 1 or stride == other_stride
                for length, stride, other_stride in zip(self.shape, self.strides, other.strides)
            )
        )

    def moved_axis(self, axis: int, to: int) -> View:
        """Return the view with an axis at another position, as `numpy.moveaxis` does."""
        order = list(range(len(self.shape)))
        order.insert(to % len(order), order.pop(axis))
        return replace(self, shape=tuple(self.shape[i] for i in order), strides=tuple(self.strides[i] for i in order))

    def reshaped(self, shape: tuple[int, ...]) -> View:
        """Return the view, which must be C-contiguous, with another shape."""
        expected = strides_of(self.shape, self.dtype.itemsize)
        if not all(
            length == 1 or stride == expected_stride
            for length, stride, expected_stride in zip(self.shape, self.strides, expected)
        ):
            raise ValueError(f"expected a contiguous view, received {self}")
        return replace(self, shape=tuple(shape), strides=strides_of(shape, self.dtype.itemsize))

    def array(self, memory: np.ndarray) -> np.ndarray:
        """Return the view as an array in `memory`, an array of bytes that serves as base."""
        return np.ndarray(self.shape, self.dtype, memory, self.offset, self.strides)

    @property
    def imag(self) -> View:
        """Return the view of the imaginary part."""
        part = np.dtype(f"f{self.dtype.itemsize // 2}")
        return replace(self, dtype=part, offset=self.offset + part.itemsize)

    def stepping(self, axis: int, by: int) -> View:
        """Return a view that moves on by `by` indices of an axis with every turn of a repetition."""
        return replace(self, step=by * self.strides[axis])


class CompiledProgram:
    """Instructions to be executed one after the other; `code` is for `execute.execute`."""

    def __init__(self) -> None:
        self._lines: list[list[int]] = []
        self._transforms: set[LineTransform] = set()  # kept alive, because the code has their addresses

    @property
    def code(self) -> np.ndarray:
        """Return the instructions, ``(instructions, copy_table.WIDTH)``."""
        return np.array(self._lines, np.int64).reshape(-1, copy_table.WIDTH)

    def __len__(self) -> int:
        return len(self._lines)

    def copy(self, target: View, source: View, scale: float = 1.0) -> None:
        """Copy an array times a number, and convert it if the target has another precision."""
        source_precision, target_precision = _precision(source.dtype), _precision(target.dtype)
        converts = source_precision != target_precision or (source_precision == 8 and target.rounding)
        for line in self._box(copy_table.CONVERT if converts else copy_table.COPY, target, source):
            if converts:
                converting(line, source_precision, target_precision, target.rounding, scale)
            elif scale != 1.0:
                line[copy_table.PRECISION], line[copy_table.SCALE] = source_precision, bits_of(scale)

    def zero(self, target: View) -> None:
        """Set an array to zero."""
        for _ in self._box(ZERO, target, target):
            pass

    def add(self, target: View, source: View) -> None:
        """Add an array to another."""
        for line in self._box(ADD, target, source, runs=False):
            line[copy_table.PRECISION] = _precision(source.dtype)

    def transform(self, transform: LineTransform, target: View, source: View) -> None:
        """Execute an FFT plan from one array to another, or in place."""
        self._transforms.add(transform)
        self.call(transform.function, transform.plan, target, source)

    def call(self, function: int, argument: int, target: View, source: View) -> None:
        """Call a C function with an argument and two addresses; the caller of this method keeps it alive."""
        line = instruction(CALL, (source.base, source.offset), (target.base, target.offset), function, argument)
        line[copy_table.SOURCE_STEP], line[copy_table.TARGET_STEP] = source.step, target.step
        self._lines.append(line)

    def repeat(self, body: CompiledProgram, count: int, still: int | None = None) -> None:
        """Repeat a program; its views move on by their steps, except those on the base `still`."""
        for line in body._lines if still is not None else ():
            if line[copy_table.SOURCE] == still:
                line[copy_table.SOURCE_STEP] = 0
            if line[copy_table.TARGET] == still:
                line[copy_table.TARGET_STEP] = 0
        if not len(body) or not count:
            return
        if count > 1:
            self._lines.append(instruction(REPEAT, (0, 0), (0, 0), count, len(body)))
        self._lines += body._lines
        self._transforms |= body._transforms

    def _box(self, operation: int, target: View, source: View, runs: bool = True) -> Iterator[list[int]]:
        """Add the instructions for two arrays of one shape, and yield each."""
        converted = operation == copy_table.CONVERT and target.dtype.kind == source.dtype.kind
        if target.shape != source.shape or not (target.dtype == source.dtype or converted):
            raise ValueError(f"expected views of one shape and type, received {target} and {source}")
        places = (source.base, source.offset), (target.base, target.offset)
        axes = source.shape, source.strides, target.strides
        for line in box_lines(operation, *places, *axes, source.dtype.itemsize, runs, target.dtype.itemsize):
            line[copy_table.SOURCE_STEP], line[copy_table.TARGET_STEP] = source.step, target.step
            self._lines.append(line)
            yield line


class ProgramCache:
    """Programs that have been written, by the kind of their arrays (strides, alignment) and by a key of their work."""

    KEPT = 8  # kinds of arrays

    def __init__(self) -> None:
        self._known: dict[Any, dict[Any, np.ndarray]] = {}

    def clear(self) -> None:
        """Forget all programs."""
        self._known.clear()

    def of(self, arrays: Any) -> dict[Any, np.ndarray]:
        """Return the programs for a kind of arrays, by key."""
        known = self._known.get(arrays)
        if known is None:
            if len(self._known) >= self.KEPT:
                self._known.pop(next(iter(self._known)), None)
            known = self._known[arrays] = {}
        return known

    def find(self, arrays: Any, key: tuple, write: Callable[..., None], *args: Any) -> np.ndarray:
        """Return the program for a kind of arrays and a key; ``write(program, *args)`` writes it the first time."""
        known = self.of(arrays)
        code = known.get(key)
        if code is None:
            code = known[key] = assemble(write, *args)
        return code


def assemble(write: Callable[..., None], *args: Any) -> np.ndarray:
    """Return the code that ``write(program, *args)`` writes."""
    program = CompiledProgram()
    write(program, *args)
    return program.code


def _precision(dtype: np.dtype) -> int:
    return dtype.itemsize if dtype.kind == "f" else dtype.itemsize // 2


class ArrayReference:
    """An array with its address, or with a placeholder address that represents all arrays of its kind."""

    __slots__ = ("address", "array", "strides")

    def __init__(self, array: np.ndarray, address: int | None = None) -> None:
        self.array = array
        self.strides = array.strides
        self.address = address_of(array) if address is None else address

    @property
    def kind(self) -> tuple[tuple[int, ...], bool]:
        """Return its strides, and whether it is aligned as FFTW requires; programs depend on these."""
        return self.strides, self.address % REQUIRED_ALIGNMENT == 0

    def part(self, view: np.ndarray) -> ArrayReference:
        """Locate a view of its memory."""
        return ArrayReference(view, self.address + address_of(view) - address_of(self.array))

    def at(self, part: slice) -> ArrayReference:
        """Locate some of its entries along axis 0."""
        return ArrayReference(self.array[part], self.address_at(part.start))

    def address_at(self, number: int) -> int:
        """Return the address of one of its entries along axis 0."""
        return self.address + number * self.strides[0]

    def view(self, base: int) -> View:
        """Return the array as a view on base `base`, for programs."""
        strides, aligned = self.kind
        return View(base, self.array.shape, strides, self.array.dtype, aligned=aligned)


class Buffers:
    """The buffers of a slot: for the pieces of a message sent to other ranks, and for those received."""

    def __init__(self, send: np.ndarray, receive: np.ndarray) -> None:
        self.send, self.receive = ArrayReference(send), ArrayReference(receive)
        self.bases = np.zeros(BASES, np.int64)  # of programs: the addresses of the buffers, and entries for others
        self.bases[SEND], self.bases[RECEIVE] = self.send.address, self.receive.address


def on_lines(lengths: Sequence[int], dtype: np.dtype) -> list[int]:
    """Return the lengths of a slot's buffers such that each of them, even an empty one, starts on a cache line.

    If the two buffers of a nonblocking exchange start at the same address, Open MPI takes it for an exchange in place,
    whatever the counts.
    """
    line = ALIGNMENT // dtype.itemsize
    return [max(1, -(-length // line)) * line for length in lengths]
