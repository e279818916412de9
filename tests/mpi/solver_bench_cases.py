"""Measurements of halos and solvers: that they run, and give every number."""

import math

from overlap.tools.bench import solvers


def records(comm):
    for workload, more in (("halo", {"plain_s"}), ("spmv", set()), ("cg", {"iteration_s"}),
                           ("mgcg", {"iteration_s", "setup_s", "solve_s", "iterations", "switch"})):
        record = solvers.measure(comm, workload, (8, 8, 8), 2, 2)
        assert {"C_s", "T_s", "off_s", "auto_s", "hidden", "control_hidden", *more} <= set(record)
        assert all(value > 0 and math.isfinite(value) for name, value in record.items() if name.endswith("_s"))
        assert all(len(times) == 2 for times in record["seconds"].values())
