"""Ranks that differ in one thing: a call, an operation, an argument, a tuning file, the environment."""

import os
import tempfile
from functools import partial

import jobs
import numpy as np
from everywhere import raised, raises_everywhere, same_everywhere
from mpi4py import MPI
from test_fft_errors import OTHER, OTHER_SHAPES, grouped

import overlap
from overlap.arrays import Distribution
from overlap.fft.planning import tuning_file

from .draw import Drawn
from .harness import Part

AWAITED = ("call", "op", "root", "tag", "dtype", "count", "slices")
KINDS = (*AWAITED, "arguments", "tuning", "environment", "plan", "array")
OWN = {"tag"}  # of a message between two ranks: MPI alone knows that nobody matches it


def run(seed):
    """One identical error on all ranks, or the deadline with the stacks of those that wait."""
    drawn = Drawn(seed)
    kind, ranks, mpi = KINDS[seed % len(KINDS)], drawn.ranks(2), drawn.library()
    if kind == "arguments":
        jobs.run_job("campaign.mismatches:arguments", ranks, mpi=mpi, args={"number": seed // len(KINDS)})
    elif kind in ("plan", "array"):
        args = {"kind": kind, "seed": seed // len(KINDS)}
        jobs.run_job("campaign.mismatches:objects", ranks, mpi=mpi, args=args)
    elif kind not in AWAITED:
        with tempfile.TemporaryDirectory() as folder:
            jobs.run_job(
                "campaign.mismatches:tuning",
                ranks,
                mpi=mpi,
                args={"folder": folder, "by_environment": kind == "environment"},
            )
    else:
        args = {"name": kind, "wait": drawn.mode(), "depth": drawn.pick([1, 3, 8]), "first": bool(drawn.integers(2))}
        if kind in OWN:
            result = jobs.run_job("campaign.mismatches:program", ranks, mpi=mpi, args=args, expect_failure=True)
            assert "has not completed in" in result.err and "Thread 0x" in result.err, result
        else:
            jobs.run_job("campaign.mismatches:program", ranks, mpi=mpi, args=args, fresh=True)


def defect():
    """A rank that words its error otherwise is found."""
    jobs.run_job(
        "campaign.mismatches:program",
        2,
        fresh=True,
        args={"name": "count", "wait": "poll", "depth": 3, "first": True, "mute": True},
    )


OTHERS = [{name: value} for name, values in (OTHER | {"shape": OTHER_SHAPES["FFT2"]}).items() for value in values]
SLICES = 9
DEADLINE_S = 4.0
ALIKE = {"call": "Allreduce", "op": MPI.SUM, "root": 0, "tag": 3, "dtype": "f8", "count": 6, "slices": SLICES}


def _program(rt, given, peers):
    """A slice program of the operations in which ranks can differ."""
    dest, source = peers

    async def run(z):
        data = np.ones(given["count"], given["dtype"])
        if given["call"] == "Barrier":
            await rt.comm.Barrier()
        else:
            await rt.comm.Allreduce(MPI.IN_PLACE, data, op=given["op"])
        await rt.comm.Bcast(data, root=given["root"])
        await rt.comm.Sendrecv(data, dest, given["tag"], np.empty_like(data), source, given["tag"])

    return run


OTHER_VALUES = {"call": "Barrier", "op": MPI.MAX, "root": 1, "tag": 4, "dtype": "f4", "count": 5, "slices": SLICES + 1}


def program(comm, name, wait, depth, first, mute=False):
    """Ranks that differ in one argument of an operation, from the first call or after one that was alike."""
    last = comm.rank == comm.size - 1
    given = ALIKE | ({name: OTHER_VALUES[name]} if last else {})
    peers = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    with overlap.Runtime(comm, wait=wait, depth=depth, deadline_s=DEADLINE_S, entry_deadline_s=DEADLINE_S) as rt:
        usual = rt.pipelined(_program(rt, ALIKE, peers))
        if not first:
            usual(range(SLICES))
        found = raised(
            (overlap.InputError, overlap.SliceError), rt.pipelined(_program(rt, given, peers)), range(given["slices"])
        )
        same_everywhere(comm, str(found) + f", rank {comm.rank}" * mute)
        usual(range(SLICES))


def arguments(comm, number):
    """Ranks that differ in an argument of a plan."""
    change = OTHERS[number % len(OTHERS)]
    good = {"shape": (2, 4, 4), "dtype": "c16", "wait": "off", "effort": "measure"}
    raises_everywhere(
        comm,
        overlap.InputError,
        "",
        overlap.FFT2,
        comm,
        **grouped(good | (change if comm.rank == comm.size - 1 else {})),
    )


def tuning(comm, folder, by_environment):
    """Ranks that name other tuning files, as an argument or in the environment."""
    path = f"{folder}/{comm.rank}.json"
    with open(path, "w") as file:
        file.write(tuning_file.text_of([]))
    if by_environment:
        os.environ["OVERLAP_TUNING"] = path
    raises_everywhere(
        comm, overlap.InputError, "", overlap.FFT2, comm, (2, 4, 4), **{} if by_environment else {"tuning": path}
    )


def _calls_of_plans(rt):
    """Calls of a runtime's plans, of which many look alike."""
    for _ in range(2):
        for plan in (
            overlap.FFT2(rt, (3, 6, 5)),
            overlap.FFT2(rt, (3, 6, 5), "f8"),
            overlap.FFT2(rt, (3, 6, 5), exchange="f4"),
            overlap.FFT3(rt, (6, 5, 4)),
            overlap.FFTN(rt, (4, 6, 5), kinds=("dct2", "c2c", "dst1")),
        ):
            yield partial(plan.forward, plan.real.wrap(np.ones(plan.real.shape, plan.real.dtype)))
            yield partial(plan.backward, plan.spectrum.wrap(np.ones(plan.spectrum.shape, plan.spectrum.dtype)))
            yield partial(plan.forward.compute, plan.real.wrap(np.ones(plan.real.shape, plan.real.dtype)))
        move = overlap.Transpose(rt, (3, 6, 5), 1, 2)
        yield partial(move.forward, move.source.wrap(np.ones(move.source.shape, complex)))
        yield partial(move.backward, move.target.wrap(np.ones(move.target.shape, complex)))
        bracket = overlap.Bracket(rt, (1, 2, 3, 5))
        modes = np.ones(bracket.spectrum.shape, complex)
        bracket.advect(modes[0])
        yield partial(bracket, modes)
        yield partial(bracket.advect, modes[0])


def _calls_of_arrays(comm):
    """Collective calls of arrays of one shape, split along two different axes."""
    for axis in (0, 1):
        where = Distribution((6, 8), (axis,), ()).split_along((axis,), (comm.size,), comm.rank)
        u = overlap.DistArray(np.ones(where.shape), comm, (6, 8), (axis,), where.local_slice)
        yield from (u.global_sum, u.global_mean, u.global_max, u.global_min, u.global_norm, partial(u.global_vdot, u))
        yield from (u.gather, partial(u.redistribute, 0), partial(u.redistribute, 1))


def objects(comm, kind, seed):
    """Ranks that call different plans, or do different things with arrays: one error, and every call is right after."""
    chance = np.random.default_rng(seed)
    with overlap.Runtime(comm, deadline_s=60.0, entry_deadline_s=60.0) as rt:
        calls = list(_calls_of_plans(rt) if kind == "plan" else _calls_of_arrays(comm))
        meaningless = [number for number, call in enumerate(calls) if "compute" in str(getattr(call, "func", ""))]
        truth = [None if result is None else np.array(result) for result in (call() for call in calls)]
        for _ in range(20):
            one, other = chance.choice(len(calls), 2, replace=False)
            raises_everywhere(comm, overlap.InputError, "", calls[other if comm.rank == comm.size - 1 else one])
            for number in (one, other):
                result = calls[number]()
                if number not in meaningless and result is not None:
                    np.testing.assert_allclose(result, truth[number], atol=1e-5)


PART = Part(
    "mismatches",
    f"ranks that differ in {', '.join(KINDS)}: one identical InputError or SliceError, and the "
    "runtime goes on; for another tag the deadline, with stacks",
    200,
    run,
    defect,
    ", rank 1",
)
