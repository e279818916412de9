"""What `overlap info --measure` makes of the times of exchanges."""

import pytest

from overlap.tools.bench.machine_measurement import bandwidth_of

SIZES = [1 << 18, 1 << 19, 1 << 20, 1 << 21]


def test_the_bandwidth_is_how_time_grows():
    assert bandwidth_of(SIZES, [1e-5 + nbytes / 2e9 for nbytes in SIZES]) == pytest.approx(2e9)


def test_times_that_do_not_grow_give_the_best_rate_seen():
    assert bandwidth_of(SIZES, [4e-3, 3e-3, 2e-3, 1e-3]) == SIZES[-1] / 1e-3
