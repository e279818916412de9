"""Measurements of halos and solvers: that they run, and give every number."""

import math

import numpy as np

from overlap.tools.bench import solvers


def records(comm):
    for workload, matrix, more in (
            ("halo", "poisson", {"plain_s"}), ("spmv", "poisson", set()), ("spmv", "elastic", {"full_s"}),
            ("cg", "poisson", {"iteration_s"}), ("cg", "elastic", {"iteration_s"}),
            ("mgcg", "poisson", {"iteration_s", "setup_s", "solve_s", "iterations", "switch"})):
        record = solvers.measure(comm, workload, (8, 8, 8), 2, 2, matrix)
        assert {"C_s", "T_s", "off_s", "auto_s", "hidden", "control_hidden", *more} <= set(record)
        assert all(value > 0 and math.isfinite(value) for name, value in record.items() if name.endswith("_s"))
        assert all(len(times) == 2 for times in record["seconds"].values())


def springs(comm):
    """The lattice's matrix is symmetric and positive definite, the biased one unsymmetric; half of the first one is stored."""
    for bias, storage in ((0.0, "symmetric blocks"), (0.1, "rows")):
        with solvers.springs(comm, (4, 3, 5), bias) as A:
            assert A.storage == storage
            dense = A.to_scipy().toarray()
            assert (abs(dense - dense.T).max() > 0) == bool(bias)
            assert bias or np.linalg.eigvalsh(dense)[0] > 0
