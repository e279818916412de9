"""Libraries built on mpi4py-fft, which derive classes from its own or import it
themselves.
"""

import sys

import numpy as np
from everywhere import raised
from marks import exhaustive, on_ranks
from test_compat import assert_close
from test_distarray import folder
from truth import random

from overlap import InputError
from overlap.compat.mpi4py_fft import PFFT, DistArray, HDF5File, newDistArray, stand_in
from overlap.compat.mpi4py_fft.libfft import FFT
from overlap.compat.mpi4py_fft.mpifft import Transform
from overlap.compat.mpi4py_fft.pencil import Pencil, Subcomm


class Forward(Transform):
    """A transform that makes its steps by itself, from the parts that it was given."""

    def __call__(self, input_array=None, output_array=None, factor=1.0):
        if input_array is not None:
            self.input_array[...] = input_array
        for step, exchange in zip(self._xfftn, self._transfer):
            step(normalize=False)
            exchange(step.output_array, self._xfftn[self._xfftn.index(step) + 1].input_array)
        self._xfftn[-1](normalize=False)
        self.output_array[...] *= factor
        if output_array is None:
            return self.output_array
        output_array[...] = self.output_array
        return output_array


class Space(PFFT):
    """A plan of one transform per axis that does not call its base's constructor, as those of spectral Galerkin
    methods.
    """

    def __init__(self, comm, shape, dtype):
        self.subcomm = Subcomm(comm, [0] * (len(shape) - 1) + [1])
        pencil = first = Pencil(self.subcomm, shape, len(shape) - 1)
        lengths, self.xfftn, self.transfer = list(shape), [], []
        for axis in reversed(range(len(shape))):
            if self.xfftn:
                there = pencil.pencil(axis)
                self.transfer.append(pencil.transfer(there, dtype))
                pencil = there
            self.xfftn.append(FFT(pencil.subshape, (axis,), dtype))
            modes = self.xfftn[-1].forward.output_array
            lengths[axis], dtype = modes.shape[axis], modes.dtype
            pencil = Pencil(pencil.subcomm, lengths, axis)
        self.pencil = [first, pencil]
        self.forward = Forward([one.forward for one in self.xfftn], [one.forward for one in self.transfer], self.pencil)
        self.backward = Transform(
            [one.backward for one in self.xfftn[::-1]], [one.backward for one in self.transfer[::-1]], self.pencil[::-1]
        )

    def dtype(self, forward_output=False):
        return PFFT.dtype(self, forward_output)


class Field(DistArray):
    """An array that is made by numpy's constructor, and whose components are known by integers alone."""

    def __new__(cls, space, components=0):
        shape = space.shape(False)
        array = np.ndarray.__new__(cls, (components, *shape) if components else shape, space.dtype(False))
        array._p0, array._rank, array.space = space.pencil[0], int(components > 0), space
        return array

    def __getitem__(self, index):
        if self.rank and isinstance(index, int):
            component = np.ndarray.__getitem__(self, index)
            component._rank = 0
            return component
        return np.ndarray.__getitem__(self.v, index)


@on_ranks(1, 2, exhaustive(4))
def test_derived_plans(comm):
    """Shapes, types and numbers of a plan that makes its transforms itself are those of one that does not."""
    for shape, dtype in ((8, 9, 10), "d"), ((8, 9, 10), "F"), ((9, 12), "D"):
        whole = random(np.random.default_rng(2), shape, np.dtype(dtype).name)
        space, plan = (
            Space(comm, shape, dtype),
            PFFT(
                comm, shape, axes=tuple((axis,) for axis in range(len(shape))), dtype=dtype, grid=[0] * (len(shape) - 1)
            ),
        )
        for side in (True, False):
            for name in ("shape", "local_slice", "global_shape", "dtype"):
                assert getattr(space, name)(side) == getattr(plan, name)(side), (name, side)
            assert newDistArray(space, side).pencil.local_slice == space.local_slice(side)
        assert space.dimensions == len(shape)
        local = whole[space.local_slice(False)]
        tolerance = 1e-4 if dtype == "F" else 1e-11
        truth = (np.fft.rfftn if np.dtype(dtype).kind == "f" else np.fft.fftn)(whole)[space.local_slice(True)]
        assert_close(comm, space.forward(local, newDistArray(space), factor=2.0), 2 * truth, tolerance)
        assert_close(comm, space.forward(local), truth, tolerance)
        assert_close(comm, space.backward(normalize=True), local, tolerance)
        for _ in range(2):
            space.destroy()
            plan.destroy()


@on_ranks(1, 2, exhaustive(4))
def test_derived_arrays(comm):
    """Arrays of a derived class are written, read and moved like others."""
    space = Space(comm, (8, 9, 10), "d")
    whole = random(np.random.default_rng(3), (2, 8, 9, 10), "float64")
    field = Field(space, 2)
    field[...] = whole[(slice(None), *space.local_slice(False))]
    moved = field.redistribute(0)
    assert np.array_equal(moved.v, whole[moved.local_slice()])
    assert field.global_shape == (2, 8, 9, 10) and field.dimensions == 3
    with folder(comm) as place:
        file = HDF5File(f"{place}/u.h5", mode="w")
        file.write(0, {"u": [field]}, as_scalar=True, forward_output=False)
        for component in range(2):
            copy = newDistArray(space, False)
            file.read(copy, f"u{component}", step=0, forward_output=False)
            assert np.array_equal(copy.v, field[component])
    space.destroy()


@on_ranks(1, 2, exhaustive(4))
def test_standing_in(comm):
    """``import mpi4py_fft`` finds the drop-in, with all submodules; not where mpi4py-fft itself has been imported."""

    def imported():
        return {name: module for name, module in sys.modules.items() if name.split(".")[0] == "mpi4py_fft"}

    before = imported()
    for name in before:
        del sys.modules[name]
    try:
        for _ in range(2):
            stand_in()
        import mpi4py_fft
        from mpi4py_fft.fftw.factory import get_planned_FFT
        from mpi4py_fft.fftw.utilities import FFTW_MEASURE, aligned
        from mpi4py_fft.fftw.xfftn import dct_type
        from mpi4py_fft.io import HDF5File as File
        from mpi4py_fft.mpifft import PFFT as plan

        assert plan is PFFT is mpi4py_fft.PFFT and File is HDF5File
        assert FFTW_MEASURE == 0 and dct_type[1] == 3 and callable(aligned) and callable(get_planned_FFT)
        for name in imported():
            del sys.modules[name]
        sys.modules["mpi4py_fft"] = np
        assert "expected a call before anything imports mpi4py_fft" in str(raised(InputError, stand_in))
    finally:
        for name in imported():
            del sys.modules[name]
        sys.modules.update(before)
