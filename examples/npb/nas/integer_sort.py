"""IS: the ranks of integer keys, by buckets. While one piece of the keys is exchanged, the next one is packed and
received pieces are counted.

Every rank counts its keys by buckets; runs of buckets belong to ranks, as many as their shares of the keys ask for. Its
keys are cut in pieces: each is packed bucket by bucket, exchanged with all others, and counted where it has come, a
slice of a slice program.

All ranks know all histograms, so that a key's place in its bucket tells the rest. Between nodes only that is sent, two
bytes instead of four; on a node, and by the plain code, keys travel whole, as NPB sends them.
"""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

import overlap
from overlap.arrays import block
from overlap.compiled import njit

from .kernel import Advance, Check, Kernel, Waiting, Weights, nodes
from .random_numbers import numbers

SEED = 314159265
ITERATIONS = 10
PIECES = 4
WARM_UP = 8  # number of rankings in which the pipeline finds the fastest way to wait
KEYS = {"S": 16, "W": 20, "A": 23, "B": 25, "C": 27}  # binary logarithms of the numbers of keys
RANGES = {"S": 11, "W": 16, "A": 19, "B": 21, "C": 23}
BUCKETS = {"S": 9, "W": 10, "A": 10, "B": 10, "C": 10}
PLACES = {
    "S": (48427, 17148, 23627, 62548, 4431),
    "W": (357773, 934767, 875723, 898999, 404505),
    "A": (2112377, 662041, 5336171, 3642833, 4250760),
    "B": (41869, 812306, 5102857, 18232239, 26860214),
    "C": (44172927, 72999161, 74326391, 129606274, 21736814),
}
RANKS = {
    "S": (0, 18, 346, 64917, 65463),
    "W": (1249, 11698, 1039987, 1043896, 1048018),
    "A": (104, 17523, 123928, 8288932, 8388264),
    "B": (33422937, 10244, 59149, 33135281, 99),
    "C": (61147, 882988, 266290, 133997595, 133525895),
}
SIGNS = {
    "S": (1, 1, 1, -1, -1),
    "W": (1, 1, -1, -1, -1),
    "A": (1, 1, 1, -1, -1),
    "B": (-1, 1, 1, -1, 1),
    "C": (1, 1, 1, -1, -1),
}


def expected_rank(letter: str, test: int, iteration: int) -> int:
    """Return the rank that NPB demands for a test key."""
    sign = SIGNS[letter][test]
    shift = {"W": 2 if sign > 0 else 0, "A": 1}.get(letter, 0)
    return RANKS[letter][test] + sign * (iteration - shift)


@njit
def count_buckets(keys, shift, counts):
    """Count the keys of each bucket."""
    for place in range(len(keys)):
        counts[keys[place] >> shift] += 1


@njit
def pack(keys, shift, kept, ends, out):
    """Copy the `kept` bits of keys bucket by bucket; `ends` holds the begin of each bucket, and afterwards its end."""
    for place in range(len(keys)):
        key = keys[place]
        bucket = key >> shift
        end = ends[bucket]
        ends[bucket] = end + np.uint32(1)
        out[end] = key & kept


@njit
def count(keys, low, counts):
    """Count keys, by their distance from the lowest."""
    for place in range(len(keys)):
        counts[keys[place] - low] += np.uint32(1)


@njit
def count_places(places, histogram, shift, counts):
    """Count keys that are given by their places in buckets; the histogram has the numbers of keys of the buckets."""
    begin = 0
    for bucket in range(len(histogram)):
        end = begin + histogram[bucket]
        here = counts[bucket << shift : (bucket + 1) << shift]
        for place in places[begin:end]:
            here[place] += np.uint32(1)
        begin = end


@njit
def accumulate(counts):
    """Replace counts by cumulative counts."""
    total = np.uint32(0)
    for place in range(len(counts)):
        total += counts[place]
        counts[place] = total


@njit
def put(keys, low, counts, out):
    """Put keys to the places of their ranks, beginning with the last key."""
    for place in range(len(keys)):
        counts[keys[place] - low] -= np.uint32(1)
        out[counts[keys[place] - low]] = keys[place]


class IS(Kernel):
    """The kernel IS; see `Kernel`."""

    name, title, operation, unit = "is", "IS", "keys ranked", "keys"
    iterations = ITERATIONS

    def __init__(self, comm: MPI.Intracomm, letter: str, weights: Weights, advance: Advance, hide: bool = True) -> None:
        super().__init__(comm, letter, weights, advance, hide)
        self._highest = 2 ** RANGES[letter]
        self._shift = np.uint32(RANGES[letter] - BUCKETS[letter])
        parts = block(2 ** KEYS[letter], comm.size, weights)
        self._part, self._limits = parts[comm.rank], np.array([part.stop for part in parts])
        self.share = self._part.stop - self._part.start
        draws = numbers(SEED, 4 * self._part.start, 4 * self.share).reshape(-1, 4)
        sums = ((draws[:, 0] + draws[:, 1]) + draws[:, 2]) + draws[:, 3]
        self._keys = (self._highest / 4 * sums).astype(np.uint32)
        self._original = self._keys[: 2 * ITERATIONS + 1].copy()  # the keys that iterations change here
        self._by_places = hide and nodes(comm) > 1
        self._kind = np.dtype(np.uint16 if self._by_places else np.uint32)
        self._mpi_kind = MPI.UINT16_T if self._by_places else MPI.UINT32_T
        self._kept = np.uint32((1 << self._shift) - 1 if self._by_places else 2**32 - 1)
        self._packed, self._received = np.empty(self.share, self._kind), np.empty(0, self._kind)
        self._pieces = PIECES if hide else 1
        self._cuts = self.share * np.arange(self._pieces + 1) // self._pieces
        tests, self._buckets = len(PLACES[letter]), 2 ** BUCKETS[letter]
        # The histograms of this rank's pieces, and its test keys.
        self._told = np.zeros(self._pieces * self._buckets + tests, np.int32)
        self._histograms, self._test_keys = self._told[:-tests].reshape(self._pieces, -1), self._told[-tests:]
        self._everywhere = np.zeros((comm.size, len(self._told)), np.int32)
        self._found = np.zeros((ITERATIONS, tests), np.int64)
        self._counts = np.empty(0, np.uint32)
        self._runtime = overlap.Runtime(comm)
        self._exchange = self._runtime.pipelined(self._piece, skeleton=self._request, wait=None if hide else "off")

    @property
    def size(self) -> str:
        return str(2 ** KEYS[self.letter])

    @property
    def mop(self) -> float:
        return ITERATIONS * 2 ** KEYS[self.letter] / 1e6

    def warm_up(self) -> None:
        self._keys[: len(self._original)] = self._original
        for _ in range(WARM_UP):
            self._rank(1)

    def run(self) -> None:
        self.waited_s, self.messages = 0.0, 0
        for iteration in range(1, ITERATIONS + 1):
            self._rank(iteration)
            self.advance(iteration, ITERATIONS)

    def _rank(self, iteration):
        """Rank all keys once."""
        self._set(iteration, iteration)
        self._set(iteration + ITERATIONS, self._highest - iteration)
        self._told[:] = 0
        for keys, histogram in zip(map(self._keys_of, range(self._pieces)), self._histograms):
            count_buckets(keys, self._shift, histogram)
        for test, place in enumerate(PLACES[self.letter]):
            if self._part.start <= place < self._part.stop:
                self._test_keys[test] = self._keys[place - self._part.start]
        with Waiting(self):
            self.comm.Allgather(self._told, self._everywhere)
        self._deal()
        with Waiting(self, self._runtime):
            self._exchange(range(self._pieces))
        self.messages += self._pieces * (self.comm.size - 1)
        accumulate(self._counts)
        self._look_up(iteration)

    def _keys_of(self, piece):
        return self._keys[self._cuts[piece] : self._cuts[piece + 1]]

    def _set(self, place, key):
        """Set a key, if this rank has it."""
        if self._part.start <= place < self._part.stop:
            self._keys[place - self._part.start] = key

    def _deal(self):
        """Assign runs of buckets to ranks, and find the places where each piece's keys for each rank are packed."""
        rank, size = self.comm.rank, self.comm.size
        histograms = self._everywhere[:, : self._pieces * self._buckets].reshape(size, self._pieces, self._buckets)
        totals = histograms.sum(axis=(0, 1))
        before = np.cumsum(totals) - totals
        firsts = np.searchsorted(np.searchsorted(self._limits, before, side="right"), np.arange(size + 1))
        firsts[-1] = self._buckets
        starts = np.concatenate([np.zeros((size, self._pieces, 1), np.int64), np.cumsum(histograms, axis=2)], axis=2)
        self._ends = (starts[rank, :, :-1] + self._cuts[:-1, None]).astype(np.uint32)
        edges = starts[:, :, firsts]  # (ranks, pieces, ranks + 1)
        self._sent_at = edges[rank] + self._cuts[:-1, None]
        arrived = edges[:, :, rank + 1] - edges[:, :, rank]  # (ranks, pieces): keys from each rank in each piece
        arrived[rank] = 0  # own keys stay where they are packed
        self._arrived = arrived
        self._arrived_at = (np.cumsum(arrived.T.ravel()) - arrived.T.ravel()).reshape(self._pieces, -1).T
        if arrived.sum() > len(self._received):
            self._received = np.empty(int(1.1 * arrived.sum()), self._kind)
        self._mine = histograms[:, :, firsts[rank] : firsts[rank + 1]]  # (ranks, pieces, buckets of this rank)
        self._first, self._last = firsts[rank] << self._shift, firsts[rank + 1] << self._shift
        self._below = int(totals[: firsts[rank]].sum())
        if len(self._counts) != self._last - self._first:
            self._counts = np.empty(self._last - self._first, np.uint32)
        self._counts[:] = 0

    def _request(self, piece):
        """Make the exchange of a piece."""
        counts = np.diff(self._sent_at[piece])
        counts[self.comm.rank] = 0
        return self._runtime.comm.Alltoallv(
            [self._packed, (counts, self._sent_at[piece, :-1]), self._mpi_kind],
            [self._received, (self._arrived[:, piece], self._arrived_at[:, piece]), self._mpi_kind],
        )

    def _keys_from(self, rank, piece):
        """Return the keys of this rank's buckets that a rank has packed in a piece, as they were received or kept."""
        if rank == self.comm.rank:
            begin, end = self._sent_at[piece, rank : rank + 2]
            return self._packed[begin:end]
        begin = self._arrived_at[rank, piece]
        return self._received[begin : begin + self._arrived[rank, piece]]

    def _count(self, rank, piece):
        keys = self._keys_from(rank, piece)
        if self._by_places:
            count_places(keys, self._mine[rank, piece], self._shift, self._counts)
        else:
            count(keys, np.uint32(self._first), self._counts)

    async def _piece(self, piece):
        pack(self._keys_of(piece), self._shift, self._kept, self._ends[piece], self._packed)
        self._count(self.comm.rank, piece)
        await self._request(piece)
        for rank in range(self.comm.size):
            if rank != self.comm.rank:
                self._count(rank, piece)

    def _look_up(self, iteration):
        """Note the ranks of the test keys that this rank has counted."""
        for test, key in enumerate(self._everywhere[:, self._pieces * self._buckets :].sum(axis=0)):
            mine = self._first <= key < self._last
            lower = int(self._counts[key - 1 - self._first]) if mine and key > self._first else 0
            self._found[iteration - 1, test] = self._below + lower if mine else 0

    def checks(self) -> list[Check]:
        found = self.comm.allreduce(self._found)
        return [
            Check(
                f"rank of test key {test + 1} in iteration {iteration}",
                int(found[iteration - 1, test]),
                expected_rank(self.letter, test, iteration),
                0.0,
            )
            for iteration in range(1, ITERATIONS + 1)
            for test in range(found.shape[1])
        ] + [
            Check(f"keys out of order on rank {rank}", disorder, 0, 0.0)
            for rank, disorder in enumerate(self._disorder())
        ]

    def _disorder(self):
        """Sort all keys, and count the neighbouring keys of this rank, and across its lower border, that are out of
        order.
        """
        parts = [self._whole(rank, piece) for rank in range(self.comm.size) for piece in range(self._pieces)]
        sorted_keys = np.zeros(sum(map(len, parts)), np.uint32)
        for keys in parts:
            put(keys, np.uint32(self._first), self._counts, sorted_keys)
        disorder = int((sorted_keys[1:] < sorted_keys[:-1]).sum())
        ends = self.comm.allgather((int(sorted_keys[0]), int(sorted_keys[-1])) if len(sorted_keys) else None)
        lower = [end[1] for end in ends[: self.comm.rank] if end is not None]
        if len(sorted_keys) and lower and max(lower) > sorted_keys[0]:
            disorder += 1
        return self.comm.allgather(disorder)

    def _whole(self, rank, piece):
        """Do as `_keys_from`, and return whole keys."""
        keys = self._keys_from(rank, piece)
        if not self._by_places:
            return keys
        lowest = np.arange(self._first, self._last, 1 << self._shift, dtype=np.uint32)
        return np.repeat(lowest, self._mine[rank, piece]) + keys

    def close(self) -> None:
        self._runtime.close()
