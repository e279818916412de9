"""Errors at the sites that `faults` has not: every kind of await, buffers, functions, tuning; each in time."""

import time

import numpy as np
from mpi4py import MPI
from step_cases import failing, nothing_fails
from truth import random, same_bits

import overlap
from overlap.runtime import barrier, parallel, take_turn

from .faults import KINDS, origins_of, outcome, same_error

SLICES = 6
LONGEST_S = 5.0  # from a call until it has raised, on every rank


class Fault:
    """What fails: a kind of exception, at one slice and one point of a program, or nowhere."""

    make = where = None

    def at(self, *where):
        """Fail here, if it is here, once."""
        if self.where == where:
            self.where = None
            raise self.make()


def everything(rt, fault, sums, alike):
    """A slice program that can fail before every kind of await; roots and tags depend on the slice or are `alike`."""
    rank, size = rt.comm.rank, rt.comm.size
    right, left = (rank + 1) % size, (rank - 1) % size

    async def program(z, slot=None):
        mine, one, all_of_them = np.full(2, rank + z + 1.0), np.empty(2), np.empty((size, 2))
        comm, total, point = rt.comm, 0.0, 0
        root, tag = (0, 3) if alike else (z % size, z)
        pending = await overlap.start(comm.Allreduce(mine, np.empty(2)))
        for awaited, found in (
            (lambda: comm.Barrier(), mine),
            (lambda: comm.Allreduce(mine, one), one),
            (lambda: comm.Bcast(one, root), one),
            (lambda: comm.Allgather(mine, all_of_them), all_of_them),
            (lambda: comm.Alltoall(np.repeat(mine[:1], size), all_of_them[:, 0].copy()), mine),
            (lambda: comm.Gather(mine, all_of_them if rank == root else None, root), all_of_them),
            (lambda: comm.Scatter(all_of_them if rank == root else None, one, root), one),
            (lambda: comm.Reduce(mine, one if rank == root else None, MPI.SUM, root), one),
            (lambda: comm.Sendrecv(mine, right, tag, one, left, tag), one),
            (lambda: parallel(lambda part: fault.at(z, "part", part), range(3)), one),
            (lambda: barrier(), one),
            (lambda: take_turn(), one),
        ):
            fault.at(z, "before", point)
            await awaited()
            total, point = total + found.sum(), point + 1
        await pending
        fault.at(z, "after")
        sums[z] = total

    return program


POINTS = 12  # awaits of `everything`, before each of which it can fail
PLACES = ("before", "part", "after", "function", "buffers", "tuning")


def sites(comm, seed, count, wait, depth, workers):
    """Draw kind, place and ranks, the same on all: one error everywhere and in time, and all is right again."""
    drawn = np.random.default_rng(seed)
    shape = (SLICES, 2 * comm.size + 1, 2 * comm.size + 2)
    u = random(drawn, shape, "f8")
    fault, sums, slowest = Fault(), np.zeros(SLICES), 0.0
    settings = {"wait": wait, "depth": depth, "chunk": 1}
    with (
        overlap.Runtime(comm, workers=workers, depth=depth, wait=wait, deadline_s=30) as rt,
        overlap.FFT2(rt, shape, "f8", settings=settings) as plan,
    ):
        how = drawn.integers(3)  # learned from the first slice, agreed upon each time, told
        program = everything(rt, fault, sums, alike=how == 0)
        pipeline = rt.pipelined(
            program, skeleton=(None, "agree", everything(rt, Fault(), np.zeros(SLICES), False))[how]
        )

        @plan.pointwise
        def square(a, index):
            fault.at("function", index)
            return a * a

        def buffers():
            fault.at("buffers")

        pipeline(range(SLICES))
        right, spectrum = sums.copy(), plan.forward(u[plan.real.local_slice])
        squared = np.array(square(spectrum))
        for _ in range(count):
            name, place = (
                list(KINDS)[drawn.integers(len(KINDS))],
                PLACES[drawn.integers(len(PLACES) - (comm.size == 1))],
            )
            origin = origins_of(drawn, comm.size)
            z, point, mine = int(drawn.integers(SLICES)), int(drawn.integers(POINTS)), comm.rank in origin
            label = f"{name}, {place}, slice {z}, await {point}, ranks {sorted(origin)}"
            if (
                name == "interrupt" and place == "buffers"
            ):  # a Ctrl-C there ends what this rank does, and is told to none
                place = "before"
            fault.make = KINDS[name]
            if mine:
                fault.where = {
                    "before": (z, "before", point),
                    "part": (z, "part", point % 3),
                    "after": (z, "after"),
                    "function": ("function", z),
                    "buffers": ("buffers",),
                }.get(place)
            call = {
                "function": (square, spectrum),
                "tuning": (plan.forward.tune, 0.1),
                "buffers": (lambda: rt.pipelined(program, buffers=buffers, skeleton="agree")(range(SLICES)),),
            }.get(place, (pipeline, range(SLICES)))
            tuning = type(plan.forward), "run_planes", lambda number, *_: number == point % 4, KINDS[name]
            with failing(*tuning) if mine and place == "tuning" else nothing_fails():
                start = time.monotonic()
                error = outcome(*call)
                slowest = max(slowest, took_s := time.monotonic() - start)
            fault.where = None
            same_error(comm, label, error)
            assert comm.allreduce(took_s, MPI.MAX) < LONGEST_S, f"{label}: raised after {took_s:.1f} s"
            sums[:] = 0
            pipeline(range(SLICES))
            assert same_bits(sums, right), label
            for _ in range(3):
                assert same_bits(square(spectrum), squared), label
    print(f"rank {comm.rank}: {count} errors, raised after at most {slowest:.2f} s")
