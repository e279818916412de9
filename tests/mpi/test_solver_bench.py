"""`overlap bench halo | spmv | cg | mgcg`."""

import math
from time import perf_counter

import numpy as np
import pytest
from marks import on_ranks

from overlap import InputError
from overlap.sparse import Jacobi, cg, faster_cg, pipecg
from overlap.tools.bench import solvers


@on_ranks(2)
def test_records(comm):
    for workload, matrix, more in (
        ("halo", "poisson", {"plain_s", "tested_s", "sendrecv_s"}),
        ("spmv", "poisson", set()),
        ("spmv", "elastic", {"full_s", "naive_s"}),
        ("cg", "poisson", {"iteration_s", "plain_s", "pipelined_s", "delayed_s", "delayed_pipelined_s"}),
        ("cg", "elastic", {"iteration_s", "plain_s", "full_s", "naive_s", "iterations"}),
        ("mgcg", "rock", {"iteration_s", "setup_s", "solve_s", "iterations", "switch"}),
    ):
        record = solvers.measure(comm, workload, (8, 8, 8), 2, 2, matrix, 0.002)
        assert {"C_s", "T_s", "off_s", "auto_s", "hidden", "control_hidden", *more} <= set(record)
        assert all(value > 0 and math.isfinite(value) for name, value in record.items() if name.endswith("_s"))
        assert all(len(times) == 2 for times in record["seconds"].values())
        if matrix == "elastic" and workload == "cg":
            assert len(set(record["iterations"].values())) == 1
    with pytest.raises(InputError, match="expected another matrix with spmv, received rock"):
        solvers.measure(comm, "spmv", (8, 8, 8), 2, 2, "rock")


@on_ranks(2)
def test_late_sums(comm):
    """Plain iterations wait for two late sums, pipelined ones hide one; the numbers are those of the matrix itself."""
    with solvers.springs(comm, (4, 3, 5)) as A:
        b, M, delay_s = np.ones(A.vector()[1].shape), Jacobi(A), 0.02
        late = solvers.LateSums(A, delay_s)
        for solver in (cg, pipecg):
            right, found = solver(A, b, rtol=1e-8, M=M), solver(late, b, rtol=1e-8, M=M)
            np.testing.assert_array_equal(found.residuals, right.residuals)
            np.testing.assert_array_equal(found.x, right.x)
        assert faster_cg(late, b, M=M) is pipecg
        for started in (lambda: late.sum(np.ones(3)), lambda: late.start_sum(np.ones(3), np.empty(3))()):
            begun = perf_counter()
            started()
            assert perf_counter() - begun >= delay_s


@on_ranks(2)
def test_springs(comm):
    """The lattice's matrix is symmetric, positive definite, and the same however it is stored and multiplied."""
    with solvers.springs(comm, (4, 3, 5)) as A:
        dense = A.to_scipy().toarray()
        assert (dense == dense.T).all() and np.linalg.eigvalsh(dense)[0] > 0
        x = np.random.default_rng(1).random((60, 3))
        expected, mine = (dense @ x.reshape(-1)).reshape(60, 3)[A.rows], x[A.rows]
        assert A.storage == "symmetric blocks"
        np.testing.assert_allclose(solvers.NotHidden(A) @ mine, expected, rtol=1e-12)
        iterations = cg(A, mine, rtol=1e-8, M=Jacobi(A)).iterations
        for kind, storage in ((solvers.StoredByRows, "rows"), (solvers.Listed, "index lists")):
            with solvers.springs(comm, (4, 3, 5), kind) as other:
                assert other.storage == storage
                np.testing.assert_allclose(other @ mine, expected, rtol=1e-12)
                assert cg(other, mine, rtol=1e-8, M=Jacobi(A)).iterations == iterations
