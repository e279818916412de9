"""Three ways to use overlap, the most direct one first; each ends with a checked answer.

python examples/quickstart.py
mpiexec -n 4 python examples/quickstart.py
"""

import mpi4py
import numpy as np

mpi4py.rc.thread_level = "serialized"  # enough for overlap; the default, multiple, costs MPICH latency
from mpi4py import MPI

import overlap

comm = MPI.COMM_WORLD
nz, ny, nx = 16, 48, 64

# 1. A slice program: write the work of one slice as straight-line code, and mark with `await` where
#    it must wait for other ranks. While one slice waits, others compute. Here: statistics of 16 signals on all ranks.
x = 2 * np.pi * np.array_split(np.arange(1000), comm.size)[comm.rank] / 1000
signal = [z + np.sin((z + 1) * x) for z in range(nz)]
mean, variance = np.empty((nz, 1)), np.empty((nz, 1))

with overlap.Runtime(comm, workers=2) as runtime:

    @runtime.pipelined
    async def statistics(z, comm):
        await comm.Allreduce(np.array([signal[z].sum() / 1000]), mean[z])
        deviation = signal[z] - mean[z]
        await comm.Allreduce(np.array([(deviation**2).sum() / 1000]), variance[z])

    statistics(range(nz), runtime.comm)

assert np.allclose(mean[:, 0], range(nz)) and np.allclose(variance, 1 / 2)  # of a sine

# 2. A plan: 2-D FFTs of a batch of planes. Each rank holds some rows (y) of every plane in real
#    space and some columns (x) of every spectrum; the exchanges in between are hidden.
with overlap.FFT2(comm, (nz, ny, nx), dtype="f8", norm="forward") as plan:
    amplitude = 1.0 + np.arange(nz)[:, None, None]
    y = 2 * np.pi * np.arange(ny)[plan.real.local_slice[1], None] / ny
    x = 2 * np.pi * np.arange(nx) / nx
    a = amplitude * np.cos(3 * x + 2 * y)
    b = amplitude * np.cos(x - y)
    a_hat, b_hat = plan.forward(a), plan.forward(b)
    ky, kx = plan.wavenumbers()  # this rank's part
    assert np.allclose(a_hat, amplitude / 2 * ((kx == 3) & (ky == 2)))

    # 3. Pointwise: spectra -> real space -> your function -> spectra, as one pipeline.
    #    Here: the bracket a_x b_y - a_y b_x of fluid and plasma dynamics, free of aliasing.
    @plan.pointwise(dealias="3/2")
    def bracket(ax, ay, bx, by):
        return ax * by - ay * bx

    c_hat = bracket(1j * kx * a_hat, 1j * ky * a_hat, 1j * kx * b_hat, 1j * ky * b_hat)
    c = plan.backward(c_hat)
    assert np.allclose(c, -5 * amplitude**2 * np.sin(3 * x + 2 * y) * np.sin(x - y))

if comm.rank == 0:
    print(f"quickstart: all answers are right on {comm.size} rank(s)")
