"""The example of the elastic cube."""

import sys
from pathlib import Path

from marks import exhaustive, on_ranks

ITERATIONS = {2: 19, 4: 40, 8: 80}  # with the inverse diagonal blocks, to 1e-8; computed beforehand, serially


@on_ranks(exhaustive(1), 3)
def test_cubes(comm):
    sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "elasticity"))
    import run

    planes = run.block(5, comm.size)[comm.rank]
    rows, columns, values, b = run.system(4, planes)
    with run.Matrix(comm, rows, columns, values, len(b)) as A:
        assert A.storage == "symmetric blocks"
    for n, iterations in ITERATIONS.items():
        found, error, _ = run.solve(comm, n)
        assert abs(found.iterations - iterations) <= 2, (n, found.iterations)
        assert error <= 1e-8 * n, (n, error)
        fewer, error, _ = run.solve(comm, n, preconditioner="ic0")
        assert error <= 1e-8 * n, (n, error)
        assert n == 2 or fewer.iterations <= 0.8 * iterations, (
            n,
            fewer.iterations,
        )  # n = 2: a plane for each of three ranks
        assert found.true_residual <= 1.01 * found.residuals[-1] + 1e-12
