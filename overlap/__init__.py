"""Hide MPI communication behind computation in hybrid threads-plus-MPI codes.

The layers, lowest first. A layer imports only from itself and from those above it in this list, and no
modules import each other in a circle; tests/unit/test_imports.py reads the list from here and checks it.
An indented line is a part of the folder above it: it comes below the folder's modules that have no line::

    errors          the exceptions, one family for all layers, and notes on standard error
    checks          checks of the numbers and arrays that users give
    files           files that are written whole or not at all
    compiled        functions compiled by numba, without the GIL; their cache, and what they do with addresses
                    (loads, stores, tables of copies, calls of the MPI library)
    ranks           how ranks begin, wait, fail and end together: headers, deadlines, signals, lost ranks, shared memory
    collectives     collectives by remote writes in shared windows, called from Python and compiled code
    runtime         slice programs: pipelines and traces
      trace         what every thread did, and when
      load          how long a rank computes, and how long it waits
      requests      requests that slices await, and the agreement of ranks on them
      loop          the compiled loop that runs the calls of plans
      scheduling    one call of a slice program on one rank: slots, the executor, ways to wait
      threads       which threads run a call: workers, the communicator thread
    arrays          who holds what: partitions, layouts, exchanges, distributed arrays; no threads
    output          fields at several times in one file, which every step changes wholly or not at all
    protected       fields that are kept in other ranks' memory, to survive the loss of ranks
    timing          expected times: formulas, all-to-alls, simulated ranks
    halo            ghost cells and other ranks' entries, exchanged while the rest is computed
    sparse          distributed sparse matrices and Krylov solvers
    fft             the public plans FFT2, FFT3, FFTN, Bracket and Transpose, and their transforms
      engine        the engine of all plans: FFTW, packing, the order of tasks
      planning      the settings of plans: search, grids of ranks, tuning files
    compat          other libraries' interfaces, on the transforms of this one, and the runtimes that they share
    tools           the parts of the command `overlap`
      signals       signals that end a command
      timeline      what every thread did: Chrome files, pictures, numbers
      slow          ranks that get only a part of their core
      dead_segments  shared memory that dead jobs have left
      links         shaped links between ranks of one machine, in network namespaces
      launch        MPI jobs from the same environment
      values        values of options, read and checked
      options       options that several commands share
      bench         measurements and their reports
      scale         strong scaling: matrices of measurements, job scripts, figures
      predict       tables of the formulas and of simulations
      advise        a program as it is: where it waits, what hiding could gain
      cli           the commands
    advise          the command `overlap advise`, for python -m
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import (
    BusyError,
    ClosedError,
    CommunicatorsExhausted,
    DataLost,
    InputError,
    LinksUnavailable,
    OverlapError,
    RankError,
    RankLost,
    SliceError,
    ThreadLevelError,
)

if TYPE_CHECKING:  # names that `__getattr__` imports at run time
    __version__: str
    from .arrays import Blocks as Blocks
    from .arrays import DistArray as DistArray
    from .fft import FFT2 as FFT2
    from .fft import FFT3 as FFT3
    from .fft import FFTN as FFTN
    from .fft import ArrayLayout as ArrayLayout
    from .fft import Bracket as Bracket
    from .fft import Settings as Settings
    from .fft import TimeStepper as TimeStepper
    from .fft import Transpose as Transpose
    from .halo import Halo as Halo
    from .halo import agreed_blocks as agreed_blocks
    from .output import Output as Output
    from .protected import Protected as Protected
    from .runtime import Runtime as Runtime
    from .runtime import all_of as all_of
    from .runtime import barrier as barrier
    from .runtime import parallel as parallel
    from .runtime import stagger as stagger
    from .runtime import start as start
    from .runtime import take_turn as take_turn
    from .runtime import wait_for_slices as wait_for_slices
    from .runtime import worker_index as worker_index

_LAYER_OF = {
    "ArrayLayout": "fft",
    "Blocks": "arrays",
    "Bracket": "fft",
    "DistArray": "arrays",
    "FFT2": "fft",
    "FFT3": "fft",
    "FFTN": "fft",
    "Halo": "halo",
    "Output": "output",
    "Protected": "protected",
    "Runtime": "runtime",
    "Settings": "fft",
    "TimeStepper": "fft",
    "Transpose": "fft",
    "agreed_blocks": "halo",
    "all_of": "runtime",
    "barrier": "runtime",
    "parallel": "runtime",
    "stagger": "runtime",
    "start": "runtime",
    "take_turn": "runtime",
    "wait_for_slices": "runtime",
    "worker_index": "runtime",
}

__all__ = [
    "BusyError",
    "ClosedError",
    "CommunicatorsExhausted",
    "DataLost",
    "InputError",
    "LinksUnavailable",
    "OverlapError",
    "RankError",
    "RankLost",
    "SliceError",
    "ThreadLevelError",
    *_LAYER_OF,
]


def _found_later(name: str) -> Any:
    """Import a name that needs MPI when it is first used, because importing mpi4py starts MPI."""
    if name == "__version__":
        from importlib import metadata  # takes longer than everything else here

        return metadata.version("overlap-mpi")
    if name not in _LAYER_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{_LAYER_OF[name]}", __name__), name)
    return value


if not TYPE_CHECKING:  # a type checker would assume that every name exists
    __getattr__ = _found_later


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
