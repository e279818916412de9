"""What a user hands in: arguments that are bad or differ, exceptions and keys that cannot be shown."""

import threading
from functools import partial
from itertools import product

import numpy as np
import pytest
from everywhere import outcome, raised, raises_everywhere, same_error, same_everywhere
from marks import exhaustive, on_ranks
from mpi4py import MPI
from odd_errors import NoPickle, RaisingNotes, RaisingText, RaisingTruth, Unattributable, odd_syntax_error
from test_errors import WAITS, Boom
from test_signals import alarms, quiet_handlers, terminated

import overlap
from overlap.ranks.header import canonical
from overlap.sparse import Matrix

# ---- input -----------------------------------------------------------------------------------


@on_ranks(2, exhaustive(3), "openmpi-2")
def test_input_errors(comm):
    """Input that differs between ranks is refused on all of them, before anything ran."""
    for wait in WAITS:
        with overlap.Runtime(comm, workers=1, depth=3, wait=wait, deadline_s=10) as rt:
            data = np.ones(3)
            ran = []

            async def program(z):
                ran.append(z)
                await rt.comm.Allreduce(MPI.IN_PLACE, data)

            last = comm.rank == comm.size - 1
            pipeline = rt.pipelined(program)
            attempts = [
                (
                    pipeline,
                    range(4),
                    {"problem": "my shape is odd" if last else None},
                    f"rank {comm.size - 1}: my shape is odd",
                )
            ]
            if comm.size > 1:
                attempts += [
                    (pipeline, range(5 if last else 4), {}, "slices: .*4 (rank 0).*5 (rank "),
                    (rt.pipelined(program, depth=4 if last else 3), range(4), {}, "depth: "),
                    (pipeline, range(4), {"agree": {"shape": (2, comm.rank)}}, "shape: "),
                ]
            for function, slices, options, text in attempts:
                error = raised(overlap.InputError, function, slices, **options)
                assert isinstance(error, ValueError)
                same_everywhere(comm, str(error))
                assert all(part in str(error) for part in text.split(".*")), error
                assert not ran and (data == 1).all()
            pipeline(range(2))
            assert data[0] == comm.size**2 and ran

    # The runtime's own arguments.
    for options in (
        {"workers": 0},
        {"depth": 0},
        {"wait": "hope"},
        {"in_flight": 0},
        {"deadline_s": -1},
        {"entry_deadline_s": 0},
        {"depth": 2.5},
        {"workers": True},
    ):
        raises_everywhere(comm, overlap.InputError, (next(iter(options)), "received"), overlap.Runtime, comm, **options)
    if comm.size > 1:
        raises_everywhere(comm, overlap.InputError, "depth", overlap.Runtime, comm, depth=2 + comm.rank)
    raised(overlap.InputError, overlap.Runtime, None)
    assert threading.active_count() == 1


# ---- arguments of a call ---------------------------------------------------------------------


def keywords(comm, wait):
    """Keyword arguments reach the program and its skeleton; `agree` is what all ranks must share."""
    seen = []

    async def program(z, first, *, scale, problems=()):
        seen.append((z, first, scale))
        await rt.comm.Allreduce(MPI.IN_PLACE, np.ones(1))

    with overlap.Runtime(comm, depth=2, wait=wait, deadline_s=20) as rt:
        for skeleton in (None, program):
            seen.clear()
            pipeline = rt.pipelined(program, skeleton=skeleton)
            pipeline(range(3), "a", scale=comm.rank + 2.0, agree={"shape": (2, 3)})
            assert sorted(seen) == [(z, "a", comm.rank + 2.0) for z in range(3)], seen
        same_error(comm, outcome(rt.pipelined(program), range(3), "a"), overlap.SliceError, "scale")
        if comm.size > 1:
            for agree in ({"shape": (comm.rank, 3)}, comm.rank):
                same_error(
                    comm, outcome(pipeline, range(3), "a", scale=1, agree=agree), overlap.InputError, "rank 0", "rank 1"
                )
        pipeline(range(3), "a", scale=1, agree=(np.int64(4), 16) if comm.rank else [4, 16.0])


class Unprintable:
    """A value whose text cannot be had."""

    def __repr__(self):
        raise KeyError("no text")


def bad_input_of_one_rank(comm, wait):
    """Input that raises on one rank is one exception on all ranks, at once."""
    bad = comm.rank == comm.size - 1

    async def program(z, *args):
        await rt.comm.Allreduce(MPI.IN_PLACE, np.ones(1))

    def buffers():
        if bad:
            raise Boom("no memory for slots")

    def broken():
        yield 1
        raise Boom("the slices end here")

    where = f"rank {comm.size - 1}"
    with overlap.Runtime(comm, depth=2, wait=wait, deadline_s=20) as rt:
        pipeline = rt.pipelined(program)
        for function, args, options, kind, text in (
            (pipeline, (7 if bad else range(7),), {}, overlap.InputError, "not iterable"),
            (pipeline, (broken() if bad else range(7),), {}, overlap.RankError, "end here"),
            (pipeline, (range(7),), {"agree": Unprintable() if bad else 1}, overlap.InputError, "no text"),
            (pipeline, (range(7),), {"agree": 10**5000 if bad else 1}, overlap.InputError, ""),
            (rt.pipelined(program, buffers=buffers), (range(7),), {}, overlap.RankError, "no memory for slots"),
            *(
                (rt.pipelined(program, **{name: wrong if bad else 2}), (range(7),), {}, overlap.InputError, "from 1")
                for name, wrong in (("depth", 0), ("depth", 1.5), ("in_flight", -1))
            ),
            (rt.pipelined(program, wait="no" if bad else wait), (range(7),), {}, overlap.InputError, "received 'no'"),
            (rt.preflight, ("bad" if bad else None,), {}, overlap.InputError, "bad"),
        ):
            same_error(comm, outcome(function, *args, **options), kind, where, text)
            pipeline(range(3))
        # What several ranks say alike is said once, with their names.
        told = str(outcome(rt.preflight, "bad"))
        assert told == ("all ranks: bad" if comm.size > 1 else "rank 0: bad"), told
        told = str(outcome(rt.preflight, "worse" if comm.rank == 0 else "bad"))
        others = (
            ""
            if comm.size == 1
            else "; rank 1: bad"
            if comm.size == 2
            else (f"; ranks {', '.join(map(str, range(1, comm.size)))}: bad")
        )
        assert told == f"rank 0: worse{others}", told
    for no_comm in (None, MPI.COMM_NULL, "comm"):
        error = outcome(overlap.Runtime, no_comm)
        assert type(error) is overlap.InputError and "expected an mpi4py" in str(error), error
    freed = comm.Dup()
    freed.Free()
    assert type(outcome(overlap.Runtime, freed)) is overlap.InputError


@on_ranks
@pytest.mark.parametrize(
    "wait, comm", [("off", 1), ("block", 1), ("poll", 1), exhaustive("off", 3), exhaustive("block", 3), ("poll", 3)]
)
def test_signals_and_arguments(comm, wait):
    alarms(comm, wait=wait)
    terminated(comm, wait=wait)
    quiet_handlers(comm, wait=wait)
    keywords(comm, wait=wait)
    bad_input_of_one_rank(comm, wait=wait)


@on_ranks(1, exhaustive(2), 3)
def test_what_compares_equal(comm):
    """Values that compare equal agree, whatever their types; others do not."""
    for same in (
        (4, np.int64(4), 4.0, np.float32(4), 4 + 0j),
        ((1, 2), [1, 2], np.array([1, 2])),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (None,),
        ("x", np.str_("x")),
        (float("nan"), np.nan),
        (0.0, -0.0),
        (True, np.True_),
    ):
        assert len({canonical(value) for value in same}) == 1, [canonical(v) for v in same]
    different = [4, 4.5, "4", None, True, (4,), ((4,),), {}, (), 4 + 1j, float("inf")]
    assert len({canonical(value) for value in different}) == len(different)
    with overlap.Runtime(comm) as rt:
        rt.preflight(shape=(np.int64(4), 16, 16) if comm.rank else (4, 16, 16))


# ---- exceptions and keys that cannot be shown ------------------------------------------------


class OddKey:
    """A slice that has no text."""

    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__


@on_ranks(2, exhaustive(3))
def test_unformattable(comm):
    """An exception that cannot be shown, of a slice that cannot be either, is an error like any other."""
    for wait in WAITS:
        with overlap.Runtime(comm, workers=2, depth=3, wait=wait, deadline_s=5, trace=True) as rt:

            async def program(key, bad, make):
                await rt.comm.Allreduce(MPI.IN_PLACE, np.ones(1))
                if key is bad:
                    if make is RaisingText:
                        await make()  # what cannot be awaited is shown too
                    raise make()
                await rt.comm.Allreduce(MPI.IN_PLACE, np.ones(1))

            keys = [OddKey() for _ in range(7)]
            pipeline = rt.pipelined(program)
            for make, bad in product(
                (Unattributable, RaisingNotes, RaisingText, RaisingTruth, NoPickle, odd_syntax_error), (0, 5)
            ):
                last = comm.rank == comm.size - 1
                error = raises_everywhere(
                    comm, overlap.SliceError, "", pipeline, keys, keys[bad] if last else None, make
                )
                kind = "SyntaxError" if make is odd_syntax_error else make.__name__
                assert kind in error.summary and "OddKey" in error.slice, error
            pipeline(keys, None, None)


@on_ranks(1, exhaustive(2))
def test_errors_name_what_was_received(comm):
    """An `InputError` on all ranks, with what was received or what to write instead."""
    read_only = np.zeros((10, 10))
    read_only.flags.writeable = False
    matrix = partial(Matrix.from_stencil, comm)
    with (
        overlap.FFT2(comm, (2, 4, 8)) as plan,
        overlap.Halo(comm, overlap.Blocks((8 * comm.size, 8), (comm.size, 1))) as halo,
    ):
        u = plan.real.empty()
        for call, text in (
            (partial(overlap.FFTN, comm, (4, 8, 8), axes=(1, 1)), "received axes=(1, 1)"),
            (partial(overlap.FFTN, comm, (4, 8, 8), split=(0, 7)), "received split=(0, 7)"),
            (partial(plan.forward, u, plan.spectrum.empty()), "received 2; an array for the result is out=array"),
            (partial(plan.real.from_function, 1.5), "expected function to be a function, received 1.5"),
            (partial(halo.exchange, np.zeros((10, 10), order="F")), "use np.ascontiguousarray"),
            (partial(halo.exchange, read_only), "received a read-only one"),
            (partial(matrix, 8, [(0,)], [1.0]), "received shape=8"),
            (partial(matrix, (8,), [0, 1], [1.0, 2.0]), "received shape=(8,), offsets=[0, 1]"),
            (partial(matrix, (8, 8), [(0, 0)], [1.0, 2.0]), "coefficients=[1.0, 2.0]"),
        ):
            error = outcome(call)
            assert type(error) is overlap.InputError and text in str(error), (text, error)
    error = outcome(overlap.TimeStepper, None, lambda t, u: u, 0.1)
    assert type(error) is overlap.InputError and "received None" in str(error), error


@on_ranks(1, 2)
def test_before_the_first_slice(comm):
    """What listing slices or making buffers raises on one rank, all ranks are told by the call, whatever it is."""
    last = comm.rank == comm.size - 1

    def listed(make):
        if last:
            raise make()
        yield from range(3)

    def buffers(make):
        if last:
            raise make()

    with overlap.Runtime(comm, wait="off", deadline_s=20, entry_deadline_s=20) as rt:

        async def program(z, slot=None):
            await rt.comm.Allreduce(MPI.IN_PLACE, np.ones(1))

        pipeline = rt.pipelined(program)
        for make in (Unattributable, RaisingText, RaisingTruth, NoPickle, StopIteration, GeneratorExit):
            made = rt.pipelined(program, buffers=partial(buffers, make))
            for call in (partial(made, range(3)), *[partial(pipeline, listed(make))] * (make is not StopIteration)):
                error = raised((overlap.RankError, GeneratorExit), call)
                if isinstance(error, GeneratorExit):  # what is no Exception is raised there itself
                    assert last
                    error = error.__cause__
                same_everywhere(comm, str(error))
                assert error.rank == comm.size - 1 and make.__name__ in str(error), error
        pipeline(range(3))


@on_ranks(1, 2)
def test_unattributable_together(comm):
    """An exception whose attributes cannot be asked for leaves no rank alone that plans with it."""
    for kind in (Unattributable, RaisingNotes, RaisingText, RaisingTruth, NoPickle, StopIteration, StopAsyncIteration):
        with overlap.Runtime(comm, wait="off", deadline_s=20) as rt:

            def plan():
                with rt.collective_section("planning"):
                    rt.coordinator.barrier()
                    if comm.rank == comm.size - 1:
                        raise kind
                    rt.coordinator.barrier()

            error = raises_everywhere(comm, overlap.RankError, "", plan)
            assert error.rank == comm.size - 1 and kind.__name__ in str(error), error
