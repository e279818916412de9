"""FFTW's library is found without importing pyfftw, and is the one that pyfftw uses."""

import os
import sys
from pathlib import Path

import commands
import numpy as np
import pyfftw
import pytest

from overlap.fft.engine import fftw, library
from overlap.fft.engine.lines import LineTransform


def in_fresh_interpreter(program):
    """What a program prints, in an interpreter of its own."""
    return commands.run(sys.executable, "-c", program, check=True).stdout.strip()


def test_plans_do_not_import_pyfftw():
    assert (
        in_fresh_interpreter(
            "import sys, overlap; overlap.FFT2, overlap.FFT3, overlap.Bracket\nimport overlap.compat.mpi4py_fft\n"
            "print({'pyfftw', 'scipy.fft', 'scipy.special'} & {*sys.modules})"
        )
        == "set()"
    )


def test_the_package_alone_imports_little():
    assert (
        in_fresh_interpreter(
            "import sys, overlap\nprint({'importlib.metadata', 'numpy', 'mpi4py', 'email'} & {*sys.modules})"
        )
        == "set()"
    )


def test_pyfftw_imported_later_uses_the_same_library():
    files = in_fresh_interpreter(
        "from overlap.fft.engine import fftw; fftw.fftw_version(); import pyfftw, re\nprint({line.split()[-1] for "
        "line in open('/proc/self/maps') if re.search(r'libfftw3[-.]', line)})"
    )
    assert files.count("libfftw3") == 1


@pytest.mark.parametrize("char, place", [("D", 0), ("F", 1)])
def test_wisdom_is_shared_with_pyfftw(char, place):
    before = fftw.learned()
    try:
        fftw.forget()
        nothing = pyfftw.export_wisdom()
        lines = fftw.zeros((3, 40), char)
        LineTransform(lines, lines, 1, True, "measure")
        known = pyfftw.export_wisdom()
        assert known[place] != nothing[place]
        assert fftw.wisdom(char).encode() == known[place]
        fftw.forget()
        assert pyfftw.export_wisdom() == nothing
        assert pyfftw.import_wisdom(known)[place]
        assert sorted(fftw.wisdom(char).encode().splitlines()) == sorted(known[place].splitlines())
        assert not library.precision(char).take_wisdom(b"(nonsense)")
    finally:
        fftw.relearn(before)


def test_version_and_lengths_are_those_of_pyfftw():
    assert fftw.fftw_version() == pyfftw.fftw_version
    assert [fftw.fast_length(n) for n in range(1, 2000)] == [pyfftw.next_fast_len(n) for n in range(1, 2000)]


def test_many_threads_of_pyfftw_leave_our_plans_alone():
    """pyfftw's number of threads is FFTW's for all plans to come."""
    field, modes = fftw.zeros((64, 512), "D"), fftw.zeros((64, 512), "D")
    pyfftw.FFTW(field, modes, threads=2, flags=("FFTW_ESTIMATE",))
    plan = LineTransform(field, modes, 1, True, "estimate")
    text = library.precision("D").function("sprint_plan", library.ctypes.c_char_p)
    assert b"thr" not in text(library.ctypes.c_void_p(plan.plan))


@pytest.mark.parametrize("shape, dtype", [((), "f4"), ((0, 3), "c16"), ((5, 7), "c8"), ((3,), np.uint8)])
@pytest.mark.parametrize("alignment", [16, 64, 2**21])
def test_aligned(shape, dtype, alignment):
    array = fftw.empty(shape, dtype, alignment)
    assert array.shape == shape and array.dtype == dtype
    assert array.size == 0 or array.ctypes.data % alignment == 0
    assert array.flags.c_contiguous and array.flags.writeable


@pytest.fixture
def fresh():
    """Found again in the test, and once more after it."""
    library._libraries.cache_clear()
    yield
    library._libraries.cache_clear()


def test_where_the_extension_lies_elsewhere_pyfftw_is_imported(fresh, monkeypatch):
    class Spec:
        submodule_search_locations = ("/nowhere",)

    monkeypatch.setattr(library.importlib.util, "find_spec", lambda name: Spec)
    assert library._libraries().holder("fftw_execute_dft")._name == pyfftw.pyfftw.__file__


def test_without_pyfftw(fresh, monkeypatch):
    monkeypatch.setattr(library.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="expected the package pyfftw to be installed"):
        library._libraries()


def test_an_extension_without_a_shared_fftw(fresh, monkeypatch):
    import _ctypes

    monkeypatch.setattr(library, "_extension", lambda: Path(_ctypes.__file__))
    with pytest.raises(ImportError, match="expected pyfftw to be linked with a shared library of FFTW"):
        library._libraries()


def test_libraries_that_the_environment_names(tmp_path):
    """Plans run on the named library, which may be another copy than pyfftw's, and transform as numpy does."""
    (double,), (single,) = (
        list((Path(pyfftw.__file__).parent.parent / "pyfftw.libs").glob(f"libfftw3{kind}-*")) for kind in ("", "f")
    )
    for kind, file in (("", double), ("f", single)):
        (tmp_path / f"libfftw3{kind}.so.3").write_bytes(file.read_bytes())
    program = """
import numpy as np, overlap
from mpi4py import MPI
from overlap.fft.engine import fftw
for dtype, close in (("c16", 1e-12), ("c8", 1e-4)):
    with overlap.FFT2(MPI.COMM_WORLD, (2, 6, 10), dtype=dtype) as plan:
        u = plan.real.from_function(lambda y, x: np.exp(x) - 1j * y)
        np.testing.assert_allclose(plan.forward(u), np.fft.fft2(u), rtol=close, atol=close * 1e3)
print(fftw.fftw_described())
"""
    for named in (tmp_path, tmp_path / "libfftw3.so.3", tmp_path / "libfftw3f.so.3"):
        ran = _python(program, named)
        assert f"{tmp_path}/libfftw3.so.3" in ran.stdout, ran.stderr
        assert ran.stdout.startswith(pyfftw.fftw_version)


def test_a_package_that_sets_a_number_of_threads_first_leaves_our_plans_alone():
    """FFTW frees all plans there unless its threads were made ready before: so does mpi4py-fft's first plan."""
    program = """
import ctypes, os
from pathlib import Path
import numpy as np
from overlap.fft.engine import fftw
from overlap.fft.engine.lines import LineTransform
folder, libc = Path(os.environ["OVERLAP_FFTW"]), ctypes.CDLL(None)
openmp = ctypes.PyDLL(*map(str, folder.glob("libgomp*")))
fields = [fftw.zeros((3, n), "D") for n in (60, 512, 4096, 5000)]
plans = [LineTransform(field, field, 1, True, "measure") for field in fields]
ctypes.PyDLL(*map(str, folder.glob("libfftw3_omp*"))).fftw_plan_with_nthreads(1)
libc.malloc.restype, libc.memset.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
for nbytes in range(8, 264, 8):  # what was freed is used again
    for _ in range(5000):
        libc.memset(libc.malloc(nbytes), 255, nbytes)
for plan, field in zip(plans, fields):
    field[...] = np.random.default_rng(3).random(field.shape)
    truth = np.fft.fft(field)
    plan.execute(field, field)
    np.testing.assert_allclose(field, truth, atol=1e-12 * field.shape[1])
del plan, plans
"""
    ran = _python(program, Path(pyfftw.__file__).parent.parent / "pyfftw.libs")
    assert ran.returncode == 0, ran.stderr


def test_an_environment_that_names_no_library(tmp_path):
    ran = _python("from overlap.fft.engine import fftw; fftw.fftw_version()", tmp_path)
    assert "InputError: expected OVERLAP_FFTW to name a folder" in ran.stderr and str(tmp_path) in ran.stderr


def _python(program, named):
    environment = os.environ | {library.ENVIRONMENT: str(named)}
    return commands.run(sys.executable, "-c", program, env=environment, timeout=120)


@pytest.mark.parametrize(
    "double, single, newer",
    [("3.3.12", "3.3.12", True), ("3.3.9", "3.3.9", False), ("3.3.12", "", False), ("", "", False)],
)
def test_a_newer_library_of_the_system_is_found(double, single, newer, tmp_path, monkeypatch):
    """One that is newer in numbers, not in letters, and has both precisions."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    for kind, version in (("", double), ("f", single)):
        (tmp_path / f"libfftw3{kind}.so").write_bytes(f"\0fftw-{version}-sse2\0".encode())
    found = library.newer_on_system("3.3.11")
    assert (found == f"3.3.12 in {tmp_path}") == newer
