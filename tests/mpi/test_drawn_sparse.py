"""Matrices and graphs that hypothesis draws, on 1 to 8 ranks and two MPI libraries."""

from functools import partial

import drawing
import numpy as np
import pytest
from hypothesis import strategies as st
from marks import exhaustive
from scipy import sparse
from scipy.sparse import linalg

from overlap import Halo
from overlap.sparse import IC0, AdditiveSchwarz, BlockJacobi, Jacobi, Matrix, bicgstab, cg, pipecg
from overlap.tools.bench.solvers import NotHidden

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
SOLVERS = {"cg": cg, "single": partial(cg, single_reduction=True), "pipecg": pipecg, "bicgstab": bicgstab}
PRECONDITIONERS = {"jacobi": Jacobi, "blocks": BlockJacobi, "ic0": IC0, "schwarz": AdditiveSchwarz}


def parts(comm, counts):
    """How many rows each rank has, of numbers drawn for eight; one rank has some."""
    counts = counts[: comm.size]
    counts[0] += not any(counts)
    limits = np.concatenate([[0], np.cumsum(counts)])
    return int(limits[-1]), slice(*limits[comm.rank : comm.rank + 2].tolist())


def triplets(case, rows):
    """Entries of a drawn matrix, in any order; of one that is not symmetric some several times."""
    chance = np.random.default_rng(case["seed"])
    block = case["block"]
    if case["offsets"] is None:
        i, j = (np.array(case["edges"], int).reshape(-1, 2) % rows).T
    else:
        pairs = [(row, row + offset) for offset in case["offsets"] for row in range(rows) if 0 <= row + offset < rows]
        i, j = np.array(pairs, int).reshape(-1, 2).T
    v = chance.standard_normal((len(i), block, block)).astype(case["dtype"])
    if v.dtype.kind == "c":
        v += 1j * chance.standard_normal(v.shape)
    if case["symmetric"]:
        dense = np.zeros((rows, rows, block, block), v.dtype)
        np.add.at(dense, (i, j), v)
        dense += dense.conj().transpose(1, 0, 3, 2)
        sums = abs(dense).sum(axis=(1, 3))  # so that it is positive definite
        dense[np.arange(rows), np.arange(rows)] += (1 + sums.max(axis=1))[:, None, None] * np.eye(block, dtype=v.dtype)
        i, j = np.nonzero(abs(dense).sum(axis=(2, 3)))
        v = dense[i, j]
    order = chance.permutation(len(i))
    return i[order], j[order], v[order] if block > 1 else v[order, 0, 0]


def matrix(comm, case):
    """Products, transposed ones, norms and solutions of a drawn matrix on drawn parts of ranks."""
    rows, here = parts(comm, case["counts"])
    i, j, v = triplets(case, rows)
    block, count = case["block"], here.stop - here.start
    size = rows * block
    numbers = [
        (np.repeat(one * block, block * block) + np.tile(within, len(one)))
        for one, within in zip((i, j), np.indices((block, block)).reshape(2, -1))
    ]
    right = sparse.coo_array((v.reshape(-1), numbers), shape=(size, size)).tocsr()
    mine = np.random.default_rng(case["seed"]).integers(0, comm.size, len(i)) == comm.rank
    chance = np.random.default_rng(case["seed"] + 1)
    x = chance.standard_normal(size).astype(case["dtype"])
    part = x.reshape(rows, block)[here] if block > 1 else x[here]
    fine = np.finfo(case["dtype"]).eps
    close = {"rtol": 100 * fine, "atol": 1000 * fine * (1 + abs(right).sum(axis=1).max())}

    def own(vector):
        return vector.reshape(rows, block)[here].reshape(part.shape)

    found, histories = [], []
    for transport, hidden in (("auto", False), ("auto", True), ("messages", True)):
        with Matrix(comm, i[mine], j[mine], v[mine], count, transport=transport) as A:
            if hidden:  # as exchanges are behind larger matrices' rows
                A._storage.is_short = False
            assert A.shape == right.shape and A.rows == here
            M = PRECONDITIONERS[case["preconditioner"]](A) if case["symmetric"] else None
            for A.workers in {1, case["workers"]}:
                found += [A @ part, NotHidden(A) @ part]
                if case["symmetric"]:
                    solution = SOLVERS[case["solver"]](A, part, rtol=1e4 * fine, M=M)
                    assert solution.info == 0 and solution.true_residual <= 1e5 * fine * np.linalg.norm(x)
                    histories.append((solution.residuals.tobytes(), solution.x.tobytes()))
            np.testing.assert_allclose(A.T @ part, own(right.T @ x), **close)
            np.testing.assert_allclose(A.to_scipy().toarray(), right.toarray(), **close)
            np.testing.assert_allclose(A.norm(), linalg.norm(right), rtol=1e3 * fine)
            np.testing.assert_allclose(A.norm(np.inf), abs(right).sum(axis=1).max(), rtol=1e3 * fine)
            if case["symmetric"]:
                np.testing.assert_allclose(
                    solution.x, own(linalg.spsolve(right.tocsc(), x)), rtol=1e6 * fine, atol=1e6 * fine
                )
    np.testing.assert_allclose(found[0], own(right @ x), **close)
    for product in found:
        np.testing.assert_array_equal(product, found[0])
    assert len(set(histories)) <= 1, "expected the same bits in every mode"


def graph(comm, case):
    """A halo of drawn needs of drawn owners: each rank gets what it needs, over both transports."""
    owners = np.array(case["owners"], int) % comm.size
    owned = np.flatnonzero(owners == comm.rank)[:: -1 if case["reversed"] else 1]
    needed = np.array(case["needs"][comm.rank], int)
    needed = needed[needed < len(owners)]
    kind = ("f8", tuple(case["components"])) if case["components"] else "f8"
    for transport in ("auto", "messages"):
        with Halo.from_indices(comm, owned, needed, [kind, "i4"], transport=transport) as halo:
            x, numbers = halo.empty()
            for turn in range(3):
                x[: len(owned)] = (owned + 0.5 + turn).reshape(-1, *(1 for _ in case["components"]))
                numbers[: len(owned)] = owned - turn
                halo.exchange(x, numbers)
                everything = np.concatenate([owned, needed])
                np.testing.assert_array_equal(numbers, everything - turn)
                np.testing.assert_array_equal(
                    x, np.broadcast_to((everything + 0.5 + turn).reshape(-1, *(1 for _ in case["components"])), x.shape)
                )


@RUNS
def test_matrices(ranks, mpi, count):
    drawing.check(
        "test_drawn_sparse:matrix", MATRIX, count, ranks, edges=EDGES[ranks % 2 :: 2] if mpi == "mpich" else (), mpi=mpi
    )


@RUNS
def test_graphs(ranks, mpi, count):
    drawing.check("test_drawn_sparse:graph", GRAPH, count, ranks, mpi=mpi)
