"""`FFT2` on 1 to 4 ranks and two MPI libraries; see `fft2_cases` for what is asserted."""

import drawing
import jobs
import pytest
from hypothesis import strategies as st
from marks import exhaustive

RANKS = [1, 2, 3, exhaustive(4)]
LENGTHS = st.integers(1, 12) | st.sampled_from([13, 16, 17, 23, 30, 37])
LAYOUTS = ("contiguous", "strided", "misaligned", "unaligned", "fortran", "reversed", "batch last", "batch swapped")
WEIGHTS = st.none() | st.lists(st.sampled_from([1, 2, 3, 0.3, 0.001]), min_size=6, max_size=6)  # of the first ranks
CASE = st.fixed_dictionaries(
    {
        "shape": st.builds(
            lambda batch, ny, nx: [*batch, ny, nx],
            st.lists(st.integers(0, 4) | st.integers(1, 4), max_size=3),
            LENGTHS,
            LENGTHS,
        ),
        "dtype": st.sampled_from(["f4", "f8", "c8", "c16"]),
        "norm": st.sampled_from([None, "backward", "ortho", "forward"]),
        "order": st.sampled_from(["natural", "transposed"]),
        "weights": WEIGHTS,
        "wait": st.sampled_from(["off", "block", "poll"] * 5 + ["auto"]),
        "depth": st.none() | st.integers(1, 6),
        "chunk": st.none() | st.integers(1, 5),
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
        "weights": None,
        "wait": overlap,
        "depth": None,
        "chunk": chunk,
        "source": "contiguous",
        "target": target,
        "read_only": True,
        "effort": "estimate",
        "seed": 1,
    }
    for shape, overlap, chunk in (
        ([1, 1], "poll", None),
        ([0, 3, 4], "poll", None),
        ([2, 0, 3, 4], "auto", 2),
        ([5, 1, 1], "block", 2),
        ([5, 2, 7], "poll", 1),
        ([3, 31, 2], "off", None),
        ([2, 2, 2, 2, 3], "poll", 3),
    )
    for dtype in ("f8", "c8")
    for order in ("natural", "transposed")
    for target in (None, "reversed")
]


MANY = [exhaustive(ranks, 80, 2) for ranks in (1, 2, 3, 4)]


@pytest.mark.parametrize("ranks, count, every", [(1, 10, 8), (2, 10, 8), (3, 6, 8), *MANY])
def test_against_numpy(ranks, count, every):
    drawing.check("fft2_cases:drawn", CASE, count, ranks, edges=EDGES[ranks % every :: every])


@pytest.mark.parametrize("count", [8, exhaustive(40)])
def test_against_numpy_with_two_workers(count):
    drawing.check("fft2_cases:drawn", CASE, count, 2, workers=2)


BATCHES = [
    ((19, 12, 10), "f8", "natural"),
    ((13, 7, 11), "c8", "natural"),
    ((2, 5, 16, 9), "c16", "transposed"),
    ((11, 3, 24), "f4", "transposed"),
]


@pytest.mark.parametrize(
    "number, ranks, workers",
    [
        (0, 1, [1, 2, 3]),
        (2, 1, [1, 3]),
        exhaustive(0, 2, [1, 2, 3]),
        (1, 2, [2]),
        (2, 2, [1]),
        exhaustive(3, 2, [3]),
        exhaustive(1, 3, [2]),
        (3, 3, [1]),
        exhaustive(0, 4, [2]),
        exhaustive(2, 4, [1]),
    ],
)
def test_every_mode_gives_the_same_bits(number, ranks, workers):
    shape, dtype, order = BATCHES[number]
    jobs.run_job(
        "fft2_cases:modes_agree",
        ranks,
        args={
            "shape": shape,
            "dtype": dtype,
            "order": order,
            "workers": workers,
            "settings": [(None, None, None), (1, 1, None), (3, 1, 2), (2, 4, 1), (5, 100, None)],
        },
    )


@pytest.mark.parametrize("case", ["fft2_cases", "fft3_cases"])
@pytest.mark.parametrize("ranks", [2, exhaustive(3)])
def test_boxes_larger_than_the_cache(case, ranks):
    jobs.run_job(f"{case}:large_boxes", ranks)


@pytest.mark.exhaustive
def test_bits_at_a_larger_size():
    jobs.run_job(
        "fft2_cases:modes_agree",
        2,
        args={
            "shape": (6, 192, 128),
            "dtype": "f8",
            "order": "natural",
            "workers": [2],
            "settings": [(None, None, None), (3, 1, None), (2, 2, None)],
        },
    )


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize(
    "case",
    [
        "fft2_cases:broadcast_input",
        "fft2_cases:outputs_that_look_contiguous",
        "fft2_cases:distributed_arrays",
        "fft2_cases:fewer_slices_than_lanes",
        "fft2_error_cases:closed",
    ],
)
def test_on_any_number_of_ranks(case, ranks):
    jobs.run_job(case, ranks)


@pytest.mark.parametrize("ranks", [1, 2, exhaustive(3)])
def test_layouts(ranks):
    jobs.run_job("fft2_layout_cases:layouts,products_without_aliases,products_of_restored", ranks)


def test_calls_on_one_rank():
    jobs.run_job("local_call_cases:local_calls_give_the_same_bits,local_call_cases:threads_call_one_at_a_time", 1)


def test_failed_planning_keeps_the_ffts():
    jobs.run_job("fft2_error_cases:planning_again_fails", 2)


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("case", ["round_trips_of_other_plans", "compute_and_communicate"])
def test_plans_in_turns(case, ranks):
    jobs.run_job(f"fft2_cases:{case}", ranks)


@pytest.mark.parametrize("ranks, dtype, mode", [(1, "c16", "off"), (2, "f8", "poll"), (3, "c16", "block")])
def test_bad_input_on_one_rank(ranks, dtype, mode):
    jobs.run_job("fft2_error_cases:bad_input", ranks, args={"dtype": dtype, "mode": mode})


@pytest.mark.parametrize("ranks, shared", [(1, False), (2, True), (3, False)])
def test_bad_arguments_on_one_rank(ranks, shared):
    jobs.run_job("fft2_error_cases:bad_arguments", ranks, args={"shared": shared, "others": False})


@pytest.mark.parametrize("ranks, shared", [(2, False), (3, True)])
def test_arguments_that_differ_between_ranks(ranks, shared):
    jobs.run_job("fft2_error_cases:bad_arguments", ranks, args={"shared": shared, "others": True})


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_runtime_of_another_communicator(ranks):
    jobs.run_job("fft2_error_cases:other_communicator", ranks)


@pytest.mark.parametrize(
    "mode, ranks",
    [
        (mode, ranks) if (mode, ranks) in (("off", 1), ("block", 2), ("poll", 3)) else exhaustive(mode, ranks)
        for mode in ("off", "block", "poll")
        for ranks in (1, 2, 3)
    ],
)
def test_failure_at_every_site(mode, ranks):
    jobs.run_job("fft2_error_cases:injected", ranks, args={"mode": mode})


def test_failure_in_transposed_order():
    jobs.run_job(
        "fft2_error_cases:injected", 2, args={"mode": "poll", "order": "transposed", "dtype": "c16", "depth": 16}
    )


@pytest.mark.parametrize("mode", [exhaustive("block"), "poll"])
def test_failure_in_chunks(mode):
    jobs.run_job("fft2_error_cases:injected_in_chunks", 3, args={"mode": mode})


@pytest.mark.parametrize("mode", ["off", "block", "poll"])
def test_memory_is_what_the_plan_prints(mode):
    jobs.run_job("fft2_memory_cases:memory", 2, args={"mode": mode})


@pytest.mark.parametrize("dtype, order, ranks", [("f8", "natural", 3), ("c8", "transposed", 1)])
def test_memory_of_other_plans(dtype, order, ranks):
    jobs.run_job("fft2_memory_cases:memory", ranks, args={"mode": "poll", "dtype": dtype, "order": order})


@pytest.mark.parametrize("ranks", [1, 2])
def test_memory_is_given_back(ranks):
    jobs.run_job("fft2_memory_cases:memory_is_given_back", ranks)


def test_many_plans():
    jobs.run_job("fft2_memory_cases:many_plans", 2, args={"own": 24, "shared": 24, "left": 16})


@pytest.mark.parametrize(
    "case, ranks, args",
    [
        (
            "fft2_cases:modes_agree",
            2,
            {"shape": (11, 9, 8), "dtype": "f8", "order": "natural", "workers": [2], "settings": [(3, 2, None)]},
        ),
        ("fft2_error_cases:injected", 2, {"mode": "poll"}),
        exhaustive("fft2_error_cases:injected", 2, {"mode": "block"}),
        exhaustive("fft2_cases:distributed_arrays", 2, {}),
        exhaustive("fft2_memory_cases:many_plans", 2, {"own": 4, "shared": 8}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_under_open_mpi(openmpi, case, ranks, args):
    jobs.run_job(case, ranks, mpi="openmpi", args=args)


@pytest.mark.parametrize("ranks, count, every", [(2, 5, 9), exhaustive(3, 20, 3)])
def test_against_numpy_under_open_mpi(openmpi, ranks, count, every):
    drawing.check("fft2_cases:drawn", CASE, count, ranks, edges=EDGES[::every], mpi="openmpi")


@pytest.mark.parametrize("ranks, every", [(2, 5), exhaustive(2, 1), exhaustive(3, 1)])
def test_known_calls(ranks, every):
    jobs.run_job("known_call_cases:known_calls_give_the_same_bits", ranks, args={"every": every})


@pytest.mark.parametrize("ranks", [2, 3])
def test_known_calls_that_fail(ranks):
    jobs.run_job("known_call_cases:known_calls_that_fail", ranks)


def test_different_known_calls():
    jobs.run_job("known_call_cases:different_known_calls,known_call_cases:other_arrays_at_a_known_place", 2)
    # This one leaves a communicator behind.
    jobs.run_job("known_call_cases:different_known_calls", 2, args={"compared": False}, fresh=True)
