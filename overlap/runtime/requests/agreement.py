"""Agreement of the ranks while a job runs: whether one has failed, and whether all issue the same operations.

One small reduction carries both. Every rank contributes 1 if it has failed, and a checksum of the operations that it
has issued, times its weight in the operation's communicator. The weights of a communicator's ranks add up to 0. So the
sum over all ranks, all communicators and all groups of a split is 0 if the members of each have issued the same
operations, and otherwise almost surely not. Only if the sum is not 0 are the operations themselves compared.
"""

from __future__ import annotations

import marshal
import zlib
from array import array
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from .operations import Operation, Start
from .signatures import Ranks

if TYPE_CHECKING:
    from ...ranks.rendezvous import Rendezvous

Shared = tuple[Any, ...]
Issued = dict[Ranks, list[Shared]]

_WORD = (1 << 64) - 1
AGREEMENT = "agreement of all ranks"
# Collectives of all ranks must match, whatever the program has. Messages need not.
_HINT = "; a program in which ranks await different messages, or calls on communicators of some ranks, needs skeleton="


@cache
def weight(rank: int, size: int) -> int:
    """Return a rank's weight; the weights of all ranks add up to 0 modulo 2**64, those of a part of them do not."""
    return (_mixed(rank + 1, size) - _mixed(rank, size)) & _WORD


def _mixed(number: int, size: int) -> int:
    """Return a hash of a rank's number (the finaliser of splitmix64); 0 for numbers 0 and `size`."""
    if number in (0, size):
        return 0
    number = (number * 0x9E3779B97F4A7C15) & _WORD
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _WORD
    return number ^ (number >> 31)


class Agreements:
    """Makes the agreements of one job.

    The communicator `coordinator` carries the agreements and nothing else. On one node a `rendezvous` with a board adds
    them up at the end. `issued` is what has been issued already.

    Attributes
    ----------
    unmatched : int
        A checksum of the messages sent and not received by point-to-point operations of this rank; its
        sum over all ranks is 0 if none is left.
    messages : bool
        According to the last agreement that has ended, some rank has used point-to-point operations, so a message may
        go from one slice to another.
    issued : dict
        By communicator: for each operation since the last agreement, the values that must be equal on all its ranks.
    """

    def __init__(
        self,
        coordinator: MPI.Intracomm,
        waiting: Any,
        rendezvous: Rendezvous | None = None,
        issued: Issued | None = None,
    ) -> None:
        self.unmatched = 0
        self.messages = self._messages = False
        self.waiting = waiting
        self._coordinator, self._rendezvous = coordinator, rendezvous
        self.issued: Issued = issued or {}
        self._under_way: tuple[MPI.Request, array[int], Issued] | None = None

    def note(self, operation: Operation) -> None:
        """Note that an operation has been issued."""
        try:
            shared = operation.collective_signature()
        except Exception:  # arguments that only MPI can read
            shared = (operation.name,)
        if shared is None:
            self.unmatched += operation.sent() * _mixed(operation.comm.number + 1, -1)
            self._messages |= operation.name in ("Send", "Ssend", "Recv")
            return
        issued = self.issued.get(operation.comm)
        if issued is None:
            issued = self.issued[operation.comm] = []
        issued.append(shared)

    def start(self, failed: bool) -> None:
        """Start an agreement, whose result `ended` returns."""
        sums = self.summands(failed)
        request = self._coordinator.Iallreduce(MPI.IN_PLACE, sums, MPI.SUM)
        self._under_way = request, sums, self.issued
        self.issued = {}

    def summands(self, failed: bool) -> array[int]:
        """Return this rank's summands since the last agreement."""
        checksum = 0
        for comm, shared in self.issued.items():
            checksum += comm.weight * _crc(shared, comm.number)
        return array("Q", (failed, checksum & _WORD, self._messages))

    def ended(self) -> str | None:
        """Wait for the agreement that was started last and return its result.

        None: no rank has failed and operations agree, or no agreement is under way. A text that names the first
        operation that differs between the ranks. An empty text: some rank has failed, and will report why.
        """
        if self._under_way is None:
            return None
        request, sums, issued = self._under_way
        self._under_way = None
        self.waiting.wait(request, AGREEMENT)
        self.messages = bool(sums[2])
        return self.judged(sums, issued)

    def at_once(self, failed: bool) -> str | None:
        """Make an agreement at the end of a job and return its result, as `ended` does."""
        sums = self.summands(failed)
        if self._rendezvous is not None and self._rendezvous.has_board:
            with self.waiting.watched(AGREEMENT):
                self._rendezvous.sum(sums)
        else:
            self.waiting.reduced(self._coordinator, sums, MPI.SUM)
        issued, self.issued = self.issued, {}
        return self.judged(sums, issued)

    def judged(self, sums: array[int], issued: Issued) -> str | None:
        """Return the result of an agreement from its sums, as `ended` does."""
        if sums[1]:
            return self._difference(issued)
        return "" if sums[0] else None

    def same(self, ok: bool, item: object, learned: object) -> str | None:
        """While learning, agree that no rank has failed and that all are about to issue the same operation.

        Returns as `ended`.
        """
        shared, text, comm_weight, by_all = None, str(item), 0, True
        operation = item.operation if isinstance(item, Start) else item
        if ok and isinstance(operation, Operation):
            shared, comm_weight = operation.collective_signature(), operation.comm.weight
            by_all = shared is not None and operation.comm.size == self._coordinator.size
            # Once some ranks have begun a Reduce_scatter that others do not make, they cannot leave it.
            if operation.name == "Reduce_scatter" and (problem := operation.problem()):
                shared = operation.name, problem
            text = f"{operation.name} on communicator {operation.comm.number}"
            if operation is not item:
                text = f"the start of {text}"
        own_weight = weight(self._coordinator.rank, self._coordinator.size)
        sums = self.sum([not ok, own_weight * zlib.crc32(f"{text} {learned}".encode()) + comm_weight * _crc(shared, 0)])
        if sums[0]:
            return ""
        if not sums[1]:
            return None
        with self.waiting.watched("the report of operations that differ between the ranks"):
            answers = self._coordinator.allgather((text if shared is None else f"{text} {_terms(shared)}", by_all))
        hint = "" if all(by_all for _, by_all in answers) else _HINT
        return _different(text for text, _ in answers) + hint

    def sum(self, values: Iterable[int]) -> array[int]:
        """Start sums over the ranks of a few integers, modulo 2**64."""
        sums = array("Q", [int(value) & _WORD for value in values])
        self.waiting.reduced(self._coordinator, sums, MPI.SUM)
        return sums

    def _difference(self, issued: Issued) -> str:
        """Find the first operation that differs between the ranks of a communicator."""
        with self.waiting.watched("the report of operations that differ between the ranks"):
            all_ranks = self._coordinator.Get_group()
            issued_by_rank = self._coordinator.allgather(
                {(comm.number, _first_of(comm.source, all_ranks)): shared for comm, shared in issued.items()}
            )
            all_ranks.Free()
        for which in sorted({key for issued_there in issued_by_rank for key in issued_there}):
            members = {
                rank: issued_there[which] for rank, issued_there in enumerate(issued_by_rank) if which in issued_there
            }
            for place in range(max(map(len, members.values()))):
                texts = {
                    rank: f"{shared[place][0]} {_terms(shared[place])}" if place < len(shared) else "nothing"
                    for rank, shared in members.items()
                }
                if len(set(texts.values())) > 1:
                    return _different(texts.values(), texts, f" on communicator {which[0]}")
        return _different(())


def _first_of(comm: MPI.Comm, group: MPI.Group) -> int:
    """Return the rank in `group` of a communicator's first rank, which differs between the communicators of a split."""
    own = comm.Get_group()
    (first,) = own.Translate_ranks([0], group)
    own.Free()
    return first


def _crc(shared: list[Shared] | Shared | None, number: int) -> int:
    return zlib.crc32(marshal.dumps(shared, 2), number + 1) if shared is not None else 0


def _terms(shared: Shared) -> str:
    """Return the values that must be equal on all ranks as text, for messages."""
    names = ("type", "bytes", "root", "op")
    return "(" + ", ".join(f"{name}={value}" for name, value in zip(names, shared[1:]) if value is not None) + ")"


def _different(texts: Iterable[str], ranks: Iterable[int] | None = None, where: str = "") -> str:
    texts = list(texts)
    listed = ", ".join(f"{text} (rank {rank})" for rank, text in zip(ranks or range(len(texts)), texts))
    return (
        "the slice programs of the ranks await different operations"
        + where
        + f": expected the same on all ranks, received {listed or 'different ones'}"
    )
