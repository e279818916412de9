"""`overlap advise`: runs an mpi4py program as it is, and says where it waits and what hiding could gain.

Lowest first:

    records     what is recorded of each call, as rows of numbers
    contents    how many bytes a call's buffers have
    operations  the operations of MPI: for whom they wait, and where their arguments say so
    replacing   classes that stand in place of mpi4py's
    recorder    recording calls: what time they take, and where the program makes them
    calls       communicators and requests of mpi4py that record their calls
    ending      which ranks have come to the program's end, and their records on rank 0
    program     running the program, with the recording communicators in place of mpi4py's own
    matching    the calls of all ranks beside each other: who waited for whom
    estimate    what hiding could gain: the formulas and the simulation
    report      the report, as text and as JSON; the timeline
    commands    arguments of the command
"""
