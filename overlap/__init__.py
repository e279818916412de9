"""Hide MPI communication behind computation in hybrid threads-plus-MPI codes.

Layers, lowest first; each imports only from those above it in this list:

    errors    exception types
    processor the name of this computer's processor
    model     the timing model C + T/N and its relatives, pure functions
    alltoall  models of all-to-alls on process grids, and their fits
    trace     spans of every thread of every rank; Chrome-trace files and timeline pictures
    runtime   communicator thread, worker pool, pipelines of slice programs
    decomp    who holds what: partitions, slabs, distributed arrays
    simulate  the runtime's schedule on a virtual clock: any machine
    fft       local FFTW plans; FFT2, batched two-dimensional FFTs; FFT3, volumetric ones
    compat    drop-ins for other libraries
    links     shaped links in network namespaces, for one machine
    bench     measurements: tables, reports
    scale     strong scaling: a matrix of measurements, job scripts, figures
    predict   tables of the model and of simulations
    cli       the commands
"""

from importlib import import_module

from .errors import (
    ClosedError,
    InputError,
    LinksUnavailable,
    OverlapError,
    SliceError,
    ThreadLevelError,
)

_LAYER_OF = {"Bracket": "fft", "DistArray": "arrays", "FFT2": "fft", "FFT3": "fft",
             "Runtime": "runtime", "wait_for_slices": "runtime", "barrier": "runtime", "parallel": "runtime",
             "stagger": "runtime", "take_turn": "runtime", "worker_index": "runtime"}

__all__ = [
    "ClosedError", "InputError", "LinksUnavailable", "OverlapError", "SliceError",
    "ThreadLevelError", *_LAYER_OF,
]


def __getattr__(name):
    """Import what needs MPI when it is first asked for: importing mpi4py starts MPI."""
    if name not in _LAYER_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{_LAYER_OF[name]}", __name__), name)
    return value


def __dir__():
    return sorted({*globals(), *__all__})
