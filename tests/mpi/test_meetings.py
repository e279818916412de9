"""How ranks meet at the beginning and at the end of a call."""

from itertools import product
from unittest import mock

import numpy as np
import pytest
from marks import exhaustive, on_ranks
from mpi4py import MPI
from step_cases import REDUCTIONS, mpi_functions

import overlap
from overlap.ranks import rendezvous

# Where the receiver cannot read the sender's memory by itself, a long message needs both of them.
COPIED_TWICE = {
    "MPIR_CVAR_CH4_CMA_ENABLE": "0",
    "MPIR_CVAR_CH4_XPMEM_ENABLE": "0",
    "OMPI_MCA_smsc": "^cma,xpmem,knem",
    "OMPI_MCA_btl_sm_single_copy_mechanism": "none",
}
MANY = 700  # meetings: more than their numbers on the board have values


@on_ranks(1, exhaustive(2), 3, exhaustive(4), exhaustive("openmpi-2"))
def test_headers_and_agreements(comm):
    """At the board and between nodes: who comes late is waited for, and who differs is named, in calls of all kinds."""
    full = np.random.default_rng(3).standard_normal((8, 12)) + 0j
    for on_one_node in (True, False):
        with (
            mock.patch.object(rendezvous, "on_one_node", return_value=on_one_node),
            overlap.Runtime(comm) as rt,
            overlap.FFT2(rt, full.shape, full.dtype, settings={"wait": "off"}) as plan,
        ):
            assert rt.coordinator.rendezvous.has_board == (on_one_node and comm.size > 1)
            u, spectrum = plan.real.empty(), plan.spectrum.empty()
            u[...] = full[plan.real.local_slice]
            expected = np.fft.fft2(full)[plan.spectrum.local_slice]
            for number in range(MANY):
                if number % 3 == 0:
                    rt.coordinator.barrier()
                spectrum[...] = 0
                plan.forward(u, out=spectrum)
                np.testing.assert_allclose(spectrum, expected, atol=1e-12)
                if number % 100 == 0:
                    wrong = u[:, :3] if comm.rank == comm.size - 1 else u
                    with pytest.raises(
                        overlap.InputError, match=f"rank {comm.size - 1}: expected an input of local shape"
                    ):
                        plan.forward(wrong, out=spectrum)


@on_ranks(2, "openmpi-2", env=COPIED_TWICE)
def test_messages_go_on_while_ranks_meet(comm):
    """A rank that waits for others in a call comes to MPI: a long message that it has started arrives."""
    sent, received = np.arange(2**20), np.zeros(2**20, int)
    with (
        overlap.Runtime(comm, deadline_s=20, entry_deadline_s=20) as rt,
        overlap.FFT2(rt, (8, 12), "c16", settings={"wait": "off"}) as plan,
    ):
        u, spectrum = plan.real.empty(), plan.spectrum.empty()
        u[...] = 1
        for call in (rt.coordinator.barrier, *[lambda: plan.forward(u, out=spectrum)] * 4):
            received[...] = 0
            request = comm.Isend(sent, (comm.rank + 1) % comm.size) if comm.rank == 0 else MPI.REQUEST_NULL
            if comm.rank == 1:
                comm.Recv(received, 0)
                assert np.array_equal(received, sent)
            call()
            request.Wait()


MADE = []  # the small collectives made on a `Counted`


class Counted(MPI.Intracomm):
    """A communicator that notes the collectives by which ranks agree, made on it or on its duplicates."""


def _noted(name):
    def method(self, *args, **kwargs):
        MADE.append(name)
        return getattr(MPI.Intracomm, name)(self, *args, **kwargs)

    return method


for _name in ("Allreduce", "Iallreduce", "Allgather", "Iallgather", "allgather", "Bcast", "bcast"):
    setattr(Counted, _name, _noted(_name))


def made_by(call, *args, **kwargs):
    """The collectives that a call makes so that ranks agree."""
    MADE.clear()
    call(*args, **kwargs)
    return MADE[:]


@on_ranks(2, exhaustive(3), exhaustive("openmpi-2"))
def test_numbers_of_small_collectives(comm):
    """Between nodes a call makes the small collectives that the documentation names, and on one node none of MPI's."""

    def counted(name, real, *words):
        MADE.append(name)
        return real(*words)

    send, receive = np.zeros((2, comm.size))
    for on_one_node, wait in product((True, False), ("off", "block", "poll")):
        header, agreement = ["Iallreduce"], ["Iallreduce" if wait == "poll" else "Allreduce"]
        with (
            mock.patch.object(rendezvous, "on_one_node", return_value=on_one_node),
            overlap.Runtime(Counted(comm), wait=wait, agree_every=8) as rt,
            overlap.FFT2(rt, (8, 12), "c16", settings={"wait": wait, "depth": 2, "chunk": 1}) as plan,
        ):
            u, spectrum = plan.real.empty(), plan.spectrum.empty()
            u[...] = 1
            with mpi_functions(counted, plan.forward, names=REDUCTIONS):
                for _ in range(3):
                    made = made_by(plan.forward, u, out=spectrum)
                    assert made == ([] if on_one_node else header + agreement)

            for awaits, slices in product((1, 3), (1, 4)):

                async def program(z, awaits=awaits):
                    for _ in range(awaits):
                        await rt.comm.Alltoall(send, receive)

                known, learned = rt.pipelined(program, skeleton=program), rt.pipelined(program)
                meanwhile = ["Iallreduce"] * (awaits * slices // 8)
                for _ in range(2):
                    made = made_by(known, range(slices))
                    assert made == (meanwhile if on_one_node else header + meanwhile + agreement)
                    # Two for each operation of the first slice, and one for its end.
                    made = made_by(learned, range(slices))
                    expected = 2 * awaits + 1 + len(meanwhile) + (0 if on_one_node else 2)
                    assert len(made) == expected, (made, awaits, slices, wait)

    own_rows = slice(4 * comm.rank, 4 * comm.rank + 4), slice(0, 12)
    for on_one_node in (True, False):
        with mock.patch.object(rendezvous, "on_one_node", return_value=on_one_node):
            counted_comm = Counted(comm.Split(0, comm.rank))
            field = overlap.DistArray(np.ones((4, 12)), counted_comm, (4 * comm.size, 12), (0,), own_rows)
            assert field.global_sum() == 48 * comm.size
        # The parts of all ranks are compared between the headers, and then their sums are gathered.
        header = [] if on_one_node else ["Iallreduce"]
        for _ in range(3):
            assert made_by(field.global_sum) == [*header, "Allgather", *header, "allgather"]
        counted_comm.Free()
