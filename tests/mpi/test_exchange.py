"""Exchanges in single precision on 1 to 3 ranks; see `exchange_cases` for what is asserted."""

import jobs
import pytest
from marks import exhaustive

RANKS = [1, 2, exhaustive(3)]
PLANES = [((5, 12, 9), "c16"), ((7, 13, 10), "f8")]
FIELDS = [((3, 8, 9, 7), "c16"), ((2, 12, 10, 9), "f8")]


def run(case, ranks, mpi="mpich", **args):
    jobs.run_job(f"exchange_cases:{case}", ranks, mpi=mpi, args=args)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("shape, dtype", PLANES)
def test_planes(ranks, shape, dtype):
    run("transforms", ranks, kind="FFT2", shape=shape, dtype=dtype)


@pytest.mark.parametrize(
    "options",
    [
        {"layout": {"order": "transposed", "weights": [1, 2, 0.001]}},
        {"layout": {"restore": True}},
        {"workers": 2, "depth": 3, "chunk": 2},
    ],
)
def test_planes_of_other_layouts(options):
    run("transforms", 3, kind="FFT2", shape=(7, 13, 10), dtype="f8", **options)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("shape, dtype", FIELDS)
def test_fields(ranks, shape, dtype):
    run("transforms", ranks, kind="FFT3", shape=shape, dtype=dtype)


@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize(
    "ranks, options",
    [
        (2, {"late": 0.5, "chunk": 1}),
        (3, {"late": 0.5, "chunk": 1, "layout": {"grid": [3, 1]}}),
        (2, {"layout": {"order": "transposed", "restore": True, "grid": [2, 1]}}),
        exhaustive(4, {"late": 0.5, "layout": {"grid": [2, 2]}}),
        exhaustive(4, {"late": 0.3, "workers": 2, "layout": {"grid": [2, 2], "weights": [1, 2, 3, 4]}}),
    ],
)
def test_fields_of_other_layouts(ranks, options, dtype):
    run("transforms", ranks, kind="FFT3", shape=(15, 14, 13), dtype=dtype, **options)


@pytest.mark.parametrize("ranks", [1, 2, exhaustive(3)])
def test_all_numbers_are_rounded(ranks):
    for dtype in ("f8", "c16"):
        run("all_is_rounded", ranks, dtype=dtype)


@pytest.mark.parametrize("ranks", [2, exhaustive(3)])
@pytest.mark.parametrize("kind, shape, dtype", [("FFT2", *PLANES[1]), ("FFT2", *PLANES[0]), ("FFT3", *FIELDS[1])])
def test_pointwise(ranks, kind, shape, dtype):
    run("pointwise", ranks, kind=kind, shape=shape, dtype=dtype)


@pytest.mark.parametrize("ranks", [exhaustive(2)])
def test_compiled_functions(ranks):
    run("pointwise", ranks, kind="FFT2", shape=PLANES[1][0], dtype="f8", compiled=True)


@pytest.mark.parametrize("ranks", [1, 3])
def test_brackets(ranks):
    run("bracket", ranks)
    if ranks > 1:
        run("bracket_in_a_program", ranks)


@pytest.mark.parametrize("ranks, wait", [(2, "poll"), (3, "off"), exhaustive(3, "block")])
@pytest.mark.parametrize("kind, shape, dtype", [("FFT2", *PLANES[1]), ("FFT3", *FIELDS[0])])
def test_too_large_numbers(ranks, wait, kind, shape, dtype):
    run("overflow", ranks, kind=kind, shape=shape, dtype=dtype, wait=wait)


def test_too_large_late_numbers():
    run("overflow", 2, kind="FFT3", shape=(15, 14, 13), dtype="f8", wait="poll", late=0.5)


@pytest.mark.parametrize("wait", ["poll", exhaustive("off"), exhaustive("block")])
def test_too_large_brackets(wait):
    run("bracket_overflow", 2, wait=wait)


def test_what_is_not_finite_passes():
    run("nothing_finite", 2, kind="FFT2", shape=(4, 12, 9), dtype="c16")
    run("nothing_finite", 2, kind="FFT3", shape=(4, 6, 8, 5), dtype="f8")


@pytest.mark.parametrize("ranks", RANKS)
def test_arguments(ranks):
    run("arguments", ranks)


def test_openmpi():
    run("transforms", 2, mpi="openmpi", kind="FFT2", shape=PLANES[1][0], dtype="f8")
    run("bracket", 2, mpi="openmpi")


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_redistribution(ranks):
    run("redistribution", ranks)


@pytest.mark.parametrize("ranks", [1, 2, exhaustive(3)])
def test_functions(ranks):
    run("functions", ranks)


@pytest.mark.parametrize("ranks", [1, 2, exhaustive(3)])
def test_drop_in_for_mpi4py_fft(ranks):
    run("drop_in", ranks)
