"""Failures without end, on every rank: what each of them may cost, and how it ends where MPI has no more."""

import numpy as np
from communicators import few_left
from error_cases import raised, same_message

import overlap
from overlap.errors import CommunicatorsExhausted


def more_failures_than_communicators(comm):
    """A call that no rank can start needs no communicator; one that some can ends in time, named."""
    with overlap.Runtime(comm, workers=1, depth=2, wait="off", deadline_s=10) as rt:

        async def program(z, data, received):
            await rt.comm.Allreduce(data, received)

        pipeline = rt.pipelined(program)
        with few_left(comm, 8):
            for _ in range(30):
                raised(overlap.SliceError, pipeline, range(3), "no buffer", np.zeros(2))
        pipeline(range(3), np.zeros(2), np.zeros(2))
        locked = np.zeros(2)
        locked.flags.writeable = comm.rank > 0
        for number in range(2200):  # MPI takes it on some ranks only  # noqa: B007 (used below)
            error = raised(overlap.OverlapError, pipeline, range(3), np.zeros(2), locked)
            if not isinstance(error, overlap.SliceError):
                break
        same_message(comm, error)
        if comm.size > 1:
            assert isinstance(error, CommunicatorsExhausted) and number >= 400, (number, error)
            again = raised(CommunicatorsExhausted, pipeline, range(3), np.zeros(2), np.zeros(2))
            assert "can only be closed" in str(again)
        else:
            pipeline(range(3), np.zeros(2), np.zeros(2))
