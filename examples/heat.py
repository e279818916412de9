"""Heat in a square plate, on any number of ranks: ghost cells are exchanged while the inside is computed.

    du/dt = lap u,    u = 0 at the edge,    0 < x, y < 1

by explicit steps on the five-point stencil. Each rank has a block of the plate and a rim of ghost cells. The exchange
of the rim hides behind the cells that need no ghost cell.

Sines are eigenvectors of the stencil, so the effect of a step on them is known: sin(p pi x) sin(q pi y) is multiplied
by 1 - 4 c (sin^2(p pi h / 2) + sin^2(q pi h / 2)), where c = dt / h^2. The program compares with that, to rounding
errors, and with the heat equation's own solution, exp(-(p^2 + q^2) pi^2 t), to the error of the scheme.

    python examples/heat.py
    mpiexec -n 4 python examples/heat.py --points 127 --steps 800 --picture heat.png
"""

import argparse

import mpi4py
import numpy as np

mpi4py.rc.thread_level = "serialized"  # enough for overlap; the default, multiple, costs MPICH latency
from mpi4py import MPI

import overlap

MODES = ((1, 1, 1.0), (3, 2, 0.7), (4, 4, 0.5))  # p, q and the initial amplitude
C = 0.2  # dt / h^2; the scheme is stable up to 1/4


def modes(blocks, rank, factor):
    """Return a rank's cells of the sum of all modes, each multiplied by ``factor(p, q)``."""
    h = 1 / (blocks.shape[0] + 1)
    rows, columns = blocks.part(rank)
    y = np.arange(1 + rows.start, 1 + rows.stop)[:, None] * h
    x = np.arange(1 + columns.start, 1 + columns.stop) * h
    return sum(a * factor(p, q) * np.sin(p * np.pi * x) * np.sin(q * np.pi * y) for p, q, a in MODES)


def step(u, new, box):
    """Compute one time step in a box of the local array."""
    (top, bottom), (left, right) = ((side.start, side.stop) for side in box)
    middle = u[box]
    north, south = u[top - 1 : bottom - 1, left:right], u[top + 1 : bottom + 1, left:right]
    west, east = u[top:bottom, left - 1 : right - 1], u[top:bottom, left + 1 : right + 1]
    new[box] = middle + C * (north + south + west + east - 4 * middle)


def main():
    """Advance the plate, compare, draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=63, help="inner grid points per direction")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--picture", metavar="FILE")
    options = parser.parse_args()
    comm = MPI.COMM_WORLD
    shape, h = (options.points, options.points), 1 / (options.points + 1)
    blocks = overlap.agreed_blocks(comm, shape, grid=tuple(MPI.Compute_dims(comm.size, 2)), corners=False)
    own, inner, outer = blocks.own(comm.rank), blocks.inner(comm.rank), blocks.outer(comm.rank)

    with overlap.Halo(comm, blocks) as halo:
        (u,), (new,) = halo.empty(), halo.empty()
        u[...] = new[...] = 0  # ghost cells at the edge of the plate stay 0: the boundary condition
        u[own] = modes(blocks, comm.rank, lambda p, q: 1)
        start = comm.gather(u[own].copy())
        for _ in range(options.steps):
            pending = halo.start(u)
            step(u, new, inner)  # while the rim is exchanged
            pending.wait()
            for box in outer:
                step(u, new, box)
            u, new = new, u
        result = np.array(u[own])

    def discrete(p, q):
        return (1 - 4 * C * (np.sin(p * np.pi * h / 2) ** 2 + np.sin(q * np.pi * h / 2) ** 2)) ** options.steps

    def continuous(p, q):
        return np.exp(-(p * p + q * q) * np.pi**2 * C * h * h * options.steps)

    errors = [
        comm.allreduce(float(abs(result - modes(blocks, comm.rank, known)).max()), MPI.MAX)
        for known in (discrete, continuous)
    ]
    if comm.rank == 0:
        print(
            f"{options.points} x {options.points} points on {comm.size} rank(s), {options.steps} steps: largest "
            f"difference from the scheme's own solution {errors[0]:.1e}, from the heat equation's {errors[1]:.1e}"
        )
    assert errors[0] < 1e-13 * options.steps, f"expected rounding errors only, found {errors[0]}"
    assert errors[1] < 30 * h * h, f"expected an error of order h^2 = {h * h}, found {errors[1]}"
    end = comm.gather(result)
    if comm.rank == 0 and options.picture:
        draw(options.picture, blocks, start, end, C * h * h * options.steps)


def draw(path, blocks, start, end, t):
    """Draw the plate, first and last, with the blocks of the ranks."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.6, 3.4), layout="constrained")
    row = figure.subplots(1, 2)
    for ax, parts, words in zip(row, (start, end), ("t = 0", f"t = {t:.3g}")):
        whole = np.empty(blocks.shape)
        for rank, part in enumerate(parts):
            whole[blocks.part(rank)] = part
            for axis, mark in ((0, ax.axhline), (1, ax.axvline)):
                mark(blocks.part(rank)[axis].start - 0.5, color="white", linewidth=0.8)
        image = ax.imshow(whole, origin="lower", cmap="inferno")
        ax.set(title=words, xticks=(), yticks=())
        figure.colorbar(image, ax=ax)
    figure.savefig(path, dpi=80)


if __name__ == "__main__":
    main()
