"""The seven collectives among ranks of several nodes: within each node by its window, between nodes by messages.

One rank of a node communicates for all of its ranks: the root on the root's node, the node's head on others. So a
broadcast, a scatter, a gather and a reduction send one message to or from every other node, however many ranks it has.
In a barrier, an allgather and an allreduce all nodes need the data of all nodes. These are distributed in
ceil(log2(nodes)) steps: in each step a node sends all data that it has and the receiver has not (Bruck et al. 1997).
The nodes' partial results are kept side by side and combined at the end, so nothing is counted twice whatever the
number of nodes is. In a long allreduce each node combines one part of the items, and these parts are distributed.

Reductions combine the ranks of each node as `node` does, then the nodes in the order of their first ranks:
the same order on all ranks and in every run.

The resulting steps of one rank are written here as a chain, which compiled code runs: see `chains`. Compiled code sends
and awaits the messages; `Messages` prepares their buffers, each with the signature of its collective, and cleans up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from ..compiled import copy_table
from ..compiled.copy_table import COPY_ITEMS, copy_run, instruction
from ..compiled.memory import LINE, address_of, line_zeros
from ..compiled.mpi import mpi_function
from ..ranks.failures import FailureChannel, RankFailure
from ..ranks.losses import guarded
from . import chains
from .chains import ACTIVE, COUNTED, DATA, HEADER, NOWHERE, OTHER, REQUEST, SEND, SENT, TARGET
from .protocol import (
    BARRIER,
    BCAST,
    CHAINS,
    COPIED,
    EVERYBODY,
    GATHER,
    MPI_START,
    MPI_TEST,
    NAMES,
    NODE,
    NOTHING,
    PAST,
    REDUCE,
    ROUND,
    SCATTER,
)
from .slow_path import CollectiveTransport

_COLLECTIVE, _NOTE = 1, 2  # tags
_FAILED, _ASKED, _ANSWERED = range(3)  # kinds of notes
_ROOM_NBYTES = 1024  # least size of a receive buffer: another collective's message may be longer than the expected one
# Kept alive after a failure: until `free`, MPI may still write to the buffers.
_abandoned: list[InterNodeTransport] = []


class _Note(NamedTuple):
    """A note beside the messages: a rank has failed, asks what another rank does, or answers that."""

    kind: int
    round: int
    agreed: int  # the signature of the collective on the rank that writes
    sent: int  # messages that the rank has sent to the reader so far
    taken: int  # those that it has received from the reader


class MessageBuffer:
    """Memory for messages of `nbytes` bytes to or from a rank, and a persistent request; for its words see `chains`."""

    __slots__ = ("address", "nbytes", "request", "words")

    def __init__(self, comm: MPI.Intracomm, rank: int, nbytes: int, sent: bool, counted: int) -> None:
        room = line_zeros(DATA + nbytes)
        packed = room[HEADER:]
        self.address, self.nbytes = address_of(room), nbytes
        self.request = (comm.Send_init if sent else comm.Recv_init)(packed, rank, _COLLECTIVE)
        self.words = room[:LINE].view(np.int64)
        self.words[[REQUEST, OTHER, COUNTED, SENT]] = MPI._addressof(self.request), rank, counted, sent


class InterNodeTransport(CollectiveTransport):
    """Messages of this rank, with its state among all ranks, to the ranks `far`, of other nodes; and notes, which ranks
    read in long waits. Collective to make."""

    def __init__(self, comm: MPI.Intracomm, state: np.ndarray, far: Sequence[int]) -> None:
        self._comm, self._state, self._far = guarded(comm.Dup(), comm), state, far
        self._notes = FailureChannel(self._comm, _NOTE)
        self._failed: dict[int, tuple[_Note, RankFailure]] = {}  # the failure of each rank
        self._questions: dict[int, int] = {}  # for each rank, the round about which it asks
        self._asked: dict[int, int] = {}  # for each rank, the round about which this rank has asked it
        self._answers: dict[int, _Note] = {}
        self._buffers: list[MessageBuffer] = []
        self._sent_to, self._received_from = np.zeros((2, comm.size), np.int64)
        self._notified = False
        state[[MPI_START, MPI_TEST]] = mpi_function("Start"), mpi_function("Test")

    @property
    def messages(self) -> int:
        """Return how many messages this rank has sent."""
        return int(self._sent_to.sum())

    def buffer(self, rank: int, nbytes: int, sent: bool) -> MessageBuffer:
        """Make a buffer for messages of `nbytes` bytes to (`sent`) or from a rank of another node."""
        counts = self._sent_to if sent else self._received_from
        nbytes = nbytes if sent else max(nbytes, _ROOM_NBYTES)
        self._buffers.append(MessageBuffer(self._comm, rank, nbytes, sent, address_of(counts[rank:])))
        return self._buffers[-1]

    def discard(self) -> None:
        """Forget all buffers, none of whose messages is under way."""
        for buffer in self._buffers:
            buffer.request.Free()
        self._buffers.clear()

    def notify(self, failure: RankFailure) -> None:
        """Notify, once, the ranks of other nodes of a failure here, which leaves messages under way."""
        if not self._notified:
            self._notified = True
            _abandoned.append(self)
            for rank in self._far:
                self._note(rank, _FAILED, 0, NOTHING, failure.packed())

    def poll(self) -> None:
        """Read the notes that have arrived, and answer questions."""
        for rank, packed in self._notes.received():
            note = _Note(*np.frombuffer(packed, np.int64, len(_Note._fields)).tolist())
            if note.kind == _FAILED:
                self._failed[rank] = note, RankFailure.unpacked(packed[8 * len(note) :])
            elif note.kind == _ASKED:
                self._questions[rank] = note.round
            else:
                self._answers[rank] = note
        current = int(self._state[ROUND])
        for rank, asked in list(self._questions.items()):
            if asked <= current:
                del self._questions[rank]
                known = int(self._state[PAST + (asked & 1)]) if asked > current - 2 else NOTHING
                self._note(rank, _ANSWERED, asked, known)

    def never(self, rank: int, coming: bool) -> RankFailure | int | None:
        """Return why the next message from a rank never arrives, or why the last one to it is never received.

        That is the failure of the rank (messages that it had sent before, whose number it has reported, are not lost),
        the signature of the collective that it makes instead, or `NOTHING` if that is not known any more. The rank is
        asked once in a round. None: the message may still arrive or be received.
        """
        self.poll()
        if rank in self._failed:
            note, failure = self._failed[rank]
            return None if self._possible(rank, coming, note) else failure
        current = int(self._state[ROUND])
        answer = self._answers.get(rank)
        if answer is not None and answer.round == current:
            if answer.agreed != NOTHING:
                return answer.agreed if answer.agreed != self._state[PAST + (current & 1)] else None
            return None if self._possible(rank, coming, answer) else NOTHING
        if self._asked.get(rank) != current:
            self._asked[rank] = current
            self._note(rank, _ASKED, current, NOTHING)
        return None

    def _possible(self, rank: int, coming: bool, note: _Note) -> bool:
        """Return whether, according to a rank's note, it has sent the message, or has received it."""
        return bool(self._received_from[rank] < note.sent if coming else self._sent_to[rank] <= note.taken)

    def _note(self, rank: int, kind: int, number: int, agreed: int, more: bytes = b"") -> None:
        note = _Note(kind, number, agreed, int(self._sent_to[rank]), int(self._received_from[rank]))
        self._notes.notify(rank, np.array(note, np.int64).tobytes() + more)

    def free(self) -> None:
        """Free the communicator (collective).

        After a failure there are messages for which no rank waits; MPI requires that they are received.
        """
        status = MPI.Status()
        for buffer in self._buffers:
            if buffer.words[ACTIVE] and not buffer.words[SENT]:
                buffer.request.Cancel()
                buffer.request.Wait(status)
                self._received_from[buffer.words[OTHER]] += not status.Is_cancelled()
        self._notes.end()
        for rank, sent in enumerate(self._comm.alltoall(self._sent_to.tolist())):
            for _ in range(sent - self._received_from[rank]):
                message = self._comm.Mprobe(rank, _COLLECTIVE, status)
                message.Recv(np.empty(status.Get_count(MPI.BYTE), np.uint8))
        MPI.Request.Waitall([buffer.request for buffer in self._buffers])
        self.discard()
        self._comm.Free()
        if self in _abandoned:
            _abandoned.remove(self)


LONG_NBYTES = 2**15  # an allreduce from this length on is made in parts
_KEPT, _KEPT_NBYTES = chains.PLACES // 2, 2**24  # limits of the chains, and of their memory in bytes, that are kept

Operand = tuple[int, int]  # a base and an offset, see `chains`


class Nodes:
    """The nodes of a communicator's ranks, by one of the ranks of this rank's node in the same order. Collective."""

    def __init__(self, comm: MPI.Intracomm, on_node: MPI.Comm) -> None:
        firsts = comm.allgather(on_node.bcast(comm.rank))
        # The ranks of each node; nodes are in the order of their first ranks.
        self.ranks = tuple(
            tuple(rank for rank, first in enumerate(firsts) if first == node_first)
            for node_first in sorted(set(firsts))
        )
        # The rank that communicates for each node: the first rank of the first node, the second rank of the second
        # node, ... So the heads are on different cores if MPI's "nodes" are parts of one machine.
        self.heads = tuple(ranks[number % len(ranks)] for number, ranks in enumerate(self.ranks))
        self.mine, self.place = self.where(comm.rank)  # this rank's node, and its index in the node

    def where(self, rank: int) -> tuple[int, int]:
        """Return a rank's node, and its index in the node."""
        for number, ranks in enumerate(self.ranks):
            if rank in ranks:
                return number, ranks.index(rank)
        raise ValueError(rank)


class Chain:
    """The steps of a collective on this rank, and the memory that they work on."""

    def __init__(self, transport: InterNodeTransport) -> None:
        self._transport = transport
        self._begin: list[list[int]] = []  # steps at the begin of the chain: all receives are started there
        self._steps: list[list[int]] = []
        self._end: list[list[int]] = []
        self._rooms: list[np.ndarray] = []
        self.nbytes = 0  # of this memory

    def copy(self, target: Operand, source: Operand, nbytes: int) -> None:
        """Add a copy of a run of bytes."""
        self._steps.append(copy_run(source, target, nbytes))

    def collect(self, target: Operand, pieces: Operand, ranks: np.ndarray, nbytes: int) -> None:
        """Add copies of the pieces of some ranks to adjacent places."""
        self._steps.append(instruction(COPY_ITEMS, pieces, target, len(ranks), nbytes, address_of(ranks), 0))

    def distribute(self, pieces: Operand, source: Operand, ranks: np.ndarray, nbytes: int) -> None:
        """Add copies from adjacent places to the pieces of some ranks, the reverse of `collect`."""
        self._steps.append(instruction(COPY_ITEMS, source, pieces, len(ranks), nbytes, 0, address_of(ranks)))

    def combine(self, parts: list[Operand], target: Operand, count: int) -> None:
        """Add steps that combine arrays of `count` items one after the other."""
        first = parts[0]
        for part in parts[1:]:
            self._steps.append(instruction(chains.COMBINE, first, target, *part, count))
            first = target

    def on_node(self, kind: int, source: Operand, target: Operand, nbytes: int, root: int) -> None:
        """Add a collective of the node."""
        self._steps.append(instruction(chains.ON_NODE, source, target, kind, nbytes, root))

    def room(self, nbytes: int) -> Operand:
        """Allocate memory for `nbytes` bytes."""
        self._rooms.append(line_zeros(nbytes))
        self.nbytes += nbytes
        return 0, address_of(self._rooms[-1])

    def buffer(self, rank: int, nbytes: int) -> MessageBuffer:
        """Make a buffer for a message to a rank of another node; `send` it."""
        buffer = self._transport.buffer(rank, nbytes, sent=True)
        self.nbytes += buffer.nbytes
        return buffer

    def send(self, buffer: MessageBuffer) -> None:
        """Start to send the buffer; the chain ends only when it has been sent."""
        self._steps.append(instruction(chains.START, (0, buffer.address), NOWHERE))
        self._end.append(instruction(chains.AWAIT, (0, buffer.address), NOWHERE))

    def expect(self, rank: int, nbytes: int) -> MessageBuffer:
        """Expect a message from a rank of another node, in the order in which that rank sends them; `take` it."""
        buffer = self._transport.buffer(rank, nbytes, sent=False)
        self.nbytes += buffer.nbytes
        self._begin.append(instruction(chains.START, (0, buffer.address), NOWHERE))
        return buffer

    def take(self, buffer: MessageBuffer) -> Operand:
        """Wait for the message of a buffer; return its data."""
        self._steps.append(instruction(chains.AWAIT, (0, buffer.address), NOWHERE))
        return data(buffer)

    def written(self) -> int:
        """Return the address of the steps, which are complete."""
        end = instruction(chains.END, NOWHERE, NOWHERE)
        steps = np.array([*self._begin, *self._steps, *self._end, end], np.int64)
        self._rooms.append(steps)
        return address_of(steps)


def data(buffer: MessageBuffer) -> Operand:
    """Return a message's data as an operand."""
    return 0, buffer.address + DATA


def beyond(operand: Operand, nbytes: int) -> Operand:
    """Return the operand `nbytes` bytes behind another one."""
    return operand[0], operand[1] + nbytes


class SeveralNodes(InterNodeTransport):
    """Collectives between several nodes.

    Data go directly from a window into a message buffer, and from a message buffer into a window or the caller's
    memory. `state` is this rank's state among all ranks, `on_node` that of its node's window.
    """

    def __init__(self, comm: MPI.Intracomm, nodes: Nodes, state: np.ndarray, on_node: np.ndarray) -> None:
        self._nodes, self._heads = nodes, nodes.heads
        self._count, self._mine, self._place = len(nodes.ranks), nodes.mine, nodes.place
        super().__init__(comm, state, [rank for number in self._others() for rank in nodes.ranks[number]])
        self._sizes = [len(ranks) for ranks in nodes.ranks]
        self._head = nodes.where(nodes.heads[nodes.mine])[1]
        self._ranks = [np.array(ranks, np.int64) for ranks in nodes.ranks]
        self._ways: list[Callable[..., None]] = [getattr(self, f"_{name.lower()}") for name in NAMES]
        self._chains: list[Chain] = []
        self._table = np.full((chains.PLACES, 2), NOTHING)
        state[[NODE, CHAINS, COPIED]] = address_of(on_node), address_of(self._table), copy_table.COPIED.address

    def carry(self, kind: int, arguments: list[int]) -> None:
        """Write the chain of a collective."""
        _, _, count, nbytes, root, _, agreed = arguments
        if len(self._chains) == _KEPT or sum(chain.nbytes for chain in self._chains) > _KEPT_NBYTES:
            self._table[:] = NOTHING
            self._chains.clear()
            self.discard()
        chain = Chain(self)
        self._ways[kind](chain, count, nbytes, root)
        self._chains.append(chain)
        chains.enter(address_of(self._table), agreed, chain.written())

    def _barrier(self, chain: Chain, count: int, nbytes: int, root: int) -> None:
        chain.on_node(BARRIER, NOWHERE, NOWHERE, 0, EVERYBODY)
        if self._place == self._head:
            self._all_know(chain, NOWHERE, [0] * self._count)
        chain.on_node(BARRIER, NOWHERE, NOWHERE, 0, EVERYBODY)

    def _bcast(self, chain: Chain, count: int, nbytes: int, root: int) -> None:
        speakers, root_node, place = self._speakers(root)
        if self._place == place:
            distance = (self._mine - root_node) % self._count
            reach = 1
            while reach < self._count:  # a binomial tree, as in `node`
                reach *= 2
            lowest = distance & -distance if distance else reach
            if distance:
                come = chain.expect(speakers[(self._mine - lowest) % self._count], nbytes)
                chain.copy(SEND, chain.take(come), nbytes)
            while lowest > 1:
                lowest //= 2
                if distance + lowest < self._count:
                    buffer = chain.buffer(speakers[(self._mine + lowest) % self._count], nbytes)
                    chain.copy(data(buffer), SEND, nbytes)
                    chain.send(buffer)
        chain.on_node(BCAST, SEND, NOWHERE, nbytes, place)

    def _scatter(self, chain: Chain, count: int, nbytes: int, root: int) -> None:
        speakers, root_node, place = self._speakers(root)
        pieces = NOWHERE
        if self._mine == root_node and self._place == place:
            for number in self._others():
                buffer = chain.buffer(speakers[number], self._sizes[number] * nbytes)
                chain.collect(data(buffer), SEND, self._ranks[number], nbytes)
                chain.send(buffer)
            pieces = chain.room(self._sizes[root_node] * nbytes)
            chain.collect(pieces, SEND, self._ranks[root_node], nbytes)
        elif self._place == place:
            pieces = chain.take(chain.expect(speakers[root_node], self._sizes[self._mine] * nbytes))
        chain.on_node(SCATTER, pieces, TARGET, nbytes, place)

    def _gather(self, chain: Chain, count: int, nbytes: int, root: int) -> None:
        for number, part in self._to_root(chain, GATHER, nbytes, [size * nbytes for size in self._sizes], root):
            chain.distribute(TARGET, part, self._ranks[number], nbytes)

    def _reduce(self, chain: Chain, count: int, nbytes: int, root: int) -> None:
        if parts := dict(self._to_root(chain, REDUCE, nbytes, [nbytes] * self._count, root)):
            chain.combine([parts[number] for number in range(self._count)], TARGET, count)

    def _allgather(self, chain: Chain, count: int, nbytes: int, root: int) -> None:
        for ranks, part in zip(
            self._ranks, self._to_heads(chain, GATHER, nbytes, [size * nbytes for size in self._sizes])
        ):
            chain.distribute(TARGET, part, ranks, nbytes)
        chain.on_node(BCAST, TARGET, NOWHERE, sum(self._sizes) * nbytes, self._head)

    def _allreduce(self, chain: Chain, count: int, nbytes: int, root: int) -> None:
        if nbytes > LONG_NBYTES and self._place == self._head:
            self._in_parts(chain, count, nbytes)
        elif parts := self._to_heads(chain, REDUCE, nbytes, [nbytes] * self._count):
            chain.combine(parts, TARGET, count)
        chain.on_node(BCAST, TARGET, NOWHERE, nbytes, self._head)

    def _in_parts(self, chain: Chain, count: int, nbytes: int) -> None:
        """Combine the nodes' partial results: each node combines one part of the items."""
        itemsize = nbytes // count
        begins = [count * number // self._count * itemsize for number in range(self._count + 1)]
        sizes = [end - begin for begin, end in pairwise(begins)]
        coming = {number: chain.expect(self._heads[number], sizes[self._mine]) for number in self._others()}
        partial, room = chain.room(nbytes), chain.room(nbytes)
        chain.on_node(REDUCE, SEND, partial, nbytes, self._head)
        for number in self._others():
            buffer = chain.buffer(self._heads[number], sizes[number])
            chain.copy(data(buffer), beyond(partial, begins[number]), sizes[number])
            chain.send(buffer)
        parts = [
            beyond(partial, begins[number]) if number == self._mine else chain.take(coming[number])
            for number in range(self._count)
        ]
        chain.combine(parts, room, sizes[self._mine] // itemsize)
        for begin, size, part in zip(begins, sizes, self._all_know(chain, room, sizes)):
            chain.copy(beyond(TARGET, begin), part, size)

    def _others(self) -> list[int]:
        return [number for number in range(self._count) if number != self._mine]

    def _speakers(self, root: int) -> tuple[list[int], int, int]:
        """Return the rank that communicates for each node, the root's node, and the index of this node's such rank."""
        root_node, place = self._nodes.where(root)
        speakers = list(self._heads)
        speakers[root_node] = root
        return speakers, root_node, place if self._mine == root_node else self._head

    def _to_root(
        self, chain: Chain, kind: int, nbytes: int, sizes: list[int], root: int
    ) -> Iterator[tuple[int, Operand]]:
        """Gather or combine within each node, and send the results, which have these sizes, to the root; yield there
        the index of each node, its own first, and its result."""
        speakers, root_node, place = self._speakers(root)
        if self._place != place:
            chain.on_node(kind, SEND, NOWHERE, nbytes, place)
        elif self._mine != root_node:
            buffer = chain.buffer(speakers[root_node], sizes[self._mine])
            chain.on_node(kind, SEND, data(buffer), nbytes, place)
            chain.send(buffer)
        else:
            coming = [(number, chain.expect(speakers[number], sizes[number])) for number in self._others()]
            room = chain.room(sizes[root_node])
            chain.on_node(kind, SEND, room, nbytes, place)
            yield root_node, room
            for number, buffer in coming:
                yield number, chain.take(buffer)

    def _to_heads(self, chain: Chain, kind: int, nbytes: int, sizes: list[int]) -> list[Operand]:
        """Gather or combine within each node, and send the results, which have these sizes, to all heads; return there
        the result of each node."""
        if self._place != self._head:
            chain.on_node(kind, SEND, NOWHERE, nbytes, self._head)
            return []
        room = chain.room(sum(sizes))
        chain.on_node(kind, SEND, room, nbytes, self._head)
        return self._all_know(chain, room, sizes)

    def _all_know(self, chain: Chain, room: Operand, sizes: list[int]) -> list[Operand]:
        """Gather the heads' data, of these sizes, from the begin of `room`; return them in the order of nodes.

        `room` has memory for the data of this node, of the next one, ...
        """
        count, mine = self._count, self._mine
        begins = [0]
        for number in range(count):
            begins.append(begins[-1] + sizes[(mine + number) % count])
        known = 1
        while known < count:
            asked = min(known, count - known)
            here, nbytes = beyond(room, begins[known]), begins[known + asked] - begins[known]
            come = chain.expect(self._heads[(mine + known) % count], nbytes)
            buffer = chain.buffer(self._heads[(mine - known) % count], begins[asked])
            chain.copy(data(buffer), room, begins[asked])
            chain.send(buffer)
            chain.copy(here, chain.take(come), nbytes)
            known += asked
        return [beyond(room, begins[(number - mine) % count]) for number in range(count)]
