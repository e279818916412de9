"""A first plan: Poisson's equation for a batch of planes."""

# [start]
import mpi4py
import numpy as np

mpi4py.rc.thread_level = "serialized"
from mpi4py import MPI

import overlap

comm = MPI.COMM_WORLD
nz, ny, nx = 8, 48, 64
# [end start]

with overlap.FFT2(comm, (nz, ny, nx), dtype="f8") as plan:
    # [arrays]
    rho = plan.real.empty()  # this rank's rows of all planes
    assert rho.shape == plan.real.shape and rho.global_shape == (nz, ny, nx)

    mine = plan.real.local_slice[1]  # which rows these are
    y = 2 * np.pi * np.arange(ny)[mine, None] / ny
    x = 2 * np.pi * np.arange(nx) / nx
    for z in range(nz):
        rho[z] = np.sin((z + 1) * x) * np.cos(2 * y)
    # [end arrays]

    # [solve]
    rho_hat = plan.forward(rho)  # this rank's columns of all spectra
    ky, kx = plan.wavenumbers()  # they broadcast to a plane of the spectrum
    k2 = kx**2 + ky**2
    phi_hat = rho_hat / np.where(k2 > 0, k2, 1)
    phi = plan.backward(phi_hat)
    # [end solve]

    # [check]
    for z in range(nz):
        assert np.allclose(phi[z], rho[z] / ((z + 1) ** 2 + 2**2))
    whole = phi.gather()  # the global array on rank 0, None elsewhere
    assert (whole is None) == (comm.rank > 0)
    # [end check]

    # [pointwise]
    @plan.pointwise(dealias="3/2")
    def energy(phi_x, phi_y):
        return (phi_x**2 + phi_y**2) / 2

    energy_hat = energy(1j * kx * phi_hat, 1j * ky * phi_hat)
    # [end pointwise]
    assert np.all(plan.backward(energy_hat).mean() > 0)

    # [describe]
    if comm.rank == 0:
        print(plan.describe())
    # [end describe]
