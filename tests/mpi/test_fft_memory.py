"""`FFT2` and `FFT3`: memory, and what plans leave."""

import gc
import threading
import tracemalloc

import numpy as np
import pytest
from communicators import few_left
from marks import exhaustive, on_ranks
from step_cases import grids, small_units
from truth import assert_close, forward_truth, random

import overlap
from overlap.fft import Settings
from overlap.fft.engine.fftw import HUGE_PAGE_NBYTES, OWN_PAGE_NBYTES


@on_ranks
@pytest.mark.parametrize(
    "comm, mode, dtype, order",
    [(2, mode, "c16", "natural") for mode in ("off", "block", "poll")]
    + [(3, "poll", "f8", "natural"), (1, "poll", "c8", "transposed")],
)
def test_memory_is_what_the_plan_prints(comm, mode, dtype, order):
    """Nothing is allocated by a call with `out`; the slots are what the plan prints."""
    shape = (24, 128, 96)
    slices, slack = shape[0], 64 * 1024
    settings = {"wait": mode, "depth": 4, "chunk": 2, "effort": "measure"}
    with overlap.FFT2(comm, shape, dtype, layout={"order": order}, settings=settings) as plan:
        real, spectrum = plan.real.empty(), plan.spectrum.empty()
        real[...] = 1
        assert min(real.nbytes, spectrum.nbytes) > 2**20 / comm.size
        for transform, given, out in ((plan.forward, real, spectrum), (plan.backward, spectrum, real)):
            transform(given, out=out)
            gc.collect()
            tracemalloc.start()
            transform(given, out=out)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            transform(given, out=out)
            grown = tracemalloc.get_traced_memory()[1] - before
            tracemalloc.stop()
            assert grown < slack + 2048 * slices, (type(transform), grown)
            assert f"{transform.nbytes_in_flight / 2**20:.1f} MiB in flight" in plan.describe()
            rows = plan.real.shape[-2]
            columns, mine = (
                spec[-1 if order == "natural" else -2] for spec in (plan.spectrum.global_shape, plan.spectrum.shape)
            )
            own, by_columns, by_rows = rows * mine, rows * columns, shape[-2] * mine
            # What stays goes straight to where it can be transformed in place.
            kept = own if (order == "natural" if transform is plan.forward else plan.real.dtype.kind == "c") else 0
            lengths = (
                (by_columns - own, by_rows - kept) if transform is plan.forward else (by_rows - own, by_columns - kept)
            )
            lines = (max(1, -(-2 * length * plan.spectrum.dtype.itemsize // 64)) for length in lengths)
            slot = 64 * sum(lines)  # each buffer begins with a cache line
            assert transform.settings.depth <= 4
            assert transform.nbytes_in_flight == transform.settings.depth * slot
            _lanes_grow_as_printed(transform)


def _lanes_grow_as_printed(transform):
    sizes, printed = [], []
    tracemalloc.start()
    for depth in (2, 9):
        transform.configure(Settings("poll", 1, 1, 1))
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        small = _allocated(transform.nbytes_in_flight)
        transform.configure(Settings("poll", depth, 2, 2))
        gc.collect()
        sizes.append(tracemalloc.get_traced_memory()[0] - before)
        printed.append(_allocated(transform.nbytes_in_flight) - small)
    tracemalloc.stop()
    for size, expected in zip(sizes, printed):
        assert abs(size - expected) < 64 * 1024, (sizes, printed)


def _allocated(nbytes):
    """At least a huge page unless it is small, with the room for aligning to huge pages, which is never touched."""
    return nbytes if nbytes < OWN_PAGE_NBYTES else max(nbytes, HUGE_PAGE_NBYTES) + HUGE_PAGE_NBYTES


@on_ranks(1, 2)
def test_memory_is_given_back(comm):
    """`close` frees the slots there and then, not when Python next looks for cycles."""
    gc.collect()
    gc.disable()
    tracemalloc.start()
    with overlap.Runtime(comm) as rt:
        for _ in range(2):  # the first time fills caches
            before = tracemalloc.get_traced_memory()[0]
            plan = overlap.FFT2(
                rt, (8, 96, 96), settings={"wait": "poll", "depth": 8, "chunk": 1, "effort": "estimate"}
            )
            square = plan.pointwise(lambda a: a * a, dealias="3/2")
            held = plan.forward.nbytes_in_flight + plan.backward.nbytes_in_flight + square.nbytes_in_flight
            grown = tracemalloc.get_traced_memory()[0] - before
            assert grown >= held > 2**20 / comm.size, (grown, held)
            plan.close()
            del plan, square
        left = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    gc.enable()
    assert left < 0.1 * held, (left, held)


@small_units()
@on_ranks
@pytest.mark.parametrize("comm, grid, dtype", [(2, (1, 2), "f8"), (2, (2, 1), "c16"), exhaustive(4, (2, 2), "f4")])
@pytest.mark.parametrize("restore", [False, True])
def test_memory_of_volumes(comm, dtype, grid, restore):
    """Work memory is at most one array, and two of its fields if they are large; all is told."""
    for batch in ((), (4,)):
        shape = (*batch, 32, 48, 32)
        settings = {"wait": "poll", "depth": 2, "chunk": 1, "effort": "estimate"}
        with overlap.FFT3(comm, shape, dtype, layout={"grid": grid, "restore": restore}, settings=settings) as plan:
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
@on_ranks
@pytest.mark.parametrize(
    "comm, kind, own, shared, left",
    [
        (2, "FFT2", 24, 24, 16),
        (4, "FFT3", 24, 24, 16),
        exhaustive("openmpi-2", "FFT2", 4, 8, None),
        exhaustive("openmpi-4", "FFT3", 4, 8, None),
    ],
)
def test_many_plans(comm, kind, own, shared, left):
    """Plans come and go and leave no thread and no communicator: there are only so many left."""
    dimensions, make = int(kind[-1]), getattr(overlap, kind)
    layout = {"grid": grids(comm.size)[len(grids(comm.size)) // 2]} if kind == "FFT3" else {}
    u = random(np.random.default_rng(12), (4, 4, 4), "c16")
    truth = forward_truth(u, dimensions=dimensions)
    threads = threading.active_count()

    def check(plan):
        found = plan.forward(u[plan.real.local_slice])
        assert_close(found, truth, plan.spectrum.local_slice, comm, dimensions)

    def options(number):
        return {"layout": layout, "settings": {"wait": "off" if number % 10 else "poll", "effort": "estimate"}}

    with few_left(comm, left):
        for number in range(own):
            with make(comm, u.shape, **options(number)) as plan:
                check(plan)
            assert plan.runtime.closed
        assert threading.active_count() == threads
        with overlap.Runtime(comm) as rt:
            for number in range(shared):
                with make(rt, u.shape, **options(number)) as plan:
                    if number % 10 == 0:
                        check(plan)
            assert threading.active_count() <= threads + 1
        assert threading.active_count() == threads
