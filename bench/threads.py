"""How much faster two workers are than one, beside what two independent processes reach, on one rank.

    python bench/threads.py [--json FILE] [--rounds N] [--cases WORD ...] [--workers N ...]

For every case, medians of interleaved rounds: one worker without overlap (`one_s`), two workers (`two_s`), and
two processes that do half of the batch each (`processes_s`): what memory and cores allow.

How far that goes with more threads than there are cores: `gil_us` is the time outside of compiled code, in which only
one thread of a process can be, per entry of the batch (one worker, median; of an operation it holds the user's
function too, whose arithmetic gives the interpreter up); `speedups` are how many times faster than one worker each
number of `--workers` is, and `simulated` what a simulation expects where threads share nothing but the interpreter.
"""

import multiprocessing
import os
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from unittest import mock

import numpy as np

import overlap
from overlap.runtime import plan_call
from overlap.timing.simulate import Machine, Options, Program, simulate
from overlap.tools.bench.pages import Page
from overlap.tools.bench.rounds import medians, turns


@dataclass(frozen=True)
class Case:
    """A transform: its kind, the batch's length, and the shape of one entry."""

    kind: str  # "forward", "operation", "fft3" or "bracket"
    batch: int
    shape: tuple[int, ...]

    def __str__(self):
        return f"{self.kind} {self.batch} x {' x '.join(map(str, self.shape))}"


SETTLED, SHORT_S = 10, 5e-3  # calls in which short calls with workers find who runs them
PLANES = ((64, (512, 512)), (256, (256, 256)), (1024, (128, 128)), (4096, (64, 64)), (1024, (96, 48)))
CASES = [
    *(Case(kind, *planes) for kind in ("forward", "operation") for planes in PLANES),
    *(Case("fft3", 1, (n, n, n)) for n in (32, 64, 128, 256)),
    Case("bracket", 32, (256, 16, 63)),
]


def product(a, b, c, d):
    """The nonlinear term of four fields."""
    return a * d - b * c


class Run:
    """A transform of a case with some workers, or of a part of its batch; calling it runs it once."""

    def __init__(self, case, workers, share=1):
        from mpi4py import MPI

        settings = {"wait": "off" if workers == 1 else "poll"}
        shape = max(1, case.batch // share), *case.shape
        runtime, rng = overlap.Runtime(MPI.COMM_SELF, workers=workers), np.random.default_rng(1)
        if case.kind == "bracket":
            plan = overlap.Bracket(runtime, shape, settings=settings)
            f, a = plan.spectrum.empty(), plan.advecting.empty()
            f[...], a[...] = rng.standard_normal(f.shape), rng.standard_normal(a.shape)
            plan.advect(a)
            self._call = partial(plan, f)
            return
        plan = (overlap.FFT3 if case.kind == "fft3" else overlap.FFT2)(runtime, shape, complex, settings=settings)
        u, out = plan.real.empty(), plan.spectrum.empty()
        u[...] = rng.standard_normal(u.shape)
        fields = (u,) * 4 if case.kind == "operation" else (u,)
        self._call = partial(plan.pointwise(product) if len(fields) == 4 else plan.forward, *fields, out=out)

    def __call__(self):
        started = perf_counter()
        self._call()
        return perf_counter() - started


def _half(case, core, start, times, rounds):
    """One of two processes, with half of the batch, on a core of its own."""
    os.sched_setaffinity(0, {core})
    run = Run(case, 1, 2)
    run()
    for _ in range(rounds):
        start.wait()
        times.put(run())
        start.wait()


class Python:
    """The time that a run spends outside of compiled code, and how many calls of that it makes."""

    def __init__(self, run):
        self._run = run
        self._inside_s, self.calls = 0.0, 0

    def __call__(self):
        with ExitStack() as stack:
            compiled = partial(self._compiled, plan_call.run)
            stack.enter_context(mock.patch.object(plan_call, "run", compiled))
            self._inside_s, self.calls = 0.0, 0
            took_s = self._run()
        return took_s - self._inside_s

    def _compiled(self, function, *args):
        started = perf_counter()
        result = function(*args)
        self._inside_s += perf_counter() - started
        self.calls += 1
        return result


def simulated_speedup(workers, one_s, python_s, calls):
    """How many times faster so many workers are, if nothing but Python's interpreter stands in their way."""
    machine = Machine(
        name="threads", fft_flops=1e9, copy_Bps=1e9, latency_s=0.0, bandwidth_Bps=1e9, interpreter_s=python_s / calls
    )
    program = Program.alike(calls, (one_s / calls,), ())
    one, many = (
        simulate(program, machine, Options(ranks=1, workers=number, depth=2 * number)).wall_s for number in (1, workers)
    )
    return one / many


class Halves:
    """Two processes with half of a case each; calling it gives the time of the slower one."""

    def __init__(self, case, cores, rounds):
        context = multiprocessing.get_context("spawn")
        self._start, self._times = context.Barrier(3), context.Queue()
        self._processes = [
            context.Process(target=_half, daemon=True, args=(case, core, self._start, self._times, rounds))
            for core in cores
        ]
        for process in self._processes:
            process.start()

    def __call__(self):
        self._start.wait()
        times = [self._times.get() for _ in self._processes]
        self._start.wait()
        return max(times)

    def join(self):
        """Wait until the processes have ended, so that they disturb no later case."""
        for process in self._processes:
            process.join()


def settle(run):
    """Make the first calls, in which short ones find who runs them."""
    for _ in range(SETTLED):
        if run() > SHORT_S:
            break


def measured(case, workers, rounds):
    """A record of a case with one worker and with each of these numbers of workers."""
    runs = {number: Run(case, number) for number in sorted({1, *workers})}
    for run in runs.values():
        settle(run)
    more = {"python_s": Python(runs[1])}
    if case.batch > 1 and tuple(workers) == (2,):
        more["processes_s"] = Halves(case, sorted(os.sched_getaffinity(0))[:2], rounds + 1)
    found = medians(turns(runs | more, rounds))
    if "processes_s" in more:
        more["processes_s"].join()
    seconds = {number: found[number] for number in runs}
    record = {"case": str(case), "gil_us": 1e6 * found["python_s"] / case.batch, "seconds": seconds}
    record |= {name: found[name] for name in more}
    if 2 in runs:
        record |= {"one_s": seconds[1], "two_s": seconds[2], "speedup": seconds[1] / seconds[2]}
    calls = more["python_s"].calls
    return record | {
        "speedups": {number: seconds[1] / value for number, value in seconds.items()},
        "simulated": {number: simulated_speedup(number, seconds[1], found["python_s"], calls) for number in seconds},
    }


def here(given):
    """The records of the cases."""
    for case in CASES:
        if any(word in str(case) for word in given.cases):
            yield measured(case, given.workers, given.rounds)


PAGE = Page(__doc__, here=here, rounds=7)
PAGE.add("--cases", nargs="*", default=[""], metavar="WORD", help="only cases whose name contains one of these words")
PAGE.add("--workers", nargs="+", type=int, default=(2,), metavar="N", help="numbers of workers beside one; default: 2")

if __name__ == "__main__":
    sys.exit(PAGE.run())
