"""FFT classes for fluidfft, the FFT layer of fluidsim: ``fft2d.mpi_with_overlap`` and ``fft3d.mpi_with_overlap``.

fluidfft finds them by the entry points of this package. Layouts are slabs of z, or of y, in real space; in Fourier
space slabs of y in natural order (z, y, x) in three dimensions, and slabs of x in transposed order (x, y) in two.
Forward transforms are divided by the number of points, as in all of fluidfft's classes.

fluiddyn imports `mpi4py.MPI` itself. Set ``mpi4py.rc.thread_level = "serialized"`` before any import of fluiddyn,
because MPI is faster at this level.
"""
