"""Poisson's equation in a periodic box, on any number of ranks: as exact as the numbers are.

    -lap phi = rho

In Fourier space that is a division by k^2. The charge is that of phi = exp(sin x) cos 2y sin 3z, so the answer is
known. It has infinitely many modes along x; their size falls faster than any power of their number, and so does the
error.

    python examples/poisson.py
    mpiexec -n 4 python examples/poisson.py --points 8 12 16 24 32 48 --picture poisson.png
"""

import argparse

import mpi4py
import numpy as np

mpi4py.rc.thread_level = "serialized"  # enough for overlap; the default, multiple, costs MPICH latency
from mpi4py import MPI

import overlap


def potential(z, y, x):
    """Return the exact potential."""
    return np.exp(np.sin(x)) * np.cos(2 * y) * np.sin(3 * z)


def charge(z, y, x):
    """Return its charge, -lap phi."""
    return (13 + np.sin(x) - np.cos(x) ** 2) * potential(z, y, x)


def solve(plan, rho):
    """Return the potential of a charge whose mean is zero."""
    return plan.backward(-plan.operators().inverse_laplacian(plan.forward(rho)))


def draw(path, points, errors, plane):
    """Draw the error by the number of points, and a plane of the potential."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.semilogy(points, errors, "o-", label="this solver")
    left.semilogy(points, errors[0] * (points[0] / np.array(points)) ** 2.0, "--", label="second order")
    left.set(xlabel="points per direction", ylabel="largest error", ylim=(1e-16, 10))
    left.legend()
    image = right.imshow(plane, origin="lower", cmap="RdBu_r", interpolation="bicubic", extent=(0, 2, 0, 2))
    right.set(title="potential, a plane z = const", xlabel=r"x / $\pi$", ylabel=r"y / $\pi$")
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
            with overlap.FFT3(runtime, (n, n, n), dtype="f8") as plan:
                found = solve(plan, plan.real.from_function(charge))
                errors.append((found - plan.real.from_function(potential)).global_norm(np.inf))
                # A smooth solution: the n-th mode of exp(sin x) is about (1/2)^n / n!.
                modes = np.arange(1, n // 2)
                bound = 4 * np.exp(-np.log(2.0 * modes).sum()) + 1e-13
                assert errors[-1] <= bound, f"{n} points: expected an error of at most {bound}, found {errors[-1]}"
                plane = found.gather(index=(n // 12, slice(None), slice(None)))
            if comm.rank == 0:
                print(f"{n:4d} points per direction: largest error {errors[-1]:.1e}")
    if comm.rank == 0 and options.picture:
        draw(options.picture, options.points, errors, plane)


if __name__ == "__main__":
    main()
