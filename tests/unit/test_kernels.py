"""Sweeps and legs of several ranks in one process, compared after every step with the whole.

The exchange is done here by hand, piece by piece, from the counts and displacements that the legs
hand to MPI: what each rank holds before and after it is known from the global arrays.
"""

from itertools import product

import numpy as np
import pytest

from overlap.arrays.exchange import Exchange
from overlap.arrays.slab import Slab
from overlap.fft.engine.fftw import InPlace, Scratch, complex_of, empty, fits
from overlap.fft.engine.kernels import ColumnSweep, RowSweep
from overlap.fft.engine.legs import BackwardLeg, ForwardLeg
from overlap.fft.kernels import Kernels

EFFORT = "estimate"
GRIDS = [(6, 8), (7, 5), (2, 9), (1, 4), (5, 1), (12, 10), (3, 140)]
DTYPES = ("f4", "f8", "c8", "c16")


def tolerance(dtype, points):
    return 5 * np.finfo(dtype).eps * np.sqrt(np.log2(max(points, 2)))


def assert_close(found, truth, dtype, points, part=...):
    """A part of `truth`, in the l2 norm relative to the whole."""
    assert found.shape == truth[part].shape
    error = np.linalg.norm(np.ravel(found - truth[part]))
    assert error <= tolerance(dtype, points) * np.linalg.norm(np.ravel(truth)), error


def random(rng, shape, dtype):
    values = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * rng.standard_normal(shape)
    return values.astype(dtype)


def wide(array):
    return array.astype("c16" if array.dtype.kind == "c" else "f8")


def kept(n, half=False):
    """The indices of a grid's modes that the finer grid keeps: all but the Nyquist one."""
    columns = n // 2 + 1 if half else n
    return [index for index in range(columns) if 2 * index != n]


class Truth:
    """One global plane through all steps, in double precision, on a finer grid too."""

    def __init__(self, ny, nx, my, mx, dtype):
        self.ny, self.nx, self.my, self.mx = ny, nx, my, mx
        self.real = np.dtype(dtype).kind == "f"
        self.padded = (my, mx) != (ny, nx)
        self.columns = nx // 2 + 1 if self.real else nx

    def resolve(self, fine, axis, n, half=False):
        """The resolved ones, in their places, of the modes along one axis of the finer grid."""
        if not self.padded:
            return fine
        fine = np.moveaxis(fine, axis, 0)
        found = np.zeros((n // 2 + 1 if half else n, *fine.shape[1:]), complex)
        for index in kept(n, half):
            found[index] = fine[index if 2 * index < n else index - n]
        return np.moveaxis(found, 0, axis)

    def refine(self, coarse, axis, n, m, half=False):
        """The modes along one axis on the finer grid, all others zero."""
        if not self.padded:
            return coarse
        coarse = np.moveaxis(coarse, axis, 0)
        found = np.zeros((m // 2 + 1 if half else m, *coarse.shape[1:]), complex)
        for index in kept(n, half):
            found[index if 2 * index < n else index - n] = coarse[index]
        return np.moveaxis(found, 0, axis)

    def forward_x(self, plane):
        spectrum = np.fft.rfft(plane, axis=-1) if self.real else np.fft.fft(plane, axis=-1)
        return self.resolve(spectrum, -1, self.nx, half=self.real)

    def forward_y(self, plane):
        return self.resolve(np.fft.fft(plane, axis=-2), -2, self.ny)

    def backward_y(self, plane):
        return np.fft.ifft(self.refine(plane, -2, self.ny, self.my), axis=-2, norm="forward")

    def backward_x(self, plane):
        fine = self.refine(plane, -1, self.nx, self.mx, half=self.real)
        if self.real:
            return np.fft.irfft(fine, self.mx, axis=-1, norm="forward")
        return np.fft.ifft(fine, axis=-1, norm="forward")


class Recorder:
    """Stands for a communicator: keeps what one rank hands to Alltoallv."""

    def Alltoallv(self, sent, received):
        return sent, received


def exchange(calls):
    """What MPI does with every rank's call: piece by piece, checking the counts."""
    for source, ((send, counts, starts, kind), _) in enumerate(calls):
        assert kind.Get_size() == send.itemsize
        for target, (_, (receive, other_counts, other_starts, _)) in enumerate(calls):
            count = counts[target]
            assert count == other_counts[source], (source, target)
            if source == target:
                assert count == 0  # what stays is not sent
            begin, other = starts[target], other_starts[source]
            assert begin + count <= send.size and other + count <= receive.size
            receive[other:other + count] = send[begin:begin + count]


class Ranks:
    """The legs, kernels and buffers of all ranks."""

    def __init__(self, size, grid, dtype, planes, padded, transposed, rows=3):
        ny, nx = grid
        my, mx = (-(-3 * ny // 2), -(-3 * nx // 2)) if padded else grid
        self.truth = Truth(ny, nx, my, mx, dtype)
        self.slabs = [Slab(ny, nx, self.truth.real, size, rank, my, mx) for rank in range(size)]
        self.kernels = [Kernels(slab, np.dtype(dtype), transposed, rows, EFFORT)
                        for slab in self.slabs]
        self.spectral = complex_of(dtype)
        self.exchanges = [Exchange(slab, planes, self.spectral) for slab in self.slabs]

    def buffers(self):
        """For each rank one buffer by columns, one by rows, full of what must not be used."""
        for exchange in self.exchanges:
            pair = empty(exchange.by_columns.size, self.spectral), empty(
                exchange.by_rows.size, self.spectral)
            for buffer in pair:
                buffer[...] = np.nan
            yield pair


CASES = list(product((1, 2, 3, 4), GRIDS, (1, 3), (False, True)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("transposed", [False, True])
def test_forward_step_by_step(dtype, transposed):
    rng = np.random.default_rng(1)
    for size, grid, planes, padded in CASES:
        ranks = Ranks(size, grid, dtype, planes, padded, transposed)
        truth = ranks.truth
        points = truth.my * truth.mx
        whole = random(rng, (planes, truth.my, truth.mx), dtype)
        scale = 0.37
        after_x = truth.forward_x(scale * wide(whole))
        after_y = truth.forward_y(after_x)
        legs, calls = [], []
        for rank, (slab, (by_columns, by_rows)) in enumerate(zip(ranks.slabs, ranks.buffers())):
            leg = ForwardLeg(ranks.exchanges[rank], by_columns, by_rows, rank)
            for j in range(planes):
                leg.load(ranks.kernels[rank], j, whole[j, slab.rows[rank]], scale)
            call = leg.exchanged(Recorder())
            sent = ranks.exchanges[rank].by_columns.views(call[0][0])
            own = ranks.exchanges[rank].by_rows.views(call[1][0])[rank]
            for other, columns in enumerate(slab.columns):
                piece = own if other == rank else sent[other]
                assert_close(piece, after_x, dtype, points, np.s_[:, slab.rows[rank], columns])
            legs.append(leg)
            calls.append(call)
        exchange(calls)
        for rank, (slab, leg) in enumerate(zip(ranks.slabs, legs)):
            mine = slab.columns[rank]
            for piece, rows in zip(ranks.exchanges[rank].by_rows.views(calls[rank][1][0]),
                                   slab.rows):
                assert_close(piece, after_x, dtype, points, np.s_[:, rows, mine])
            part = np.s_[:, mine] if transposed else np.s_[:, :, mine]
            expected = after_y.swapaxes(1, 2) if transposed else after_y
            result = empty(expected[part].shape, ranks.spectral)
            for in_place in {False, ranks.kernels[rank].columns_forward.in_place(result)}:
                result[...] = np.nan
                for j in range(planes):
                    leg.store(ranks.kernels[rank], j, result[j], in_place)
                assert_close(result, expected, dtype, points, part)


@pytest.mark.parametrize("dtype", DTYPES)
def test_forward_received_where_the_result_goes(dtype):
    rng = np.random.default_rng(2)
    for size, grid in product((1, 2, 3, 4), GRIDS):
        ranks = Ranks(size, grid, dtype, 1, padded=False, transposed=False)
        truth = ranks.truth
        whole = random(rng, (1, *grid), dtype)
        after_x = truth.forward_x(wide(whole))
        legs, calls, results = [], [], []
        for rank, (slab, (send, _)) in enumerate(zip(ranks.slabs, ranks.buffers())):
            result = empty((1, grid[0], slab.my_columns), ranks.spectral)
            result[...] = np.nan
            leg = ForwardLeg(ranks.exchanges[rank], send, None, rank)
            leg.aim(result[0], slab.rows[rank])
            leg.load(ranks.kernels[rank], 0, whole[0, slab.rows[rank]], 1.0)
            assert_close(result[:, slab.rows[rank]], after_x, dtype, truth.mx,
                         np.s_[:, slab.rows[rank], slab.columns[rank]])
            legs.append(leg)
            calls.append(leg.exchanged(Recorder()))
            results.append(result)
        exchange(calls)
        for rank, (slab, leg, result) in enumerate(zip(ranks.slabs, legs, results)):
            mine = np.s_[:, :, slab.columns[rank]]
            assert_close(result, after_x, dtype, truth.mx, mine)
            leg.store(ranks.kernels[rank], 0, result[0], True)
            assert_close(result, truth.forward_y(after_x), dtype, truth.my * truth.mx, mine)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("transposed", [False, True])
def test_backward_step_by_step(dtype, transposed):
    rng = np.random.default_rng(3)
    for size, grid, planes, padded in CASES:
        ranks = Ranks(size, grid, dtype, planes, padded, transposed)
        truth = ranks.truth
        points = truth.my * truth.mx
        whole = random(rng, (planes, grid[0], truth.columns), ranks.spectral)
        scale = 1 / 3
        after_y = truth.backward_y(wide(whole))
        after_x = scale * truth.backward_x(after_y)
        legs, calls = [], []
        for rank, (slab, (by_columns, by_rows)) in enumerate(zip(ranks.slabs, ranks.buffers())):
            leg = BackwardLeg(ranks.exchanges[rank], by_rows, by_columns, rank)
            mine = whole[:, :, slab.columns[rank]]
            if transposed:
                mine = mine.swapaxes(1, 2)
            before = mine.tobytes()
            for j in range(planes):
                leg.load(ranks.kernels[rank], j, mine[j])
            assert mine.tobytes() == before
            call = leg.exchanged(Recorder())
            sent = ranks.exchanges[rank].by_rows.views(call[0][0])
            if planes > 1:
                sent[rank] = ranks.exchanges[rank].by_columns.views(call[1][0])[rank]
            for piece, rows in zip(sent, slab.rows):
                assert_close(piece, after_y, dtype, points, np.s_[:, rows, slab.columns[rank]])
            legs.append(leg)
            calls.append(call)
        exchange(calls)
        for rank, (slab, leg) in enumerate(zip(ranks.slabs, legs)):
            received = ranks.exchanges[rank].by_columns.views(calls[rank][1][0])
            for other, columns in enumerate(slab.columns):
                if other != rank or planes > 1:
                    assert_close(received[other], after_y, dtype, points,
                                 np.s_[:, slab.rows[rank], columns])
            result = empty((planes, slab.my_rows, truth.mx), dtype)
            result[...] = np.nan
            for j in range(planes):
                leg.store(ranks.kernels[rank], j, result[j], scale)
            assert_close(result, after_x, dtype, points, np.s_[:, slab.rows[rank]])


@pytest.mark.parametrize("dtype", DTYPES)
def test_sweeps_in_blocks_of_any_size_agree(dtype):
    rng = np.random.default_rng(4)
    slab = Slab(11, 10, np.dtype(dtype).kind == "f", 3, 0, 11, 10)
    whole = random(rng, (slab.my_rows, 10), dtype)
    truth = np.fft.rfft(wide(whole)) if slab.real else np.fft.fft(wide(whole))
    for rows in (1, 2, 3, 4, 100):
        pieces = [np.full((slab.my_rows, part.stop - part.start), np.nan, complex_of(dtype))
                  for part in slab.columns]
        RowSweep(slab, np.dtype(dtype), True, rows, EFFORT).forward(whole, pieces, 1.0)
        for piece, part in zip(pieces, slab.columns):
            assert_close(piece, truth, dtype, 10, np.s_[:, part])
        result = np.full_like(whole, np.nan)
        RowSweep(slab, np.dtype(dtype), False, rows, EFFORT).backward(pieces, result, 0.1)
        assert_close(result, wide(whole), dtype, 10)


def test_sweeps_read_and_write_any_strides():
    rng = np.random.default_rng(5)
    slab = Slab(6, 8, False, 1, 0, 6, 8)
    whole = random(rng, (6, 8), "c16")
    for source in (np.asfortranarray(whole), np.repeat(whole, 2, axis=1)[:, ::2],
                   whole[::-1, ::-1].copy()[::-1, ::-1]):
        pieces = [np.full((6, 8), np.nan, "c16")]
        RowSweep(slab, np.dtype("c16"), True, 4, EFFORT).forward(source, pieces, 1.0)
        for target in (np.empty((6, 8), "c16", order="F"), np.empty((12, 16), "c16")[::2, ::2],
                       np.empty((6, 8), "c16")[::-1, ::-1]):
            ColumnSweep(slab, "c16", True, False, EFFORT).forward(pieces, target, False)
            assert_close(target, np.fft.fft2(whole), "c16", 48)


def test_local_transforms_of_nothing():
    Scratch((0, 4), 1, "f8", True, EFFORT).execute()
    InPlace((3, 0), 0, "c16", False, EFFORT).execute(np.empty((3, 0), complex))


def test_what_fits_an_in_place_plan_works():
    """Whatever `fits` accepts is transformed right, whatever its strides along axes of one."""
    rng = np.random.default_rng(6)
    accepted = 0
    for dtype, ny, nx, axis in product(("c8", "c16"), (1, 2, 5), (1, 2, 3), (0, 1)):
        plan = InPlace((ny, nx), axis, dtype, True, EFFORT)
        values = random(rng, (2, ny, nx), dtype)
        spaced = np.empty((2, 2 * ny, 3 * nx), dtype)
        flat = np.empty(2 * ny * nx + 1, dtype)
        for array in (empty(values.shape, dtype), flat[1:].reshape(values.shape),
                      flat[:-1].reshape(values.shape), spaced[:, ::2, ::3],
                      empty(values.shape, dtype)[:, ::-1], empty(values.shape, dtype)[:, :, ::-1],
                      np.empty(values.shape, dtype, order="F"), spaced[:, :1, :nx],
                      np.empty((2, ny, nx, 5), dtype)[..., 0]):
            if array.shape == values.shape and fits(array):
                accepted += 1
                array[...] = values
                for plane in array:
                    plan.execute(plane)
                assert_close(array, np.fft.fft(wide(values), axis=1 + axis), dtype, ny * nx)
    assert accepted > 36
