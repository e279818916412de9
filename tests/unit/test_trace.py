"""Recording and clocks; ranks are threads with skewed clocks."""

import queue
import sys
import threading
import time
from collections import defaultdict

import pytest
from test_timeline import compute, exchange

from overlap.ranks import clocks
from overlap.ranks.clocks import clock_offset
from overlap.runtime.trace import Trace


class FakeComm:
    """One rank of a job whose ranks are threads and whose messages are queues."""

    def __init__(self, rank, size, mail, delay=lambda: None):
        self.rank, self.size, self.mail, self.delay = rank, size, mail, delay

    def Get_rank(self):
        return self.rank

    def Get_size(self):
        return self.size

    def Send(self, buffer, dest, tag=0):
        self.delay()
        self.mail[self.rank, dest, tag].put(bytes(buffer))

    def Recv(self, buffer, source, tag=0):
        memoryview(buffer).cast("B")[:] = self.mail[source, self.rank, tag].get(timeout=30)

    def gather(self, item, root=0):
        self.mail[self.rank, root, "gather"].put(item)
        if self.rank != root:
            return None
        return [self.mail[other, root, "gather"].get(timeout=30) for other in range(self.size)]


def on_ranks(size, body, delay=lambda rank: None):
    """Results of body(comm) on every rank, by rank."""
    mail, results = defaultdict(queue.SimpleQueue), {}
    for source in range(size):  # beforehand: defaultdict creates without a lock
        for dest in range(size):
            for tag in (clocks._TAG, "gather"):
                mail[source, dest, tag]

    def run(rank):
        results[rank] = body(FakeComm(rank, size, mail, lambda: delay(rank)))

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return [results[rank] for rank in range(size)]


# --- clocks -------------------------------------------------------------------------------------


def skewed(rank):
    skew_s = (0.0, 1234.5, -0.75)[rank]
    return lambda: time.perf_counter() + skew_s


def test_clock_offsets_are_the_skews():
    offsets = on_ranks(3, lambda comm: clock_offset(comm, clock=skewed(comm.rank)))
    assert offsets[0] == 0.0
    assert offsets[1] == pytest.approx(1234.5, abs=0.02)
    assert offsets[2] == pytest.approx(-0.75, abs=0.02)


class Network:
    """A clock for two ranks that only messages advance; rank 1 is 7 s ahead."""

    def __init__(self, delays_s):
        self.delays_s, self.now_s = iter(delays_s), 100.0

    def pass_time(self, rank):
        self.now_s += next(self.delays_s)

    def clock(self, rank):
        return lambda: self.now_s + 7.0 * rank


def test_the_round_with_the_shortest_trip_is_taken():
    # Question and answer of each round: all lopsided but the quick third.
    network = Network([5.0, 1.0, 0.5, 4.0, 0.25, 0.25, 0.1, 0.9])
    offsets = on_ranks(2, lambda comm: clock_offset(comm, 4, clock=network.clock(comm.rank)), network.pass_time)
    assert offsets == [0.0, 7.0]


def test_the_error_is_within_half_the_round_trip():
    network = Network([0.5, 0.1])
    offsets = on_ranks(2, lambda comm: clock_offset(comm, 1, clock=network.clock(comm.rank)), network.pass_time)
    assert offsets[1] == pytest.approx(7.0 + (0.1 - 0.5) / 2)


@pytest.mark.parametrize("rounds", [0, -1, 1.5])
def test_clock_offset_refuses(rounds):
    with pytest.raises(ValueError, match=f"expected rounds to be an integer >= 1, received {rounds}"):
        clock_offset(FakeComm(0, 1, {}), rounds)


def test_gather_merges_on_the_clock_of_rank_0():
    def body(comm):
        # Dyadic numbers, so that moving them is exact.
        ours = Trace(offset_s=64.0 * comm.rank)
        ahead = 64.0 * comm.rank
        ours.add("worker 10", "compute", 7, 2.0 + ahead, 3.0 + ahead)
        ours.add("communicator", "communicate", "slice 7", 1.0 + ahead, 2.5 + ahead)
        ours.add("worker 9", "compute", 8, 4.0 + ahead, 5.0 + ahead)
        ours.add("worker 9", "compute", 6, 1.0 + ahead, 2.0 + ahead)
        return ours.gather(comm)

    merged, other = on_ranks(2, body)
    assert other is None
    assert merged == [
        span
        for rank in (0, 1)
        for span in (
            compute(1.0, 2.0, rank, "worker 9", "6"),
            compute(4.0, 5.0, rank, "worker 9", "8"),
            compute(2.0, 3.0, rank, "worker 10", "7"),
            exchange(1.0, 2.5, rank, label="slice 7"),
        )
    ]


def test_start_measures_the_offset_of_real_clocks():
    assert on_ranks(1, lambda comm: Trace.start(comm).offset_s) == [0.0]
    assert abs(on_ranks(2, lambda comm: Trace.start(comm).offset_s)[1]) < 0.02


def test_threads_record_without_losing_spans():
    ours, threads, each = Trace(), 8, 2000
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:

        def record(worker):
            for item in range(each):
                ours.add(f"worker {worker}", "compute", item, item, item + 1)

        workers = [threading.Thread(target=record, args=(worker,)) for worker in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    finally:
        sys.setswitchinterval(interval_s)
    assert len(ours.spans()) == threads * each
    ours.clear()
    assert ours.spans() == []
