"""What goes over the wire, and the bits of results, are those that were written down (`write_wire`).

A program is a function of a communicator that yields calls and where their results are; what a call gives, or raises,
is written down between the calls that it makes (`wire.Recorded`). Results are whole numbers, of which any FFT of 2 or 4
points gives all bits; other lengths would depend on the processor. That all ways give equal bits for any length is
tested elsewhere.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from marks import on_ranks
from mpi4py import MPI
from wire import Recorded, compact, recorded, recording_function

import overlap
from overlap import all_of, barrier, parallel, stagger, start, take_turn, wait_for_slices
from overlap.fft.engine import fftw
from overlap.ranks import rendezvous
from overlap.runtime import plan_call

WAITS = ("off", "block", "poll")
SLICES = 5
DEADLINE_S = 30
FILE = Path(__file__).with_name("wire.json")
Program = Callable[[Any], Iterator[Any]]


PROGRAMS: dict[str, Program] = {}


class Broken(Exception):
    """What the programs raise."""


# ---- slice programs ----------------------------------------------------------------------------
# Each kind: what makes the coroutine functions of a program and of its skeleton, for a runtime and rows to write to.


def exchange(rt: Any, out: Any, failing: Any = None) -> Any:
    size = rt.comm.size

    async def program(z: int) -> None:
        given, there, back = np.full(size, z + rt.comm.rank), np.empty(size, int), np.empty(size, int)
        if failing == (z, "before"):
            raise Broken
        await rt.comm.Alltoall(given, there)
        if failing == (z, "between"):
            raise Broken
        await rt.comm.Alltoall(there if failing != (z, "refused") else [there, -1, MPI.INT], back)
        if failing == (z, "after"):
            raise Broken
        if out is not None:
            out[z, :2] = there.sum(), back[0]

    async def skeleton(z: int) -> None:
        for _ in range(2):
            await rt.comm.Alltoall(np.empty(size, int), np.empty(size, int))

    return program, skeleton


def learned(rt: Any, out: Any, failing: Any = None) -> Any:
    return exchange(rt, out, failing)[0], None


def agreed(rt: Any, out: Any, failing: Any = None) -> Any:
    return exchange(rt, out, failing)[0], "agree"


def differs(rt: Any, out: Any, failing: Any = None) -> Any:
    """One rank awaits something else."""

    async def program(z: int) -> None:
        there = np.empty(rt.comm.size, int)
        if z == 2 and rt.comm.rank == 0:
            await rt.comm.Allreduce(np.ones(rt.comm.size, int), there)
        else:
            await rt.comm.Alltoall(np.ones(rt.comm.size, int), there)

    return program, None


def rooted(rt: Any, out: Any, failing: Any = None) -> Any:
    size, rank = rt.comm.size, rt.comm.rank

    async def program(z: int) -> None:
        root, one, all_, total = z % size, np.array([z + rank]), np.arange(size), np.zeros(1, int)
        if failing == (z, "before"):
            raise Broken
        await rt.comm.Bcast(one, root=root)
        await rt.comm.Gather(one, all_, root=root)
        await rt.comm.Scatter(all_, one, root=root)
        await rt.comm.Reduce(one, total, MPI.MAX, root=root)
        await rt.comm.Allgather(one, all_)
        await rt.comm.Scan(one, total)
        await rt.comm.Reduce_scatter_block(all_, one)
        out[z, :2] = one[0] + total[0], all_.sum()

    async def skeleton(z: int) -> None:
        root, one, all_, total = z % size, np.zeros(1, int), np.zeros(size, int), np.zeros(1, int)
        for name, args in (
            ("Bcast", (one, root)),
            ("Gather", (one, all_, root)),
            ("Scatter", (all_, one, root)),
            ("Reduce", (one, total, MPI.MAX, root)),
            ("Allgather", (one, all_)),
            ("Scan", (one, total)),
            ("Reduce_scatter_block", (all_, one)),
        ):
            await getattr(rt.comm, name)(*args)

    return program, skeleton


def vectors(rt: Any, out: Any, failing: Any = None) -> Any:
    size, rank = rt.comm.size, rt.comm.rank

    async def program(z: int) -> None:
        counts = [rank + 1] * size, [other + 1 for other in range(size)]
        given, there = np.full(sum(counts[0]), z + rank), np.zeros(sum(counts[1]), int)
        await rt.comm.Alltoallv([given, counts[0]], [there, counts[1]])
        every = np.zeros(sum(counts[1]), int)
        await rt.comm.Allgatherv(given[: rank + 1], [every, counts[1]])
        out[z, :2] = there.sum(), every.sum()

    return program, None


def ring(rt: Any, out: Any, failing: Any = None) -> Any:
    right, left = (rt.comm.rank + 1) % rt.comm.size, (rt.comm.rank - 1) % rt.comm.size

    async def program(z: int) -> None:
        mine, there, back = np.array([z + rt.comm.rank]), np.zeros(1, int), np.zeros(1, int)
        await rt.comm.Sendrecv(mine, right, 5, there, left, 5)
        if failing == (z, "between"):
            raise Broken
        await all_of(rt.comm.Send(there, left, 6), rt.comm.Recv(back, right, 6))
        out[z, :2] = there[0], back[0]

    async def skeleton(z: int) -> None:
        there, back = np.zeros(1, int), np.zeros(1, int)
        await rt.comm.Sendrecv(there, right, 5, back, left, 5)
        await all_of(rt.comm.Send(there, left, 6), rt.comm.Recv(back, right, 6))

    return program, skeleton


def started(rt: Any, out: Any, failing: Any = None) -> Any:
    size = rt.comm.size

    async def program(z: int) -> None:
        given, there, total = np.arange(size) + z, np.zeros(size, int), np.zeros(1, int)
        first = await rt.comm.Ialltoall(given, there)
        second = await start(rt.comm.Allreduce(given[:1], total))
        if failing == (z, "between"):
            raise Broken
        await rt.comm.Barrier()
        await second
        if failing != (z, "pending"):
            await first
        out[z, :2] = there.sum(), total[0]

    async def skeleton(z: int) -> None:
        given, there, total = np.arange(size), np.zeros(size, int), np.zeros(1, int)
        first = await rt.comm.Ialltoall(given, there)
        second = await start(rt.comm.Allreduce(given[:1], total))
        await rt.comm.Barrier()
        await second
        await first

    return program, skeleton


def persistent(rt: Any, out: Any, failing: Any = None) -> Any:
    right, left = (rt.comm.rank + 1) % rt.comm.size, (rt.comm.rank - 1) % rt.comm.size
    mine, there = np.array([rt.comm.rank]), np.zeros((SLICES, 1), int)
    kept = [(rt.comm.Send_init(mine, right, z), rt.comm.Recv_init(there[z], left, z)) for z in range(SLICES)]

    async def program(z: int) -> None:
        await all_of(*kept[z])
        out[z, 0] = there[z, 0]

    async def skeleton(z: int) -> None:
        await all_of(*kept[z])

    return program, skeleton


def turns(rt: Any, out: Any, failing: Any = None) -> Any:
    size = rt.comm.size

    async def program(z: int) -> None:
        there = np.zeros(size, int)
        await stagger(z, 3)
        await rt.comm.Alltoall(np.full(size, z), there)
        await take_turn()
        await wait_for_slices(z)
        out[z, 0] = there.sum() + out[:z, 0].sum()

    async def skeleton(z: int) -> None:
        await stagger(z, 3)
        await rt.comm.Alltoall(np.zeros(size, int), np.zeros(size, int))
        await take_turn()

    return program, skeleton


def barriers(rt: Any, out: Any, failing: Any = None) -> Any:
    sums = np.zeros(SLICES, int)

    async def program(z: int) -> None:
        total = np.array([z + rt.comm.rank])
        await rt.comm.Allreduce(MPI.IN_PLACE, total)
        sums[z] = total[0]
        await barrier()
        total[0] = sums.sum()
        await rt.comm.Allreduce(MPI.IN_PLACE, total, MPI.MAX)
        out[z, 0] = total[0]

    return program, None


def parts(rt: Any, out: Any, failing: Any = None) -> Any:
    async def program(z: int) -> None:
        numbers = np.zeros(4, int)

        def part(place: int) -> None:
            if failing == (z, "between") and place == 2:
                raise Broken
            numbers[place] = place + z

        await parallel(part, range(4))
        await rt.comm.Allreduce(MPI.IN_PLACE, numbers)
        out[z] = numbers

    async def skeleton(z: int) -> None:
        await rt.comm.Allreduce(MPI.IN_PLACE, np.zeros(4, int))

    return program, skeleton


def windows(rt: Any, out: Any, failing: Any = None) -> Any:
    fast, size = rt.collectives(), rt.comm.size

    async def program(z: int) -> None:
        there = np.zeros(size, int)
        total = await fast.allreduce(z + rt.comm.rank)
        await rt.comm.Alltoall(np.full(size, total), there)
        await fast.Bcast(there, 0)
        out[z, :2] = total, there.sum()

    return program, None


def split(rt: Any, out: Any, failing: Any = None) -> Any:
    some = rt.comm.Split(rt.comm.rank % 2)

    async def program(z: int) -> None:
        one, total = np.array([z + rt.comm.rank]), np.zeros(1, int)
        await some.Allreduce(one, total)
        await rt.comm.Allreduce(MPI.IN_PLACE, one)
        out[z, :2] = total[0], one[0]

    return program, None


KINDS = (exchange, learned, agreed, rooted, vectors, ring, started, persistent, turns, barriers, parts, windows, split)


def sliced(
    comm: Any, kind: Any, wait: str, counts: Any = (SLICES, SLICES, 1, 0), workers: int = 1, failing: Any = None
):
    """Some calls of one pipeline, of these numbers of slices; where it fails, it does on the last rank."""
    with overlap.Runtime(comm, workers=workers, depth=3, agree_every=4, deadline_s=DEADLINE_S) as rt:
        out = np.zeros((SLICES, 4), int)
        program, skeleton = kind(rt, out, failing if comm.rank == comm.size - 1 else None)
        pipeline = rt.pipelined(program, skeleton=skeleton, wait=wait)
        for count in counts:
            yield partial(pipeline, range(count)), out
        if failing is not None:  # and the next one goes well
            again = rt.pipelined(kind(rt, out)[0], skeleton=skeleton, wait=wait)
            yield partial(again, range(SLICES)), out


def refused_calls(comm: Any, wait: str):
    """What is wrong with a call on one rank, before anything is done."""
    with overlap.Runtime(comm, depth=3, agree_every=4, deadline_s=DEADLINE_S) as rt:
        out, last = np.zeros((SLICES, 4), int), comm.rank == comm.size - 1
        pipeline = rt.pipelined(exchange(rt, out)[0], wait=wait)
        yield partial(pipeline, range(SLICES - last)), out
        yield partial(pipeline, range(SLICES), problem="no" if last else None), out
        yield partial(pipeline, range(SLICES), agree={"seed": comm.rank}), out
        yield partial(pipeline, range(SLICES), agree={"seed": 1}), out
        yield partial(pipeline, 3 if last else range(3)), out
        yield partial(rt.preflight, "bad" if last else None), out
        yield partial(rt.preflight, other=3), out


# ---- plans -------------------------------------------------------------------------------------


def whole(shape: Any, dtype: Any) -> np.ndarray:
    """Whole numbers, of which FFTs of 2 and 4 points know all bits."""
    values = np.arange(int(np.prod(shape))).reshape(shape) % 7 - 3
    return (values + 1j * (values[::-1] // 2)).astype(dtype) if np.dtype(dtype).kind == "c" else values.astype(dtype)


def transforms(
    comm: Any,
    make: Any,
    shape: Any,
    dtype: str,
    wait: str,
    layout: Any = None,
    depth: int = 2,
    chunk: int = 1,
    **more: Any,
):
    """Forward and backward, with new arrays and with the same ones, and with an array on one rank that does not fit."""
    settings = {"wait": wait, "depth": depth, "chunk": chunk, "in_flight": 2, "effort": "estimate", **more}
    with make(comm, shape, dtype, layout=layout, settings=settings) as plan:
        u = whole(plan.real.shape, plan.real.dtype) + comm.rank
        spectrum, back = plan.spectrum.empty(), plan.real.empty()
        yield partial(plan.forward, u, out=spectrum), spectrum
        for _ in range(3):
            yield partial(plan.forward, u), spectrum
            yield partial(plan.backward, spectrum, out=back), back
        bad = u[..., :-1] if comm.rank == comm.size - 1 else u
        yield partial(plan.forward, bad), spectrum
        yield partial(plan.forward.communicate, u), spectrum
        yield partial(plan.forward, u, out=spectrum), spectrum


def squares(
    comm: Any, make: Any, shape: Any, wait: str, layout: Any = None, dealias: Any = None, failing: bool = False
):
    """A function of fields, which may fail on the last rank."""
    settings = {"wait": wait, "depth": 2, "chunk": 1, "in_flight": 2, "effort": "estimate"}
    with make(comm, shape, "c16", layout=layout, settings=settings) as plan:
        broken = [False]

        def product(a: Any, b: Any) -> Any:
            if broken[0]:
                raise Broken
            return a * b

        call = plan.pointwise(product, inputs=2, dealias=dealias)
        spectrum, out = plan.spectrum.empty(), plan.spectrum.empty()
        spectrum[...] = whole(spectrum.shape, spectrum.dtype)
        yield partial(call, spectrum, spectrum, out=out), out
        yield partial(call, spectrum, spectrum, out=out), out
        if failing:
            broken[0] = comm.rank == comm.size - 1
            yield partial(call, spectrum, spectrum, out=out), None
            broken[0] = False
            yield partial(call, spectrum, spectrum, out=out), out


def brackets(comm: Any, wait: str, shape: Any = (3, 4, 2, 3)):
    settings = {"wait": wait, "depth": 2, "in_flight": 2, "effort": "estimate"}
    with overlap.Bracket(comm, shape, points=(4, 4), settings=settings) as plan:
        field, advecting = plan.spectrum.empty(), plan.advecting.empty()
        field[...], advecting[...] = whole(field.shape, field.dtype), whole(advecting.shape, advecting.dtype)
        yield partial(plan.advect, advecting), field
        for _ in range(2):
            yield partial(plan, field, out=field), field


def fill() -> None:
    """Name all programs."""
    for kind in KINDS:
        for wait in WAITS:
            PROGRAMS[f"slices: {kind.__name__}, {wait}"] = partial(sliced, kind=kind, wait=wait)
    for kind in (exchange, parts, turns):
        for wait in WAITS[1:]:
            PROGRAMS[f"slices: {kind.__name__}, {wait}, 2 workers"] = partial(sliced, kind=kind, wait=wait, workers=2)
    PROGRAMS["slices: exchange, auto"] = partial(sliced, kind=exchange, wait="auto", counts=(SLICES, SLICES, SLICES))
    for wait in WAITS:
        PROGRAMS[f"refused calls, {wait}"] = partial(refused_calls, wait=wait)
        for place in ("before", "between", "after", "refused"):
            for z in (0, 3):
                PROGRAMS[f"failure: exchange, slice {z} {place}, {wait}"] = partial(
                    sliced, kind=exchange, wait=wait, counts=(SLICES,), failing=(z, place)
                )
    for kind, places in (
        (learned, ("before", "between", "refused")),
        (agreed, ("before", "between", "refused")),
        (rooted, ("before",)),
        (ring, ("between",)),
        (started, ("between", "pending")),
        (parts, ("between",)),
    ):
        for place in places:
            for z in (0, 3):
                PROGRAMS[f"failure: {kind.__name__}, slice {z} {place}, off"] = partial(
                    sliced, kind=kind, wait="off", counts=(SLICES,), failing=(z, place)
                )
    for wait in ("off", "poll"):
        PROGRAMS[f"failure: one slice learned, {wait}"] = partial(
            sliced, kind=learned, wait=wait, counts=(1,), failing=(0, "between")
        )
    PROGRAMS["failure: differs, off"] = partial(sliced, kind=differs, wait="off", counts=(SLICES,))
    for wait in WAITS:
        for dtype in ("f8", "c16"):
            for name, layout, more in (
                ("natural", {}, {}),
                ("transposed", {"order": "transposed"}, {}),
                ("restored", {"restore": True}, {}),
                ("one message", {}, {"depth": 1, "chunk": 100, "in_flight": 1}),
            ):
                PROGRAMS[f"FFT2 {dtype} {name}, {wait}"] = partial(
                    transforms, make=overlap.FFT2, shape=(5, 4, 4), dtype=dtype, wait=wait, layout=layout, **more
                )
            for name, shape, layout, more in (
                ("slabs", (4, 4, 4), {"grid": "slab"}, {}),
                ("slabs the other way", (4, 4, 4), {"grid": "other"}, {}),
                ("transposed", (2, 4, 4, 2), {"order": "transposed", "grid": "slab"}, {"chunk": 2}),
                ("restored", (4, 4, 4), {"restore": True, "grid": "slab"}, {}),
                ("late", (4, 4, 4), {"grid": "slab"}, {"late": 0.5}),
                ("one message", (4, 4, 4), {"grid": "slab"}, {"depth": 1, "chunk": 100, "in_flight": 1}),
            ):
                PROGRAMS[f"FFT3 {dtype} {name}, {wait}"] = partial(
                    transforms, make=overlap.FFT3, shape=shape, dtype=dtype, wait=wait, layout=layout, **more
                )
        PROGRAMS[f"FFT3 c16 pencils, {wait}"] = partial(
            transforms, make=overlap.FFT3, shape=(4, 4, 4), dtype="c16", wait=wait, layout={"grid": "pencil"}
        )
        PROGRAMS[f"FFT2 weights, {wait}"] = partial(
            transforms, make=overlap.FFT2, shape=(3, 4, 4), dtype="c16", wait=wait, layout={"weights": "uneven"}
        )
        PROGRAMS[f"FFT2 pointwise, {wait}"] = partial(squares, make=overlap.FFT2, shape=(3, 4, 4), wait=wait)
        PROGRAMS[f"FFT3 pointwise, {wait}"] = partial(
            squares, make=overlap.FFT3, shape=(4, 4, 4), wait=wait, layout={"grid": "slab"}
        )
        PROGRAMS[f"Bracket, {wait}"] = partial(brackets, wait=wait)
    PROGRAMS["failure: FFT2 pointwise, off"] = partial(
        squares, make=overlap.FFT2, shape=(3, 4, 4), wait="off", failing=True
    )
    PROGRAMS["failure: FFT3 pointwise, off"] = partial(
        squares, make=overlap.FFT3, shape=(4, 4, 4), wait="off", layout={"grid": "slab"}, failing=True
    )


fill()


# MPI has refused on some ranks what others have started: they take new communicators.
LEAVING = frozenset(
    f"failure: {kind}, slice {z} refused, off" for kind, z in (("learned", 0), ("agreed", 0), ("agreed", 3))
)
GRIDS = {"slab": lambda n: (n, 1), "other": lambda n: (1, n), "pencil": lambda n: (2, n // 2) if n % 2 == 0 else (1, n)}


# ---- recording ---------------------------------------------------------------------------------


def run(comm: MPI.Intracomm, name: str) -> list[str]:
    """Run a program; what it does on this rank, line by line."""
    fftw.forget()  # ranks tell each other what FFTW has learned, if it has
    program, lines = PROGRAMS[name], []
    own: Recorded = recorded(comm, lines)
    layout = program.keywords.get("layout")
    if layout:  # what depends on the number of ranks
        layout = dict(layout)
        if "grid" in layout:
            layout["grid"] = GRIDS[layout["grid"]](comm.size)
        if "weights" in layout:
            layout["weights"] = [1 + rank for rank in range(comm.size)]
        program = partial(program, layout=layout)
    with (
        mock.patch.object(plan_call, "mpi_function", recording_function),
        mock.patch.object(rendezvous, "on_one_node", return_value=False),  # what is told at a board is no call of MPI
    ):
        for call, result in program(own):
            lines.append("--")
            try:
                call()
            except (overlap.OverlapError, RuntimeError) as error:
                lines.append(f"raises {type(error).__name__}")
            else:
                if result is not None:
                    lines.append(f"gives {zlib.crc32(np.ascontiguousarray(result).tobytes()):08x}")
    return compact(lines)


def chosen(every: int = 1) -> list[str]:
    """The names of every so many programs; without those that leave communicators behind, unless all are asked for."""
    return [name for name in list(PROGRAMS)[::every] if every == 1 or name not in LEAVING]


def digest(lines: list[str]) -> str:
    """A checksum of what a rank does."""
    return f"{zlib.crc32(';'.join(lines).encode()):08x}"


def programs_do_what_they_did(comm: MPI.Intracomm, every: int = 1) -> None:
    """The same calls in the same order, with the same results.

    The file has all lines of 2 ranks, and checksums of those of other numbers.
    """
    stored = json.loads(FILE.read_text())
    for name in chosen(every):
        found = run(comm, name)
        if comm.size == 2:
            everyone = stored["on 2 ranks"][name]
            expected = [stored["lines"][number] for number in everyone[comm.rank % len(everyone)]]
            assert found == expected, f"{name}, rank {comm.rank}"
        else:
            expected = stored[f"on {comm.size} ranks"][name].split()
            assert digest(found) == expected[comm.rank], f"{name}, rank {comm.rank} of {comm.size}: {found}"


@on_ranks(2, fresh=True)
def test_programs_do_what_they_did(comm):
    # In processes of their own: reports of failures name all that the processes have heard of before.
    programs_do_what_they_did(comm, every=5)


@pytest.mark.exhaustive
@on_ranks(1, 2, 3, 4, fresh=True)
def test_all_programs_do_what_they_did(comm):
    programs_do_what_they_did(comm)


def write_down(comm: MPI.Intracomm, folder: str) -> None:
    """For `write_wire`: leave what all ranks do in a file."""
    found = {name: comm.gather(run(comm, name)) for name in PROGRAMS}
    if comm.rank == 0:
        Path(folder, f"{comm.size}.json").write_text(json.dumps(found))
