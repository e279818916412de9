"""Pull an elastic cube: conjugate gradients with hidden halos, and a known answer.

    mpiexec -n 2 python examples/elasticity/run.py --elements 16 --picture cube.png

The benchmark problem of GeoFEM: a matrix of 3 x 3 blocks, CG with the inverse diagonal blocks (or incomplete factors),
until norm(b - A x) < 1e-8 norm(b). Every rank has a run of planes of nodes; a product computes the rows that need no
other rank's nodes while these are on their way. It ends by comparing with the exact displacement.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from time import perf_counter

import numpy as np
from cube import exact, system
from mpi4py import MPI

from overlap.arrays import block
from overlap.sparse import IC0, BlockJacobi, Matrix, Preconditioner, Solution, cg

PRECONDITIONERS: dict[str, Callable[[Matrix], Preconditioner]] = {"blocks": BlockJacobi, "ic0": IC0}


def solve(comm: MPI.Intracomm, n: int, every: int = 0, preconditioner: str = "blocks") -> tuple[Solution, float, float]:
    """Solve for a cube of n^3 elements, with one of the `PRECONDITIONERS`.

    Returns
    -------
    solution : Solution
    error : float
        Largest difference from the exact displacement, of all ranks.
    seconds : float
        Time of the iterations.
    """
    planes = block(n + 1, comm.size)[comm.rank]
    rows, columns, values, b = system(n, planes)
    done = [0]

    def tell(x):
        done[0] += 1
        if every and comm.rank == 0 and done[0] % every == 0:
            print(f"iteration {done[0]}", flush=True)

    with Matrix(comm, rows, columns, values, len(b)) as A:
        del rows, columns, values
        M = PRECONDITIONERS[preconditioner](A)
        started = perf_counter()
        found = cg(A, b, rtol=1e-8, M=M, callback=tell if every else None)
        seconds = perf_counter() - started
    error = comm.allreduce(float(abs(found.x - exact(n, planes)).max()), MPI.MAX)
    return found, error, seconds


def draw(path: str, n: int, x: np.ndarray) -> None:
    """Draw the displaced nodes of the face y = 0, coloured by their displacement."""
    from matplotlib.figure import Figure

    nodes = x.reshape(n + 1, n + 1, n + 1, 3)[:, 0]
    height, width = np.meshgrid(np.arange(n + 1), np.arange(n + 1), indexing="ij")
    scale = 0.2
    figure = Figure(figsize=(5, 5), layout="constrained")
    axes = figure.add_subplot(aspect="equal", xlabel="x", ylabel="z", title=f"{n}^3 elements, displacements x {scale}")
    shown = axes.pcolormesh(
        width + scale * nodes[..., 0], height + scale * nodes[..., 2], np.linalg.norm(nodes, axis=-1), shading="gouraud"
    )
    figure.colorbar(shown, label="displacement")
    figure.savefig(path)


def main() -> None:
    """Read the arguments, solve, compare, draw."""
    parser = argparse.ArgumentParser(description="An elastic cube, solved by conjugate gradients.")
    parser.add_argument("--elements", type=int, default=16, metavar="N", help="along an edge; default: 16")
    parser.add_argument(
        "--preconditioner",
        choices=PRECONDITIONERS,
        default="blocks",
        help="inverse diagonal blocks, or incomplete Cholesky factors with colours; default: blocks",
    )
    parser.add_argument("--picture", metavar="FILE", help="draw the displaced face y = 0")
    given = parser.parse_args()
    comm = MPI.COMM_WORLD
    n = given.elements
    if not n + 1 >= comm.size:
        parser.error(f"--elements: expected at least one plane of nodes for each of {comm.size} ranks, received {n}")
    found, error, seconds = solve(comm, n, every=50, preconditioner=given.preconditioner)
    parts = comm.gather(found.x)
    if comm.rank == 0:
        print(
            f"{3 * (n + 1) ** 3} unknowns, {comm.size} ranks: {found.iterations} iterations, "
            f"{1e3 * seconds / found.iterations:.2f} ms each, largest error {error:.1e}"
        )
        if given.picture:
            draw(given.picture, n, np.concatenate(parts or []))
    assert found.info == 0 and error <= 1e-8 * n, "expected the exact displacement"


if __name__ == "__main__":
    main()
