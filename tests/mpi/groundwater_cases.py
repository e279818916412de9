"""The groundwater example: the exact head, and a field of ten orders of magnitude with every switching level."""

import importlib.util
import sys
from pathlib import Path

import numpy as np

from overlap import Blocks
from overlap.sparse import diffusion


def example(comm):
    folder = Path(__file__).parents[2] / "examples" / "groundwater"
    sys.path.insert(0, str(folder))
    import field
    specification = importlib.util.spec_from_file_location("groundwater_run", folder / "run.py")  # other examples have a `run`, too
    run = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(run)
    shape = (16, 16, 16)
    blocks = Blocks(shape, run.grid_of(shape, comm.size))
    with diffusion(comm, blocks, 1.0, run.TOP) as A:
        found, *_ = run.solve(A, blocks, None, "asdd", None, 1e-12)
        np.testing.assert_allclose(found.x, field.uniform_head(16, blocks, comm.rank), rtol=1e-9)
        head = run.gathered(comm, blocks, found.x)
        assert head is None or head.shape == shape
    coefficient = field.conductivity(shape, 1, 5.0)
    assert 4.9 < abs(np.log10(coefficient)).max() < 5.1
    with diffusion(comm, blocks, coefficient[blocks.part(comm.rank)], run.TOP) as A:
        counts = []
        for switch in range(1, run.last_switch(blocks) + 1):
            found, used, *_ = run.solve(A, blocks, switch, "asdd", 10, 1e-12)
            assert found.info == 0 and used == switch
            counts.append(found.iterations)
    # A finer level takes no more iterations, up to rounding; one rank has the same levels whatever is chosen.
    assert counts[0] <= counts[-1] + 1 and (comm.size > 1 or len(set(counts)) == 1), counts
