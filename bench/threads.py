"""How much faster two workers are than one, beside what two independent processes reach, on one rank.

    python bench/threads.py [--json FILE] [--rounds N] [--cases WORD ...] [--workers N ...]

For every case, medians of interleaved rounds: one worker without overlap (`one_s`), two workers (`two_s`), and
two processes that do half of the batch each (`processes_s`): what memory and cores allow. Forward transforms
also beside a bare loop of their FFTs (`trial_s`, of one and of two threads): copy a plane, transform its
rows, transform its columns, compiled, with nothing of this library in it but FFTW's plans.

Of a bracket also `core_ns`, the two workers' time per mode.

How far that goes with more threads than there are cores: `gil_us` is the time outside of compiled code, in which only
one thread of a process can be, per entry of the batch (one worker, median; of an operation it holds the user's
function too, whose arithmetic gives the interpreter up); `of_sixteen` is how many times faster
sixteen workers are than one, simulated with it and with nothing else that threads share.

With `--workers`, on a machine with as many cores: how many times faster than one worker each of these numbers of
workers is, measured, and simulated in the same way.
"""

import multiprocessing
import os
import sys
import threading
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from math import prod
from time import perf_counter
from unittest import mock

import numpy as np

import overlap
from overlap.compiled import njit
from overlap.compiled.memory import call_function
from overlap.fft.engine.fftw import barely_aligned, empty, zeros
from overlap.fft.engine.lines import LineTransform
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


@njit
def _bare(u, out, first, last, calls, address, nbytes):
    for z in range(first, last):
        for row in range(u.shape[1]):
            for column in range(u.shape[2]):
                out[z, row, column] = u[z, row, column]
        for number in range(2):
            call_function(calls[number, 0], calls[number, 1], address + z * nbytes, address + z * nbytes, 0)


class Bare:
    """The bare loop over the planes of a case, on one or two threads."""

    def __init__(self, case, threads):
        shape = case.batch, *case.shape
        self._u, self._out = empty(shape, complex), zeros(shape, complex)
        self._u[...] = np.random.default_rng(1).standard_normal(shape)
        plane = barely_aligned(case.shape, complex)
        self._plans = [LineTransform(plane, plane, axis, True, "measure") for axis in (1, 0)]
        self._calls = np.array([[plan.function, plan.plan] for plan in self._plans], np.int64)
        self._cuts = [case.batch * number // threads for number in range(threads + 1)]

    def __call__(self):
        started = perf_counter()
        others = [threading.Thread(target=self._run, args=(number,)) for number in range(1, len(self._cuts) - 1)]
        for other in others:
            other.start()
        self._run(0)
        for other in others:
            other.join()
        return perf_counter() - started

    def _run(self, number):
        first, last = self._cuts[number : number + 2]
        _bare(self._u, self._out, first, last, self._calls, self._out.ctypes.data, self._out.strides[0])


def settle(run):
    """Make the first calls, in which short ones find who runs them."""
    for _ in range(SETTLED):
        if run() > SHORT_S:
            break


def measured(case, rounds):
    """A record of a case."""
    runs = {"one_s": Run(case, 1), "two_s": Run(case, 2)}
    if case.kind == "forward":
        runs |= {"trial_one_s": Bare(case, 1), "trial_two_s": Bare(case, 2)}
    if case.batch > 1:
        runs["processes_s"] = Halves(case, sorted(os.sched_getaffinity(0))[:2], rounds + 1)
    if case.kind != "bracket":
        runs["python_s"] = Python(runs["one_s"])
    settle(runs["two_s"])
    found = medians(turns(runs, rounds))
    record = {"case": str(case), "kind": case.kind, "batch": case.batch, "shape": case.shape, **found}
    one_s, two_s = found["one_s"], found["two_s"]
    record["speedup"] = one_s / two_s
    if "processes_s" in found:
        record["processes"] = one_s / found["processes_s"]
    if case.kind == "bracket":
        record["core_ns"] = 2e9 * two_s / (case.batch * prod(case.shape))
    else:
        record["gil_us"] = 1e6 * found["python_s"] / case.batch
        record["of_sixteen"] = simulated_speedup(16, one_s, found["python_s"], runs["python_s"].calls)
    if case.kind == "forward":
        record["trial_ratio"] = [one_s / found["trial_one_s"], two_s / found["trial_two_s"]]
    return record


def scaled(case, workers, rounds):
    """A record of a case with each of these numbers of workers."""
    runs = {1: Run(case, 1)} | {number: Run(case, number) for number in workers if number > 1}
    for run in runs.values():
        settle(run)
    python = Python(runs[1])
    seconds = medians(turns(runs | {"python": python}, rounds, warm=0))
    python_s = seconds.pop("python")
    return {
        "case": str(case),
        "seconds": seconds,
        "gil_us": 1e6 * python_s / case.batch,
        "speedups": {number: seconds[1] / value for number, value in seconds.items()},
        "simulated": {number: simulated_speedup(number, seconds[1], python_s, python.calls) for number in seconds},
    }


def here(given):
    """The records of the cases."""
    for case in CASES:
        if any(word in str(case) for word in given.cases):
            yield scaled(case, given.workers, given.rounds) if given.workers else measured(case, given.rounds)


def line(record):
    """A record as a line of text."""
    if "speedups" in record:
        faster = ", ".join(
            f"{number}: {speedup:.2f} ({record['simulated'][number]:.2f})"
            for number, speedup in record["speedups"].items()
        )
        return (
            f"{record['case']:32} one {1e3 * record['seconds'][1]:8.2f} ms, Python {record['gil_us']:.2f} us per "
            f"entry; faster (simulated): {faster}"
        )
    words = [f"{record['case']:32} one {1e3 * record['one_s']:8.2f} ms, two {1e3 * record['two_s']:8.2f}"]
    words[0] += f": {record['speedup']:.2f}"
    if "processes" in record:
        words.append(f"processes {record['processes']:.2f}")
    if "trial_ratio" in record:
        words.append("to the bare loop {:.2f}, {:.2f}".format(*record["trial_ratio"]))
    if "gil_us" in record:
        words.append(f"Python {record['gil_us']:.2f} us per entry, sixteen workers {record['of_sixteen']:.1f}")
    return "; ".join(words)


PAGE = Page(__doc__, line=line, here=here, rounds=7)
PAGE.add("--cases", nargs="*", default=[""], metavar="WORD", help="only cases whose name contains one of these words")
PAGE.add("--workers", nargs="+", type=int, metavar="N", help="compare these numbers of workers")

if __name__ == "__main__":
    sys.exit(PAGE.run())
