"""The command line, shaped links, launched MPI jobs, measurements and their reports."""
