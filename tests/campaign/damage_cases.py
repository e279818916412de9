"""What `damage` runs on every rank."""

import numpy as np
from test_gkv import BOX, configured
from test_gkv_files import checkpoints, write_two

from .spoil import spoilt

from fluxtube.solver import Solver  # isort: skip (found by `test_gkv_files`)


def damaged(comm, folder, seed, count):
    """A newest checkpoint that is damaged is passed over by name, or read as it was written."""
    config = configured(grid=BOX)
    write_two(comm, config, folder)
    newest = checkpoints.paths(folder)[0]
    content, drawn = newest.read_bytes(), np.random.default_rng(seed)
    with Solver(comm, config) as solver:
        checkpoints.read(folder, solver)
        straight = solver.state.f.copy()
        for number in range(count):
            comm.Barrier()
            data = spoilt(drawn, content)
            if comm.rank == 0:
                newest.write_bytes(data)
            comm.Barrier()
            _, remarks = checkpoints.read(folder, solver)
            if remarks:
                assert solver.state.step == 2 and newest.name in remarks[0], (number, remarks)
            else:
                assert solver.state.step == 3 and np.array_equal(solver.state.f, straight), number
