"""Work that is done over and over leaves nothing in the process."""

import ctypes
import gc
import os
import sys

import numpy as np
import pytest
from everywhere import raised
from marks import on_ranks
from mpi4py import MPI

import overlap
from overlap.compat.mpi4py_fft import PFFT

PAGE = os.sysconf("SC_PAGE_SIZE")
FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


class _Usage(ctypes.Structure):  # struct mallinfo2 of glibc
    _fields_ = [(name, ctypes.c_size_t) for name in FIELDS.split()]


def in_use():
    """Bytes that malloc has given out, and blocks that Python has."""
    gc.collect()
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _Usage
    found = mallinfo2()
    return np.array([found.uordblks + found.hblkhd, sys.getallocatedblocks()])


def resident():
    """Bytes of this process in memory."""
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * PAGE


def steady(comm, repeat, count, nbytes=48, blocks=1, windows=12):
    """Repeat something `count` times over and over: from some time on each keeps fewer bytes and blocks than these.

    What is kept by each repetition shows every time; what grows once in a while, such as tables of MPI, or by
    less and less, such as Python's, does not. The ranks decide together.
    """
    repeat(count)
    for _ in range(windows):
        before = in_use()
        repeat(count)
        kept = (in_use() - before) / count
        comm.Allreduce(MPI.IN_PLACE, kept, MPI.MAX)
        if kept[0] < nbytes and kept[1] < blocks:
            return
    raise AssertionError(f"{kept[0]} bytes and {kept[1]} objects kept by each of {count}")


def closed_plans(comm, count=40):
    """Plans that were used and closed, with functions, leave nothing."""
    field = np.ones((3, 4, 4), complex)
    with overlap.Runtime(comm, workers=1, wait="off") as rt:

        def repeat(count):
            for _ in range(count):
                with overlap.FFT2(rt, field.shape, settings={"wait": "off", "effort": "estimate"}) as plan:
                    acting = plan.pointwise(lambda u: u, inputs=1)
                    acting(plan.forward(field[plan.real.local_slice]))

        steady(comm, repeat, count)


def destroyed_plans(comm, count=40):
    """Those of the drop-in, neither."""

    def repeat(count):
        for _ in range(count):
            plan = PFFT(comm, (3, 4, 4), wait="off", planner_effort="FFTW_ESTIMATE")
            plan.backward(plan.forward(np.ones(plan.shape(False))))
            plan.destroy()

    steady(comm, repeat, count)


def resident_set_of_plans(comm, count=600, most_nbytes=100 * 2**10, windows=8):
    """Plans that were closed do not let the process grow, neither by what malloc does not know of."""
    field = np.ones((2, 4, 4), complex)
    with overlap.Runtime(comm, workers=1, wait="off") as rt:
        for _ in range(windows):  # the first ones fill tables of MPI and of Python
            before = resident()
            for _ in range(count):
                with overlap.FFT2(rt, field.shape, settings={"wait": "off", "effort": "estimate"}) as plan:
                    plan.forward(field[plan.real.local_slice])
            grown = np.array([resident() - before])
            comm.Allreduce(MPI.IN_PLACE, grown, MPI.MAX)
            if grown[0] < most_nbytes:
                return
    raise AssertionError(f"the resident set grew by {grown[0]} bytes in {count} plans")


@on_ranks(2, fresh=True, deadline_s=600)
def test_nothing_is_kept_of_calls(comm, count=100):
    """Calls leave nothing, whatever they exchange."""
    field = np.ones((3, 4, 4), complex)
    with overlap.FFT2(comm, field.shape, settings={"wait": "off", "effort": "estimate"}) as plan:
        acting = plan.pointwise(lambda u: u, inputs=1)
        spectrum = plan.forward(field[plan.real.local_slice])

        def repeat(count):
            for _ in range(count):
                acting(spectrum)
                plan.backward(plan.forward(field[plan.real.local_slice]))

        steady(comm, repeat, count)


def _failing(comm, rt, first):
    """What fails so often on one rank after the other: calls of a known program, or the first calls of new ones."""

    def made():
        @rt.pipelined
        async def program(z, bad):
            await rt.comm.Allreduce(MPI.IN_PLACE, np.ones(2))
            if bad:
                raise ValueError("of this call")
            await rt.comm.Allreduce(MPI.IN_PLACE, np.ones(2))

        return program

    program = made()
    program(range(3), False)

    def repeat(count):
        for number in range(count):
            error = raised(overlap.SliceError, made() if first else program, range(3), number % comm.size == comm.rank)
            assert error.rank == number % comm.size
        program(range(3), False)

    return repeat


def failing_calls(comm, count=150):
    """Calls that fail leave nothing, and neither do programs whose first call fails."""
    for first in (False, True):
        with overlap.Runtime(comm, workers=1, depth=2, wait="off") as rt:
            steady(comm, _failing(comm, rt, first), count)


@pytest.mark.exhaustive
@on_ranks(1, fresh=True, deadline_s=600)
def test_nothing_is_kept(comm):
    closed_plans(comm)
    destroyed_plans(comm)
    resident_set_of_plans(comm)
    test_nothing_is_kept_of_calls(comm)
    failing_calls(comm)


def failing_calls_without_end(comm, count, wait, leak=0):
    """So many failures of either kind in one job: the resident set grows by less than 1 MiB."""
    kept = []
    for first in (False, True):
        with overlap.Runtime(comm, workers=1, depth=2, wait=wait) as rt:
            repeat = _failing(comm, rt, first)
            repeat(2500)  # until tables have their size
            before = resident()
            repeat(count)
            kept.append(np.ones(leak, np.uint8))
            grown = resident() - before
        print(f"rank {comm.rank}: {count} failing {'first ' * first}calls: resident set grew by {grown} bytes")
        assert grown < 2**20, f"resident set grew by {grown} bytes in {count} failing calls"
