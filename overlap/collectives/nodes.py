"""The seven collectives among ranks of several nodes: within each node by its window, between nodes by messages.

One rank of a node speaks for all of it: the root on the root's node, its head elsewhere. So a broadcast, a scatter, a
gather and a reduction send one message to or from every other node, however many ranks it has. What all nodes have to
know from all (barrier, allgather, allreduce) goes round in ceil(log2(nodes)) steps: in each a node sends all that it
knows and the other does not (Bruck et al. 1997), the nodes' partial results one beside the other. They are combined
afterwards, so nothing is counted twice whatever the number of nodes is. Long allreduces are cut: each node combines one
part, and the parts go round.

Reductions combine the ranks of each node as `node` does, then the nodes in the order of their first ranks:
the same order on all ranks and in every run.

What follows from this for one rank is written down here as a chain of steps, which compiled code runs: see `chains`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
from mpi4py import MPI

from ..failures import Failure
from ..lowlevel.mpi import mpi_function
from . import chains
from .chains import ABSOLUTE, DATA, FROM_SEND, FROM_TARGET
from .post import Letter, Post
from .protocol import CHAINS, LINE, MPI_START, MPI_TEST, NAMES, NODE, NOTHING

LONG_NBYTES = 2**15  # of an allreduce that is cut
_KEPT, _KEPT_NBYTES = chains.PLACES // 2, 2**24  # more chains, and more memory of theirs, are not kept

Operand = tuple[int, int]  # see `chains`
NOWHERE, SEND, TARGET = (ABSOLUTE, 0), (FROM_SEND, 0), (FROM_TARGET, 0)


class Nodes:
    """Which ranks of a communicator are on which node.

    Parameters
    ----------
    comm, on_node : mpi4py.MPI.Intracomm
        All ranks, and those of this rank's node in the same order. Collective.

    Attributes
    ----------
    ranks : tuple of tuple of int
        The ranks of each node; nodes in the order of their first ranks.
    heads : tuple of int
        The rank that speaks for each node: of the first node the first one, of the second node the second one, ... So
        they are on different cores where what MPI takes for nodes are parts of one machine.
    mine, place : int
        This rank's node, and its place there.
    """

    def __init__(self, comm: MPI.Intracomm, on_node: MPI.Comm) -> None:
        firsts = comm.allgather(on_node.bcast(comm.rank))
        self.ranks = tuple(
            tuple(rank for rank, first in enumerate(firsts) if first == one) for one in sorted(set(firsts))
        )
        self.heads = tuple(ranks[number % len(ranks)] for number, ranks in enumerate(self.ranks))
        self.mine, self.place = self.where(comm.rank)

    def where(self, rank: int) -> tuple[int, int]:
        """Return a rank's node, and its place there."""
        for number, ranks in enumerate(self.ranks):
            if rank in ranks:
                return number, ranks.index(rank)
        raise ValueError(rank)


class Chain:
    """The steps of a collective on this rank, and the memory that they work on.

    Parameters
    ----------
    post : Post

    Attributes
    ----------
    nbytes : int
        How much memory that is.
    """

    def __init__(self, post: Post) -> None:
        self._post = post
        self._begin: list[tuple[int, ...]] = []  # what is expected is expected from the begin
        self._steps: list[tuple[int, ...]] = []
        self._end: list[tuple[int, ...]] = []
        self._rooms: list[np.ndarray] = []
        self.nbytes = 0

    def add(
        self, kind: int, first: Operand = NOWHERE, second: Operand = NOWHERE, third: Operand = NOWHERE, number: int = 0
    ) -> None:
        """Add a step."""
        self._steps.append((kind, *first, *second, *third, number))

    def room(self, nbytes: int) -> Operand:
        """Memory for so many bytes."""
        room = np.empty(nbytes + LINE, np.uint8)
        self._rooms.append(room)
        self.nbytes += nbytes
        return at(room.ctypes.data + -room.ctypes.data % LINE)

    def letter(self, rank: int, nbytes: int) -> Letter:
        """Return a letter to a rank of another node; `send` it."""
        letter = self._post.letter(rank, nbytes)
        self.nbytes += letter.nbytes
        return letter

    def send(self, letter: Letter) -> None:
        """Begin to send it; the chain ends when it is sent."""
        self.add(chains.SEND, at(letter.address))
        self._end.append((chains.SENT, *at(letter.address), *NOWHERE, *NOWHERE, 0))

    def expect(self, rank: int, nbytes: int) -> Letter:
        """Return a letter from a rank of another node, in the order in which that rank sends them; `take` it."""
        letter = self._post.expected(rank, nbytes)
        self.nbytes += letter.nbytes
        self._begin.append((chains.EXPECT, *at(letter.address), *NOWHERE, *NOWHERE, 0))
        return letter

    def take(self, letter: Letter) -> Operand:
        """Wait for it; its data."""
        self.add(chains.TAKE, at(letter.address))
        return data(letter)

    def combine(self, parts: list[Operand], target: Operand, count: int) -> None:
        """Combine arrays of so many items one after the other."""
        first = parts[0]
        for other in parts[1:]:
            self.add(chains.COMBINE, target, first, other, count)
            first = target

    def written(self) -> int:
        """Address of the steps, which are complete."""
        self.add(chains.END)
        end = self._steps.pop()
        steps = np.array([*self._begin, *self._steps, *self._end, end], np.int64)
        self._rooms.append(steps)
        return steps.ctypes.data


def at(address: int) -> Operand:
    """Take an address as an operand."""
    return ABSOLUTE, address


def data(letter: Letter) -> Operand:
    """Take a letter's data as an operand."""
    return at(letter.address + DATA)


def beyond(operand: Operand, nbytes: int) -> Operand:
    """So many bytes behind an operand."""
    return operand[0], operand[1] + nbytes


class SeveralNodes:
    """Collectives between several nodes: a `Carrier`.

    Data go from a window into a letter, and from a letter into a window or the caller's memory, without a copy between.

    Parameters
    ----------
    nodes : Nodes
    post : Post
    state, on_node : ndarray of int64
        This rank's state among all ranks, and that of its node's window.
    """

    def __init__(self, nodes: Nodes, post: Post, state: np.ndarray, on_node: np.ndarray) -> None:
        self.post = post
        self._count, self._mine, self._place = len(nodes.ranks), nodes.mine, nodes.place
        self._size = sum(map(len, nodes.ranks))
        self._sizes = [len(ranks) for ranks in nodes.ranks]
        self._heads = list(nodes.heads)
        self._head = nodes.ranks[nodes.mine].index(nodes.heads[nodes.mine])
        self._where = [nodes.where(rank) for rank in range(self._size)]
        self._far = [rank for number, ranks in enumerate(nodes.ranks) if number != self._mine for rank in ranks]
        self._ranks = [np.array(ranks, np.int64) for ranks in nodes.ranks]
        self._ranks_at = [at(ranks.ctypes.data) for ranks in self._ranks]
        self._ways: list[Callable[..., None]] = [getattr(self, f"_{name.lower()}") for name in NAMES]
        self._chains: list[Chain] = []
        self._table = np.full((chains.PLACES, 2), NOTHING)
        self._told = False
        for place, value in (
            (NODE, on_node.ctypes.data),
            (CHAINS, self._table.ctypes.data),
            (MPI_START, mpi_function("Start")),
            (MPI_TEST, mpi_function("Test")),
        ):
            state[place] = value

    def carry(self, kind: int, arguments: list[int]) -> None:
        """Write down the chain of a collective, with the arguments that `chains.elsewhere` names."""
        _, _, count, nbytes, root, _, agreed = arguments
        if len(self._chains) == _KEPT or sum(chain.nbytes for chain in self._chains) > _KEPT_NBYTES:
            self._table[:] = NOTHING
            self._chains.clear()
            self.post.discard()
        chain = Chain(self.post)
        self._ways[kind](chain, count, nbytes, root)
        self._chains.append(chain)
        chains.enter(self._table.ctypes.data, agreed, chain.written())

    def look(self) -> None:
        """Answer what other nodes ask."""
        self.post.look()

    def never(self, rank: int, coming: bool) -> Failure | int | None:
        """Tell why a letter from a rank never comes, or one to it is never taken; None while it may be."""
        return self.post.never(rank, coming)

    def tell(self, failure: Failure) -> None:
        """Tell the ranks of other nodes that this one has failed, and why; once."""
        if not self._told:
            self._told = True
            self.post.tell(self._far, failure)

    def free(self) -> None:
        """Free what there is between nodes (collective)."""
        self.post.free()

    def _barrier(self, chain, count, nbytes, root):
        chain.add(chains.NODE_BARRIER)
        if self._place == self._head:
            self._all_know(chain, NOWHERE, [0] * self._count)
        chain.add(chains.NODE_BARRIER)

    def _bcast(self, chain, count, nbytes, root):
        speakers, there, place = self._speakers(root)
        if self._place == place:
            distance = (self._mine - there) % self._count
            reach = 1
            while reach < self._count:  # a binomial tree, as in `node.bcast`
                reach *= 2
            lowest = distance & -distance if distance else reach
            if distance:
                come = chain.expect(speakers[(self._mine - lowest) % self._count], nbytes)
                chain.add(chains.COPY, SEND, chain.take(come), NOWHERE, nbytes)
            while lowest > 1:
                lowest //= 2
                if distance + lowest < self._count:
                    letter = chain.letter(speakers[(self._mine + lowest) % self._count], nbytes)
                    chain.add(chains.COPY, data(letter), SEND, NOWHERE, nbytes)
                    chain.send(letter)
        chain.add(chains.NODE_BCAST, SEND, NOWHERE, at(place), nbytes)

    def _scatter(self, chain, count, nbytes, root):
        speakers, there, place = self._speakers(root)
        pieces = NOWHERE
        if self._mine == there and self._place == place:
            for number in self._others():
                letter = chain.letter(speakers[number], self._sizes[number] * nbytes)
                chain.add(chains.COLLECT, data(letter), SEND, self._ranks_at[number], self._sizes[number])
                chain.send(letter)
            pieces = chain.room(self._sizes[there] * nbytes)
            chain.add(chains.COLLECT, pieces, SEND, self._ranks_at[there], self._sizes[there])
        elif self._place == place:
            pieces = chain.take(chain.expect(speakers[there], self._sizes[self._mine] * nbytes))
        chain.add(chains.NODE_SCATTER, pieces, TARGET, at(place))

    def _gather(self, chain, count, nbytes, root):
        speakers, there, place = self._speakers(root)
        if self._place != place:
            chain.add(chains.NODE_GATHER, SEND, NOWHERE, at(place))
        elif self._mine != there:
            letter = chain.letter(speakers[there], self._sizes[self._mine] * nbytes)
            chain.add(chains.NODE_GATHER, SEND, data(letter), at(place))
            chain.send(letter)
        else:
            coming = [
                (number, chain.expect(speakers[number], self._sizes[number] * nbytes)) for number in self._others()
            ]
            pieces = chain.room(self._sizes[there] * nbytes)
            chain.add(chains.NODE_GATHER, SEND, pieces, at(place))
            chain.add(chains.DISTRIBUTE, TARGET, pieces, self._ranks_at[there], self._sizes[there])
            for number, letter in coming:
                chain.add(chains.DISTRIBUTE, TARGET, chain.take(letter), self._ranks_at[number], self._sizes[number])

    def _allgather(self, chain, count, nbytes, root):
        head = at(self._head)
        if self._place == self._head:
            room = chain.room(self._size * nbytes)
            chain.add(chains.NODE_GATHER, SEND, room, head)
            blocks = self._all_know(chain, room, [size * nbytes for size in self._sizes])
            for ranks_at, size, block in zip(self._ranks_at, self._sizes, blocks):
                chain.add(chains.DISTRIBUTE, TARGET, block, ranks_at, size)
        else:
            chain.add(chains.NODE_GATHER, SEND, NOWHERE, head)
        chain.add(chains.NODE_BCAST, TARGET, NOWHERE, head, self._size * nbytes)

    def _reduce(self, chain, count, nbytes, root):
        speakers, there, place = self._speakers(root)
        if self._place != place:
            chain.add(chains.NODE_REDUCE, SEND, NOWHERE, at(place))
        elif self._mine != there:
            letter = chain.letter(speakers[there], nbytes)
            chain.add(chains.NODE_REDUCE, SEND, data(letter), at(place))
            chain.send(letter)
        else:
            coming = {number: chain.expect(speakers[number], nbytes) for number in self._others()}
            room = chain.room(nbytes)
            chain.add(chains.NODE_REDUCE, SEND, room, at(place))
            parts = [room if number == there else chain.take(coming[number]) for number in range(self._count)]
            chain.combine(parts, TARGET, count)

    def _allreduce(self, chain, count, nbytes, root):
        head = at(self._head)
        if self._place != self._head:
            chain.add(chains.NODE_REDUCE, SEND, NOWHERE, head)
        elif nbytes <= LONG_NBYTES:
            room = chain.room(self._count * nbytes)
            chain.add(chains.NODE_REDUCE, SEND, room, head)
            chain.combine(self._all_know(chain, room, [nbytes] * self._count), TARGET, count)
        else:
            self._in_parts(chain, count, nbytes)
        chain.add(chains.NODE_BCAST, TARGET, NOWHERE, head, nbytes)

    def _in_parts(self, chain, count, nbytes):
        """Combine the nodes' partial results, each node one part of the items."""
        itemsize = nbytes // count
        begins = [count * number // self._count * itemsize for number in range(self._count + 1)]
        sizes = [end - begin for begin, end in pairwise(begins)]
        coming = {number: chain.expect(self._heads[number], sizes[self._mine]) for number in self._others()}
        partial, room = chain.room(nbytes), chain.room(nbytes)
        chain.add(chains.NODE_REDUCE, SEND, partial, at(self._head))
        for number in self._others():
            letter = chain.letter(self._heads[number], sizes[number])
            chain.add(chains.COPY, data(letter), beyond(partial, begins[number]), NOWHERE, sizes[number])
            chain.send(letter)
        parts = [
            beyond(partial, begins[number]) if number == self._mine else chain.take(coming[number])
            for number in range(self._count)
        ]
        chain.combine(parts, room, sizes[self._mine] // itemsize)
        for begin, size, part in zip(begins, sizes, self._all_know(chain, room, sizes)):
            chain.add(chains.COPY, beyond(TARGET, begin), part, NOWHERE, size)

    def _others(self):
        """Return the other nodes."""
        return [number for number in range(self._count) if number != self._mine]

    def _speakers(self, root):
        """Return the rank that speaks for each node, the root's node, and the place of this node's speaker."""
        there, place = self._where[root]
        speakers = self._heads.copy()
        speakers[there] = root
        return speakers, there, place if self._mine == there else self._head

    def _all_know(self, chain, room, sizes):
        """Gather what the heads of all nodes have at the begin of `room`, of these sizes; operands in the order of
        nodes.

        There is room for all: this node's, the next one's, ...
        """
        count, mine = self._count, self._mine
        begins = [0]
        for number in range(count):
            begins.append(begins[-1] + sizes[(mine + number) % count])
        known = 1
        while known < count:
            asked = min(known, count - known)
            come = chain.expect(self._heads[(mine + known) % count], begins[known + asked] - begins[known])
            letter = chain.letter(self._heads[(mine - known) % count], begins[asked])
            chain.add(chains.COPY, data(letter), room, NOWHERE, begins[asked])
            chain.send(letter)
            chain.add(
                chains.COPY,
                beyond(room, begins[known]),
                chain.take(come),
                NOWHERE,
                begins[known + asked] - begins[known],
            )
            known += asked
        return [beyond(room, begins[(number - mine) % count]) for number in range(count)]
