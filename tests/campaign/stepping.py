"""The flux tube's command, which also notes each step that it has made, and when: what `restarts` kills.

stepping.py NOTES, and the arguments of examples/gkv/run.py
"""

import os
import runpy
import sys
import time
from pathlib import Path

RUN = Path(__file__).resolve().parents[2] / "examples" / "gkv" / "run.py"


def noting(step, notes):
    """A step of the solver that writes a line when it has been made, on rank 0."""

    def noted(solver, *args):
        step(solver, *args)
        if solver.comm.rank == 0:
            os.write(notes, f"{solver.state.step} {time.monotonic()}\n".encode())

    return noted


if __name__ == "__main__":
    _, path, *sys.argv[1:] = sys.argv
    sys.argv[0] = str(RUN)
    sys.path[0] = str(RUN.parent)
    from fluxtube.solver import Solver

    Solver.step = noting(Solver.step, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND))
    runpy.run_path(str(RUN), run_name="__main__")
