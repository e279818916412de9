"""Measurements of halos and solvers: that they run, and give every number."""

import math

import numpy as np
import pytest

from overlap import InputError
from overlap.sparse import Jacobi, cg
from overlap.tools.bench import products, solvers


def records(comm):
    for workload, matrix, more in (
            ("halo", "poisson", {"plain_s", "tested_s", "sendrecv_s"}), ("spmv", "poisson", set()),
            ("spmv", "elastic", {"full_s", "naive_s"}), ("cg", "poisson", {"iteration_s", "plain_s"}),
            ("cg", "elastic", {"iteration_s", "plain_s", "full_s", "naive_s", "iterations"}),
            ("mgcg", "rock", {"iteration_s", "setup_s", "solve_s", "iterations", "switch"})):
        record = solvers.measure(comm, workload, (8, 8, 8), 2, 2, matrix)
        assert {"C_s", "T_s", "off_s", "auto_s", "hidden", "control_hidden", *more} <= set(record)
        assert all(value > 0 and math.isfinite(value) for name, value in record.items() if name.endswith("_s"))
        assert all(len(times) == 2 for times in record["seconds"].values())
        if matrix == "elastic" and workload == "cg":
            assert len(set(record["iterations"].values())) == 1
    with pytest.raises(InputError, match="expected another matrix with spmv, received rock"):
        solvers.measure(comm, "spmv", (8, 8, 8), 2, 2, "rock")


def springs(comm):
    """The lattice's matrix is symmetric and positive definite; however it is stored and multiplied, products and iterations are the same."""
    with products.springs(comm, (4, 3, 5)) as A:
        dense = A.to_scipy().toarray()
        assert (dense == dense.T).all() and np.linalg.eigvalsh(dense)[0] > 0
        x = np.random.default_rng(1).random((60, 3))
        expected, mine = (dense @ x.reshape(-1)).reshape(60, 3)[A.rows], x[A.rows]
        assert A.storage == "symmetric blocks"
        np.testing.assert_allclose(products.NotHidden(A) @ mine, expected, rtol=1e-12)
        iterations = cg(A, mine, rtol=1e-8, M=Jacobi(A)).iterations
        for kind, storage in ((products.StoredByRows, "rows"), (products.Listed, "index lists")):
            with products.springs(comm, (4, 3, 5), kind) as other:
                assert other.storage == storage
                np.testing.assert_allclose(other @ mine, expected, rtol=1e-12)
                assert cg(other, mine, rtol=1e-8, M=Jacobi(A)).iterations == iterations
