"""The seven collectives among ranks of several nodes: within each node by its window, between nodes by messages.

One rank of a node speaks for all of it: the root on the root's node, the first one elsewhere. So a broadcast,
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
from .memory import call_kernel
from .post import Post
from .protocol import NAMES
from .window import memory

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
    mine, place : int
        This rank's node, and its place there.
    """

    def __init__(self, comm: MPI.Intracomm, on_node: MPI.Comm) -> None:
        firsts = comm.allgather(on_node.bcast(comm.rank))
        self.ranks = tuple(tuple(rank for rank, first in enumerate(firsts) if first == one)
                           for one in sorted(set(firsts)))
        self.mine, self.place = self.where(comm.rank)

    def where(self, rank: int) -> tuple[int, int]:
        """A rank's node, and its place there."""
        for number, ranks in enumerate(self.ranks):
            if rank in ranks:
                return number, ranks.index(rank)
        raise ValueError(rank)


class SeveralNodes:
    """Collectives between several nodes: a `Carrier`.

    Parameters
    ----------
    nodes : Nodes
    post : Post
    address : int
        Where this rank's state of its node's window stands.
    """

    def __init__(self, nodes: Nodes, post: Post, address: int) -> None:
        self._nodes, self.post, self._address = nodes, post, address
        self._count, self._mine, self._place = len(nodes.ranks), nodes.mine, nodes.place
        self._size = sum(map(len, nodes.ranks))
        self._far = [rank for number, ranks in enumerate(nodes.ranks) if number != self._mine for rank in ranks]
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
        if self._place == 0:
            self._all_know(np.empty(0, np.uint8), [0] * self._count, agreed)
        node.barrier(self._address, agreed)

    def _bcast(self, send, target, count, nbytes, root, kernel, agreed):
        speakers, there, place = self._speakers(root)
        if self._place == place:
            buffer = memory(send, nbytes) if nbytes else np.empty(0, np.uint8)
            distance = (self._mine - there) % self._count
            reach = 1
            while reach < self._count:    # a binomial tree, as in `node.bcast`
                reach *= 2
            lowest = distance & -distance if distance else reach
            if distance:
                buffer[:] = self.post.receive(speakers[(self._mine - lowest) % self._count], agreed)
            while lowest > 1:
                lowest //= 2
                if distance + lowest < self._count:
                    self.post.send(speakers[(self._mine + lowest) % self._count], agreed, buffer)
        node.bcast(self._address, send, nbytes, place, agreed)

    def _scatter(self, send, target, count, nbytes, root, kernel, agreed):
        speakers, there, place = self._speakers(root)
        pieces = np.empty(0, np.uint8)
        if self._mine == there and self._place == place:
            everything = _rows(send, self._size, nbytes)
            for number, ranks in enumerate(self._nodes.ranks):
                if number != there:
                    self.post.send(speakers[number], agreed, everything[list(ranks)].reshape(-1))
            pieces = everything[list(self._nodes.ranks[there])]
        elif self._place == place:
            pieces = self.post.receive(speakers[there], agreed).copy()
        node.scatter(self._address, pieces.ctypes.data, target, nbytes, place, agreed)

    def _gather(self, send, target, count, nbytes, root, kernel, agreed):
        speakers, there, place = self._speakers(root)
        pieces = self._of_node(send, nbytes, place, agreed)
        if self._place != place:
            return
        if self._mine != there:
            self.post.send(speakers[there], agreed, pieces)
            return
        everything = _rows(target, self._size, nbytes)
        for number, ranks in enumerate(self._nodes.ranks):
            here = pieces if number == there else self.post.receive(speakers[number], agreed)
            everything[list(ranks)] = here.reshape(len(ranks), nbytes)

    def _allgather(self, send, target, count, nbytes, root, kernel, agreed):
        pieces = self._of_node(send, nbytes, 0, agreed)
        if self._place == 0:
            sizes = [len(ranks) * nbytes for ranks in self._nodes.ranks]
            everything = _rows(target, self._size, nbytes)
            for ranks, here in zip(self._nodes.ranks, self._all_know(pieces, sizes, agreed)):
                everything[list(ranks)] = here.reshape(len(ranks), nbytes)
        node.bcast(self._address, target, self._size * nbytes, 0, agreed)

    def _reduce(self, send, target, count, nbytes, root, kernel, agreed):
        speakers, there, place = self._speakers(root)
        partial = np.empty(nbytes, np.uint8)
        node.reduce(self._address, send, partial.ctypes.data, count, nbytes, place, kernel, agreed)
        if self._place != place:
            return
        if self._mine != there:
            self.post.send(speakers[there], agreed, partial)
            return
        parts = [partial if number == there else self.post.receive(speakers[number], agreed)
                 for number in range(self._count)]
        _combined(parts, target, count, kernel)

    def _allreduce(self, send, target, count, nbytes, root, kernel, agreed):
        partial = np.empty(nbytes, np.uint8)
        node.reduce(self._address, send, partial.ctypes.data, count, nbytes, 0, kernel, agreed)
        if self._place == 0:
            if nbytes <= LONG_NBYTES:
                _combined(self._all_know(partial, [nbytes] * self._count, agreed), target, count, kernel)
            else:
                self._in_parts(partial, target, count, nbytes // count, kernel, agreed)
        node.bcast(self._address, target, nbytes, 0, agreed)

    def _in_parts(self, partial, target, count, itemsize, kernel, agreed):
        """Combine the nodes' partial results, each node one part of the items."""
        ends = [count * number // self._count for number in range(self._count + 1)]
        parts = [partial[begin * itemsize:end * itemsize] for begin, end in zip(ends, ends[1:])]
        others = [number for number in range(self._count) if number != self._mine]
        for number in others:
            self.post.send(self._nodes.ranks[number][0], agreed, parts[number])
        theirs = {number: self.post.receive(self._nodes.ranks[number][0], agreed) for number in others}
        theirs[self._mine] = parts[self._mine]
        mine = np.empty_like(parts[self._mine])
        _combined([theirs[number] for number in range(self._count)], mine.ctypes.data, mine.size // itemsize, kernel)
        result = memory(target, count * itemsize)
        result[:] = np.concatenate(self._all_know(mine, [part.size for part in parts], agreed))

    def _speakers(self, root):
        """The rank that speaks for each node, the root's node, and the place of this node's speaker."""
        there, place = self._nodes.where(root)
        speakers = [root if number == there else ranks[0] for number, ranks in enumerate(self._nodes.ranks)]
        return speakers, there, place if self._mine == there else 0

    def _of_node(self, send, nbytes, place, agreed):
        """The pieces of this node's ranks, where one of them asks for them."""
        pieces = np.empty(len(self._nodes.ranks[self._mine]) * nbytes if self._place == place else 0, np.uint8)
        node.gather(self._address, send, pieces.ctypes.data, nbytes, place, agreed)
        return pieces

    def _all_know(self, mine, sizes, agreed):
        """What the first ranks of all nodes have, of these sizes, in the order of nodes."""
        count, known = self._count, [mine]   # of this node, the next one, ...
        while len(known) < count:
            asked = min(len(known), count - len(known))
            self.post.send(self._nodes.ranks[(self._mine - len(known)) % count][0], agreed,
                           np.concatenate(known[:asked]))
            come = self.post.receive(self._nodes.ranks[(self._mine + len(known)) % count][0], agreed)
            of = [sizes[(self._mine + len(known) + number) % count] for number in range(asked)]
            known += np.split(come, np.cumsum(of)[:-1])
        return [known[(number - self._mine) % count] for number in range(count)]


def _rows(address, size, nbytes):
    """A piece of memory for each rank."""
    return (memory(address, size * nbytes) if nbytes else np.empty(0, np.uint8)).reshape(size, nbytes)


def _combined(parts, target, count, kernel):
    """Combine arrays of items one after the other."""
    aligned = [np.require(part, requirements="A").copy() for part in parts]  # messages begin behind a header
    first = aligned[0].ctypes.data
    for other in aligned[1:]:
        _call(kernel, target, first, other.ctypes.data, count)
        first = target


@njit
def _call(kernel, target, first, second, count):
    call_kernel(kernel, target, first, second, count)
