"""The times of calls on several ranks, split and summed up; times and messages are chosen so that they are known."""

import math

import numpy as np
import pytest

from overlap.timing import model
from overlap.timing.simulate import Machine
from overlap.tools.advise import records
from overlap.tools.advise.calls import nbytes
from overlap.tools.advise.estimate import estimate, times_of
from overlap.tools.advise.matching import match
from overlap.tools.advise.records import Communicator, RankRecord, Site
from overlap.tools.advise.report import advice, by_site, content, obstacle, pages, spans, text


def record(rank, size, rows, *, sites=("Alltoall",), host="one", ahead_s=0.0, comms=(), **others):
    """What a rank has recorded: rows of site, start, end, bytes, kind, communicator, peer, tag; its clock is ahead."""
    world = Communicator(-1, tuple(range(size)), 0)
    return RankRecord(
        rows=[(row[0], row[1] + ahead_s, row[2] + ahead_s, *row[3:]) for row in rows],
        sites=[Site(name, "program.py", 10 + line, "") for line, name in enumerate(sites)],
        communicators=[world, *comms],
        host=host,
        clock=(0.0, ahead_s, 100.0, ahead_s),
        **others,
    )


def collective(start_s, end_s, kind=records.ALL, comm=0, root=-1, site=0, nbytes=0):
    return site, start_s, end_s, nbytes, kind, comm, root, 0


def waiting(records_of):
    return [calls.waiting_s.tolist() for calls in match(records_of).ranks]


@pytest.mark.parametrize(
    "kind, root, expected",
    [
        (records.ALL, -1, [2.0, 1.0, 0.0]),  # all wait for the last one, which begins at 3
        (records.FROM_ROOT, 1, [1.0, 0.0, 0.0]),  # rank 0 waits for the root, which begins at 2
        (records.FROM_ROOT, 2, [2.0, 1.0, 0.0]),
        (records.TO_ROOT, 0, [2.0, 0.0, 0.0]),  # the root waits for all
        (records.PREFIX, -1, [0.0, 0.0, 0.0]),  # nobody before a rank is later than it
    ],
)
def test_a_collective_waits_for_its_ranks(kind, root, expected):
    ranks = [record(rank, 3, [collective(1.0 + rank, 5.0, kind, root=root)]) for rank in range(3)]
    assert waiting(ranks) == [[value] for value in expected]
    late_first = [record(rank, 3, [collective(3.0 - rank, 5.0, records.PREFIX)]) for rank in range(3)]
    assert waiting(late_first) == [[0.0], [1.0], [2.0]]


def test_a_call_that_ends_before_the_last_rank_comes_waits_no_longer():
    ranks = [record(0, 2, [collective(1.0, 2.0)]), record(1, 2, [collective(9.0, 10.0)])]
    assert waiting(ranks) == [[1.0], [0.0]]


def test_clocks_of_other_hosts_are_put_right():
    ranks = [record(0, 2, [collective(1.0, 5.0)]), record(1, 2, [collective(4.0, 5.0)], ahead_s=1000.0, host="two")]
    assert waiting(ranks) == [pytest.approx([3.0]), pytest.approx([0.0])]


def test_neighbours_wait_for_those_from_which_they_receive():
    sources = [(2,), (0,), (1,)]
    rows = [collective(start, 9.0, records.NEIGHBOURS, comm=1) for start in (1.0, 2.0, 5.0)]
    ranks = [record(rank, 3, [rows[rank]], comms=[Communicator(0, (0, 1, 2), 0, sources[rank])]) for rank in range(3)]
    assert waiting(ranks) == [[4.0], [0.0], [0.0]]


def test_communicators_are_told_apart():
    """Halves of four ranks, whose numbers in the ranks' tables differ."""
    halves = {rank: Communicator(0, (rank % 2, rank % 2 + 2), 0) for rank in range(4)}
    alone = Communicator(-1, (3,), 0)
    ranks = [
        record(rank, 4, [collective(1.0 + rank, 9.0, comm=2 if rank == 3 else 1)],
               comms=[alone, halves[rank]] if rank == 3 else [halves[rank]])
        for rank in range(4)
    ]  # fmt: skip
    assert waiting(ranks) == [[2.0], [2.0], [0.0], [0.0]]


def message(start_s, end_s, kind, peer, tag, site=0):
    return site, start_s, end_s, 8, kind, 0, peer, tag


def test_messages_are_matched_by_sender_receiver_and_tag_in_order():
    receiver = record(
        0, 2, [message(1.0, 4.0, records.RECEIVE, 1, 5), message(4.0, 9.0, records.RECEIVE, 1, 7),
               message(9.0, 9.5, records.RECEIVE, 1, 5)],
    )  # fmt: skip
    sender = record(
        1, 2, [message(2.0, 2.0, records.SEND, 0, 5), message(3.0, 3.0, records.SEND, 0, 5),
               message(8.0, 9.0, records.SEND, 0, 7)],
    )  # fmt: skip
    assert waiting([receiver, sender]) == [[1.0, 4.0, 0.0], [0.0, 0.0, 0.0]]


def test_a_receive_of_any_tag_takes_the_messages_in_order():
    receiver = record(0, 2, [message(1.0, 4.0, records.RECEIVE, 1, -1), message(4.0, 9.0, records.RECEIVE, 1, -1)])
    sender = record(1, 2, [message(2.0, 2.0, records.SEND, 0, 5), message(8.0, 9.0, records.SEND, 0, 7)])
    assert waiting([receiver, sender])[0] == [1.0, 4.0]


def test_what_cannot_be_matched_is_not_split():
    """A receive of any source, and a message that is received in a way which is not recorded."""
    receiver = record(0, 2, [message(1.0, 4.0, records.RECEIVE, -1, 5)])
    sender = record(1, 2, [message(2.0, 2.0, records.SEND, 0, 5)])
    assert [math.isnan(value) for (value,) in waiting([receiver, sender])] == [True, True]
    assert math.isnan(waiting([record(0, 2, []), sender])[1][0])
    (site,) = by_site(match([receiver, sender]))
    assert (site.waiting_s, site.transferring_s, site.unsplit_s) == ([0, 0], [3.0, 0.0], [3.0, 0.0])


def test_a_request_waits_where_it_is_completed():
    """Started at 1, completed by a call from 5 to 8; the other rank starts its part at 6."""
    started = (0, 1.0, 1.0, 800, records.ALL, 0, -1, 0)
    waits, completed = (1, 5.0, 8.0, 0, 0, -1, -1, 0), (records.PART, 5.0, 8.0, 0, records.COMPLETION, -1, -1, 0)
    first = record(0, 2, [started, waits, completed], sites=("Ialltoall", "Wait"))
    second = record(1, 2, [(0, 6.0, 8.0, 800, records.ALL, 0, -1, 0)], sites=("Alltoall",))
    calls = match([first, second]).ranks[0]
    assert calls.waiting_s.tolist() == [0.0, 1.0]
    assert calls.covered_s.tolist() == [0.0, 4.0]  # computing from 1 to 5
    assert calls.requests == [(0, 1.0, 8.0)]
    assert calls.computing_s.tolist() == [0.0, 4.0]


def steps(count, compute_s, wait_s, transfer_s, size=2, host=("one", "two"), nbytes=1000):
    """Ranks that compute, and exchange; the first waits for the last one, which computes longer."""
    rows = [[] for _ in range(size)]
    at_s = 0.0
    for _ in range(count):
        for rank in range(size):
            late = wait_s if rank == size - 1 else 0.0
            rows[rank].append(
                collective(at_s + compute_s + late, at_s + compute_s + wait_s + transfer_s, nbytes=nbytes)
            )
        at_s += compute_s + wait_s + transfer_s
    return match([record(rank, size, rows[rank], host=host[rank % len(host)]) for rank in range(size)])


def test_times_leave_the_first_call_out():
    times = times_of(steps(11, 0.03, 0.01, 0.02).ranks[0])
    assert (times.computing_s, times.transferring_s, times.waiting_s, times.calls) == (
        pytest.approx(0.3), pytest.approx(0.2), pytest.approx(0.1), 10,
    )  # fmt: skip
    assert times.near_s == 0


@pytest.mark.parametrize("workers", [1, 4])
def test_the_estimate_is_the_models(workers):
    """C = 0.3 s, T = 0.2 s on each rank, and imbalance of 0.1 s, which stays."""
    found = estimate(steps(11, 0.03, 0.01, 0.02), (16,), workers)
    assert found.now_s == pytest.approx(0.6)
    late_s = model.poll_s(0.4, 0.2)  # of the last rank, which waits for nobody
    assert found.bound_s == pytest.approx(max(0.1 + model.poll_s(0.3, 0.2), late_s))
    (row,) = found.rows
    assert row.poll_s == pytest.approx(
        max(
            0.1 + model.poll_s(0.3, 0.2, slices=16, workers=workers), model.poll_s(0.4, 0.2, slices=16, workers=workers)
        )
    )
    assert row.block_s == pytest.approx(
        max(0.1 + model.block_s(0.3, 0.2, workers, slices=16), model.block_s(0.4, 0.2, workers, slices=16))
    )
    assert found.bound_s <= row.simulated_s < found.now_s
    assert found.startup_s == pytest.approx((0.03 + 0.02) / 2, abs=0.01)


def test_waiting_that_changes_from_call_to_call_can_be_hidden():
    """Two ranks take turns in being late by 0.01 s: nobody computes longer, and all of the waiting is like T."""
    rows, at_s = [[], []], 0.0
    for step in range(21):
        for rank in range(2):
            late_s = 0.01 if (step + rank) % 2 else 0.0
            rows[rank].append(collective(at_s + 0.03 + late_s, at_s + 0.05))
        at_s += 0.05
    found = estimate(match([record(rank, 2, rows[rank], host=f"host {rank}") for rank in range(2)]), (16,))
    assert [each.waiting_s for each in found.times] == [pytest.approx(0.1), pytest.approx(0.1)]
    assert found.idle_s == pytest.approx(0, abs=1e-9)
    assert found.now_s == pytest.approx(20 * 0.05)
    assert found.bound_s == pytest.approx(max(20 * 0.035, 10 * 0.02 + 10 * 0.01))


@pytest.mark.parametrize("seed", range(20))
def test_no_simulation_gains_more_than_the_bound(seed):
    """Ranks of one host that compute, wait and copy for times that change from call to call."""
    random, rows, at_s = np.random.default_rng(seed), [[], []], 0.0
    share = random.uniform(0.2, 1.0, 2)
    for _ in range(21):
        late_s = random.exponential(share) * 0.01
        end_s = at_s + max(late_s) + random.uniform(0.002, 0.02)
        for rank in range(2):
            rows[rank].append(collective(at_s + late_s[rank], end_s))
        at_s = end_s
    found = estimate(match([record(rank, 2, rows[rank], host="one") for rank in range(2)]))
    assert all(row.simulated_s >= found.bound_s * (1 - 1e-12) for row in found.rows), found


def test_copies_in_the_memory_of_a_host_take_core_time():
    found = estimate(steps(11, 0.03, 0.0, 0.02, host=("one",)), (16,))
    assert found.bound_s == pytest.approx(found.now_s)  # C + T: with one worker nothing is hidden
    assert found.rows[0].simulated_s == pytest.approx(found.now_s, rel=0.1)
    network = Machine(name="x", fft_flops=1, copy_Bps=1, latency_s=0, bandwidth_Bps=1e9, byte_s=0.01 / 1000)
    half = estimate(steps(11, 0.03, 0.0, 0.02), (16,), machine=network)
    assert half.bound_s == pytest.approx(0.3 + 0.1)  # 10 calls of 1000 bytes take 0.1 s of the core
    # Of two ranks' all-to-all half of the bytes leave: 0.04 s of a link that was not idle before.
    slow = Machine(name="x", fft_flops=1, copy_Bps=1, latency_s=0, bandwidth_Bps=500 / 0.04)
    assert estimate(steps(11, 0.03, 0.0, 0.02), (16,), machine=slow).bound_s == pytest.approx(10 * 0.04)


def said(matched, **options):
    found = estimate(matched, **options)
    return advice(matched, found, by_site(matched))


def test_what_cannot_gain_says_so():
    assert said(steps(11, 0.03, 0.0, 0.02))[0].startswith("Hiding gains at most 1.67x; simulated: 1.")
    assert "transferring takes only" in said(steps(11, 0.03, 0.0, 0.0001))[0]
    assert "imbalance: it is spent waiting" in said(steps(11, 0.03, 0.01, 0.0001))[0]
    assert "memory of one host" in said(steps(11, 0.03, 0.0, 0.02, host=("one",)))[0]
    assert "of computing to hide" in said(steps(11, 0.0001, 0.0, 0.02))[0]
    assert "One rank communicates with nobody" in said(steps(11, 0.03, 0.0, 0.02, size=1))[0]
    assert "made no calls" in said(match([RankRecord(), RankRecord()]))[0]


def test_each_place_has_its_obstacle():
    def of(matched, whole_s=1.0):
        (site,) = by_site(matched)
        return obstacle(site, whole_s)

    assert of(steps(11, 0.03, 0.0, 0.02)) == ""
    assert of(steps(11, 0.03, 0.01, 0.0001)) == "waits for the slowest rank"
    assert of(steps(11, 0.03, 0.0, 0.00001), 1.0) == "takes no time"
    assert of(steps(1001, 0.0001, 0.0, 0.00001), 0.2) == "too short"
    assert of(steps(11, 0.03, 0.0, 0.02, host=("one",))) == "copies in memory"


@pytest.mark.parametrize(
    "operation, modules, page",
    [
        ("Alltoallw", (), "docs/tutorials/plan.md"),
        ("Alltoallw", ("mpi4py_fft",), "docs/tutorials/mpi4py_fft.md"),
        ("Sendrecv", (), "docs/tutorials/halo.md"),
        ("Waitall", (), "docs/tutorials/halo.md"),
        ("allreduce", (), "docs/tutorials/allreduce.md"),
        ("Bcast", (), "docs/howto/slice_programs.md"),
    ],
)
def test_the_page_to_read_next(operation, modules, page):
    from pathlib import Path

    rows = [[collective(float(step), step + 0.5) for step in range(3)] for _ in range(2)]
    matched = match([record(rank, 2, rows[rank], sites=(operation,), modules=modules) for rank in range(2)])
    found = [path for path, _ in pages(matched, by_site(matched))]
    assert found[0] == page
    assert all((Path(__file__).parents[2] / path).exists() for path in found)


def test_the_report_shows_what_the_json_holds():
    matched = steps(11, 0.03, 0.01, 0.02)
    found = estimate(matched, (16,), 1)
    shown, held = text(matched, found, 1), content(matched, found, 1)
    assert "2 ranks on 2 hosts" in shown and "program.py:10" in shown and "Alltoall" in shown
    assert all(sentence in shown for sentence in (*held["advice"], held["caveat"], *held["read_next"]))
    assert held["gain_at_most"] == pytest.approx(held["now_s"] / held["bound_s"])
    assert held["sites"][0]["calls"] == [11, 11] and held["sites"][0]["nbytes"] == [11000, 11000]
    drawn = spans(matched)
    assert {span.kind for span in drawn} == {"compute", "communicate"}
    assert sum(span.end_s - span.start_s for span in drawn if span.rank == 0 and span.kind == "compute") == (
        pytest.approx(10 * 0.03)
    )


class Type:
    """A type of MPI."""

    def __init__(self, size):
        self.size = size

    def Get_size(self):
        return self.size


FOUR, EIGHT = Type(4), Type(8)


@pytest.mark.parametrize(
    "message, expected",
    [
        (np.empty((3, 5)), 120),
        (bytearray(7), 7),
        (memoryview(np.empty(4, "f4")), 16),
        (None, 0),
        ([np.empty(10)], 80),
        ([np.empty(10), EIGHT], 80),
        ([np.empty(10), "d"], 80),
        ([np.empty(10), 3, EIGHT], 24),
        ([np.empty(10), 3], 24),
        ([np.empty(10), (3, 2), EIGHT], 24),  # a count and a displacement
        ([np.empty(10), [3, 2]], 40),
        ([np.empty(10), ([3, 2], [0, 5]), EIGHT], 40),  # counts and displacements
        ([np.empty(10), [3, 2], [0, 5], EIGHT], 40),
        ([np.empty(10), ([3, 2], None), EIGHT], 40),
        ([np.empty(10), np.array([3, 2]), np.array([0, 5]), EIGHT], 40),
        ([np.empty(10), None, EIGHT], 80),
        ([np.empty(10), [FOUR, EIGHT]], 12),  # one of each type
        ([np.empty(10), ([3, 2], [0, 16]), [FOUR, EIGHT]], 28),
        ([np.empty(10), [3, 2], [0, 16], [FOUR, EIGHT]], 28),
        ((np.empty(10), [3, 2], [0, 16], (FOUR, EIGHT)), 28),
    ],
)
def test_bytes_of_buffers(message, expected):
    assert nbytes(message) == expected
