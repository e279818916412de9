"""The compiled loop that makes the calls of plans: faults at every step, signals while it runs, and its crew."""

import itertools
import os
import signal
import time
from contextlib import contextmanager

import jobs
import numpy as np
from step_cases import added, is_exchange, mpi_fails, nothing_fails
from truth import random, same_bits

import overlap
from overlap.runtime import plan_call

from .draw import Drawn, libraries
from .faults import KINDS, origins_of, outcome, same_error
from .harness import Part

FAULTS, SIGNALS, ROUNDS = 200, 50, 200  # of a seed
ENDED_S = 5.0  # for the other ranks to end an interrupted call, if they are in it
MAKE = {
    "FFT2": (overlap.FFT2, (5, 6, 8)),
    "FFT3": (overlap.FFT3, (2, 6, 8, 6)),
    "FFTN": (overlap.FFTN, (6, 8, 6)),
}


def _job(case, seed, count):
    """A job of a case, with what is drawn for it before its ranks begin."""
    drawn = Drawn(seed)
    drawing = {"wait": drawn.mode(), "workers": drawn.ranks(1, 3), "depth": drawn.pick([1, 2, 3, 8])}
    jobs.run_job(
        f"campaign.loop:{case}",
        drawn.ranks(1, 3),
        mpi=drawn.pick(libraries()),
        deadline_s=900,
        args={"seed": seed, "count": count} | drawing,
    )


@contextmanager
def _plan(comm, kind, wait, workers, depth, shape=None):
    """A plan, and its calls: transform, argument, result."""
    make, small = MAKE[kind]
    with (
        overlap.Runtime(comm, workers=workers, deadline_s=30) as rt,
        make(rt, shape or small, settings={"wait": wait, "depth": depth, "chunk": 1, "effort": "estimate"}) as plan,
    ):
        u = random(np.random.default_rng(comm.rank), plan.real.shape, "c16")
        spectrum = np.array(plan.forward(u))
        calls = [(plan.forward, u), (plan.backward, spectrum)]
        if kind != "FFTN":
            calls.append((plan.pointwise(lambda a: a * a), spectrum))
        yield [(transform, given, np.array(transform(given))) for transform, given in calls]


# ---- faults ------------------------------------------------------------------------------------


def _fails_at(transform, number, make):
    """Let the step with this number, as the call is prepared, raise meanwhile."""
    seen = itertools.count()

    def fail(task):
        raise make()

    return added(transform, lambda task, step: next(seen) == number, fail)


def _steps(transform, given):
    """How many steps a call of a transform has on this rank, and how many of them exchange."""
    found = []
    with added(transform, lambda task, step: found.append(is_exchange(step)), None):
        transform(given)
    return len(found), sum(found)


def faults(comm, seed, count, mute=False, **settings):
    """Faults drawn the same on all ranks; with `mute` one rank keeps its error to itself."""
    drawn = np.random.default_rng(seed)
    with _plan(comm, list(MAKE)[seed % len(MAKE)], **settings) as calls:
        steps = [_steps(transform, given) for transform, given, _ in calls]
        for _ in range(count):
            which, number = int(drawn.integers(len(calls))), int(drawn.integers(10**6))
            (transform, given, expected), (most, exchanges) = calls[which], steps[which]
            name = list(KINDS)[drawn.integers(len(KINDS))]
            origins = origins_of(drawn, comm.size)
            refused = comm.size > 1 and drawn.random() < 0.2
            number %= exchanges if refused else most
            label = f"{'MPI' if refused else name} at {number} of {transform}, {origins}"
            fault = (
                nothing_fails()
                if comm.rank not in origins
                else mpi_fails(transform, number)
                if refused
                else _fails_at(transform, number, KINDS[name])
            )
            with fault:
                error = outcome(transform, given)
            same_error(comm, label, None if mute and comm.rank == comm.size - 1 else error)
            assert same_bits(transform(given), expected), label


FAULT_PART = Part(
    "loop_faults",
    "one of 22 kinds of exceptions before any step of a plan's call (FFT2, FFT3, FFTN, forward, backward, pointwise; "
    "all ways to wait, 1 to 3 workers and ranks, both MPI libraries), or a refusal by MPI, on one rank or several: one "
    "exception on all ranks, and the next call is right to the last bit",
    20_000,
    lambda seed: _job("faults", seed, FAULTS),
    lambda: jobs.run_job(
        "campaign.loop:faults",
        2,
        args={"seed": 0, "count": 1, "wait": "poll", "workers": 1, "depth": 3, "mute": True},
    ),
    "('NoneType', 'None')",
    FAULTS,
)


# ---- signals -----------------------------------------------------------------------------------


class _Alarm:
    """Alarms in a ``with`` block, after a while and then in turns; what their handler has found.

    Attributes
    ----------
    inside : int
        How many came in a plan's call.
    raised : bool
        One of them has raised.
    """

    def __init__(self, raises):
        self.inside, self.raised, self._raises = 0, False, raises

    def __enter__(self):
        self._before = signal.signal(signal.SIGALRM, self._heard)
        return self

    def __exit__(self, *exc_info):
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before)

    def _heard(self, number, frame):
        while frame is not None and frame.f_code.co_filename != plan_call.__file__:
            frame = frame.f_back
        if frame is not None:
            self.inside += 1
            if self._raises and not self.raised:
                self.raised = True
                raise KeyboardInterrupt


def _interrupted(comm, transform, given):
    """Call until the call has been made on all ranks; returns the error and, if there is none, the result."""
    result = error = None
    others = [rank for rank in range(comm.size) if rank != comm.rank]
    while True:
        try:
            result = transform(given)
        except KeyboardInterrupt as stopped:
            error = stopped.__cause__
            if not isinstance(error, overlap.OverlapError):  # it came before the ranks met, or when all had ended
                end, error = time.monotonic() + ENDED_S, None
                while not (done := all(comm.iprobe(other) for other in others)) and time.monotonic() < end:
                    time.sleep(0.001)
                if not done:
                    continue
        except overlap.OverlapError as told:
            error = told
        break
    sent = [comm.isend(None, other) for other in others]
    for other in others:
        comm.recv(source=other)
    for request in sent:
        request.wait()
    return error, result


def signals(comm, seed, count, mute=False, **settings):
    """Alarms that raise, on one rank, or do not, on all; with `mute` one rank keeps its error to itself."""
    drawn, inside, ended = np.random.default_rng(seed), 0, 0
    kind, shape = [("FFT2", (12, 256, 256)), ("FFT3", (64, 64, 64))][seed % 2]
    with _plan(comm, kind, shape=shape, **settings) as calls:
        began = time.monotonic()
        for transform, given, _ in calls:
            transform(given)
        call_s = comm.bcast((time.monotonic() - began) / len(calls))
        for number in range(count):
            transform, given, expected = calls[drawn.integers(len(calls))]
            origin, raises = int(drawn.integers(comm.size)), drawn.random() < 0.7
            delay_s = float(drawn.uniform(1e-6, call_s))
            label = f"signal {number} after {delay_s:.4f} s on rank {origin}, raises: {raises}"
            comm.Barrier()
            with _Alarm(raises) as alarm:
                if comm.rank == origin or not raises:
                    signal.setitimer(signal.ITIMER_REAL, delay_s, max(1e-3, delay_s / 4))
                error, result = _interrupted(comm, transform, given)
            inside += alarm.inside
            error = None if mute and comm.rank == comm.size - 1 else error
            if any(comm.allgather(error is not None)):
                assert raises, (label, error)
                same_error(comm, label, error)
                ended += 1
            elif result is not None:
                assert same_bits(result, expected), label
            assert same_bits(transform(given), expected), label
    assert comm.allreduce(inside) and ended, "no signal came in a call"


SIGNAL_PART = Part(
    "loop_signals",
    "signals at random moments of long compiled calls on 1 to 3 ranks with 1 to 3 workers: Ctrl-C on one rank ends the "
    "call on all with one error, or comes before or after it, and handlers that return, every few milliseconds on all "
    "ranks, run in the call; the results are right to the last bit",
    2000,
    lambda seed: _job("signals", seed, SIGNALS),
    lambda: jobs.run_job(
        "campaign.loop:signals",
        2,
        args={"seed": 0, "count": 20, "wait": "poll", "workers": 1, "depth": 3, "mute": True},
    ),
    "('NoneType', 'None')",
    SIGNALS,
)


# ---- the crew ----------------------------------------------------------------------------------


def _forked(transform, given):
    """A child ends without the crew."""
    child = os.fork()
    if child == 0:
        try:
            transform(given)
        except overlap.ClosedError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def crew(comm, seed, count, workers, wait, depth, one_core=False, forks=True, wrong=False):
    """Two plans and a slice program in turns, drawn, on one crew; with `wrong` one rank's number is wrong once."""
    drawn, cores = np.random.default_rng(seed), os.sched_getaffinity(0)
    fields = [drawn.standard_normal(shape) for shape in ((6, 24, 16), (3, 40, 8))]
    if one_core:
        os.sched_setaffinity(0, {min(cores)})  # threads that are made now inherit it, as under taskset
    try:
        with overlap.Runtime(comm, workers=workers, deadline_s=60) as rt:
            settings = {"wait": wait, "depth": depth, "chunk": 1, "effort": "estimate"}
            plans = [overlap.FFT2(rt, field.shape, "f8", settings=settings) for field in fields]
            squares = [plan.pointwise(lambda a: a * a) for plan in plans]
            right = [
                [np.fft.rfft2(values)[plan.spectrum.local_slice] for values in (field, field * field)]
                for plan, field in zip(plans, fields)
            ]
            total = np.zeros(12)

            @rt.pipelined
            async def program(i):
                await rt.comm.Allreduce(np.full(1, float(i)), total[i : i + 1])

            for number in range(count):
                which, what = int(drawn.integers(2)), int(drawn.integers(5))
                real = fields[which][plans[which].real.local_slice]
                if what == 0:
                    time.sleep(float(drawn.uniform(0, 0.02)))  # the crew sleeps, on some ranks longer than on others
                elif what == 1 and forks and drawn.random() < 0.1:
                    _forked(plans[which].forward, real)
                elif what == 2:
                    program(range(12))
                    assert (total == comm.size * np.arange(12.0)).all(), f"a number is wrong in round {number}"
                spectrum = plans[which].forward(real)
                np.asarray(spectrum)[...] += wrong and number == count // 2 and comm.rank == comm.size - 1
                for values, expected in zip((spectrum, squares[which](spectrum)), right[which]):
                    assert np.allclose(values, expected, rtol=0, atol=1e-11), f"a number is wrong in round {number}"
            for plan in plans:
                plan.close()
    finally:
        os.sched_setaffinity(0, cores)


def _crew(seed):
    drawn = Drawn(seed)
    mpi = drawn.pick(libraries())
    jobs.run_job(
        "campaign.loop:crew",
        drawn.ranks(1, 3),
        mpi=mpi,
        fresh=True,
        deadline_s=900,
        args={
            "seed": seed,
            "count": ROUNDS,
            "workers": drawn.ranks(2, 3 * len(os.sched_getaffinity(0))),
            "wait": drawn.pick(["block", "poll"]),
            "depth": drawn.pick([1, 2, 3, 8]),
            "one_core": seed % 2 == 1,
            "forks": mpi == "mpich",
        },
    )


CREW_PART = Part(
    "crew",
    "two plans and a slice program in turns on one crew, which sleeps between them, on 1 to 3 ranks with up to three "
    "workers for each core, every second job on one core alone, with children that are forked: each result is numpy's",
    10_000,
    _crew,
    lambda: jobs.run_job(
        "campaign.loop:crew",
        2,
        args={"seed": 0, "count": 10, "workers": 3, "wait": "poll", "depth": 3, "wrong": True},
    ),
    "a number is wrong in round 5",
    ROUNDS,
)

PARTS = (FAULT_PART, SIGNAL_PART, CREW_PART)
