"""What the runtime itself costs: a slice with one await and no work, on one rank.

    python bench/overhead.py [--slices 2000] [--rounds 7]

Prints, for each way to wait, the time per slice, the time of the bare MPI call alone (blocking and
nonblocking with a test), and the difference: median and range over the rounds.
"""

import argparse
from statistics import median
from time import perf_counter

import numpy as np
from mpi4py import MPI

import overlap


def timed(function, rounds):
    """Seconds of each round, after one that does not count."""
    seconds = []
    for _ in range(rounds + 1):
        started = perf_counter()
        function()
        seconds.append(perf_counter() - started)
    return seconds[1:]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--slices", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    comm = MPI.COMM_SELF
    send, receive = np.zeros(1), np.zeros(1)

    def blocking():
        for _ in range(options.slices):
            comm.Alltoall(send, receive)

    def nonblocking():
        for _ in range(options.slices):
            comm.Ialltoall(send, receive).Wait()

    bare = {"off": blocking, "block": blocking, "poll": nonblocking}
    for wait, call in bare.items():
        with overlap.Runtime(comm, wait=wait, depth=16) as runtime:
            async def program(z):
                await runtime.comm.Alltoall(send, receive)

            async def skeleton(z):
                await runtime.comm.Alltoall(send, receive)

            pipeline = runtime.pipelined(program, skeleton=skeleton)
            whole = timed(lambda: pipeline(range(options.slices)), options.rounds)
            alone = timed(call, options.rounds)
        per_slice = [1e6 * seconds / options.slices for seconds in whole]
        bare_us = 1e6 * median(alone) / options.slices
        print(f"{wait:5s}  {median(per_slice):6.2f} us per slice "
              f"({min(per_slice):.2f} to {max(per_slice):.2f}), bare MPI call {bare_us:.2f} us, "
              f"runtime {median(per_slice) - bare_us:.2f} us")


if __name__ == "__main__":
    main()
