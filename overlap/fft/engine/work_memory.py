"""`WorkMemory`: memory for the intermediate results of a staged transform."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .buffers import ArrayReference
from .fftw import ALIGNMENT, zeros
from .message import points
from .stage import Stage


class WorkMemory:
    """Two work arrays, for stages with even and odd place numbers (`Place.number`), each for some fields at once.

    Parameters
    ----------
    stages : sequence of Stage
    fields : int
        Number of fields that have work arrays at the same time.
    result_nbytes : int
        Bytes of a field's result, if even places may use its memory; else 0.

    Attributes
    ----------
    fields : int
    """

    def __init__(self, stages: Sequence[Stage], fields: int, result_nbytes: int) -> None:
        self.fields = fields
        sizes = [
            max(
                (
                    points(stage.target_shape) * stage.target_dtype.itemsize
                    for stage in stages
                    if stage.place.number and stage.place.number % 2 == odd
                ),
                default=0,
            )
            for odd in (0, 1)
        ]
        self._borrows = 0 < sizes[0] <= result_nbytes
        sizes = [-(-size // ALIGNMENT) * ALIGNMENT for size in sizes]
        self._arrays = [
            zeros((fields, 0 if self._borrows and not odd else size), np.uint8) for odd, size in enumerate(sizes)
        ]

    @property
    def nbytes(self) -> int:
        """Return the bytes of both arrays."""
        return sum(array.nbytes for array in self._arrays)

    def stored(self, stage: Stage, field: int, target: ArrayReference) -> ArrayReference:
        """Return the array in which a stage stores a field whose result goes to `target`."""
        number, shape, dtype = stage.place.number, stage.target_shape, stage.target_dtype
        if number == 0:
            return target
        borrowed = number % 2 == 0 and self._borrows
        memory = target.array.reshape(-1).view(np.uint8) if borrowed else self._arrays[number % 2][field % self.fields]
        array = memory[: points(shape) * dtype.itemsize].view(dtype).reshape(shape)
        return target.part(array) if borrowed else ArrayReference(array)
