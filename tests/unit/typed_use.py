"""A program that uses the public names as a user would: `test_typing` has mypy check it. It is never run."""

from typing import assert_type

import numpy as np
from mpi4py import MPI

import overlap
from overlap.fft import ArraySpec, Transform
from overlap.runtime import Pipeline


def a_slice_program(comm: MPI.Intracomm) -> None:
    send, receive = np.zeros((2, 8, 4))
    with overlap.Runtime(comm, workers=2, wait="poll", deadline_s=10.0) as rt:

        @rt.pipelined
        async def plain(z: int, scale: float) -> None:
            await rt.comm.Alltoall(send[z], receive[z])
            await overlap.barrier()
            await overlap.parallel(print, range(overlap.worker_index()))

        @rt.pipelined(depth=4, buffers=lambda: np.empty(4))
        async def ordered(z: int, buffer: np.ndarray) -> None:
            await overlap.stagger(z, 4)
            await overlap.take_turn()
            await overlap.wait_for_slices(z)

        assert_type(plain, Pipeline)
        plain(range(8), 2.0)
        ordered(range(8))


def plans(comm: MPI.Intracomm) -> None:
    settings = overlap.Settings(wait="off", depth=4)
    with overlap.FFT2(comm, (8, 64, 64), dtype="f8", settings=settings) as plan:
        assert_type(plan.real, ArraySpec)
        u = plan.real.empty()
        assert_type(u, overlap.DistArray)
        u[...] = 1.0
        assert_type(plan.forward, Transform)
        spectrum: overlap.DistArray = plan.forward(u)
        whole: np.ndarray | None = spectrum.gather()
        assert whole is not None
        print(plan.describe(), spectrum.global_shape, spectrum.local_slice)
    with overlap.FFT3(comm, (64, 64, 64)) as cube:
        print(cube.backward(cube.forward(cube.real.empty())).shape)
    with overlap.Runtime(comm) as rt, overlap.Bracket(rt, (8, 2, 11, 41)) as bracket:
        print(bracket.spectrum.shape)


def errors(comm: MPI.Intracomm) -> str:
    try:
        plans(comm)
    except overlap.SliceError as error:
        return f"slice {error.slice} on rank {error.rank}: {error.traceback_text}"
    except overlap.RankError as error:
        return f"rank {error.rank}"
    except (overlap.InputError, overlap.ClosedError) as error:
        return str(error)
    except overlap.OverlapError as error:
        raise SystemExit(2) from error
    return ""
