"""Ranks of unequal speed: a batch of planes diffuses, and each rank's share follows its speed.

    du/dt = lap u    in the plane, 2 pi periodic,

solved exactly in Fourier space: mode k is multiplied by exp(-k^2 t). So the answer is known for any shares. Rank r has
the speed P_r. With even shares all ranks wait for the slowest one; with shares in proportion to the speeds they end
together, in p / sum(P) of the time that ranks of speed 1 need.

    python examples/unequal_ranks.py
    mpiexec -n 2 python examples/unequal_ranks.py --speeds 7 4 --picture unequal_ranks.png
    overlap links --hosts 1 --ranks 2 --speeds 7 4 -- python examples/unequal_ranks.py --measure
"""

import argparse

import mpi4py
import numpy as np

mpi4py.rc.thread_level = "serialized"  # enough for overlap; the default, multiple, costs MPICH latency
from mpi4py import MPI

import overlap
from overlap.timing.model import uneven_compute_s

TIME = 0.05


def start_and_end(plan):
    """Return this rank's rows of each plane at the start, and their exact values at the end."""
    planes, ny, nx = plan.real.global_shape
    y = 2 * np.pi * np.arange(ny)[plan.real.local_slice[1], None] / ny
    x = 2 * np.pi * np.arange(nx) / nx
    k = 1 + np.arange(planes)[:, None, None] % 5
    wave = np.cos(k * x) * np.sin(2 * y)
    return 1 + wave, 1 + np.exp(-(k**2 + 4) * TIME) * wave


def diffuse(plan, u):
    """Return the planes some time later."""
    ky, kx = plan.wavenumbers()
    return plan.backward(np.exp(-(kx**2 + ky**2) * TIME) * plan.forward(u))


def check(plan):
    """Diffuse, and compare with the exact solution (collective)."""
    start, end = start_and_end(plan)
    error = plan.comm.allreduce(float(abs(diffuse(plan, start) - end).max(initial=0)), MPI.MAX)
    assert error < 1e-12, f"expected the exact solution, found an error of {error}"


def draw(path, speeds, tables):
    """Draw the computing time of every rank, with even and with weighted shares."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 3.2), layout="constrained")
    row = figure.subplots(1, 2, sharex=True)
    longest = max(rows / speed for _, shares in tables for rows, speed in zip(shares, speeds))
    for ax, (words, shares) in zip(row, tables):
        busy = [rows / speed / longest for rows, speed in zip(shares, speeds)]
        end = max(busy)
        ax.barh(range(len(busy)), busy, color="#56B4E9", label="computes")
        ax.barh(range(len(busy)), [end - b for b in busy], left=busy, color="#dddddd", label="waits")
        ax.set(title=words, yticks=range(len(busy)), xlim=(0, 1.02), xlabel="time, even shares = 1")
        ax.set_yticklabels([f"rank {r}, speed {s:g}\n{n} rows" for r, (s, n) in enumerate(zip(speeds, shares))])
        ax.invert_yaxis()
    row[0].legend(loc="lower right")
    figure.savefig(path, dpi=80)


def main():
    """Check even shares, weighted ones and, with `--measure`, those that the plan finds itself."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--planes", type=int, default=16)
    parser.add_argument("--points", type=int, default=88, help="per direction")
    parser.add_argument("--speeds", type=float, nargs="+", help="of each rank; default: 7 4 7 4 ...")
    parser.add_argument("--measure", action="store_true", help="measure the ranks' speeds, too")
    parser.add_argument("--picture", metavar="FILE")
    options = parser.parse_args()
    comm = MPI.COMM_WORLD
    speeds = options.speeds or [7.0, 4.0] * (comm.size // 2) + [7.0] * (comm.size % 2)
    shape, tables = (options.planes, options.points, options.points), []
    with overlap.Runtime(comm) as runtime:
        for words, weights in (("even shares", None), ("shares by speed", speeds)):
            with overlap.FFT2(runtime, shape, dtype="f8", layout={"weights": weights}) as plan:
                check(plan)
                shares = comm.allgather(plan.real.shape[1])
                tables.append((words, shares))
                if options.measure and weights is None:
                    found = plan.balance()
                    check(plan)
                    if comm.rank == 0:
                        print(found)
    times = [max(rows / speed for rows, speed in zip(shares, speeds)) for _, shares in tables]
    model = [uneven_compute_s(1.0, speeds, weights) for weights in ([1.0] * comm.size, speeds)]
    if comm.rank == 0:
        print(
            f"rows: even {tables[0][1]}, by speed {tables[1][1]}; {times[0] / times[1]:.3f} times as fast, "
            f"by the model {model[0] / model[1]:.3f}"
        )
    # The model's unit is the time of an even share at speed 1. Shares are whole rows, so each differs by less than one
    # row.
    for words, time, expected in zip(("even", "by speed"), times, model):
        expected *= options.points / comm.size
        assert abs(time - expected) < 1 / min(speeds), f"{words}: expected a time of {expected}, found {time}"
    if comm.rank == 0 and options.picture:
        draw(options.picture, speeds, tables)


if __name__ == "__main__":
    main()
