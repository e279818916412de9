"""`overlap advise`: runs an mpi4py program as it is, and says where it waits and what hiding could gain.

Lowest first:

    records     what is recorded of each call, as rows of numbers
    recorder    recording calls: what time they take, and where the program makes them
    calls       communicators and requests of mpi4py that record their calls: for whom a call waits, its bytes
    matching    the calls of all ranks beside each other: who waited for whom
    estimate    what hiding could gain: the formulas and the simulation
    report      the report, as text and as JSON; the timeline
    commands    arguments of the command; running the program, with the recording communicators in place of mpi4py's
                own, to its end on all ranks
"""

WORDS = "run an mpi4py program as it is; report where it waits in MPI, and what hiding could gain"
EXAMPLES = (
    "mpiexec -n 4 overlap advise program.py ARGS",
    "mpiexec -n 4 overlap advise --slices 16 --json advice.json -m package.module ARGS",
)
