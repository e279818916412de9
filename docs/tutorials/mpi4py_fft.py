"""A script for mpi4py-fft, after one line has been changed."""

# [script]
import numpy as np
from mpi4py import MPI

from overlap.compat.mpi4py_fft import PFFT, newDistArray  # was: from mpi4py_fft import ...

fft = PFFT(MPI.COMM_WORLD, (24, 16, 32), axes=(0, 1, 2), dtype=float)
u = newDistArray(fft, forward_output=False)
u[:] = np.random.default_rng(MPI.COMM_WORLD.rank).random(u.shape)
u_hat = fft.forward(u, newDistArray(fft))
v = fft.backward(u_hat, newDistArray(fft, forward_output=False))
assert np.allclose(u, v)
fft.destroy()
# [end script]
