"""Calls of `Collectives` drawn at random, one of them bad on one rank: which call raises, and where."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import numpy as np
from marks import exhaustive, on_ranks
from mpi4py import MPI

from overlap.collectives import Collectives, Op
from overlap.errors import InputError

Call = Callable[[Collectives], object]
KINDS = ("Barrier", "allreduce", "Allreduce", "Allgather", "Bcast", "Scatter", "Gather", "Reduce")
LATE_S = 0.007  # a rank that waits looks for failures every 5 ms


def one_bad_call(comm: MPI.Intracomm, seeds: list[int], calls: int) -> None:
    """No rank raises before the bad call, all raise in it that wait for the rank, and every later call raises, too.

    The ranks go at different speeds, which differ from one run of the same calls to the next: that changes nothing.
    """
    for seed in seeds:
        drawn = random.Random(seed)
        bad_place, bad_rank, bad = drawn.randrange(calls), drawn.randrange(comm.size), drawn.choice(BAD)
        program = [(drawn.choice(KINDS), drawn.randrange(comm.size)) for _ in range(calls)]
        runs = []
        for repeat in range(2):
            late = random.Random(f"{seed} {repeat} {comm.rank}")
            raised: list[tuple[int, str]] = []
            with Collectives(comm) as fast:
                for place, (kind, root) in enumerate(program):
                    if late.random() < 0.05:
                        time.sleep(LATE_S * late.random())
                    call = bad if (place, comm.rank) == (bad_place, bad_rank) else good(comm, kind, root, place)
                    try:
                        call(fast)
                    except InputError as error:
                        raised.append((place, str(error)))
            runs.append(raised)
        assert runs[0] == runs[1], (seed, runs)
        places, texts = [place for place, _ in raised], {text for _, text in raised}
        first = places[0] if places else calls
        assert first >= bad_place and places == list(range(first, calls)), (seed, bad_place, places)
        assert len(texts) < 2 and all(f"rank {bad_rank}" in text for text in texts), (seed, texts)
        kind, root = program[bad_place]
        waits = {
            "Bcast": root == bad_rank,
            "Scatter": root == bad_rank,
            "Gather": root == comm.rank,
            "Reduce": root == comm.rank,
        }
        if comm.rank == bad_rank or waits.get(kind, True):
            assert first == bad_place, (seed, program[bad_place], first, bad_place)


@on_ranks(exhaustive(2), 3)
def test_no_call_raises_before_the_bad_one(comm):
    one_bad_call(comm, seeds=[2, 3, 5, 7, 11], calls=40)


@on_ranks(3, exhaustive(4), env={"MPIR_CVAR_ODD_EVEN_CLIQUES": "1"})
def test_no_call_raises_before_the_bad_one_on_two_nodes(comm):
    one_bad_call(comm, seeds=[103, 105] if comm.size == 4 else [2, 3], calls=20)


def good(comm: MPI.Intracomm, kind: str, root: int, place: int, count: int = 3) -> Call:
    """Return a call of `count` numbers that is right, and checks what it has computed."""
    rank, size = comm.rank, comm.size
    mine, everybodys = np.full(count, 1.0 * place + rank), place + np.arange(size)
    total, found, pieces = everybodys.sum(), np.zeros(count), np.zeros((size, count))

    def call(fast: Collectives) -> None:
        if kind == "Barrier":
            fast.Barrier()
        elif kind == "allreduce":
            assert fast.allreduce(place + rank) == total
        elif kind == "Allreduce":
            fast.Allreduce(mine, found)
            assert (found == total).all()
        elif kind == "Allgather":
            fast.Allgather(mine, pieces)
            assert (pieces == everybodys[:, None]).all()
        elif kind == "Bcast":
            fast.Bcast(mine, root)
            assert (mine == place + root).all()
        elif kind == "Scatter":
            pieces[:] = everybodys[:, None]
            fast.Scatter(pieces, found, root)
            assert (found == place + rank).all()
        elif kind == "Gather":
            fast.Gather(mine, pieces, root)
            assert rank != root or (pieces == everybodys[:, None]).all()
        else:
            fast.Reduce(mine, found, Op.SUM, root)
            assert rank != root or (found == total).all()

    return call


BAD: tuple[Call, ...] = (
    lambda fast: fast.Allreduce([1.0], np.zeros(1)),  # refused in Python,
    lambda fast: fast.Allreduce(np.zeros(6)[::2], np.zeros(3)),  # in compiled code,
    lambda fast: fast.Allreduce(np.zeros(4), np.zeros(4)),  # and where the ranks find out that they do not agree
)
