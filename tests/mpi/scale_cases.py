"""Rank programs of test_scale.py."""

import pytest

from overlap import InputError
from overlap.tools.bench.rank import first_ranks


def first_ranks_of(comm, ranks):
    with first_ranks(comm, ranks) as part:
        assert (part is not None) == (comm.rank < ranks)
        return 0 if part is None else part.allreduce(1 + comm.rank)


def idle_ranks_wait_and_share_errors(comm):
    assert first_ranks_of(comm, 2) == (3 if comm.rank < 2 else 0)
    assert first_ranks_of(comm, comm.size) == 6
    with pytest.raises(InputError, match="too small"), first_ranks(comm, 1) as part:
        if part is not None:
            raise InputError("too small")
    assert first_ranks_of(comm, 1) == (1 if comm.rank == 0 else 0)  # all are in step again
