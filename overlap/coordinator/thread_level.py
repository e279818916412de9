"""The thread level of MPI: whether it is high enough, and whether it is higher than needed."""

from __future__ import annotations

from mpi4py import MPI

from ..errors import ThreadLevelError
from ..notes import note


def thread_level() -> str:
    """Return the thread level at which MPI runs, in mpi4py's words: ``"serialized"``, ``"multiple"``, ..."""
    names = ("single", "funneled", "serialized", "multiple")
    return {getattr(MPI, f"THREAD_{name.upper()}"): name for name in names}[MPI.Query_thread()]


def check_thread_level() -> None:
    """Raise a `ThreadLevelError` if only the thread that has started MPI may call it."""
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        raise ThreadLevelError(
            "expected an MPI thread level of at least MPI_THREAD_SERIALIZED "
            f"({MPI.THREAD_SERIALIZED}), received {MPI.Query_thread()}; set "
            "mpi4py.rc.thread_level = 'serialized' before importing mpi4py.MPI"
        )


def note_thread_level(comm: MPI.Intracomm) -> None:
    """Have rank 0 say that messages of MPICH are slow at the level "multiple", at which MPICH locks every call."""
    if comm.size > 1 and comm.rank == 0 and thread_level() == "multiple" and MPI.get_vendor()[0] == "MPICH":
        note(
            "MPI runs at MULTIPLE: short messages of MPICH then take several times as long. Set mpi4py.rc.thread_level "
            '= "serialized" before mpi4py.MPI is imported (OVERLAP_NOTES= in the environment: no such notes)'
        )
