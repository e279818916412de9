"""The end of the program on all ranks: which have come to it, and what they have recorded.

A rank whose program has failed tells so and waits for nobody: it goes on to the end that the program would have had.
The others wait for all ranks, as they would in MPI's own end.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

from ...ranks.clocks import clock_offset
from .records import RankRecord

_TAG = 7702
_GOOD, _FAILED = 0, 1


class Ending:
    """A communicator that the program does not know, made when MPI has begun. Collective.

    Parameters
    ----------
    world : mpi4py.MPI.Intracomm
        All ranks.
    """

    def __init__(self, world: Any) -> None:
        self.comm = world.Dup()
        self._begun = perf_counter(), clock_offset(self.comm)
        self._sent: list[Any] = []

    def failed(self) -> None:
        """Tell the other ranks that the program has failed on this one."""
        for other in range(1, self.comm.size) if self.comm.rank == 0 else (0,):
            self._sent.append(self.comm.Isend(bytes([_FAILED]), other, _TAG))

    def gather(self, record: RankRecord) -> tuple[list[RankRecord] | None, list[int]]:
        """Bring the records of all ranks to rank 0, if none has failed. Collective over the ranks that have not.

        Returns
        -------
        records : list of RankRecord or None
            On rank 0; None on the others, and if a rank has failed.
        failed : list of int
            On rank 0, the ranks that have failed.
        """
        comm = self.comm
        word = bytearray([_GOOD])
        failed: list[int] = []
        if comm.rank == 0:
            good: list[int] = []
            for rank in range(1, comm.size):
                comm.Recv(word, rank, _TAG)
                (failed if word[0] == _FAILED else good).append(rank)
            for rank in good:
                comm.Send(bytes([_FAILED if failed else _GOOD]), rank, _TAG)
        else:
            comm.Send(bytes([_GOOD]), 0, _TAG)
            comm.Recv(word, 0, _TAG)
        if failed or word[0] == _FAILED:
            return None, failed
        record.clock = (*self._begun, perf_counter(), clock_offset(comm))
        return comm.gather(record, root=0), []
