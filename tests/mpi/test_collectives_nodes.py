"""Collectives between several nodes, or what MPI is told to take for them; MPI's own collectives are the reference."""

import os

import numpy as np
import pytest
import test_collectives
import test_collectives_errors
from marks import on_ranks
from mpi4py import MPI
from test_collectives import all_seven as on_node
from test_collectives import compiled_loop, many_rounds

from overlap.collectives import Collectives, nodes
from overlap.collectives.chains import SENT
from overlap.errors import RankError


def all_seven(comm):
    """Every size with every root; long ones are cut, and pass through the windows in pieces."""
    with Collectives(comm, max_nbytes=4096) as fast:
        assert fast.nodes == int(os.environ["NODES_EXPECTED"])
    on_node(comm, [0, 1, 6, 7, 128, 5000, 20_001], max_nbytes=4096)


def forgotten_chains(comm):
    """Only a few collectives are kept prepared here: those that were forgotten are prepared again."""
    kept, nodes._KEPT = nodes._KEPT, 5
    try:
        on_node(comm, [1, 7, 1, 7], max_nbytes=4096)
    finally:
        nodes._KEPT = kept


def rounds(comm):
    many_rounds(comm, 100)
    compiled_loop(comm, 20)


def the_same_bits(comm):
    """Sums that do not add up exactly: on all ranks alike, and node by node."""
    node = comm.Split_type(MPI.COMM_TYPE_SHARED, key=comm.rank)
    first = node.bcast(comm.rank)
    node.Free()
    firsts = comm.allgather(first)
    with Collectives(comm) as fast:
        for seed, count in enumerate((3, 3, 5000, 5000)):
            mine = np.random.default_rng([seed, comm.rank]).standard_normal(count)
            found, everybodys = np.zeros(count), np.zeros((comm.size, count))
            fast.Allreduce(mine, found)
            comm.Allgather(mine, everybodys)
            total = None
            for one in sorted(set(firsts)):
                partial = None
                for rank in range(comm.size):
                    if firsts[rank] == one:
                        partial = everybodys[rank] if partial is None else partial + everybodys[rank]
                total = partial if total is None else total + partial
            assert found.tobytes() == total.tobytes()


def bad_input(comm):
    """One exception on all ranks, those of other nodes as well."""
    for case in ("size", "collective", "no such operation", "contiguous"):
        test_collectives_errors.test_bad_input_is_told_on_all_ranks(comm, case)
        comm.Barrier()


def failed_start(comm):
    """MPI refuses to send a message: its error here, on the other ranks one that tells who has failed."""
    fast = Collectives(comm)
    fast.Barrier()
    mine = fast._carrier
    if comm.rank == 0:
        buffer = next(one for one in reversed(mine._buffers) if one.words[SENT])
        mine._buffers.remove(buffer)
        buffer.request.Free()
    with pytest.raises(MPI.Exception if comm.rank == 0 else RankError, match=None if comm.rank == 0 else "rank 0"):
        for _ in range(3):
            fast.Barrier()
    assert mine in nodes._abandoned
    fast.free()
    assert mine not in nodes._abandoned


def without_the_communicator(comm):
    """Prepared collectives do not need the communicator any more."""
    other = comm.Dup()
    fast = Collectives(other)
    fast.Barrier()
    other.Free()
    fast.Barrier()
    assert fast.allreduce(1) == comm.size
    fast.free()


class TwoNodes(MPI.Intracomm):
    """A communicator whose even and odd ranks count as two nodes, whatever the library takes for nodes."""

    def Split_type(self, split_type, key=0, info=MPI.INFO_NULL):
        return self.Split(self.rank % 2, key)


def two_nodes(comm):
    """Messages of any library."""
    apart = TwoNodes(comm)
    with Collectives(apart) as fast:
        assert fast.nodes == 2
    on_node(apart, [0, 1, 7, 5000], max_nbytes=4096)
    rounds(apart)
    bad_input(apart)
    fewest_messages(apart)
    failed_start(apart)


def fewest_messages(comm):
    """Between nodes one message for each that must know something, however many ranks they have."""
    with Collectives(comm) as fast:
        nodes, block, pieces = fast.nodes, np.zeros(8), np.zeros((comm.size, 8))
        steps = (nodes - 1).bit_length()
        for call, expected in (
            (lambda: fast.Bcast(block), nodes - 1),
            (lambda: fast.Gather(block, pieces), nodes - 1),
            (lambda: fast.Scatter(pieces, block), nodes - 1),
            (lambda: fast.Reduce(block, pieces[0]), nodes - 1),
            (lambda: fast.allreduce(1.0), nodes * steps),
            (fast.Barrier, nodes * steps),
            (lambda: fast.Allgather(block, pieces), nodes * steps),
        ):
            before = fast._carrier.messages
            call()
            assert comm.allreduce(fast._carrier.messages - before) == expected


def sent_on_links(comm):
    """Segments with data that all hosts have sent over TCP so far; each message of a few bytes is one."""
    comm.Barrier()
    with open("/proc/self/net/netstat") as file:
        names, numbers = (line.split() for line in file if line.startswith("TcpExt:"))
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    mine = int(numbers[names.index("TCPOrigDataSent")]) if node.rank == 0 else 0
    node.Free()
    return comm.allreduce(mine)


def on_links(comm):
    """On two hosts with a link between them: right, with the fewest messages there can be, and fewer than MPI's own
    where MPI has more.
    """
    on_node(comm, [1, 700], max_nbytes=4096)
    calls, block, other, pieces = 3 * comm.size, np.ones(8), np.zeros(8), np.zeros((comm.size, 8))
    one_way = {"Bcast": (block,), "Scatter": (pieces, block), "Gather": (block, pieces), "Reduce": (block, other)}
    both_ways = {"Barrier": (), "Allgather": (block, pieces), "Allreduce": (block, other)}

    def call(target, name, number):
        """Call a collective; each rank is the root in turn."""
        root = {"root": number % comm.size} if name in one_way else {}
        getattr(target, name)(*(one_way | both_ways)[name], **root)

    def sent_by_mpi(name=None):
        """What so many calls send; barriers stand between, so that messages do not share a segment."""
        before = sent_on_links(comm)
        for number in range(calls):
            if name is not None:
                call(comm, name, number)
            comm.Barrier()
        return sent_on_links(comm) - before

    with Collectives(comm) as fast:
        for name in one_way | both_ways:
            before = fast._carrier.messages
            for number in range(calls):
                call(fast, name, number)
            ours = comm.allreduce(fast._carrier.messages - before)
            assert ours == calls * (1 if name in one_way else 2)
            if name in ("Scatter", "Gather", "Allgather", "Allreduce"):
                sent_by_mpi(name)  # connections are made
                mpis = sent_by_mpi(name) - sent_by_mpi()
                assert ours < mpis, (name, ours, mpis)


def on_nodes(comm):
    all_seven(comm)
    forgotten_chains(comm)
    test_collectives.test_other_arguments(comm)
    test_collectives.test_scalars(comm)
    rounds(comm)
    the_same_bits(comm)
    test_collectives_errors.test_buffers_that_overlap(comm)
    test_collectives.test_freed(comm)
    bad_input(comm)
    failed_start(comm)
    without_the_communicator(comm)
    fewest_messages(comm)


@on_ranks(3, env={"MPIR_CVAR_NOLOCAL": "1", "NODES_EXPECTED": "3"}, deadline_s=240)
def test_several_nodes(comm):
    """What MPICH takes for nodes of their own."""
    on_nodes(comm)


@pytest.mark.exhaustive
@on_ranks(4, env={"MPIR_CVAR_ODD_EVEN_CLIQUES": "1", "NODES_EXPECTED": "2"}, deadline_s=240)
def test_two_nodes_of_two_ranks(comm):
    on_nodes(comm)


@pytest.mark.exhaustive
@on_ranks("openmpi-4", deadline_s=240)
def test_nodes_under_open_mpi_on_4(comm):
    two_nodes(comm)
    test_collectives_errors.test_buffers_that_overlap(comm)
