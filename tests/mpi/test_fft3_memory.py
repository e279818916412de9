"""Memory, and what plans leave."""

import numpy as np
import pytest
from communicators import few_left
from marks import exhaustive, on_ranks
from step_cases import grids, small_units
from test_fft2_errors import grouped
from test_fft3 import assert_close, forward_truth
from truth import random

import overlap

# ---- memory, and what is left ----------------------------------------------------------------


@small_units()
@on_ranks
@pytest.mark.parametrize("comm, grid, dtype", [(2, (1, 2), "f8"), (2, (2, 1), "c16"), exhaustive(4, (2, 2), "f4")])
@pytest.mark.parametrize("restore", [False, True])
def test_memory_is_what_the_plan_prints(comm, dtype, grid, restore):
    """Work memory is at most one array, and two of its fields if they are large; all is told."""
    for batch in ((), (4,)):
        shape = (*batch, 32, 48, 32)
        with overlap.FFT3(
            comm,
            shape,
            dtype,
            layout={"grid": grid, "restore": restore},
            settings={"wait": "poll", "depth": 2, "chunk": 1, "effort": "estimate"},
        ) as plan:
            # The largest array on the way: real data has 17 modes along x for 32 points.
            largest = plan.real.empty().nbytes * (18 / 16 if dtype.startswith("f") else 1)
            for transform in (plan.forward, plan.backward):
                work = transform._kernels.nbytes
                # Two where real data, a little smaller than their modes, are to be restored.
                arrays = 2 if restore and dtype.startswith("f") else 1
                assert work <= arrays * largest, (work, largest)
                assert f"{work / 2**20:.1f} MiB of work memory" in transform.describe()
                assert f"{transform.nbytes_in_flight / 2**20:.1f} MiB" in transform.describe()


@small_units()
def many_plans(comm, own, shared, left=None):
    """Plans come and go and leave no communicator: there are only so many left."""
    grid = grids(comm.size)[len(grids(comm.size)) // 2]
    options = grouped({"grid": grid, "wait": "poll", "effort": "estimate"})
    u = random(np.random.default_rng(11), (4, 4, 4), "c16")

    def check(plan):
        assert_close(comm, plan.forward(u[plan.real.local_slice]), forward_truth(u, u.shape), plan.spectrum.local_slice)

    with few_left(comm, left):
        for number in range(own):
            with overlap.FFT3(comm, u.shape, **options) as plan:
                if number % 50 == 0:
                    check(plan)
        with overlap.Runtime(comm) as rt:
            for number in range(shared):
                plan = overlap.FFT3(rt, u.shape, **options)
                if number % 50 == 0:
                    check(plan)
                plan.close()


@on_ranks(4)
def test_many_plans(comm):
    many_plans(comm, own=24, shared=24, left=16)


@pytest.mark.exhaustive
@on_ranks("openmpi-4")
def test_some_plans_under_open_mpi(comm):
    many_plans(comm, own=4, shared=8)
