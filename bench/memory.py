"""Memory of plans: bytes in flight, measured and as the plan tells; and none after planning.

    python bench/memory.py [--quick]        # or: mpiexec -n 2 python bench/memory.py

In flight: a plan is made with one slot and with more, and by so much more array data does it hold
(tracemalloc in numpy's domain, without the huge page of room for aligning each large array, which is
never touched), which its `nbytes_in_flight` must tell, but for the rest of a block's first huge page.
After planning: during one more call with given arrays the peak above what was held before must be
small objects only (a coroutine per slice, no array), of several calls nothing may be left, and over
more the process must not grow (largest resident set, which sees FFTW and MPI too). Ends with status 1
if not.
"""

import argparse
import gc
import resource
import sys
import tracemalloc

import numpy as np
from mpi4py import MPI

import overlap
from overlap.fft.engine.fftw import HUGE_PAGE_NBYTES, nbytes_of_block

CASES = (  # shape, dtype, overlap, depth, chunk, dealiased operation
    ((64, 256, 256), "c16", "poll", 16, 1, False),
    ((64, 256, 256), "c16", "block", 8, 2, False),
    ((64, 256, 256), "c16", "off", 4, 4, False),
    ((256, 64, 64), "f4", "poll", 16, 8, False),
    ((32, 256, 256), "f8", "poll", 8, 1, True),
    ((32, 256, 256), "f8", "block", 4, 4, True),
)
SLACK_NBYTES = 32 * 1024  # what a call needs besides its slices
SLICE_NBYTES = 1024  # of one slice's coroutine and requests
LANE_NBYTES = 1024  # by which aligned buffers of a slot may be longer than their data
LEFT_NBYTES = 16 * 1024  # small objects that come and go; less than one array
TRACED_CALLS, CALLS = 5, 20


class Job:
    """A plan and one call of it: the forward transform, or a product between two transforms."""

    def __init__(self, comm, shape, dtype, mode, depth, chunk, operation):
        self.plan = overlap.FFT2(
            comm,
            shape,
            dtype,
            settings={"wait": mode, "depth": depth, "chunk": chunk, "in_flight": depth, "effort": "estimate"},
        )
        self.transforms = [self.plan.forward, self.plan.backward]
        self.run = self.plan.forward
        if operation:
            self.run = self.plan.pointwise(lambda a, b, out: np.multiply(a, b, out=out), inputs=2, dealias="3/2")
            self.transforms.append(self.run)
        given = self.plan.spectrum if operation else self.plan.real
        self.inputs = [given.empty() for _ in range(1 + operation)]
        for array in self.inputs:
            array[...] = 1
        self.out = self.plan.spectrum.empty()

    @property
    def nbytes_in_flight(self):
        return sum(nbytes_of_block(transform.nbytes_in_flight) for transform in self.transforms)

    def __call__(self):
        self.run(*self.inputs, out=self.out)


def held(comm, case, depth):
    """Bytes of arrays that making a plan of so many slots holds, and what the plan says."""
    shape, dtype, mode, _, chunk, operation = case
    before = _array_nbytes()
    job = Job(comm, shape, dtype, mode, depth, chunk, operation)
    grown = _array_nbytes() - before
    told = job.nbytes_in_flight
    job.plan.close()
    return grown, told


def measure(comm, case):
    """One row: slots measured and told, peak and rest of a call, growth of the process; bytes."""
    shape, dtype, mode, depth, chunk, operation = case
    tracemalloc.start()
    held(comm, case, 1)  # the first time fills caches
    few, many = held(comm, case, 1), held(comm, case, depth)
    job = Job(comm, shape, dtype, mode, depth, chunk, operation)
    for _ in range(CALLS):  # the interpreter's free lists fill up
        job()
    gc.collect()
    gc.disable()
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    job()
    peak = tracemalloc.get_traced_memory()[1] - before
    for _ in range(TRACED_CALLS):
        job()
    gc.collect()
    left = tracemalloc.get_traced_memory()[0] - before
    gc.enable()
    tracemalloc.stop()
    resident = _resident()
    for _ in range(CALLS):
        job()
    resident = _resident() - resident
    job.plan.close()
    return {"measured": many[0] - few[0], "told": many[1] - few[1], "peak": peak, "left": left, "resident": resident}


def _array_nbytes():
    gc.collect()
    arrays = tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)
    found = tracemalloc.take_snapshot().filter_traces([arrays])
    return sum(trace.size - HUGE_PAGE_NBYTES * (trace.size >= 2 * HUGE_PAGE_NBYTES) for trace in found.traces)


def _resident():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small planes")
    shrink = 4 if parser.parse_args().quick else 1
    comm = MPI.COMM_WORLD
    failed = False
    if comm.rank == 0:
        print(
            f"{comm.size} rank(s), the largest of all; slots beyond the first (MiB); peak of one "
            f"more call, left by {TRACED_CALLS}, grown over {CALLS} (KiB)\n"
            f"{'plan':48} {'measured':>9} {'told':>9} {'peak':>7} {'left':>7} {'grown':>7}"
        )
    for (slices, ny, nx), *rest in CASES:
        case = shape, dtype, mode, depth, chunk, operation = ((slices, ny // shrink, nx // shrink), *rest)
        found = measure(comm, case)
        fits = (
            abs(found["measured"] - found["told"]) < LANE_NBYTES * depth
            and found["peak"] < SLACK_NBYTES + SLICE_NBYTES * shape[0]
            and found["left"] < LEFT_NBYTES
            and found["resident"] < 2**20
        )
        failed |= not comm.allreduce(fits, MPI.LAND)
        found = {name: comm.allreduce(value, MPI.MAX) for name, value in found.items()}
        if comm.rank == 0:
            words = f"{'operation' if operation else 'fft2'} {shape} {dtype}, {mode}, {depth} slots, chunk {chunk}"
            print(
                f"{words:48} {found['measured'] / 2**20:9.3f} {found['told'] / 2**20:9.3f} "
                f"{found['peak'] / 1024:7.1f} {found['left'] / 1024:7.1f} "
                f"{found['resident'] / 1024:7.0f}"
            )
    if comm.rank == 0:
        print("a figure is off" if failed else "as told, and nothing allocated after planning")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
