"""Measurements: what the commands `overlap bench` and `overlap demo` run, on every rank.

    cases      what is measured: a job, its data, the truth about its result
    measure    interleaved rounds of one case, on the ranks of a communicator
    report     from times to records, tables and files; no MPI
    peer       mpi4py-fft on the same job
    __main__   one rank: `python -m overlap.tools.bench SPEC`
"""
