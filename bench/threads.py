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

import argparse
import json
import multiprocessing
import os
import threading
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from math import prod
from statistics import median
from time import perf_counter
from unittest import mock

import numpy as np

import overlap
from overlap.compiled import njit
from overlap.fft.engine.fftw import barely_aligned, empty, zeros
from overlap.fft.engine.lines import LineTransform
from overlap.lowlevel.memory import call_function
from overlap.runtime import plan_call
from overlap.timing.simulate import Machine, Options, Program, simulate


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
    *(Case("forward", *planes) for planes in PLANES),
    *(Case("operation", *planes) for planes in PLANES),
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
        batch = max(1, case.batch // share)
        self._runtime = overlap.Runtime(MPI.COMM_SELF, workers=workers)
        rng = np.random.default_rng(1)
        if case.kind == "bracket":
            self._plan = overlap.Bracket(self._runtime, (batch, *case.shape), settings=settings)
            f, a = self._plan.spectrum.empty(), self._plan.advecting.empty()
            f[...], a[...] = rng.standard_normal(f.shape), rng.standard_normal(a.shape)
            self._plan.advect(a)
            self._call = lambda: self._plan(f)
            return
        make = overlap.FFT3 if case.kind == "fft3" else overlap.FFT2
        self._plan = make(self._runtime, (batch, *case.shape), complex, settings=settings)
        u = self._plan.real.empty()
        u[...] = rng.standard_normal(u.shape)
        if case.kind == "operation":
            act = self._plan.pointwise(product)
            out = self._plan.spectrum.empty()
            self._call = lambda: act(u, u, u, u, out=out)
        else:
            out = self._plan.spectrum.empty()
            self._call = lambda: self._plan.forward(u, out=out)

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
        if len(self._cuts) == 2:
            self._run(0)
        else:
            others = [threading.Thread(target=self._run, args=(number,)) for number in range(len(self._cuts) - 1)]
            for other in others:
                other.start()
            for other in others:
                other.join()
        return perf_counter() - started

    def _run(self, number):
        _bare(
            self._u,
            self._out,
            self._cuts[number],
            self._cuts[number + 1],
            self._calls,
            self._out.ctypes.data,
            self._out.strides[0],
        )


def settle(run):
    """Make the first calls, in which short ones find who runs them."""
    for _ in range(SETTLED):
        if run() > SHORT_S:
            break


def measured(case, rounds):
    """A record of a case."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    runs = {"one_s": Run(case, 1), "two_s": Run(case, 2)}
    if case.kind == "forward":
        runs |= {"trial_one_s": Bare(case, 1), "trial_two_s": Bare(case, 2)}
    if case.batch > 1:
        runs["processes_s"] = Halves(case, cores, rounds + 1)
    python = None
    if case.kind != "bracket":
        runs["python_s"] = python = Python(runs["one_s"])
    settle(runs["two_s"])
    times = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            value = run()
            if number:
                times[name].append(value)
    found = {name: median(values) for name, values in times.items()}
    record = {
        "case": str(case),
        "kind": case.kind,
        "batch": case.batch,
        "shape": case.shape,
        **found,
        "speedup": found["one_s"] / found["two_s"],
    }
    if "processes_s" in found:
        record["processes"] = found["one_s"] / found["processes_s"]
    if case.kind == "bracket":
        record["core_ns"] = 2e9 * found["two_s"] / (case.batch * prod(case.shape))
    if python is not None:
        record["gil_us"] = 1e6 * found["python_s"] / case.batch
        record["of_sixteen"] = simulated_speedup(16, found["one_s"], found["python_s"], python.calls)
    if case.kind == "forward":
        record["trial_ratio"] = [found["one_s"] / found["trial_one_s"], found["two_s"] / found["trial_two_s"]]
    return record


def scaled(case, workers, rounds):
    """A record of a case with each of these numbers of workers."""
    runs = {1: Run(case, 1)} | {number: Run(case, number) for number in workers if number > 1}
    python = Python(runs[1])
    for run in runs.values():
        settle(run)
    times = {number: [] for number in runs}
    inside = []
    for _ in range(rounds):
        for number, run in runs.items():
            times[number].append(run())
        inside.append(python())
    seconds = {number: median(values) for number, values in times.items()}
    python_s = median(inside)
    return {
        "case": str(case),
        "seconds": seconds,
        "gil_us": 1e6 * python_s / case.batch,
        "speedups": {number: seconds[1] / value for number, value in seconds.items()},
        "simulated": {number: simulated_speedup(number, seconds[1], python_s, python.calls) for number in seconds},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", metavar="FILE", help="write the records there")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--cases", nargs="*", default=[""], metavar="WORD", help="only cases whose name contains one of these words"
    )
    parser.add_argument("--workers", nargs="+", type=int, metavar="N", help="compare these numbers of workers")
    given = parser.parse_args()
    records = []
    for case in CASES:
        if not any(word in str(case) for word in given.cases):
            continue
        if given.workers:
            record = scaled(case, given.workers, given.rounds)
            records.append(record)
            print(
                f"{record['case']:32} one {1e3 * record['seconds'][1]:8.2f} ms, "
                f"Python {record['gil_us']:.2f} us per entry; faster (simulated): "
                + ", ".join(
                    f"{number}: {speedup:.2f} ({record['simulated'][number]:.2f})"
                    for number, speedup in record["speedups"].items()
                ),
                flush=True,
            )
            continue
        record = measured(case, given.rounds)
        records.append(record)
        print(
            f"{record['case']:32} one {1e3 * record['one_s']:8.2f} ms, two "
            f"{1e3 * record['two_s']:8.2f}: {record['speedup']:.2f}"
            + (f"; processes {record['processes']:.2f}" if "processes" in record else "")
            + (
                f"; to the bare loop {record['trial_ratio'][0]:.2f}, {record['trial_ratio'][1]:.2f}"
                if "trial_ratio" in record
                else ""
            )
            + (
                f"; Python {record['gil_us']:.2f} us per entry, sixteen workers {record['of_sixteen']:.1f}"
                if "gil_us" in record
                else ""
            ),
            flush=True,
        )
    if given.json:
        with open(given.json, "w") as file:
            json.dump({"cases": records}, file, indent=1)


if __name__ == "__main__":
    main()
