"""Injected errors: kinds of exceptions x sites x ranks x slices, also on several ranks at once.

Those in the steps of plans' calls are in `loop`.
"""

import asyncio
import os
import re
import time
from contextlib import ExitStack

import jobs
import numpy as np
from odd_errors import NoPickle, RaisingNotes, RaisingText, RaisingTruth, Unattributable, odd_syntax_error
from step_cases import Boom, failing
from test_errors import SLICES, Program
from truth import random, same_bits

import overlap
from overlap.fft.planning.settings import Settings
from overlap.fft.planning.tournament import choose

from .draw import Drawn
from .harness import Part

FAULTS = 15  # of a seed
SITES, CLOSING = 200, 240  # first seeds of `site_cases` and of `closing_cases`
ENDED_S = 5.0


def run(seed):
    """Some faults in one job, which leaves nothing behind; `jobs` looks.

    With failing skeletons each is a job, and ends it.
    """
    drawn = Drawn(seed)
    if seed >= CLOSING and seed % 2:
        for _ in range(FAULTS):
            _skeleton(drawn)
        return
    case = (
        "campaign.faults:faults"
        if seed < SITES
        else "campaign.site_cases:sites"
        if seed < CLOSING
        else "campaign.closing_cases:closings"
    )
    jobs.run_job(
        case,
        drawn.ranks(),
        mpi=drawn.library(),
        args={
            "seed": seed,
            "count": FAULTS,
            "wait": drawn.mode(),
            "depth": drawn.pick([1, 2, 3, 8]),
            "workers": drawn.workers(),
        },
    )


def _skeleton(drawn):
    """A slice and then its skeleton fail on one rank of several: the job ends in time, and says why."""
    ranks = drawn.ranks(2)
    args = {
        "kind": int(drawn.integers(1000)),
        "rank": int(drawn.integers(ranks)),
        "point": int(drawn.integers(2)),
        "wait": drawn.mode(),
        "depth": drawn.pick([1, 2, 3, 8]),
        "workers": drawn.workers(),
    }
    result = jobs.run_job(
        "campaign.closing_cases:skeleton_fails", ranks, mpi=drawn.library(), args=args, expect_failure=True
    )
    failed = re.search(r"failed at ([\d.]+)", result.out)
    assert failed and "in a skeleton" in result.err, (args, result)
    took_s = time.monotonic() - float(failed[1])
    assert took_s < ENDED_S, f"{args}: ended after {took_s:.1f} s"


def defect():
    """A rank that does not tell its error is found."""
    jobs.run_job(
        "campaign.faults:faults",
        2,
        args={"seed": 0, "count": 1, "wait": "poll", "depth": 3, "workers": 1, "mute": True},
    )


class Unlike(BaseException):
    """An exception that `except Exception` lets through."""


def _chained():
    error = Boom("second")
    error.__cause__ = error.__context__ = Boom("first")
    return error


# Exceptions by name: the usual ones, those that Python treats specially, and those that cannot be shown or sent.
KINDS = {
    "plain": Boom,
    "unattributable": Unattributable,
    "notes": RaisingNotes,
    "no text": RaisingText,
    "no truth": RaisingTruth,
    "no pickle": NoPickle,
    "odd syntax": odd_syntax_error,
    "chained": _chained,
    "group": lambda: ExceptionGroup("several", [Boom(), ValueError()]),
    "base": Unlike,
    "stop": lambda: StopIteration(7),
    "stop async": StopAsyncIteration,
    "generator exit": GeneratorExit,
    "cancelled": asyncio.CancelledError,
    "system exit": lambda: SystemExit(3),
    "interrupt": KeyboardInterrupt,
    "memory": MemoryError,
    "recursion": RecursionError,
    "os": lambda: OSError(28, os.strerror(28)),
    "unicode": lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "\ud800"),
    "slice error": lambda: overlap.SliceError(0, "0", "not this call's", ""),
    "assertion": lambda: AssertionError("x" * 10**6),
}
PROGRAM_SITES = ("before", "between", "after", "part")
PLAN_SITES = ("trial_arrays", "configure", "run_planes", "nbytes_per_slice")


def outcome(function, *args):
    """The exception of a call; one that a rank raises as itself stands for the one that it came from."""
    try:
        function(*args)
    except BaseException as error:
        return error if isinstance(error, overlap.OverlapError) else error.__cause__
    return None


def origins_of(drawn, size):
    """The ranks that fail, drawn the same on all: one, or in three of ten cases any number."""
    origins = set(map(int, drawn.choice(size, drawn.integers(1, size + 1), replace=False)))
    return origins if drawn.random() < 0.3 else {min(origins)}


def same_error(comm, label, error):
    """All ranks have the same error, which is one of the library's."""
    told = comm.allgather((type(error).__name__, str(error)))
    assert isinstance(error, overlap.OverlapError) and len(set(told)) == 1, (label, told)


class Told(Program):
    """The slice program of `test_errors`, which raises any kind of exception."""

    make = Boom

    def at(self, z, site):
        if super().at(z, site):
            raise self.make()
        return False


def faults(comm, seed, count, wait, depth, workers, mute=False):
    """Draw kind, site, slice and ranks, the same on all; with `mute` one rank keeps its error to itself."""
    drawn = np.random.default_rng(seed)
    shape = (7, 2 * comm.size + 1, 2 * comm.size + 2)
    u = random(drawn, shape, "f8")
    with (
        overlap.Runtime(comm, workers=workers, depth=depth, wait=wait, deadline_s=30) as rt,
        overlap.FFT2(rt, shape, "f8", settings={"wait": wait, "depth": depth, "chunk": 1}) as plan,
    ):
        program = Told(rt)
        pipeline = rt.pipelined(program.run, skeleton=program.skeleton if drawn.random() < 0.5 else None)
        program.check(pipeline)
        real = np.array(u[plan.real.local_slice])
        spectrum = np.array(plan.forward(real))
        back = np.array(plan.backward(spectrum))
        for _ in range(count):
            name = list(KINDS)[drawn.integers(len(KINDS))]
            origin = origins_of(drawn, comm.size)
            where = ("program", "planning")[drawn.integers(1 + (comm.size > 1))]
            z, site = int(drawn.integers(7)), int(drawn.integers(4))
            label = f"{name} in {where}, site {site}, slice {z}, ranks {sorted(origin)}"
            mine = comm.rank in origin
            with ExitStack() as stack:
                if where == "program":
                    program.fault = (comm.rank, z * SLICES // 7, PROGRAM_SITES[site]) if mine else None
                    program.make = KINDS[name]
                    call = pipeline, range(SLICES)
                else:
                    if mine:
                        at = type(plan.forward), PLAN_SITES[site]
                        stack.enter_context(failing(*at, lambda *_: True, KINDS[name]))
                    call = choose, plan.forward, Settings(effort="measure")
                error = outcome(*call)
            error = None if mute and comm.rank == comm.size - 1 else error
            same_error(comm, label, error)
            program.check(pipeline)
            for _ in range(3):
                assert same_bits(plan.forward(real), spectrum), label
                assert same_bits(plan.backward(spectrum), back), label


PART = Part(
    "errors",
    "one of 22 kinds of exceptions in a slice program or planning, on one rank or several: one exception on all "
    "ranks before the deadline of 30 s, the next three transforms bit-right, no thread, communicator, descriptor or "
    "segment left; 600 more before each of 12 kinds of await, in a part, in functions of fields, in "
    "making buffers, in tuning: the exception comes within 5 s; 150 more in closing (the others close, and nothing is "
    "left) and in skeletons (the job ends within 5 s and says why)",
    3750,
    run,
    defect,
    "('NoneType', 'None')",
    FAULTS,
)
