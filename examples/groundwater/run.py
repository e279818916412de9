"""Groundwater in rock whose conductivity varies by ten orders of magnitude: MGCG with coarse-grid aggregation.

    mpiexec -n 4 python examples/groundwater/run.py --cells 32 --switch all --picture groundwater.png

div(lambda grad phi) = 1 on cubes of edge 1, finite volumes; phi = 0 on top, nothing flows through the other sides.
Conjugate gradients with one cycle of multigrid, until the recursion's residual is 1e-12 norm(b) at most; the true one,
norm(b - A x), is printed: rounding keeps it larger where conductivity varies so much, and `info` says so. With
``--switch all`` each level from which the coarser ones are gathered to one rank is tried: a finer one takes fewer
iterations, and a larger problem on one rank. With ``--uniform`` lambda is 1, and the head is compared with the exact
one.
"""

from __future__ import annotations

import argparse
from contextlib import contextmanager
from time import perf_counter

import numpy as np
from field import conductivity, uniform_head
from mpi4py import MPI

from overlap import Blocks
from overlap.sparse import IC0, AdditiveSchwarz, Chebyshev, Matrix, Multigrid, Preconditioner, Solution, cg, diffusion
from overlap.sparse.levels import Costs, last_switch, levels_of

TOP = [(0, 1)]


def smoothed(name: str, colours: int | None):
    """Return the function that makes the smoother of a level."""

    def make(A: Matrix) -> Preconditioner:
        if name == "chebyshev":
            return Chebyshev(A)
        return IC0(A, colours) if name == "ic0" else AdditiveSchwarz(A, lambda level: IC0(level, colours))

    return make


def grid_of(shape: tuple[int, ...], ranks: int) -> tuple[int, ...]:
    """Choose the grid of ranks with the most cubic blocks; longer axes are split more."""
    found = [1] * len(shape)
    for parts, axis in zip(
        MPI.Compute_dims(ranks, [0] * len(shape)), np.argsort([-length for length in shape], kind="stable")
    ):
        found[axis] = parts
    return tuple(found)


def solve(
    A: Matrix, blocks: Blocks, switch: int | None, smoother: str, colours: int | None, rtol: float, progress=None
) -> tuple[Solution, int, float, float]:
    """Solve once.

    Returns
    -------
    solution : Solution
    switch : int
        The switching level.
    setup_s, solve_s : float
        Seconds of the slowest rank.
    """
    comm = A.halo.comm
    comm.Barrier()
    started = perf_counter()
    with Multigrid(A, blocks, smoother=smoothed(smoother, colours), switch=switch) as M:
        setup_s = comm.allreduce(perf_counter() - started, MPI.MAX)
        started = perf_counter()
        found = cg(A, -np.ones(A.count), rtol=rtol, maxiter=2000, M=M, callback=progress)
        return found, M.switch, setup_s, comm.allreduce(perf_counter() - started, MPI.MAX)


@contextmanager
def shown(rank: int, what: str):
    """Return a function that counts iterations on rank 0's terminal; it is called after each of them."""
    if rank:
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    with Progress(
        SpinnerColumn(),
        TextColumn(what),
        TextColumn("{task.completed:.0f} iterations"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task("", total=None)
        yield lambda x: bar.advance(task)


def draw(path: str, coefficient: np.ndarray, head: np.ndarray) -> None:
    """Draw log10(lambda) and log10(-head) on three sides of the cube; the head is below 0 everywhere."""
    from matplotlib import cm
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5), layout="constrained")
    for number, (name, values, colours) in enumerate(
        (("log10(lambda)", np.log10(coefficient), cm.viridis), ("log10(-head)", np.log10(-head), cm.plasma_r))
    ):
        axes = figure.add_subplot(1, 2, number + 1, projection="3d", title=name, xlabel="x", ylabel="y", zlabel="z")
        norm = Normalize(values.min(), values.max())
        nz, ny, nx = values.shape
        edges = [np.arange(length + 1) for length in (nz, ny, nx)]
        y, x = np.meshgrid(edges[1], edges[2], indexing="ij")
        axes.plot_surface(
            x, y, np.full_like(x, nz), facecolors=colours(norm(values[-1])), rstride=1, cstride=1, shade=False
        )
        z, x = np.meshgrid(edges[0], edges[2], indexing="ij")
        axes.plot_surface(
            x, np.zeros_like(x), z, facecolors=colours(norm(values[:, 0])), rstride=1, cstride=1, shade=False
        )
        z, y = np.meshgrid(edges[0], edges[1], indexing="ij")
        axes.plot_surface(
            np.full_like(y, nx), y, z, facecolors=colours(norm(values[:, :, -1])), rstride=1, cstride=1, shade=False
        )
        axes.set_box_aspect((nx, ny, nz))
        figure.colorbar(cm.ScalarMappable(norm, colours), ax=axes, shrink=0.6)
    figure.savefig(path, dpi=80)


def gathered(comm: MPI.Intracomm, blocks: Blocks, values: np.ndarray) -> np.ndarray | None:
    """Gather the whole grid on rank 0."""
    parts = comm.gather(values)
    if parts is None:
        return None
    found = np.empty(blocks.shape)
    for rank, part in enumerate(parts):
        cells = found[blocks.part(rank)]
        cells[...] = part.reshape(cells.shape)
    return found


def times_by_level(blocks: Blocks, costs: Costs, cores: int = 1, iterations: list[int] | None = None) -> list[float]:
    """Return the seconds of a cycle for each switching level, or of a solution if the iterations with the last levels
    are given.

    The last level is the original scheme: as many cells as there are ranks are gathered, and one core of a rank
    computes them; with coarse-grid aggregation all of its cores do.
    """
    last = last_switch(blocks)
    times = [costs.cycle_s(levels_of(blocks, switch)) for switch in range(1, last + 1)]
    gathered = sum(float(np.prod(level.shape)) for level in levels_of(blocks, last) if level.size < blocks.size)
    times[-1] += (cores - 1) * gathered * costs.cell_s
    return [number * time for number, time in zip(iterations, times[-len(iterations) :])] if iterations else times


def simulate(ranks: list[int], cells: tuple[int, ...], costs: Costs, cores: int, iterations: list[int]) -> None:
    """Print these times for grids with the given number of cells per rank."""
    scale, what = (1, "s of a solution") if iterations else (1e3, "ms of a cycle")
    print(
        f"{'x'.join(map(str, cells))} cells per rank, {1e9 * costs.cell_s:g} ns per cell, {1e6 * costs.latency_s:g} us "
        "and "
        f"{1e9 * costs.byte_s:g} ns per byte of a message: {what} by switching level, best in brackets"
    )
    for count in ranks:
        grid = tuple(MPI.Compute_dims(count, [0] * 3))
        blocks = Blocks(tuple(length * parts for length, parts in zip(cells, grid)), grid)
        times = times_by_level(blocks, costs, cores, iterations)
        print(
            f"{count:6d} ranks, from level {last_switch(blocks) - len(times) + 1}: "
            + "  ".join(f"[{scale * time:.3g}]" if time == min(times) else f"{scale * time:.3g}" for time in times)
            + f"; the last one takes {times[-1] / min(times):.2f} times the best"
        )


def arguments() -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    """Read the arguments."""
    parser = argparse.ArgumentParser(description="Groundwater flow by MGCG with coarse-grid aggregation.")
    parser.add_argument(
        "--cells",
        type=int,
        nargs="+",
        default=[32],
        metavar="N",
        help="along each axis (z y x), or one number for all; default: 32",
    )
    parser.add_argument(
        "--contrast", type=float, default=5.0, metavar="C", help="log10(lambda) is from -C to C; default: 5"
    )
    parser.add_argument("--uniform", action="store_true", help="lambda = 1, and compare with the exact head")
    parser.add_argument("--seed", type=int, default=1, help="of the field; default: 1")
    parser.add_argument(
        "--switch",
        default="auto",
        metavar="L",
        help="last level that all ranks compute, 'all' of them, one after the other, or 'auto'; default: auto",
    )
    parser.add_argument(
        "--smoother",
        choices=("asdd", "ic0", "chebyshev"),
        default="asdd",
        help="IC(0) with one global correction, IC(0), or a polynomial; default: asdd",
    )
    parser.add_argument("--colours", type=int, metavar="N", help="of the CM-RCM order; default: as few as possible")
    parser.add_argument(
        "--rtol", type=float, default=1e-12, help="relative residual to stop at, the recursion's; default: 1e-12"
    )
    parser.add_argument(
        "--simulate",
        type=int,
        nargs="+",
        metavar="RANKS",
        help="solve nothing, but tell what a cycle would take on so "
        "many ranks, each with --cells, by the model that chooses the level",
    )
    parser.add_argument(
        "--costs",
        type=float,
        nargs=3,
        default=[30.0, 5.0, 0.5],
        metavar=("NS", "US", "NS"),
        help="of the model: per cell, per message, per byte; default: 30 5 0.5",
    )
    parser.add_argument(
        "--cores",
        type=int,
        default=1,
        help="of the model: cores of a rank, whose cells take the time given; one alone "
        "computes what is gathered after the last level; default: 1",
    )
    parser.add_argument(
        "--iterations",
        type=int,
        nargs="+",
        default=[],
        metavar="N",
        help="of the model: what solutions take by the last "
        "switching levels, the last one last; default: tell the times of cycles",
    )
    parser.add_argument("--picture", metavar="FILE", help="draw the field and the head")
    given = parser.parse_args()
    if len(given.cells) not in (1, 3) or min(given.cells) < 2:
        parser.error(f"--cells: expected one or three numbers >= 2, received {given.cells}")
    if given.switch not in ("all", "auto") and not given.switch.isdigit():
        parser.error(f"--switch: expected a level, 'all' or 'auto', received {given.switch}")
    return parser, given


def main() -> None:
    """Solve with one or all switching levels, compare, draw."""
    _, given = arguments()
    comm = MPI.COMM_WORLD
    shape = tuple(given.cells * 3 if len(given.cells) == 1 else given.cells)
    if given.simulate:
        cell_ns, latency_us, byte_ns = given.costs
        if comm.rank == 0:
            simulate(
                given.simulate,
                shape,
                Costs(1e-9 * cell_ns, 1e-6 * latency_us, 1e-9 * byte_ns),
                given.cores,
                given.iterations,
            )
        return
    blocks = Blocks(shape, grid_of(shape, comm.size))
    coefficient = np.ones(shape) if given.uniform else conductivity(shape, given.seed, given.contrast)
    switches = {"all": list(range(1, last_switch(blocks) + 1)), "auto": [None]}.get(given.switch) or [int(given.switch)]
    if comm.rank == 0:
        print(
            f"{'x'.join(map(str, shape))} cells on {comm.size} ranks ({'x'.join(map(str, blocks.grid))}), "
            "log10(lambda) from "
            f"{np.log10(coefficient.min()):.2f} to {np.log10(coefficient.max()):.2f}, smoother {given.smoother}"
        )
        print("switching level  iterations  set-up ms  solve ms  ms/iteration  true residual", flush=True)
    with diffusion(comm, blocks, coefficient[blocks.part(comm.rank)], TOP) as A:
        if len(switches) > 1:  # the first solution would include all work that is done once
            solve(A, blocks, switches[-1], given.smoother, given.colours, given.rtol)
        for switch in switches:
            with shown(comm.rank, "solving") as progress:
                found, used, setup_s, solve_s = solve(
                    A, blocks, switch, given.smoother, given.colours, given.rtol, progress
                )
            assert found.residuals[-1] <= found.tolerance, (
                f"expected convergence, received {found.iterations} iterations"
            )
            if comm.rank == 0:
                print(
                    f"{used:15d} {found.iterations:11d} {1e3 * setup_s:10.1f} {1e3 * solve_s:9.1f} "
                    f"{1e3 * solve_s / found.iterations:13.2f} {found.true_residual / np.sqrt(np.prod(shape)):14.1e}",
                    flush=True,
                )
            if given.uniform:
                exact = uniform_head(shape[0], blocks, comm.rank)
                error = comm.allreduce(float(abs(found.x - exact).max()), MPI.MAX) / shape[0] ** 2
                assert error <= 1e-8, f"expected the exact head, received an error of {error:g}"
    head = gathered(comm, blocks, found.x)
    if head is not None and given.picture:
        draw(given.picture, coefficient, head)


if __name__ == "__main__":
    main()
