"""The classes for fluidfft, by its own tests and against numpy."""

import unittest

import numpy as np
from fluidfft import create_fft_object, get_methods
from fluidfft.fft2d.testing import complete_test_class_2d  # which duplicates the communicator for good
from fluidfft.fft3d.testing import complete_test_class_3d
from marks import exhaustive, on_ranks

from overlap.compat.fluidfft.base import close_runtimes


@on_ranks(1, 2, exhaustive(3), exhaustive(4), exhaustive("openmpi-1"), exhaustive("openmpi-2"))
def test_suites(comm):
    assert {"fft2d.mpi_with_overlap", "fft3d.mpi_with_overlap"} <= get_methods()

    class Tests(unittest.TestCase):
        pass

    complete_test_class_2d("fft2d.mpi_with_overlap", Tests)
    complete_test_class_3d("fft3d.mpi_with_overlap", Tests)
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(Tests).run(result)
    assert result.testsRun == (5 if comm.size == 1 else 3) and not result.skipped
    assert result.wasSuccessful(), "\n".join(text for _, text in result.errors + result.failures)
    close_runtimes()


@on_ranks(1, 2, exhaustive(3), exhaustive(4), exhaustive("openmpi-1"), exhaustive("openmpi-2"))
def test_against_numpy(comm):
    chance = np.random.default_rng(0)
    for shape in ((12, 10), (7, 9), (6, 8, 10), (5, 7, 3)):
        made = create_fft_object(f"fft{len(shape)}d.mpi_with_overlap", *shape)
        whole = chance.standard_normal(shape)
        part = tuple(slice(a, a + n) for a, n in zip(made.get_seq_indices_first_X(), made.get_shapeX_loc()))
        expected = np.fft.rfftn(whole) / whole.size
        expected = expected.T if len(shape) == 2 else expected
        there = tuple(slice(a, a + n) for a, n in zip(made.get_seq_indices_first_K(), made.get_shapeK_loc()))
        field = made.create_arrayX(0.0)
        field[...] = whole[part]
        spectrum = made.fft(field)
        assert type(spectrum) is np.ndarray and spectrum.shape == made.create_arrayK().shape
        np.testing.assert_allclose(spectrum, expected[there], atol=1e-14)
        kept = spectrum.copy()
        np.testing.assert_allclose(made.ifft(spectrum), whole[part], atol=1e-13)
        np.testing.assert_array_equal(spectrum, kept)
        assert np.isclose(made.compute_energy_from_K(spectrum), 0.5 * np.mean(whole**2))
        assert np.isclose(made.compute_energy_from_X(field), 0.5 * np.mean(whole**2))
        for found, mode, axis in zip(made.get_k_adim_loc(), there, (1, 0) if len(shape) == 2 else range(3)):
            n = shape[axis]
            modes = np.fft.fftfreq(n, 1 / n) if axis < len(shape) - 1 else np.arange(n // 2 + 1)
            np.testing.assert_array_equal(np.abs(found), np.abs(modes[mode]))
        everywhere = made.gather_Xspace(np.ascontiguousarray(field), root=None)
        np.testing.assert_array_equal(everywhere, whole)
        np.testing.assert_array_equal(made.scatter_Xspace(whole if comm.rank == 0 else None), field)
        assert made.create_arrayX(2.0, shape=(3,)).tolist() == [2.0] * 3
    close_runtimes()
