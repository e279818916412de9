"""Poisson's equation between walls, on any number of ranks: as exact as the numbers are.

    -lap phi = rho,   0 < z, y < pi,   d phi / dz = 0 at the walls z = 0 and pi,   phi = 0 at y = 0 and pi

and periodic along x. Cosines along z have no slope at the walls, and sines along y are 0 there. So a cosine transform
along z and a sine transform along y turn the equation into a division by k^2. The charge is that of phi = exp(cos z)
sin(y) exp(cos y) cos 3x, so the answer is known; it has infinitely many modes along z and y.

    python examples/poisson_walls.py
    mpiexec -n 4 python examples/poisson_walls.py --points 8 12 16 24 32 48 --picture poisson_walls.png
"""

import argparse

import mpi4py
import numpy as np

mpi4py.rc.thread_level = "serialized"  # enough for overlap; the default, multiple, costs MPICH latency
from mpi4py import MPI

import overlap

KINDS = ("dct2", "dst2", "r2c")  # z, y, x
BOX = (np.pi, np.pi, 2 * np.pi)


def potential(z, y, x):
    """Return the exact potential."""
    return np.exp(np.cos(z)) * np.sin(y) * np.exp(np.cos(y)) * np.cos(3 * x)


def charge(z, y, x):
    """Return its charge, -lap phi."""
    return (10 + np.cos(z) + 3 * np.cos(y) - np.sin(z) ** 2 - np.sin(y) ** 2) * potential(z, y, x)


def solve(plan, rho):
    """Return the potential of a charge between the plan's walls."""
    operators = plan.operators(BOX)
    return plan.backward(-operators.inverse_laplacian(plan.forward(rho)))


def draw(path, points, errors, plane):
    """Draw the error by the number of points, and a plane of the potential."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.semilogy(points, errors, "o-", label="this solver")
    left.semilogy(points, errors[0] * (points[0] / np.array(points)) ** 2.0, "--", label="second order")
    left.set(xlabel="points per direction", ylabel="largest error", ylim=(1e-16, 10))
    left.legend()
    image = right.imshow(plane, origin="lower", cmap="viridis", interpolation="bicubic", extent=(0, 1, 0, 1))
    right.set(title="potential, a plane x = const", xlabel=r"y / $\pi$", ylabel=r"z / $\pi$")
    figure.colorbar(image, ax=right)
    figure.savefig(path, dpi=80)


def main():
    """Solve on finer and finer grids, and compare with the exact potential."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, nargs="+", default=[8, 12, 16, 24, 32], help="per direction, 8 or more")
    parser.add_argument("--picture", metavar="FILE")
    options = parser.parse_args()
    comm = MPI.COMM_WORLD
    errors, plane = [], None
    with overlap.Runtime(comm) as runtime:
        for n in options.points:
            with overlap.FFT3(runtime, (n, n, n), dtype="f8", kinds=KINDS) as plan:
                found = solve(plan, plan.real.from_function(charge, BOX))
                errors.append((found - plan.real.from_function(potential, BOX)).global_norm(np.inf))
                # A smooth solution: the n-th mode of exp(cos z) is about 2 (1/2)^n / n!.
                modes = np.arange(1, n)
                bound = 100 * np.exp(-np.log(2.0 * modes).sum()) + 1e-13
                assert errors[-1] <= bound, f"{n} points: expected an error of at most {bound}, found {errors[-1]}"
                plane = found.gather(index=(slice(None), slice(None), 0))
            if comm.rank == 0:
                print(f"{n:4d} points per direction: largest error {errors[-1]:.1e}")
    if comm.rank == 0 and options.picture:
        draw(options.picture, options.points, errors, plane)


if __name__ == "__main__":
    main()
