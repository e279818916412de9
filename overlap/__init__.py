"""Hide MPI communication behind computation in hybrid threads-plus-MPI codes.

Layers, lowest first; each imports only from those above it in this list:

    errors    exception types
    model     the timing model C + T/N and its relatives, pure functions
    alltoall  models of all-to-alls on process grids, and their fits
    trace     spans of every thread of every rank; Chrome-trace files and timeline pictures
    runtime   communicator thread, worker pool, pipelines of slice programs
    decomp    who holds what: partitions, slabs, distributed arrays
    simulate  the runtime's schedule on a virtual clock: any machine
    fft       local FFTW plans; FFT2, batched two-dimensional FFTs
    compat    drop-ins for other libraries
    links     shaped links in network namespaces, for one machine
    bench     measurements: tables, reports
    scale     strong scaling: a matrix of measurements, job scripts, figures
    predict   tables of the model and of simulations
    cli       the commands
"""

from .errors import (ClosedError, InputError, LinksUnavailable, OverlapError, SliceError,
                     ThreadLevelError)
from .decomp import DistArray
from .fft import FFT2, FFT3
from .runtime import Runtime, after, barrier, parallel, turn, worker_index

__all__ = [
    "ClosedError", "DistArray", "FFT2", "FFT3", "InputError", "LinksUnavailable", "OverlapError",
    "Runtime", "SliceError", "ThreadLevelError", "after", "barrier", "parallel", "turn",
    "worker_index",
]
