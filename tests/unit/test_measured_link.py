"""What `overlap info --measure` makes of the times of exchanges."""

from itertools import count

import pytest

from overlap.tools.bench import machine_measurement, rounds
from overlap.tools.bench.machine_measurement import LARGE, PAUSE_S, exchange_times, link_of


class Link:
    """Two ranks on a link of 50 us and 2 GB/s, of which one is here; time passes by its exchanges alone."""

    size, rank = 2, 0

    def __init__(self, monkeypatch):
        self.now_s, self.disturbed = 0.0, 1
        for module in (machine_measurement, rounds):
            monkeypatch.setattr(module, "perf_counter", self.perf_counter)

    def perf_counter(self):
        self.now_s += 1e-7
        return self.now_s

    def Alltoallv(self, send, receive):
        assert receive[1] == send[1] and send[1][0] == 0
        self.now_s += self.disturbed * 50e-6 + send[1][1] / 2e9

    def Barrier(self):
        pass

    def allreduce(self, value, op):
        return value


@pytest.mark.parametrize("disturbed", [(), (0,), (2,), (0, 1), (1, 2)])
def test_a_series_among_other_work_changes_nothing(monkeypatch, disturbed):
    """Exchanges take 9 times as long in it, as where another program had the cores for some seconds."""
    link = Link(monkeypatch)
    series = []
    for number in range(3):
        link.disturbed = 9 if number in disturbed else 1
        series.append(exchange_times(link))
    latency_s, bandwidth_Bps = link_of(series, 1)
    assert latency_s == pytest.approx(50e-6, rel=0.02) and bandwidth_Bps == pytest.approx(2e9, rel=0.02)


def test_what_a_bucket_passes_at_once_takes_no_time_of_the_latency():
    series = {(1, 0.0): 1e-5} | {(nbytes, 0.0): nbytes / 2e9 for nbytes in LARGE}
    series |= {(nbytes, PAUSE_S): 3e-5 + max(0, nbytes - 2**18) / 2e9 for nbytes in LARGE}
    latency_s, bandwidth_Bps = link_of([series], 1, burst_nbytes=2**18)
    assert latency_s == pytest.approx(3e-5) and bandwidth_Bps == pytest.approx(2e9)


def test_times_that_do_not_grow_give_the_best_rate_seen():
    seconds = count(5, -1)
    series = {(1, 0.0): 1e-5} | {(nbytes, 0.0): 1e-3 * next(seconds) for nbytes in LARGE}
    series |= {(nbytes, PAUSE_S): 1e-3 for nbytes in LARGE}
    _, bandwidth_Bps = link_of([series], 1)
    assert bandwidth_Bps == LARGE[-1] / 2e-3
