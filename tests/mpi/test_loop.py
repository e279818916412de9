"""The compiled loop that makes the calls of plans: failures at every step, signals, its crew."""

import os
import signal
import threading
import time
from contextlib import contextmanager, nullcontext
from itertools import product

import numpy as np
import pytest
from everywhere import raised, same_everywhere
from marks import exhaustive, on_ranks
from mpi4py import MPI
from step_cases import added, mpi_fails, small_units
from truth import random, same_bits

import overlap

# Plan, shape, type, layout and settings; volumes of small units, of which some are late.
PLANS = {
    "planes": (overlap.FFT2, (5, 6, 8), "c16", {}, {}),
    "transposed planes": (overlap.FFT2, (5, 7, 8), "f8", {"order": "transposed"}, {"depth": 16}),
    "several planes at once": (overlap.FFT2, (11, 6, 8), "c8", {}, {"chunk": 3, "depth": 2}),
    "volumes": (overlap.FFT3, (6, 8, 6), "c16", {}, {}),
    "late units": (overlap.FFT3, (16, 24, 96), "f8", {}, {"late": 0.7}),
    "functions": (overlap.FFT2, (5, 8, 10), "f8", {}, {"depth": 2}),
}
CALLS = [*PLANS, "brackets"]


class Boom(Exception):
    """Injected."""


@contextmanager
def calls_of(rt, what, wait):
    """Calls of a plan: functions, what they are given, and the transforms whose steps they make."""
    settings = {"wait": wait, "depth": 3, "chunk": 1, "effort": "estimate"}
    if what == "brackets":
        with overlap.Bracket(rt, (5, 6, 5, 7), settings=settings) as plan:
            f = plan.spectrum.wrap(random(np.random.default_rng(1), plan.spectrum.shape, "c16"))
            plan.advect(np.array(f[0]))
            yield [(plan, (f,), [plan.transform])]
        return
    make, shape, dtype, layout, more = PLANS[what]
    if what == "late units":
        layout = {"grid": (1, rt.comm.size)}
    with small_units(), make(rt, shape, dtype, layout=layout, settings=settings | more) as plan:
        u = random(np.random.default_rng(rt.comm.rank), plan.real.shape, dtype)
        spectrum = np.array(plan.forward(u))
        if what == "functions":
            product = plan.pointwise(lambda a, b, c: a * b * c, shared=1, dealias="3/2")
            yield [(product, (spectrum, spectrum, spectrum[1].copy()), [product, product._share])]
        else:
            for transform in (plan.forward, plan.backward):
                late = any(task.kind == "late" for task in transform.configuration.parts)
                assert late == (what == "late units" and rt.comm.size > 1)
            yield [(plan.forward, (u,), [plan.forward]), (plan.backward, (spectrum,), [plan.backward])]


@on_ranks
@pytest.mark.parametrize(
    "comm, workers, what",
    [
        *((2, 1, what) for what in CALLS),
        *((*ranks, what) for ranks in ((1, 2), (2, 2)) for what in ("planes", "volumes")),
        ("openmpi-2", 1, "planes"),
        *((3, 1, what) if what == "planes" else exhaustive(3, 1, what) for what in CALLS),
        *(exhaustive(*ranks, what) for ranks in ((3, 3), ("openmpi-2", 2)) for what in CALLS),
    ],
)
def test_every_step_fails(comm, workers, what):
    """An exception at any step of a call, on any rank and in every way, is one error on all, and so is a refusal of
    MPI; the next call is right.
    """
    for wait in ("off", "block", "poll"):
        with overlap.Runtime(comm, workers=workers, deadline_s=30) as rt, calls_of(rt, what, wait) as calls:
            for call, given, transforms in calls:
                expected = np.array(call(*given))
                for transform, origin in product(transforms, range(comm.size)):
                    counted = []
                    with added(transform, lambda task, step: True, counted.append):
                        call(*given)
                    for number in range(0, len(counted), 1 + len(counted) // 40):
                        seen = []

                        def fail(task, seen=seen, number=number):
                            seen.append(str(task))
                            if len(seen) == number + 1:
                                raise Boom

                        adding = added(transform, lambda task, step: True, fail)
                        with adding if comm.rank == origin else nullcontext():
                            error = raised(overlap.SliceError, call, *given)
                        same_everywhere(comm, (str(error), error.rank, error.slice, error.traceback_text))
                        assert error.rank == origin and "Boom" in error.summary, (wait, number, str(error))
                        assert wait != "off" or comm.rank != origin or error.slice == seen[number], (seen, str(error))
                        assert same_bits(call(*given), expected), (wait, number)
                    for number in {0, len(transform.configuration.parts) // 2} if comm.size > 1 else ():
                        with mpi_fails(transform, number) if comm.rank == origin else nullcontext():
                            error = raised(overlap.SliceError, call, *given)
                        same_everywhere(comm, (str(error), error.rank, error.slice))
                        assert error.rank == origin and MPI.Get_error_string(MPI.ERR_COUNT) in error.summary, error
                        assert same_bits(call(*given), expected), (wait, number)


@on_ranks(2, exhaustive(3))
def test_signals_while_it_waits(comm):
    """A signal handler runs while this rank waits for the others in a call; what it raises ends the call on all."""
    with overlap.FFT2(comm, (4, 8, 8), settings={"wait": "poll", "depth": 2, "chunk": 1}) as plan:
        u = plan.real.empty()
        u[...] = 1.0
        expected = np.array(plan.forward(u))
        ran = []

        def handler(number, frame):
            ran.append(time.monotonic())
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGALRM, handler)
        try:
            if comm.rank == 0:
                signal.setitimer(signal.ITIMER_REAL, 0.2)
                raised(KeyboardInterrupt, plan.forward, u)
                assert comm.recv(source=comm.size - 1) > ran[0] or comm.size == 1
            else:
                time.sleep(1.5)
                if comm.rank == comm.size - 1:
                    comm.send(time.monotonic(), dest=0)
                raised(overlap.SliceError, plan.forward, u)
        finally:
            signal.signal(signal.SIGALRM, before)
        assert same_bits(plan.forward(u), expected)


def _ticks(thread):
    """CPU time of a thread of this process, in clock ticks."""
    with open(f"/proc/self/task/{thread}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


@on_ranks(1, 2, exhaustive(3))
def test_crew_sleeps(comm):
    """Between calls the workers' threads take no CPU time, and they are gone when the runtime has been closed."""
    with overlap.Runtime(comm, workers=3) as rt:
        with overlap.FFT2(rt, (16, 64, 64), settings={"wait": "poll"}) as plan:
            u = plan.real.empty()
            u[...] = 1.0
            for _ in range(20):
                plan.forward(u)
            time.sleep(0.1)
            workers = [thread.native_id for thread in threading.enumerate() if thread.name.startswith("worker")]
            assert len(workers) == 2
            began = [_ticks(thread) for thread in workers]
            time.sleep(1.0)
            assert [_ticks(thread) for thread in workers] == began
    assert not any(thread.name.startswith("worker") for thread in threading.enumerate())


@on_ranks(1, 2, exhaustive(3))
def test_plans_share_a_crew(comm):
    """Plans and a slice program in turns, with several workers, give numpy's results in every call."""
    rng = np.random.default_rng(3)
    fields = [rng.standard_normal(shape) for shape in ((6, 24, 16), (3, 40, 8))]
    with overlap.Runtime(comm, workers=3) as rt:
        plans = [overlap.FFT2(rt, field.shape, "f8", settings={"wait": "poll", "chunk": 1}) for field in fields]
        squares = [plan.pointwise(lambda a: a * a) for plan in plans]
        total = np.zeros(12)

        @rt.pipelined
        async def program(i):
            await rt.comm.Allreduce(np.full(1, float(i)), total[i : i + 1])

        for _ in range(30):
            for plan, field, square in zip(plans, fields, squares):
                spectrum = plan.forward(field[plan.real.local_slice])
                expected = np.fft.rfft2(field)[plan.spectrum.local_slice]
                np.testing.assert_allclose(spectrum, expected, rtol=0, atol=1e-11)
                expected = np.fft.rfft2(field * field)[plan.spectrum.local_slice]
                np.testing.assert_allclose(square(spectrum), expected, rtol=0, atol=1e-11)
            program(range(12))
            assert (total == comm.size * np.arange(12.0)).all()
        for plan in plans:
            plan.close()


@on_ranks(1, 2, exhaustive(3))
def test_forked(comm):
    """A child of a process with a crew ends without it, and its parent's next call is right."""
    with overlap.FFT2(overlap.Runtime(comm, workers=2), (8, 16, 16), settings={"wait": "poll"}) as plan:
        u = random(np.random.default_rng(comm.rank), plan.real.shape, "c16")
        expected = np.array(plan.forward(u))
        child = os.fork()
        if child == 0:
            try:
                plan.forward(u)
            except overlap.ClosedError:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert same_bits(plan.forward(u), expected)
        plan.runtime.close()
