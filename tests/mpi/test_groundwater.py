"""The example of groundwater."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
from marks import exhaustive, on_ranks

from overlap import Blocks
from overlap.sparse import IC0, AdditiveSchwarz, Matrix, Multigrid, cg, diffusion

FOLDER = Path(__file__).parents[2] / "examples" / "groundwater"


@on_ranks(1, exhaustive(4))
def test_example(comm):
    sys.path.insert(0, str(FOLDER))
    import field

    specification = importlib.util.spec_from_file_location(
        "groundwater_run", FOLDER / "run.py"
    )  # other examples have a `run`, too
    run = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(run)
    simulated(run)
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
            assert ended(found) and used == switch
            counts.append(found.iterations)
    # A finer level takes no more iterations, up to rounding; one rank has the same levels whatever is chosen.
    assert counts[0] <= counts[-1] + 1 and (comm.size > 1 or len(set(counts)) == 1), counts


def ended(found):
    """Whether the recursion ended; rounding keeps the residual of x itself above so strict a tolerance."""
    return found.residuals[-1] <= found.tolerance and found.true_residual <= 1e4 * found.tolerance


def simulated(run):
    """The machine of the source, 8,192 ranks of 8 cores, with its iterations by level (table 2) and one constant, the
    time of a cell, from its 11.8 s of the fastest level: that is the last but one, a fifth faster than the original
    scheme.
    """
    blocks = Blocks((32 * 128, 16 * 128, 16 * 128), (32, 16, 16))
    times = run.times_by_level(blocks, run.Costs(88e-9, 5e-6, 2e-10), 8, [49, 51, 54, 66])
    assert np.argmin(times) == 2 and times[0] > times[1]
    np.testing.assert_allclose(times[2:], [11.8, 1.2 * 11.8], rtol=0.02)


@on_ranks(1)
def test_a_finer_switching_level_takes_fewer_iterations(comm, edge=32):
    """With smoothers that are cut into 512 subdomains down to the switching level, as those of so many ranks are: fewer
    iterations the finer that level is.
    """
    sys.path.insert(0, str(FOLDER))
    import field

    across = 8
    blocks = Blocks((edge,) * 3, (1, 1, 1))
    counts = []
    with diffusion(comm, blocks, field.conductivity(blocks.shape, 1, 5.0), [(0, 1)]) as A:
        for switch in (3, 2, 1, 0):
            cut: list[Matrix] = []

            def smoother(level, switch=switch, cut=cut):
                cells = round(level.count ** (1 / 3))
                if cells << switch <= edge:
                    return AdditiveSchwarz(level)
                cut.append(without_couplings(comm, level, cells, cells // across))
                factors = IC0(cut[-1])
                return AdditiveSchwarz(level, lambda _: factors)

            with Multigrid(A, blocks, smoother=smoother) as M:
                found = cg(A, np.ones(A.count), rtol=1e-12, M=M)
            assert ended(found) and len(cut) == switch
            counts.append(found.iterations)
            for matrix in cut:
                matrix.free()
    assert counts == sorted(counts, reverse=True) and counts[-1] < 0.85 * counts[0], counts


def without_couplings(comm, A, cells, size):
    """A matrix of cells^3 rows without the entries between subdomains of size^3 cells."""
    rows = A.local_rows
    subdomains = [
        [index // size for index in np.unravel_index(number, (cells,) * 3)] for number in (rows.row_of, rows.columns)
    ]
    kept = np.logical_and.reduce(np.equal(*subdomains))
    return Matrix(comm, rows.row_of[kept], rows.columns[kept], rows.values[kept], A.count)
