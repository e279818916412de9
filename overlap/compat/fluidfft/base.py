"""`PlanFFT`: the interface of fluidfft's FFT classes in two and three dimensions, on a plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from fluiddyn.util import mpi
from mpi4py import MPI

from ...fft import FFT2, FFT3
from ...fft.array_spec import ArraySpec
from ..kept_runtimes import RUNTIMES
from ..kept_runtimes import close_runtimes as close_runtimes


class PlanFFT:
    """A plan with the interface of fluidfft's FFT classes.

    Shapes with "seq" in their names are those of the whole array, shapes with "loc" of this rank's part.
    """

    _numpy_api = np

    def __init__(self, kind: type[FFT2 | FFT3], points: Sequence[int], layout: dict[str, Any]) -> None:
        comm = getattr(mpi, "comm", MPI.COMM_SELF)  # fluiddyn has no communicator on one rank
        self._kind, self._points, self._layout = kind, tuple(points), layout
        self._runtime = RUNTIMES.of(comm).runtime()
        self.plan: Any = self.plan_of()
        self.rank, self.nb_proc, self.comm = mpi.rank, mpi.nb_proc, comm

    def plan_of(self, *batch: int) -> FFT2 | FFT3:
        """Make a plan for several such fields at once, in arrays with leading axes of these lengths (collective)."""
        return self._kind(self._runtime, (*batch, *self._points), dtype=float, norm="forward", layout=self._layout)

    # ---- transforms ------------------------------------------------------------------------------

    def fft(self, fieldX: np.ndarray) -> np.ndarray:
        """Transform forward into a new array (collective)."""
        return np.asarray(self.plan.forward(fieldX))

    def ifft(self, fieldK: np.ndarray) -> np.ndarray:
        """Transform backward into a new array (collective); `fieldK` does not change."""
        return np.asarray(self.plan.backward(fieldK))

    def fft_as_arg(self, fieldX: np.ndarray, fieldK: np.ndarray) -> None:
        """Transform forward into the second array (collective)."""
        self.plan.forward(fieldX, out=fieldK)

    def ifft_as_arg(self, fieldK: np.ndarray, fieldX: np.ndarray) -> None:
        """Transform backward into the second array (collective); `fieldK` does not change."""
        self.plan.backward(fieldK, out=fieldX)

    ifft_as_arg_destroy = ifft_as_arg

    # ---- arrays ----------------------------------------------------------------------------------

    def create_arrayX(self, value: float | None = None, shape: Sequence[int] | None = None) -> np.ndarray:
        """Make an array of real space, by default of this rank's part; filled with a value if one is given."""
        return _array(self.plan.real, value, shape)

    def create_arrayK(self, value: complex | None = None, shape: Sequence[int] | None = None) -> np.ndarray:
        """Make an array of Fourier space, by default of this rank's part; filled with a value if one is given."""
        return _array(self.plan.spectrum, value, shape)

    def get_shapeX_loc(self) -> tuple[int, ...]:
        """Return the local shape in real space."""
        return tuple(self.plan.real.shape)

    def get_shapeX_seq(self) -> tuple[int, ...]:
        """Return the global shape in real space."""
        return tuple(self.plan.real.global_shape)

    def get_shapeK_loc(self) -> tuple[int, ...]:
        """Return the local shape in Fourier space."""
        return tuple(self.plan.spectrum.shape)

    def get_shapeK_seq(self) -> tuple[int, ...]:
        """Return the global shape in Fourier space."""
        return tuple(self.plan.spectrum.global_shape)

    shapeX = property(get_shapeX_loc)
    shapeK = property(get_shapeK_loc)

    def get_seq_indices_first_X(self) -> tuple[int, ...]:
        """Return the global position of the local part's first element in real space."""
        return tuple(part.start for part in self.plan.real.local_slice)

    def get_seq_indices_first_K(self) -> tuple[int, ...]:
        """Return the global position of the local part's first element in Fourier space."""
        return tuple(part.start for part in self.plan.spectrum.local_slice)

    def total(self, value: float) -> float:
        """Add up the numbers of all ranks (collective)."""
        return float(sum(self.plan.runtime.coordinator.allgather(value)))

    def gather_Xspace(self, ff_loc: np.ndarray, root: int | None = 0) -> np.ndarray | None:
        """Gather a field of real space on one rank, or on all ranks if `root` is None (collective)."""
        whole = self.plan.real.wrap(ff_loc).gather(root or 0)
        gathered: np.ndarray | None = self.plan.runtime.coordinator.bcast(whole) if root is None else whole
        return gathered

    def scatter_Xspace(self, ff_seq: np.ndarray | None, root: int = 0) -> np.ndarray:
        """Scatter a field of real space that one rank has to all ranks (collective)."""
        return np.asarray(self.plan.real.scatter(ff_seq, root))


def _array(spec: ArraySpec, value: complex | None, shape: Sequence[int] | None) -> np.ndarray:
    array = np.asarray(spec.empty()) if shape is None else np.empty(tuple(shape), spec.dtype)
    if value is not None:
        array[...] = value
    return array
