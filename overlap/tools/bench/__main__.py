"""One rank of a benchmark: `python -m overlap.tools.bench SPEC`, under mpiexec.

SPEC is JSON, ``{"task": "case", ...fields of a Case}``, ``{"task": "tune", ...the same, "budget_s":
..., "path": ...}``, ``{"task": "environment"}``, or ``{"task": "machine", "name": ...,
"burst_nbytes": ...}``. Rank 0
prints events, one per line, for whoever started the ranks; `run` is the same without a process.
"""

import json
import sys
import time
import traceback
from contextlib import contextmanager

from ...errors import InputError

MARK = "@overlap "       # begins a line that holds an event
_NAP_S = 1e-3            # between two looks of a rank that has nothing to do


def run(spec, emit):
    """Do what a spec says, on the first ``ranks`` of COMM_WORLD, or on all. Collective.

    Parameters
    ----------
    spec : dict
    emit : callable
        Called on rank 0 with each event: ``{"progress": [what, done, total]}``,
        ``{"environment": {...}}``, ``{"record": {...}}``, ``{"tuned": {...}}``,
        ``{"machine": {...}}``.

    Raises
    ------
    InputError
        There are too few ranks.
    """
    from mpi4py import MPI

    ranks = spec.get("ranks") or MPI.COMM_WORLD.size
    if ranks > MPI.COMM_WORLD.size:
        raise InputError(f"expected {ranks} ranks, received {MPI.COMM_WORLD.size}: too few were "
                         "started, or mpiexec and the library that mpi4py loads belong to two "
                         "MPIs: " + MPI.Get_library_version().splitlines()[0])
    with first_ranks(MPI.COMM_WORLD, ranks) as comm:
        if comm is not None:
            _run(spec, comm, emit)


@contextmanager
def first_ranks(comm, ranks):
    """A communicator of the first ranks, None on the others, which sleep until all is done.

    An `InputError` of the first ranks, all of them, is raised on the others too; any other failure
    of a rank must end the job.
    """
    if ranks == comm.size:
        yield comm
        return
    from mpi4py import MPI
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


def _run(spec, comm, emit):
    facts = environment(comm)
    if comm.rank == 0:
        emit({"environment": facts})
    if spec["task"] == "environment":
        return
    if spec["task"] == "machine":
        from dataclasses import asdict

        from .machine import measure_machine
        measured = measure_machine(comm, spec["name"], spec["burst_nbytes"])
        if comm.rank == 0:
            emit({"machine": asdict(measured)})
        return
    from .cases import Case
    from .measure import measure
    from .report import case_record
    from .tuning import tune_case

    case = Case.from_dict(spec)

    def progress(*step):
        emit({"progress": step})

    if spec["task"] == "tune":
        tuned = tune_case(comm, case, spec["budget_s"], spec["path"], progress)
        if comm.rank == 0:
            emit({"tuned": tuned})
        return
    measured = measure(comm, case, progress)
    if comm.rank == 0:
        emit({"record": case_record(case, measured | {"binding": facts["ranks"]})})


def environment(comm):
    """The MPI library, and where the ranks are. Collective; complete on rank 0."""
    import os

    from mpi4py import MPI

    from ...fft.engine.fftw import fftw_version

    levels = {getattr(MPI, f"THREAD_{name}"): name.lower()
              for name in ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")}
    places = comm.gather((MPI.Get_processor_name(), sorted(os.sched_getaffinity(0))))
    return {"library": " ".join(MPI.Get_library_version().split("\n")[0].strip("\0").split()),
            "standard": ".".join(map(str, MPI.Get_version())),
            "thread_level": levels[MPI.Query_thread()], "fftw": fftw_version(),
            "ranks": [{"host": host, "cores": cores} for host, cores in places or ()]}


def main():
    def emit(event):
        print(MARK + json.dumps(event), flush=True)

    try:
        run(json.loads(sys.argv[1]), emit)
    except BaseException as error:
        # The other ranks may be waiting for this one: mpiexec ends them when one is aborted.
        from mpi4py import MPI
        if isinstance(error, InputError):
            print(f"overlap: error: {error}", file=sys.stderr)
        else:
            traceback.print_exc()
        sys.stderr.flush()
        MPI.COMM_WORLD.Abort(1)
        raise


if __name__ == "__main__":
    main()
