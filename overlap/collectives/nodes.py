"""The seven collectives among ranks of several nodes: within each node by its window, between nodes by messages.

One rank of a node speaks for all of it: the root on the root's node, its head elsewhere. So a broadcast,
a scatter, a gather and a reduction send one message to or from every other node, however many ranks it has. What all nodes
have to know from all (barrier, allgather, allreduce) goes round in ceil(log2(nodes)) steps: in each a node sends all
that it knows and the other does not (Bruck et al. 1997), the nodes' partial results one beside the other. They are
combined afterwards, so nothing is counted twice whatever the number of nodes is. Long allreduces are cut: each node combines
one part, and the parts go round.

Reductions combine the ranks of each node as `node` does, then the nodes in the order of their first ranks:
the same order on all ranks and in every run.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from ..compiled import njit
from . import node
from .memory import call_kernel, copy, words
from .post import Post
from .protocol import LINE, NAMES

LONG_NBYTES = 2**15    # of an allreduce that is cut


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
        self.ranks = tuple(tuple(rank for rank, first in enumerate(firsts) if first == one)
                           for one in sorted(set(firsts)))
        self.heads = tuple(ranks[number % len(ranks)] for number, ranks in enumerate(self.ranks))
        self.mine, self.place = self.where(comm.rank)

    def where(self, rank: int) -> tuple[int, int]:
        """A rank's node, and its place there."""
        for number, ranks in enumerate(self.ranks):
            if rank in ranks:
                return number, ranks.index(rank)
        raise ValueError(rank)


class SeveralNodes:
    """Collectives between several nodes: a `Carrier`.

    Data go from a window into a letter, and from a letter into a window or the caller's memory, without a copy between.

    Parameters
    ----------
    nodes : Nodes
    post : Post
    address : int
        Where this rank's state of its node's window stands.
    """

    def __init__(self, nodes: Nodes, post: Post, address: int) -> None:
        self.post, self._address = post, address
        self._count, self._mine, self._place = len(nodes.ranks), nodes.mine, nodes.place
        self._size = sum(map(len, nodes.ranks))
        self._sizes = [len(ranks) for ranks in nodes.ranks]
        self._heads = list(nodes.heads)
        self._head = nodes.ranks[nodes.mine].index(nodes.heads[nodes.mine])
        self._where = [nodes.where(rank) for rank in range(self._size)]
        self._far = [rank for number, ranks in enumerate(nodes.ranks) if number != self._mine for rank in ranks]
        self._ranks = [np.array(ranks, np.int64) for ranks in nodes.ranks]
        self._ranks_at = [ranks.ctypes.data for ranks in self._ranks]
        self._room, self._room_at, self._room_nbytes = np.empty(0, np.uint8), 0, -1
        self._ways: list[Callable[..., None]] = [getattr(self, f"_{name.lower()}") for name in NAMES]

    def carry(self, kind: int, arguments: list[int]) -> None:
        """Do a collective with the arguments that `protocol.elsewhere` names."""
        self._ways[kind](*arguments)
        self.post.finish()

    def tell(self, text: str, origin: int | None = None) -> None:
        """Tell the ranks of other nodes of a failure."""
        self.post.tell(self._far, text, origin)

    def free(self) -> None:
        """Free what there is between nodes (collective)."""
        self.post.free()

    def _barrier(self, send, target, count, nbytes, root, kernel, agreed):
        node.barrier(self._address, agreed)
        if self._place == self._head:
            self._all_know(0, [0] * self._count, agreed)
        node.barrier(self._address, agreed)

    def _bcast(self, send, target, count, nbytes, root, kernel, agreed):
        speakers, there, place = self._speakers(root)
        if self._place == place:
            distance = (self._mine - there) % self._count
            reach = 1
            while reach < self._count:    # a binomial tree, as in `node.bcast`
                reach *= 2
            lowest = distance & -distance if distance else reach
            if distance:
                come = self.post.expect(speakers[(self._mine - lowest) % self._count], nbytes)
                _move(send, self.post.take(come, agreed), nbytes)
            while lowest > 1:
                lowest //= 2
                if distance + lowest < self._count:
                    letter = self.post.letter(speakers[(self._mine + lowest) % self._count], nbytes)
                    _move(letter.address, send, nbytes)
                    self.post.send(letter, agreed)
        node.bcast(self._address, send, nbytes, place, agreed)

    def _scatter(self, send, target, count, nbytes, root, kernel, agreed):
        speakers, there, place = self._speakers(root)
        pieces = 0
        if self._mine == there and self._place == place:
            for number in self._others():
                letter = self.post.letter(speakers[number], self._sizes[number] * nbytes)
                _collect(letter.address, send, self._ranks_at[number], self._sizes[number], nbytes)
                self.post.send(letter, agreed)
            pieces = self._own_room(self._sizes[there] * nbytes)
            _collect(pieces, send, self._ranks_at[there], self._sizes[there], nbytes)
        elif self._place == place:
            pieces = self.post.take(self.post.expect(speakers[there], self._sizes[self._mine] * nbytes), agreed)
        node.scatter(self._address, pieces, target, nbytes, place, agreed)

    def _gather(self, send, target, count, nbytes, root, kernel, agreed):
        speakers, there, place = self._speakers(root)
        if self._place != place:
            node.gather(self._address, send, 0, nbytes, place, agreed)
        elif self._mine != there:
            letter = self.post.letter(speakers[there], self._sizes[self._mine] * nbytes)
            node.gather(self._address, send, letter.address, nbytes, place, agreed)
            self.post.send(letter, agreed)
        else:
            coming = [(number, self.post.expect(speakers[number], self._sizes[number] * nbytes)) for number in self._others()]
            pieces = self._own_room(self._sizes[there] * nbytes)
            node.gather(self._address, send, pieces, nbytes, place, agreed)
            _distribute(target, self._ranks_at[there], self._sizes[there], pieces, nbytes)
            for number, letter in coming:
                _distribute(target, self._ranks_at[number], self._sizes[number], self.post.take(letter, agreed), nbytes)

    def _allgather(self, send, target, count, nbytes, root, kernel, agreed):
        if self._place == self._head:
            room = self._own_room(self._size * nbytes)
            node.gather(self._address, send, room, nbytes, self._head, agreed)
            blocks = self._all_know(room, [size * nbytes for size in self._sizes], agreed)
            for ranks_at, size, block in zip(self._ranks_at, self._sizes, blocks):
                _distribute(target, ranks_at, size, block, nbytes)
        else:
            node.gather(self._address, send, 0, nbytes, self._head, agreed)
        node.bcast(self._address, target, self._size * nbytes, self._head, agreed)

    def _reduce(self, send, target, count, nbytes, root, kernel, agreed):
        speakers, there, place = self._speakers(root)
        if self._place != place:
            node.reduce(self._address, send, 0, count, nbytes, place, kernel, agreed)
        elif self._mine != there:
            letter = self.post.letter(speakers[there], nbytes)
            node.reduce(self._address, send, letter.address, count, nbytes, place, kernel, agreed)
            self.post.send(letter, agreed)
        else:
            coming = {number: self.post.expect(speakers[number], nbytes) for number in self._others()}
            room = self._own_room(nbytes)
            node.reduce(self._address, send, room, count, nbytes, place, kernel, agreed)
            parts = [room if number == there else self.post.take(coming[number], agreed) for number in range(self._count)]
            _combined(parts, target, count, kernel)

    def _allreduce(self, send, target, count, nbytes, root, kernel, agreed):
        if self._place != self._head:
            node.reduce(self._address, send, 0, count, nbytes, self._head, kernel, agreed)
        elif nbytes <= LONG_NBYTES:
            room = self._own_room(self._count * nbytes)
            node.reduce(self._address, send, room, count, nbytes, self._head, kernel, agreed)
            _combined(self._all_know(room, [nbytes] * self._count, agreed), target, count, kernel)
        else:
            self._in_parts(send, target, count, nbytes, kernel, agreed)
        node.bcast(self._address, target, nbytes, self._head, agreed)

    def _in_parts(self, send, target, count, nbytes, kernel, agreed):
        """Combine the nodes' partial results, each node one part of the items."""
        itemsize = nbytes // count
        begins = [count * number // self._count * itemsize for number in range(self._count + 1)]
        sizes = [end - begin for begin, end in zip(begins, begins[1:])]
        coming = {number: self.post.expect(self._heads[number], sizes[self._mine]) for number in self._others()}
        partial = self._own_room(2 * nbytes)
        room = partial + nbytes
        node.reduce(self._address, send, partial, count, nbytes, self._head, kernel, agreed)
        for number in self._others():
            letter = self.post.letter(self._heads[number], sizes[number])
            _move(letter.address, partial + begins[number], sizes[number])
            self.post.send(letter, agreed)
        parts = [partial + begins[number] if number == self._mine else self.post.take(coming[number], agreed)
                 for number in range(self._count)]
        _combined(parts, room, sizes[self._mine] // itemsize, kernel)
        for begin, size, part in zip(begins, sizes, self._all_know(room, sizes, agreed)):
            _move(target + begin, part, size)

    def _others(self):
        """The other nodes."""
        return [number for number in range(self._count) if number != self._mine]

    def _speakers(self, root):
        """The rank that speaks for each node, the root's node, and the place of this node's speaker."""
        there, place = self._where[root]
        speakers = self._heads.copy()
        speakers[there] = root
        return speakers, there, place if self._mine == there else self._head

    def _own_room(self, nbytes):
        """Address of this rank's memory for so many bytes, valid until the next call."""
        if nbytes > self._room_nbytes:
            self._room, self._room_nbytes = np.empty(nbytes + LINE, np.uint8), nbytes
            self._room_at = self._room.ctypes.data + -self._room.ctypes.data % LINE
        return self._room_at

    def _all_know(self, room, sizes, agreed):
        """What the heads of all nodes have at the begin of `room`, of these sizes; addresses in the order of nodes.

        There is room for all: this node's, the next one's, ...
        """
        count, mine = self._count, self._mine
        begins = [0]
        for number in range(count):
            begins.append(begins[-1] + sizes[(mine + number) % count])
        known = 1
        while known < count:
            asked = min(known, count - known)
            come = self.post.expect(self._heads[(mine + known) % count], begins[known + asked] - begins[known])
            letter = self.post.letter(self._heads[(mine - known) % count], begins[asked])
            _move(letter.address, room, begins[asked])
            self.post.send(letter, agreed)
            _move(room + begins[known], self.post.take(come, agreed), begins[known + asked] - begins[known])
            known += asked
        return [room + begins[(number - mine) % count] for number in range(count)]


def _combined(parts, target, count, kernel):
    """Combine arrays of items one after the other; their addresses."""
    first = parts[0]
    for other in parts[1:]:
        _call(kernel, target, first, other, count)
        first = target


@njit
def _call(kernel, target, first, second, count):
    call_kernel(kernel, target, first, second, count)


@njit
def _move(target, source, nbytes):
    copy(target, source, nbytes)


@njit
def _collect(target, pieces, ranks_at, count, nbytes):
    """Copy the pieces of some ranks, whose numbers stand at an address, one beside the other."""
    ranks = words(ranks_at)
    for place in range(count):
        copy(target + place * nbytes, pieces + ranks[place] * nbytes, nbytes)


@njit
def _distribute(pieces, ranks_at, count, source, nbytes):
    """The reverse: copy what stands one beside the other to the pieces of some ranks."""
    ranks = words(ranks_at)
    for place in range(count):
        copy(pieces + ranks[place] * nbytes, source + place * nbytes, nbytes)
