"""The compiled loop that makes the calls of plans: failures at every step, signals, its crew."""

import os
import signal
import threading
import time
from contextlib import nullcontext
from itertools import product

import numpy as np
import pytest
from everywhere import raised, same_everywhere
from marks import exhaustive, on_ranks
from step_cases import added
from truth import random, same_bits

import overlap

SHAPES = {overlap.FFT2: (5, 6, 8), overlap.FFT3: (6, 8, 6)}


class Boom(Exception):
    """Injected."""


@on_ranks
@pytest.mark.parametrize("comm, workers", [(1, 2), (2, 1), (2, 2), exhaustive(3, 1), exhaustive(3, 3)])
def test_every_step_fails(comm, workers):
    """An exception at any step of a call, on any rank and in every way, is one error on all; the next call is right."""
    for (make, shape), wait in product(SHAPES.items(), ("off", "block", "poll")):
        with (
            overlap.Runtime(comm, workers=workers, deadline_s=30) as rt,
            make(rt, shape, settings={"wait": wait, "depth": 3, "chunk": 1, "effort": "estimate"}) as plan,
        ):
            u = random(np.random.default_rng(comm.rank), plan.real.shape, "c16")
            spectrum = np.array(plan.forward(u))
            back = np.array(plan.backward(spectrum))
            for transform, given, expected in ((plan.forward, u, spectrum), (plan.backward, spectrum, back)):
                steps = str(transform.schedule).count(";") + len(transform.configuration.parts)
                for number, origin in product(range(steps), range(comm.size)):
                    seen = [0]

                    def fail(task, seen=seen, number=number):
                        seen[0] += 1
                        if seen[0] == number + 1:
                            raise Boom(str(task))

                    adding = added(transform, lambda task, step: True, fail)
                    with adding if comm.rank == origin else nullcontext():
                        error = raised(overlap.SliceError, transform, given)
                    same_everywhere(comm, str(error))
                    assert error.rank == origin and "Boom" in error.summary, (make, wait, number, str(error))
                    assert same_bits(transform(given), expected), (make, wait, number)


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
