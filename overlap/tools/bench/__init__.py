"""Measurements: what the commands `overlap bench`, `overlap tune` and `overlap demo` run.

On every rank, lowest first:

    rounds     rounds in which all that is compared takes its turn
    jobs       the jobs that are measured: their plan, their data, the truth about their result; cases of them
    peer       mpi4py-fft on the same job
    measure    interleaved rounds of one case, on the ranks of a communicator
    machine    a machine in a few numbers, for the simulation
    solvers    halos and sparse solvers, beside loops by hand and PETSc
    record     from measured times to a record
    rank       what a rank does when it is told to measure; `python -m overlap.tools.bench SPEC`

In the process of the command:

    report     records and on what they were measured, as a file
    table      records in words and as tables
    session    starts ranks and collects their records
    demo       `overlap demo`
    reference  the C program of a checkout on the same job
    commands   arguments, and what they call
    pages      benchmarks that are programs of their own: those of the repository's folder `bench`
"""
