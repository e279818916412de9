"""Simulates the time of conjugate gradients on many ranks, with collectives by remote writes and with MPI's.

    python examples/cg_scaling.py [nasa2910 ... nd24k] [--ranks 1 2 4 8 16 32 64] [--jitter 0.05]

The algorithm is that of `conjugate_gradients.py`, with a third dot product and reduction as in Matsumoto et al. (2015),
on the machine of that paper: one GPU on each node; remote writes on a torus of 2 x p/2 nodes, or MPI on a fat tree.
Every rank has its own clock. A step of a collective ends on a rank when the message of its partner has come, so that
one late rank delays all: allgather by recursive doubling, allreduce by dissemination, with log2(p) steps each.

What the numbers are taken from: latencies, bandwidths, table 6 and the mapping of ranks from the paper; what it does
not say, from the data sheet of the GPU or so that its other figures come out (`MPI`, `Gpu`). The paper ends at 16
ranks; what is beyond is a forecast.
"""

import argparse
from dataclasses import dataclass
from functools import cache

import numpy as np

MATRICES = {
    "nasa2910": (2_910, 174_296),
    "s1rmq4m1": (5_489, 281_111),
    "smt": (25_710, 3_753_184),
    "nd3k": (9_000, 3_279_690),
    "nd6k": (18_000, 6_897_316),
    "nd12k": (36_000, 14_220_946),
    "nd24k": (72_000, 28_715_634),
}  # rows and entries
RANKS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Protocol:
    """Describes the time of a message: seconds for its start, and bytes per second."""

    start_s: float
    bandwidth_Bps: float


@dataclass(frozen=True)
class Network:
    """Describes a way to communicate.

    Attributes
    ----------
    protocols : tuple of Protocol
        For each message the faster one is used.
    call_s, step_s : float
        Time of an allreduce of one number: once, and for each step.
    torus : bool
        Whether messages of a step share links, see `load`; otherwise all nodes are joined by a switch.
    """

    protocols: tuple[Protocol, ...]
    call_s: float
    step_s: float
    torus: bool

    def message_s(self, nbytes: float, load: int) -> float:
        """Return the seconds of a message if a number of messages share a link."""
        return min(one.start_s + load * nbytes / one.bandwidth_Bps for one in self.protocols)


# GPU to GPU: 1.9 us and 2.8 GB/s; processor to processor, table 6: 1.5, 2.6, 5.0, 6.4 us on 2, 4, 8, 16 nodes.
REMOTE_WRITES = Network((Protocol(1.9e-6, 2.8e9),), 0.0, 1.6e-6, True)
# 3.5 us for 16 bytes, 4.4 GB/s at most, and as fast as remote writes at 128 KB: so long messages start within 19 us.
# It is assumed that the protocol of short messages is used up to 16 KB. Table 6: 5.2, 8.1, 10.4, 14.2 us.
MPI = Network((Protocol(3.5e-6, 0.9e9), Protocol(19e-6, 4.4e9)), 2.3e-6, 2.9e-6, False)


@dataclass(frozen=True)
class Gpu:
    """Describes the processor with which a rank computes.

    Attributes
    ----------
    bandwidth_Bps : float
        Bandwidth of its memory with error correction: three quarters of the data sheet's 250 GB/s.
    product_s, dot_s, update_s : float
        Start-up times of kernels. The dot product's, with its result on the processor, is the paper's 14 us; the others
        are assumed.
    """

    bandwidth_Bps: float = 187e9
    product_s: float = 10e-6
    dot_s: float = 14e-6
    update_s: float = 5e-6

    def product(self, rows: float, entries: float) -> float:
        """Return the seconds of a sparse matrix times a vector, from the bytes of values, columns, starts and
        results."""
        return self.product_s + (12 * entries + 12 * rows) / self.bandwidth_Bps

    def dot(self, rows: float) -> float:
        """Return the seconds of a dot product."""
        return self.dot_s + 16 * rows / self.bandwidth_Bps

    def update(self, rows: float) -> float:
        """Return the seconds of adding a multiple of a vector to another one."""
        return self.update_s + 24 * rows / self.bandwidth_Bps


def ring_order(ranks: int) -> list[int]:
    """Order ranks around a ring by reversed bits, so that partners in late steps, which exchange long messages, are
    close."""
    bits = ranks.bit_length() - 1
    return [int(f"{place:0{bits}b}"[::-1], 2) if bits else 0 for place in range(ranks)]


@cache
def load(ranks: int, distance: int) -> int:
    """Count the messages on the busiest link if each rank sends to rank XOR distance, on a torus of 2 x ranks/2.

    Two rings; the last step goes from one to the other. Within a ring every message takes the shorter way.
    """
    half = ranks // 2
    if distance >= half:
        return 1
    places = {rank: place for place, rank in enumerate(ring_order(half))}
    links = np.zeros((2, half), int)  # the two directions
    for rank, place in places.items():
        forth = (places[rank ^ distance] - place) % half
        if forth <= half - forth:
            links[0, (place + np.arange(forth)) % half] += 1
        else:
            links[1, (place - np.arange(half - forth)) % half] += 1
    return int(links.max())


def allgather(clocks: np.ndarray, nbytes: float, network: Network) -> np.ndarray:
    """Return the clocks of all ranks after an allgather by recursive doubling, to which each rank contributes some
    bytes."""
    ranks, distance = len(clocks), 1
    while distance < ranks:
        partner = np.arange(ranks) ^ distance
        message_s = network.message_s(distance * nbytes, load(ranks, distance) if network.torus else 1)
        clocks = np.maximum(clocks, clocks[partner]) + message_s
        distance *= 2
    return clocks


def allreduce(clocks: np.ndarray, network: Network) -> np.ndarray:
    """Return the clocks of all ranks after an allreduce of one number, by dissemination."""
    ranks, distance = len(clocks), 1
    clocks = clocks + (network.call_s if ranks > 1 else 0.0)
    while distance < ranks:
        clocks = np.maximum(clocks, np.roll(clocks, distance)) + network.step_s
        distance *= 2
    return clocks


def iteration_s(
    name: str, ranks: int, network: Network, gpu: Gpu = Gpu(), jitter: float = 0.0, iterations: int = 100
) -> float:
    """Return the seconds of an iteration of the slowest rank; `jitter` is the standard deviation of the logarithm of
    computing times.
    """
    rows, entries = (number / ranks for number in MATRICES[name])
    chance = np.random.default_rng(1)

    def computed(clocks, seconds):
        return clocks + seconds * chance.lognormal(-(jitter**2) / 2, jitter, ranks)

    clocks = np.zeros(ranks)
    for _ in range(iterations):
        clocks = allgather(computed(clocks, gpu.update(rows)), 8 * rows, network)
        clocks = allreduce(computed(clocks, gpu.product(rows, entries) + gpu.dot(rows)), network)
        clocks = allreduce(computed(clocks, 2 * gpu.update(rows) + gpu.dot(rows)), network)
        clocks = allreduce(computed(clocks, gpu.dot(rows)), network)
    return float(clocks.max()) / iterations


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("matrices", nargs="*", default=list(MATRICES), metavar="MATRIX", help=", ".join(MATRICES))
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS, help="powers of two")
    parser.add_argument("--jitter", type=float, default=0.05, help="of computing times")
    given = parser.parse_args()
    if unknown := [name for name in given.matrices if name not in MATRICES]:
        parser.error(f"expected matrices of {', '.join(MATRICES)}, received {', '.join(unknown)}")
    if odd := [ranks for ranks in given.ranks if ranks < 1 or ranks & ranks - 1]:
        parser.error(f"expected powers of two as ranks, received {odd}")
    print("Simulated microseconds per iteration, remote writes / MPI; * the fewest with remote writes")
    print(f"{'matrix':10}" + "".join(f"{ranks:>16}" for ranks in given.ranks))
    for name in given.matrices:
        times = [
            [1e6 * iteration_s(name, ranks, network, jitter=given.jitter) for network in (REMOTE_WRITES, MPI)]
            for ranks in given.ranks
        ]
        best = min(times)[0]
        print(
            f"{name:10}" + "".join(f"{writes:8.0f}{'*' if writes == best else ' '}/{mpi:6.0f}" for writes, mpi in times)
        )


if __name__ == "__main__":
    main()
