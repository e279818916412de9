"""Matrices and graphs that hypothesis draws, on 1 to 8 ranks and two MPI libraries."""

import drawing
import pytest
from hypothesis import strategies as st
from marks import exhaustive

RUNS = pytest.mark.parametrize(
    "ranks, mpi, count",
    [
        (2, "mpich", 2),
        *[
            exhaustive(*values)
            for values in ((1, "mpich", 8), (2, "mpich", 15), (2, "openmpi", 3), (5, "mpich", 4), (8, "mpich", 3))
        ],
    ],
)
MATRIX = st.fixed_dictionaries(
    {
        "counts": st.lists(st.integers(0, 9), min_size=8, max_size=8),
        "edges": st.lists(st.tuples(st.integers(0, 71), st.integers(0, 71)), max_size=60),
        "offsets": st.none() | st.lists(st.integers(-9, 9), min_size=1, max_size=5, unique=True),
        "symmetric": st.booleans(),
        "block": st.sampled_from([1, 1, 2, 3, 3]),
        "dtype": st.sampled_from(["f8", "f4", "c8", "c16"]),
        "preconditioner": st.sampled_from(["jacobi", "blocks", "ic0", "schwarz"]),
        "solver": st.sampled_from(["cg", "single", "pipecg", "bicgstab"]),
        "workers": st.integers(2, 4),
        "seed": st.integers(0, 2**32),
    }
)
EDGES = [
    {
        "counts": counts,
        "edges": [[0, 3], [3, 4], [7, 1]],
        "offsets": offsets,
        "symmetric": True,
        "block": block,
        "dtype": "f8",
        "preconditioner": "ic0",
        "solver": "cg",
        "workers": 2,
        "seed": 1,
    }
    for counts in ([9] * 8, [0, 1, 0, 9, 9, 0, 2, 0])
    for offsets in (None, [-1, 0, 1, 4])
    for block in (1, 3)
]
EDGES += [
    {
        "counts": [0, 6, 0, 0, 0, 0, 0, 0],
        "edges": [],
        "offsets": [0, 3],
        "symmetric": True,
        "block": 3,
        "dtype": "f4",
        "preconditioner": "schwarz",
        "solver": solver,
        "workers": 2,
        "seed": 20514,
    }  # solved at once, but for rounding
    for solver in ("pipecg", "pipecg", "single", "single", "cg", "cg")
]  # twice: every second one is for an odd number of ranks
GRAPH = st.fixed_dictionaries(
    {
        "owners": st.lists(st.integers(0, 7), max_size=40),
        "reversed": st.booleans(),
        "needs": st.lists(st.lists(st.integers(0, 39), max_size=15, unique=True), min_size=8, max_size=8),
        "components": st.sampled_from([[], [3], [2, 2]]),
    }
)


@RUNS
def test_matrices(ranks, mpi, count):
    drawing.check(
        "drawn_sparse_cases:matrix",
        MATRIX,
        count,
        ranks,
        edges=EDGES[ranks % 2 :: 2] if mpi == "mpich" else (),
        mpi=mpi,
    )


@RUNS
def test_graphs(ranks, mpi, count):
    drawing.check("drawn_sparse_cases:graph", GRAPH, count, ranks, mpi=mpi)
