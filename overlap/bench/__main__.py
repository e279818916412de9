"""One rank of a benchmark: `python -m overlap.bench SPEC`, under mpiexec.

SPEC is JSON, ``{"task": "case", ...fields of a Case}``, ``{"task": "tune", ...the same, "budget_s":
..., "path": ...}`` or ``{"task": "environment"}``. Rank 0
prints events, one per line, for whoever started the ranks; `run` is the same without a process.
"""

import json
import sys
import traceback

from ..errors import InputError

MARK = "@overlap "       # begins a line that holds an event


def run(spec, emit):
    """Do what a spec says, on all ranks of COMM_WORLD. Collective.

    Parameters
    ----------
    spec : dict
        With ``ranks``, so many are expected.
    emit : callable
        Called on rank 0 with each event: ``{"progress": [what, done, total]}``,
        ``{"environment": {...}}``, ``{"record": {...}}``, ``{"tuned": {...}}``.

    Raises
    ------
    InputError
        There is another number of ranks.
    """
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    if comm.size != spec.get("ranks", comm.size):
        raise InputError(f"expected {spec['ranks']} ranks, received {comm.size}: mpiexec and the "
                         "library that mpi4py loads belong to two MPIs: "
                         + MPI.Get_library_version().splitlines()[0])
    facts = environment(comm)
    if comm.rank == 0:
        emit({"environment": facts})
    if spec["task"] == "environment":
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
        emit({"record": case_record(case, measured)})


def environment(comm):
    """The MPI library, and where the ranks are. Collective; complete on rank 0."""
    import os

    from mpi4py import MPI

    from ..fft.local import fftw_version

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
