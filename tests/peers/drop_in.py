"""pytest's plugin by which other libraries find the drop-in in place of mpi4py-fft."""

from overlap.compat.mpi4py_fft import stand_in

stand_in()
