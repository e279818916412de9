"""Interleaved rounds of one case on the ranks of a communicator.

Everything that a record compares takes its turn in every round (`rounds.turns`). A time is from a barrier to the end of
the slowest rank. Before anything is timed, results are compared with the expected ones, and bit
for bit with the result without overlap.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
from mpi4py import MPI

from ...errors import OverlapError
from ...runtime import Runtime
from ...runtime.trace import Span
from ..timeline import write_chrome
from . import peer as peer_module
from .jobs import JOBS, Case, error_limit, max_rel_error
from .rounds import turns

Column = tuple[
    Callable[[], object] | None, Callable[[], object]
]  # a function that prepares a run, or None, and the run

TRACED_SLICES = 32  # enough to see how a pipeline fills and drains


class WrongResult(OverlapError, RuntimeError):
    """Raised if a result is wrong, before it is timed."""


def measure(
    comm: MPI.Intracomm, case: Case, progress: Callable[[str, int, int], object] | None = None
) -> dict[str, Any]:
    """Measure one case. Collective.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
    case : Case
    progress : callable, optional
        ``progress(what, done, total)``, called on rank 0.

    Returns
    -------
    dict
        The input of `record.case_record`: ``seconds`` (lists by column), ``choice``,
        ``ranks``, ``hosts``, ``max_rel_error`` and so on; the same on all ranks.

    Raises
    ------
    WrongResult
        A result is wrong, or differs from that without overlap; raised on all ranks.
    """
    steps = _Progress(comm, progress, total=case.rounds + 4)
    hosts = len(set(comm.allgather(MPI.Get_processor_name())))
    with ExitStack() as stack:
        runtime = stack.enter_context(Runtime(comm, workers=case.workers))

        def plan(wait: str, **settings: Any) -> Any:
            return stack.enter_context(kind.plan(runtime, case, wait=wait, **settings))

        forced = {name: getattr(case, name) for name in ("depth", "chunk", "in_flight")}
        steps.next("planning")
        kind = JOBS[case.workload]
        plans = {
            mode: plan("off", chunk=case.chunk)
            if mode == "off"
            else plan(case.wait if mode == "auto" else mode, **forced)
            for mode in case.modes
        }
        if hosts > 1:
            plans["control"] = plan("off", chunk=kind.control_chunk)
        job = kind(case, plans["off"])
        runs = {name: job.transform(plan) for name, plan in plans.items()}

        steps.next("checking results")
        result, out = plans["off"].spectrum.empty(), plans["off"].spectrum.empty()
        error = _check(comm, case, job, plans["off"], runs, result, out)

        best = runs[case.modes[-1]]
        steps.next("choosing settings")
        best.settle(*job.inputs, out=out, budget_s=case.choosing_s)
        columns = {mode: _call(runs[mode], job.inputs, out) for mode in case.modes}
        columns["C"] = _call(best.compute, job.inputs, out)
        columns["T"] = _call(best.communicate, job.inputs, out)
        same = _control(columns, runs, case, job, out) if hosts > 1 else {}
        peers = _peers(comm, case, job, columns, stack) if case.peer else {}
        seconds, core_s = _rounds(comm, columns, case.modes[-1], case.rounds, case.calls, steps)
        seconds |= {name: seconds[twin] for name, twin in same.items()}

        steps.next("bare FFTs" + (", timeline" if case.trace else ""))
        bare_fft_s = None if case.kinds else comm.allreduce(kind.bare_fft_s(case, plans["off"]), MPI.MAX)
        if case.trace:
            _trace(comm, case, job, best.settings, out)
        steps.end()
        return {
            "took_s": steps.took_s,
            "seconds": seconds,
            "core_s": core_s,
            "ranks": comm.size,
            "hosts": hosts,
            "max_rel_error": error,
            "grid": list(plans["off"].grid) if kind is JOBS["fft3"] else None,
            "auto_choice": {name: getattr(best.settings, name) for name in ("wait", "depth", "chunk", "in_flight")},
            "nbytes_in_flight": comm.allreduce(best.nbytes_in_flight, MPI.MAX),
            "waiting": comm.allgather(best.load.waiting),
            "bare_fft_s": bare_fft_s,
            **peers,
        }


class _Progress:
    """Counts steps and reports them on rank 0.

    Attributes
    ----------
    took_s : dict
        Seconds of every kind of step.
    """

    def __init__(self, comm: MPI.Intracomm, report: Callable[[str, int, int], object] | None, total: int) -> None:
        self._report = report if comm.rank == 0 else None
        self._done, self._total = -1, total
        self._kind: str | None = None
        self._since_s = perf_counter()
        self.took_s: dict[str, float] = {}

    def next(self, what: str, kind: str | None = None) -> None:
        """Begin a step; steps of the same kind are summed up."""
        self.end()
        self._kind = kind or what
        self._done += 1
        if self._report is not None:
            self._report(what, self._done, self._total)

    def end(self) -> None:
        """End the last step."""
        now_s = perf_counter()
        if self._kind is not None:
            self.took_s[self._kind] = self.took_s.get(self._kind, 0.0) + now_s - self._since_s
        self._since_s = now_s


def _call(run: Callable[..., Any], inputs: Sequence[np.ndarray], out: np.ndarray) -> Column:
    return None, lambda: run(*inputs, out=out)


def _control(
    columns: dict[str, Column], runs: Mapping[str, Any], case: Case, job: Any, out: np.ndarray
) -> dict[str, str]:
    """Add the columns of the control: one thread, slice by slice, no overlap.

    Returns
    -------
    dict
        For each column that need not be timed, the name of a column that does the same.
    """
    off, best, control = runs["off"].settings, runs[case.modes[-1]].settings, runs["control"]
    alike = {  # column: (its function, a column that may do the same, whether it does)
        "control": (control, "off", off.chunk == 1),
        "control_C": (control.compute, "C", best.chunk == 1 and case.workers == 1),
        "control_T": (control.communicate, "T", best.chunk == 1),
    }
    for name, (run, _, same) in alike.items():
        if not same:
            columns[name] = _call(run, job.inputs, out)
    return {name: twin for name, (_, twin, same) in alike.items() if same}


def _check(
    comm: MPI.Intracomm, case: Case, job: Any, plan: Any, runs: Mapping[str, Any], result: np.ndarray, out: np.ndarray
) -> float:
    """Run everything once; return the error of the result without overlap."""
    runs["off"](*job.inputs, out=result)
    error = max_rel_error(comm, job, case, plan.spectrum.local_slice, result)
    if not error <= error_limit(case):
        raise WrongResult(
            f"{case.workload}: expected a relative error of at most {error_limit(case):.1e}, received {error:.1e}"
        )
    seen = {runs["off"].settings}
    for name, run in runs.items():
        if run.settings in seen:
            continue
        seen.add(run.settings)
        out[...] = 0
        run(*job.inputs, out=out)
        same = all(np.array_equal(result[z], out[z]) for z in range(case.slices))
        if not comm.allreduce(same, MPI.LAND):
            raise WrongResult(
                f"{case.workload}: expected the bits of the result without overlap, "
                f"received others with {name} ({run.settings})"
            )
    return error


def _rounds(
    comm: MPI.Intracomm, columns: Mapping[str, Column], best: str, rounds: int, calls: int, steps: _Progress
) -> tuple[dict[str, list[float]], float]:
    """Time all columns in every round; `best` is the column that exchanges as the plan has chosen.

    Returns
    -------
    dict of list of float
        Seconds of the slowest rank per call, by column, one per round.
    float
        Core time per call of exchanging in the best column, without that of computing, on the rank where it is largest.
        It is not measured in exchanges alone, because ranks without other work spin there.
    """
    sharing = ranks_sharing_cores(comm)
    cores_s = dict.fromkeys((best, "C"), 0.0)
    for prepare, run in columns.values():  # columns that `_check` has not run yet
        if prepare is not None:
            prepare()
            run()

    def turn(name: str) -> float:
        prepare, run = columns[name]
        if prepare is not None:
            prepare()
        comm.Barrier()
        used_s, started_s = core_time_s(sharing), perf_counter()
        for _ in range(calls):
            run()
        took_s, used_s = perf_counter() - started_s, core_time_s(sharing) - used_s
        if name in cores_s:
            cores_s[name] += used_s
        return comm.allreduce(took_s, MPI.MAX) / calls

    seconds = turns(
        {name: partial(turn, name) for name in columns},
        rounds,
        warm=0,
        begin=lambda number: steps.next(f"round {number + 1} of {rounds}", "rounds"),
    )
    return seconds, comm.allreduce(max(0.0, cores_s[best] - cores_s["C"]), MPI.MAX) / (rounds * calls)


def ranks_sharing_cores(comm: MPI.Intracomm) -> int:
    """Count the ranks of this machine that may run on the cores of this one, itself included (collective)."""
    boot = ""
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read()  # not the host's name: simulated hosts on shaped links have different names
    own = boot, sorted(os.sched_getaffinity(0))
    return comm.allgather(own).count(own)


def core_time_s(sharing: int) -> float:
    """Return the core time that this rank has taken so far, including its share of the interrupts.

    The kernel moves TCP's data in interrupts, whose time belongs to no process. If the kernel does not report this
    time, it counts as 0. The kernel counts in ticks, mostly of 10 ms, so only sums over many calls are meaningful.

    Parameters
    ----------
    sharing : int
        Number of ranks that share this rank's cores, and the interrupts on them.
    """
    own = resource.getrusage(resource.RUSAGE_SELF)
    cores = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    ticks = 0
    with suppress(OSError), open("/proc/stat", encoding="ascii") as file:
        for line in file:
            name, *counts = line.split()
            if name in cores and len(counts) > 6:
                ticks += int(counts[5]) + int(counts[6])  # irq, softirq
    return own.ru_utime + own.ru_stime + ticks / os.sysconf("SC_CLK_TCK") / sharing


def _peers(
    comm: MPI.Intracomm, case: Case, job: Any, columns: dict[str, Column], stack: ExitStack
) -> dict[str, str | None]:
    """Add the columns of mpi4py-fft with its fastest and its default setting; return which is fastest, or why there are
    none."""
    reasons = [reason for reason in comm.allgather(peer_module.available()) if reason]
    if reasons:
        return {"peer_mpi4py_fft_setting": None, "peer_skipped": reasons[0]}
    settings = tuple(peer_module.SETTINGS[case.workload])
    best = default = peer_module.prepare(comm, case, job, settings)
    stack.callback(best.close)
    if best.setting != settings[0]:
        default = peer_module.prepare(comm, case, job, settings[:1])
        stack.callback(default.close)
    for name, prepared in (("peer_mpi4py_fft", best), ("peer_mpi4py_fft_default", default)):
        columns[name] = prepared.refill, prepared.forward
    return {"peer_mpi4py_fft_setting": best.setting, "peer_skipped": None}


def _trace(comm: MPI.Intracomm, case: Case, job: Any, settings: Any, out: Any) -> None:
    """Write the spans of two runs to a file: one without overlap, then one with `settings`."""
    count = min(case.slices, TRACED_SLICES)
    inputs, out = [array[:count] for array in job.inputs], out[:count]
    with Runtime(comm, workers=case.workers, trace=True) as runtime, ExitStack() as stack:
        runs = [
            job.transform(
                stack.enter_context(
                    job.plan(
                        runtime,
                        replace(case, slices=count),
                        wait=wait,
                        depth=settings.depth,
                        chunk=settings.chunk,
                        in_flight=settings.in_flight,
                    )
                )
            )
            for wait in dict.fromkeys(("off", settings.wait))
        ]
        for run in runs:
            run(*inputs, out=out)
        trace = runtime.trace
        assert trace is not None
        trace.clear()
        for run in runs:
            comm.Barrier()
            run(*inputs, out=out)
        spans = trace.gather(comm)
    if spans is not None and case.trace is not None:
        write_chrome(map(_named, spans), os.fspath(case.trace))


def _named(span: Span) -> Span:
    """Return a span with a readable name of its thread, without the rank, which is stated elsewhere."""
    name = span.thread.removeprefix(f"rank {span.rank} ")
    return replace(span, thread="main thread, no overlap" if name == "MainThread" else name)
