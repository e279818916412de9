"""`Kernel`, the base class of the five kernels, and the record of a check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Self

from mpi4py import MPI

from overlap import Runtime

DRAWN = "drawn"  # given instead of weights: a free rank takes work that is left
Weights = tuple[float, ...] | str | None
Advance = Callable[[int, int], None]


@dataclass(frozen=True)
class Check:
    """Records one comparison of NPB's verification.

    Attributes
    ----------
    name : str
    received, expected : number
    tolerance : float
        Largest allowed relative error; 0 demands equality.
    """

    name: str
    received: Any
    expected: Any
    tolerance: float

    @property
    def error(self) -> float:
        """Return the relative error, of complex numbers by their moduli."""
        return abs(self.received - self.expected) / max(abs(self.expected), 1e-300)

    @property
    def passed(self) -> bool:
        """Return whether the error is small enough; NaN is not."""
        return self.error <= self.tolerance


class Kernel:
    """A benchmark that has been set up. Making, running and closing it is collective.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
    letter : str
        The class.
    weights : tuple of float, optional
        Speeds of the ranks, which their shares follow; None: equal shares. EP takes `DRAWN`, too.
    advance : callable
        ``advance(done, total)``, called from time to time.
    hide : bool
        Whether to hide exchanges behind computing if possible; if not, the rank waits for each exchange (the plain
        code, for comparison).

    Attributes
    ----------
    name, title : str
        As in the command, and in words.
    operation : str
        What is counted.
    unit : str
        What shares are counted in.
    share : int
        Units of this rank.
    waited_s : float
        Seconds of the last `run` in which this rank waited for others or moved data.
    messages : int
        Messages that this rank sent in the last `run`, collective sums apart.
    """

    name: str
    title: str
    operation = "floating point"
    unit: str

    def __init__(self, comm: MPI.Intracomm, letter: str, weights: Weights, advance: Advance, hide: bool = True) -> None:
        self.comm, self.letter, self.advance, self.hide = comm, letter, advance, hide
        self.share = 0
        self.waited_s = 0.0
        self.messages = 0

    @property
    def size(self) -> str:
        """Return the size of the problem in NPB's format."""
        raise NotImplementedError

    @property
    def iterations(self) -> int:
        """Return the number of iterations."""
        raise NotImplementedError

    @property
    def mop(self) -> float:
        """Return the millions of operations of a run."""
        raise NotImplementedError

    def warm_up(self) -> None:
        """Run what NPB runs before the clock starts; the problem is unchanged afterwards."""
        raise NotImplementedError

    def run(self) -> None:
        """Run the timed part."""
        raise NotImplementedError

    def checks(self) -> list[Check]:
        """Return the verification of the last run, the same on all ranks."""
        raise NotImplementedError

    def close(self) -> None:
        """Free the kernel's resources."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if exc_info[0] is None:
            self.close()


def nodes(comm: MPI.Intracomm) -> int:
    """Return the number of nodes that the ranks of a communicator are on (collective)."""
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    first = int(node.rank == 0)
    node.Free()
    return comm.allreduce(first)


class Waiting:
    """Adds the seconds of a block to a kernel's `waited_s`, without those in which a runtime's slices compute.

    Parameters
    ----------
    kernel : Kernel
    runtime : overlap.Runtime, optional
    """

    def __init__(self, kernel: Kernel, runtime: Runtime | None = None) -> None:
        self._kernel, self._runtime = kernel, runtime

    def _computing_s(self):
        return self._runtime.load.computing_s if self._runtime is not None else 0.0

    def __enter__(self) -> None:
        self._begun, self._before = perf_counter(), self._computing_s()

    def __exit__(self, *exc_info: object) -> None:
        self._kernel.waited_s += perf_counter() - self._begun - (self._computing_s() - self._before)
