"""How computing gets faster with threads, as measured, and what the simulation makes of it."""

from dataclasses import replace

import pytest

from overlap.timing.simulate import Machine, Workload
from overlap.timing.thread_scaling import ThreadScaling

IDEAL = Machine(name="ideal", fft_flops=1e9, copy_Bps=1e12, latency_s=0.0, bandwidth_Bps=1e6)


def test_threads_that_are_not_as_many_times_faster():
    machine = replace(IDEAL, threads=ThreadScaling.of_table({8: {4: 2.0}, 32: {4: 4.0}}))
    what = Workload(slices=6, shape=(8, 16))
    one, four = (what.program(2, machine, workers=workers).compute_s for workers in (1, 4))
    assert four == pytest.approx(4 / 2 * one)  # of 8 x 8 points per rank; each thread takes twice as long
    wide = Workload(slices=6, shape=(16, 32))
    one, four = (wide.program(2, machine, workers=workers).compute_s for workers in (1, 4))
    assert four == pytest.approx(4 / 3 * one)  # 256 points: half way between 64 and 1,024


@pytest.mark.parametrize(
    "threads, points, speedup",
    [(1, 64, 1.0), (4, 64, 2.0), (4, 1, 2.0), (4, 1e9, 4.0), (8, 64, 1 / (1 / 3 + 2 / 3 / 8)), (8, 1024, 8.0)],
)
def test_speedups_of_threads(threads, points, speedup):
    scaling = ThreadScaling.of_table({"8": {"4": 2}, "32": {"4": 4}})
    assert scaling.speedup(threads, points) == pytest.approx(speedup)
    assert ThreadScaling().speedup(threads, points) == threads
