"""Memory, and what plans leave."""

import gc
import threading
import tracemalloc

import numpy as np
import pytest
from communicators import few_left
from marks import on_ranks
from truth import assert_close, forward_truth, random

import overlap
from overlap.fft import Settings
from overlap.fft.engine.fftw import HUGE_PAGE_NBYTES, OWN_PAGE_NBYTES

# ---- memory, and what is left ----------------------------------------------------------------


def memory(comm, mode, dtype="c16", order="natural"):
    """Nothing is allocated by a call with `out`; the slots are what the plan prints."""
    shape = (24, 128, 96)
    slices, slack = shape[0], 64 * 1024
    with overlap.FFT2(
        comm,
        shape,
        dtype,
        layout={"order": order},
        settings={"wait": mode, "depth": 4, "chunk": 2, "effort": "measure"},
    ) as plan:
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


@on_ranks(2)
@pytest.mark.parametrize("mode", ["off", "block", "poll"])
def test_memory_is_what_the_plan_prints(comm, mode):
    memory(comm, mode=mode)


@on_ranks
@pytest.mark.parametrize("dtype, order, comm", [("f8", "natural", 3), ("c8", "transposed", 1)])
def test_memory_of_other_plans(comm, dtype, order):
    memory(comm, mode="poll", dtype=dtype, order=order)


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


def many_plans(comm, own, shared, left=None):
    """Plans come and go and leave no thread and no communicator: there are only so many left."""
    u = random(np.random.default_rng(12), (2, 3, 4), "c16")
    truth = forward_truth(u)
    threads = threading.active_count()
    with few_left(comm, left):
        for number in range(own):
            mode = "poll" if number % 10 == 0 else "off"
            with overlap.FFT2(comm, u.shape, settings={"wait": mode, "effort": "estimate"}) as plan:
                result = plan.forward(u[plan.real.local_slice])
            assert plan.runtime.closed
        assert_close(result, truth, result.local_slice, comm)
        assert threading.active_count() == threads
        with overlap.Runtime(comm) as rt:
            for _ in range(shared):
                with overlap.FFT2(rt, u.shape, settings={"wait": "off", "effort": "estimate"}):
                    pass
            assert threading.active_count() <= threads + 1
            with overlap.FFT2(rt, u.shape, settings={"wait": "poll"}) as plan:
                result = plan.forward(u[plan.real.local_slice])
                assert_close(result, truth, plan.spectrum.local_slice, comm)
        assert threading.active_count() == threads


@on_ranks(2)
def test_many_plans(comm):
    many_plans(comm, own=24, shared=24, left=16)


@pytest.mark.exhaustive
@on_ranks("openmpi-2")
def test_some_plans_under_open_mpi(comm):
    many_plans(comm, own=4, shared=8)
