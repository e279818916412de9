"""Runs a measurement on its ranks, in processes of their own or in those that mpiexec started.

A spec has values that JSON can hold: the name of a ``"task"`` of `TASKS`, what is ``"given"`` to it by name,
``"ranks"`` and a ``"deadline_s"``. Rank 0 answers with events.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mpi4py import MPI

from ...errors import InputError
from ...fft import FFT2, FFT3
from ...fft.engine.fftw import fftw_described, fftw_version
from ...fft.engine.library import newer_on_system
from ...ranks.exclusive import thread_level
from ...ranks.losses import tolerates
from ...ranks.watchdog import limited_to
from ...runtime import Runtime
from .. import launch
from .jobs import JOBS, Case
from .machine_measurement import measure_machine
from .measure import measure
from .record import Record, case_record
from .solvers import measure as measure_solver

Spec = dict[str, Any]
Emit = Callable[[dict[str, Any]], object]

SHOWN = 8  # number of settings that are reported, the fastest ones
_NAP_S = 1e-3  # sleep of an idle rank between two polls


def run(spec: dict[str, Any], emit: Callable[[dict[str, Any]], None]) -> None:
    """Do what a spec says, on the first ``ranks`` of COMM_WORLD, or on all. Collective.

    At the deadline every rank prints the stacks of its threads, and the job ends.

    Parameters
    ----------
    spec : dict
    emit : callable
        Called on rank 0 with each event: ``{"progress": [what, done, total]}``,
        ``{"environment": {...}}``, ``{"record": {...}}``, ``{"tuned": {...}}``,
        ``{"machine": TOML}``.

    Raises
    ------
    InputError
        There are fewer ranks than the spec asks for.
    """
    ranks = spec.get("ranks") or MPI.COMM_WORLD.size
    if ranks > MPI.COMM_WORLD.size:
        raise InputError(
            f"expected {ranks} ranks, received {MPI.COMM_WORLD.size}: too few were "
            "started, or mpiexec does not belong to the MPI library that mpi4py "
            "loads: " + MPI.Get_library_version().splitlines()[0]
        )
    deadline_s = spec.get("deadline_s") or launch.DEADLINE_S
    with limited_to(deadline_s, f"the task {spec['task']!r}"), first_ranks(MPI.COMM_WORLD, ranks) as comm:
        if comm is not None:
            TASKS[spec["task"]](comm, emit if comm.rank == 0 else lambda event: None, **spec["given"])


@contextmanager
def first_ranks(comm: MPI.Intracomm, ranks: int) -> Iterator[Any]:
    """Make a communicator of the first ranks. The other ranks get None, and sleep until the measurement has ended.

    An `InputError` of all first ranks is raised on the others too. Any other failure of a rank must end the job.
    """
    if ranks == comm.size:
        yield comm
        return
    first = comm.rank < ranks
    part = comm.Split(0 if first else MPI.UNDEFINED, comm.rank)
    problem = None
    try:
        yield part if first else None
    except InputError as error:
        problem = str(error)
    done = comm.Ibarrier()
    while not done.Test():
        time.sleep(_NAP_S)
    if first:
        part.Free()
    problem = comm.bcast(problem)
    if problem is not None:
        raise InputError(problem)


def record_of(comm: MPI.Intracomm, case: Case, progress: Callable[[str, int, int], object] | None = None) -> Record:
    """Measure a case and make its record. Collective; the record is complete on rank 0 only."""
    return case_record(case, measure(comm, case, progress) | {"binding": environment(comm)["ranks"]})


def environment(comm: MPI.Intracomm) -> dict[str, Any]:
    """Report the MPI library and the places of the ranks. Collective; the result is complete on rank 0 only."""
    places = comm.gather((MPI.Get_processor_name(), sorted(os.sched_getaffinity(0))))
    return {
        "library": " ".join(MPI.Get_library_version().split("\n")[0].strip("\0").split()),
        "standard": ".".join(map(str, MPI.Get_version())),
        "thread_level": thread_level(),
        "lost_ranks": {
            True: "the others go on, with Runtime(comm, on_loss='raise')",
            False: "end the job; the others go on under mpiexec --with-ft ulfm, with Runtime(comm, on_loss='raise')",
            None: "end the job: this MPI library does not let the others go on, Open MPI 5 does",
        }[tolerates()],
        "fftw": fftw_version(),
        "fftw_library": fftw_described(),
        "ranks": [{"host": host, "cores": cores} for host, cores in places or ()],
    }


# --- the tasks: of a communicator, what takes rank 0's events, and what is given ---------------------


def _environment(comm: MPI.Intracomm, emit: Emit) -> None:
    emit({"environment": environment(comm) | {"newer_fftw": newer_on_system(fftw_version())}})


def _machine(comm: MPI.Intracomm, emit: Emit, name: str, burst_nbytes: int) -> None:
    emit({"machine": measure_machine(comm, name, burst_nbytes).text()})


def _case(comm: MPI.Intracomm, emit: Emit, **case: Any) -> None:
    emit({"environment": environment(comm)})
    emit({"record": record_of(comm, Case(**case), lambda *step: emit({"progress": step}))})


def _solver(comm: MPI.Intracomm, emit: Emit, **given: Any) -> None:
    emit({"environment": environment(comm)})
    emit({"record": measure_solver(comm, **given)})


def _tune(comm: MPI.Intracomm, emit: Emit, budget_s: float, path: str, balance: bool, **given: Any) -> None:
    """Tune the plan of a case, which is balanced first if `balance`.

    ``tuned`` of the event has for each transform its ``default``, ``chosen``, ``gain``, ``tried``, ``spread`` (the
    greater of default's and chosen's; see `Trial`) and ``trials``, a list of (settings, seconds per slice, the
    model's), fastest first.
    """
    case = Case(**given)
    make: Any = FFT3 if case.workload == "fft3" else FFT2
    with (
        Runtime(comm, workers=case.workers) as runtime,
        make(runtime, case.global_shape, case.dtype, tuning=path, exchange=case.exchange) as plan,
    ):
        transform = JOBS[case.workload](case, plan).transform(plan)
        balanced = plan.balance() if balance else None
        plan.tune(budget_s, lambda *step: emit({"progress": step}))
        transforms: dict[Any, Any] = {each.name: each for each in (plan.forward, plan.backward, transform)}
        emit({"tuned": {name: _tuned(each) for name, each in transforms.items()}})
    if balanced is not None:
        emit({"balanced": str(balanced)})


def _tuned(transform: Any) -> dict[str, Any]:
    tuned, chosen, trials = transform.tuned, str(transform.settings), transform.trials
    spreads = [trial.spread or 0.0 for trial in trials if str(trial.settings) in (tuned.default, chosen)]
    return {
        "default": tuned.default,
        "chosen": chosen,
        "gain": tuned.gain,
        "tried": tuned.tried,
        "spread": max(spreads, default=None),
        "trials": [(str(trial.settings), trial.seconds_per_slice, trial.model_s) for trial in trials[:SHOWN]],
    }


TASKS: dict[str, Callable[..., None]] = {
    "environment": _environment,
    "machine": _machine,
    "case": _case,
    "tune": _tune,
    "solver": _solver,
}
