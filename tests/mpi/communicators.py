"""Communicators are scarce: what leaks them is found by holding most of them."""

from contextlib import contextmanager

from mpi4py import MPI

MOST = 5000  # more than MPICH has, which is about two thousand


@contextmanager
def few_left(comm, count):
    """Hold all communicators that MPI can make but `count`; with None, hold none.

    Those held are of single ranks: they are made without messages, and use up the same identifiers.
    """
    held = []
    try:
        if count is not None:
            try:
                while len(held) < MOST:
                    held.append(MPI.COMM_SELF.Dup())
            except MPI.Exception:
                pass
            assert count < len(held) < MOST, f"{len(held)} communicators could be made"
            for _ in range(count):
                held.pop().Free()
            comm.Barrier()  # nobody asks for one while others hold them all
        yield
    finally:
        for one in held:
            one.Free()
