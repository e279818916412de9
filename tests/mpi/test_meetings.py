"""How ranks meet at the beginning and at the end of a call."""

from unittest import mock

import numpy as np
import pytest
from marks import exhaustive, on_ranks
from mpi4py import MPI

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
