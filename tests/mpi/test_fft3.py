"""`FFT3` on 1 to 6 ranks and two MPI libraries; see `fft3_cases` for what is asserted."""

import drawing
import jobs
import pytest
from hypothesis import strategies as st
from marks import exhaustive
from test_fft2 import LAYOUTS, WEIGHTS

LENGTHS = st.integers(1, 8) | st.sampled_from([1, 2, 11, 13, 16, 20, 30])
CASE = st.fixed_dictionaries(
    {
        "shape": st.builds(
            lambda batch, field: [*batch, *field],
            st.lists(st.integers(0, 4) | st.integers(1, 3), max_size=2),
            st.lists(LENGTHS, min_size=3, max_size=3),
        ),
        "dtype": st.sampled_from(["f4", "f8", "c8", "c16"]),
        "norm": st.sampled_from([None, "backward", "ortho", "forward"]),
        "order": st.sampled_from(["natural", "natural", "transposed"]),
        "restore": st.sampled_from([False, False, True]),
        "weights": WEIGHTS,
        "dealias": st.sampled_from([None, None, "3/2"]),
        "grid": st.sampled_from([0, 1, 2, 3] * 3 + [None]),  # None: grids are measured, which takes time
        "wait": st.sampled_from(["off", "block", "poll"] * 5 + ["auto"]),
        "depth": st.none() | st.integers(1, 6),
        "chunk": st.none() | st.integers(1, 5),
        "late": st.none() | st.sampled_from([0.3, 0.7, 1.0]),
        "source": st.sampled_from(LAYOUTS),
        "target": st.sampled_from([None, *LAYOUTS, "contiguous"]),
        "read_only": st.booleans(),
        "effort": st.sampled_from(["estimate", "estimate", "measure"]),
        "seed": st.integers(0, 2**32),
    }
)
EDGES = [
    {
        "shape": shape,
        "dtype": dtype,
        "norm": None,
        "order": order,
        "restore": restore,
        "weights": None,
        "dealias": None,
        "grid": grid,
        "wait": "poll",
        "depth": None,
        "chunk": 1,
        "late": grid / 2,
        "source": "contiguous",
        "target": None,
        "read_only": True,
        "effort": "estimate",
        "seed": 1,
    }
    for shape in ([1, 1, 1], [0, 3, 4, 5], [2, 3, 1, 7], [2, 40, 24, 36], [3, 2, 60, 32])
    for dtype in ("f8", "c8")
    for order, restore in (("natural", False), ("transposed", True))
    for grid in (0, 1)
]
# Ranks without points, and a target that is no contiguous line: once taken for work memory.
EDGES += [
    EDGES[0] | {"shape": shape, "order": "transposed", "grid": grid, "target": "strided"}
    for shape in ([1, 5, 1], [5, 1, 2])
    for grid in (0, 1, 2)
    for _ in range(2)
]


MANY = [exhaustive(*values, 2) for values in ((1, 60), (2, 80), (3, 60), (4, 60), (6, 30))]


@pytest.mark.parametrize("ranks, count, every", [(1, 8, 8), (2, 10, 8), (3, 6, 12), *MANY])
def test_against_numpy(ranks, count, every):
    drawing.check("fft3_cases:drawn", CASE, count, ranks, edges=EDGES[ranks % every :: every])


@pytest.mark.parametrize("count", [8, exhaustive(40)])
def test_against_numpy_with_two_workers(count):
    drawing.check("fft3_cases:drawn", CASE, count, 2, workers=2)


@pytest.mark.parametrize("ranks, grid", [(1, (1, 1)), (2, (2, 1)), (2, (1, 2)), (4, (2, 2)), exhaustive(6, (2, 3))])
@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_every_step(ranks, grid, dtype):
    jobs.run_job("fft3_cases:every_step", ranks, args={"shape": (13, 10, 36), "dtype": dtype, "grid": grid})


@pytest.mark.parametrize("ranks", [2, 3])
def test_fields_in_one_message(ranks):
    jobs.run_job("fft3_cases:fields_in_one_message", ranks)


SETTINGS = [(None, None, None), (1, 1, None), (3, 1, 0.5), (2, 4, 1.0), (2, 1, 1.0)]


@pytest.mark.parametrize(
    "ranks, grid, shape, dtype, options",
    [
        (1, (1, 1), (24, 20, 18), "f8", {}),
        (2, (1, 2), (24, 32, 36), "c16", {}),
        (2, (2, 1), (2, 24, 32, 36), "f4", {"order": "transposed"}),
        exhaustive(3, (1, 3), (3, 22, 32, 36), "f8", {}),
        exhaustive(4, (2, 2), (3, 20, 18, 36), "c16", {}),
        exhaustive(4, (2, 2), (20, 18, 36), "f8", {"dealias": "3/2"}),
        exhaustive(4, (2, 2), (12, 18, 20), "c8", {"restore": True}),
        (2, (1, 2), (30, 4, 6, 5), "f8", {}),
    ],
)
def test_every_mode_gives_the_same_bits(ranks, grid, shape, dtype, options):
    jobs.run_job(
        "fft3_cases:modes_agree",
        ranks,
        args={"shape": shape, "dtype": dtype, "grid": grid, "settings": SETTINGS, "effort": "estimate", **options},
    )


@pytest.mark.parametrize("mode", ["block", "poll"])
@pytest.mark.parametrize(
    "ranks, grid, dtype, late",
    [
        (2, (1, 2), "f8", 0),
        (2, (1, 2), "f8", 0.7),
        exhaustive(4, (2, 2), "f8", 0),
        exhaustive(4, (1, 4), "c16", 1.0),
        exhaustive(6, (3, 2), "f8", 0),
    ],
)
def test_order_with_random_delays(ranks, grid, dtype, late, mode):
    jobs.run_job(
        "fft3_cases:delays",
        ranks,
        args={"shape": (2, 24, 40, 96), "dtype": dtype, "grid": grid, "late": late, "mode": mode},
    )


@pytest.mark.parametrize("mode", ["off", "block", "poll"])
@pytest.mark.parametrize(
    "ranks, grid, dtype, late",
    [(2, (1, 2), "c16", 0), exhaustive(4, (2, 2), "f8", 0), (2, (1, 2), "f8", 0.7), exhaustive(3, (1, 3), "c16", 0.7)],
)
def test_failure_at_every_site(ranks, grid, dtype, late, mode):
    jobs.run_job(
        "fft3_error_cases:injected",
        ranks,
        args={"mode": mode, "grid": grid, "dtype": dtype, "late": late, "shape": (16, 24, 96)},
    )


@pytest.mark.parametrize(
    "ranks, grid, dtype, order, batch, dealias, outputs, shared, use_out",
    [
        (1, (1, 1), "f8", "natural", (2,), "3/2", 1, 1, False),
        (2, (1, 2), "f8", "natural", (3,), "3/2", 2, 0, False),
        (2, (2, 1), "c16", "transposed", (), None, 1, 0, True),
        (4, (2, 2), "f8", "natural", (3,), "3/2", 2, 1, True),
        (3, (1, 3), "c8", "natural", (2, 2), None, 1, 1, False),
    ],
)
def test_pointwise(ranks, grid, dtype, order, batch, dealias, outputs, shared, use_out):
    jobs.run_job(
        "fft3_pointwise_cases:pointwise",
        ranks,
        args={
            "grid": grid,
            "dtype": dtype,
            "order": order,
            "batch": batch,
            "shape": (9, 10, 24),
            "dealias": dealias,
            "outputs": outputs,
            "shared": shared,
            "use_out": use_out,
            "modes": [
                ("off", 1, None, None),
                ("poll", 1, 3, 1),
                ("block", 2, 4, 2),
                ("poll", 2, 7, 1),
                ("auto", 1, None, None),
            ],
        },
    )


@pytest.mark.parametrize("ranks, grid, mode", [(2, (1, 2), "off"), exhaustive(4, (2, 2), "poll"), (2, (1, 2), "block")])
def test_pointwise_failures(ranks, grid, mode):
    jobs.run_job("fft3_pointwise_cases:pointwise_failures", ranks, args={"mode": mode, "grid": grid})


@pytest.mark.parametrize("ranks", [1, 3, exhaustive(4)])
@pytest.mark.parametrize(
    "case",
    [
        "fft3_cases:plane_waves",
        "fft3_cases:finer_along_some_axes",
        "fft3_cases:distributed_arrays",
        "fft3_error_cases:closed",
        "fft3_error_cases:bad_calls",
        "fft3_error_cases:bad_arguments",
    ],
)
def test_on_any_number_of_ranks(case, ranks):
    jobs.run_job(case, ranks)


@pytest.mark.parametrize("ranks", [1, 2, exhaustive(4)])
def test_compute_and_communicate(ranks):
    jobs.run_job("fft3_cases:compute_and_communicate", ranks)


@pytest.mark.parametrize("ranks", [2, 3, exhaustive(6)])
def test_chosen_grid(ranks):
    jobs.run_job("fft3_cases:chosen_grid", ranks)


@pytest.mark.parametrize("ranks, grid, dtype", [(2, (1, 2), "f8"), (2, (2, 1), "c16"), exhaustive(4, (2, 2), "f4")])
@pytest.mark.parametrize("restore", [False, True])
def test_memory_is_what_the_plan_prints(ranks, grid, dtype, restore):
    jobs.run_job("fft3_memory_cases:memory", ranks, args={"dtype": dtype, "grid": grid, "restore": restore})


def test_many_plans():
    jobs.run_job("fft3_memory_cases:many_plans", 4, args={"own": 24, "shared": 24, "left": 16})


@pytest.mark.parametrize(
    "case, ranks, args",
    [
        (
            "fft3_cases:modes_agree",
            2,
            {"shape": (2, 20, 18, 36), "dtype": "f8", "grid": (1, 2), "settings": [(3, 1, 0.5)], "effort": "estimate"},
        ),
        exhaustive(
            "fft3_cases:modes_agree",
            4,
            {"shape": (2, 20, 18, 36), "dtype": "f8", "grid": (2, 2), "settings": [(3, 1, 0.5)], "effort": "estimate"},
        ),
        exhaustive(
            "fft3_error_cases:injected",
            2,
            {"mode": "poll", "grid": (1, 2), "dtype": "c16", "late": 0.5, "shape": (16, 24, 96)},
        ),
        exhaustive("fft3_memory_cases:many_plans", 4, {"own": 4, "shared": 8}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_under_open_mpi(openmpi, case, ranks, args):
    jobs.run_job(case, ranks, mpi="openmpi", args=args)
