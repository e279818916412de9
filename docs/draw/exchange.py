"""Draw how far a flow whose exchanges round to singles goes from one whose exchanges do not.

mpiexec -n 2 python docs/draw/exchange.py docs/howto
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import mpi4py
import numpy as np

mpi4py.rc.thread_level = "serialized"
from mpi4py import MPI

import overlap

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
VISCOSITY, DT = 2e-4, 0.0625


def compared(comm: Any, points: int, members: int, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Let one flow run twice from the same vorticity, with exchanges in double and in single precision.

    Returns
    -------
    energy : ndarray
        Of both, ``(2, steps + 1, members)``.
    apart : ndarray
        The root mean square of the difference of their vorticities, over that of the vorticity,
        ``(steps + 1, members)``.
    """
    sys.path.insert(0, str(EXAMPLES))
    example = importlib.import_module("navier_stokes_2d")
    sys.path.remove(str(EXAMPLES))
    shape, peaks = (members, points, points), np.linspace(4, 10, members)
    with (
        overlap.FFT2(comm, shape, dtype="f8", norm="forward") as doubles,
        overlap.FFT2(comm, shape, dtype="f8", norm="forward", exchange="f4") as singles,
    ):
        flows = [example.NavierStokes(plan, VISCOSITY) for plan in (doubles, singles)]
        start = example.random_vorticity(flows[0], doubles, peaks)
        vorticities = [start, start.copy()]
        energy, apart = [], []
        for step in range(steps + 1):
            if step:
                vorticities = [flow.step(w, DT) for flow, w in zip(flows, vorticities)]
            values = [flow.invariants(w) for flow, w in zip(flows, vorticities)]
            energy.append([one[0] for one in values])
            enstrophy = flows[0].invariants(vorticities[1] - vorticities[0])[1]
            apart.append(np.sqrt(enstrophy / values[0][1]))
    return np.array(energy).swapaxes(0, 1), np.array(apart)


def draw(path: Path, energy: np.ndarray, apart: np.ndarray) -> None:
    """Draw the energy that is left, and how far the runs are apart."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    steps = np.arange(len(apart))
    for member, (double, single) in enumerate(energy.transpose(2, 0, 1)):
        colour = f"C{member}"
        left.plot(steps, double / double[0], color=colour)
        left.plot(steps[::10], single[::10] / double[0], "o", color=colour, markersize=4, fillstyle="none")
        right.semilogy(steps[1:], abs(single - double)[1:] / double[1:], color=colour)
        right.semilogy(steps[1:], apart[1:, member], "--", color=colour)
    left.set(xlabel="step", ylabel="energy that is left", title="lines: doubles; circles: singles in exchanges")
    right.set(xlabel="step", ylabel="relative difference", title="energy (lines), vorticity (dashes)")
    figure.savefig(path, dpi=110)


def main() -> None:
    """Draw 100 steps of four flows."""
    comm = MPI.COMM_WORLD
    energy, apart = compared(comm, 128, 4, 100)
    if comm.rank == 0:
        draw(Path(sys.argv[1]) / "exchange.png", energy, apart)
        difference = abs(energy[1] - energy[0]) / energy[0]
        print(f"energy: {difference.max():.1e} apart at most, {difference[-1].max():.1e} after the last step")
        print(f"vorticity: {apart.max():.1e} apart at most")


if __name__ == "__main__":
    main()
