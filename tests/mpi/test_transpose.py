"""`overlap.Transpose` on 1 to 4 ranks."""

import numpy as np
import pytest
from everywhere import raises_everywhere
from marks import exhaustive, on_ranks
from test_shares import dealt
from truth import random

import overlap
from overlap import InputError, Runtime, SliceError, Transpose

SHAPE = (3, 4, 7, 5, 6)
RECORD = np.dtype([("a", "f8"), ("b", "i2")])


def splits(size):
    """Ways to split the last three axes."""
    yield 2
    yield (4,)
    yield {"axes": 3, "shares": {3: dealt(5, size, 1)}}
    yield {"axes": -2, "weights": [1 + 5 * (rank == 0) for rank in range(size)]}
    yield {"axes": (2, 4), "grid": (1, size)}
    if size > 1:
        yield {"axes": (4, 2), "grid": (size, 1), "shares": {4: dealt(6, size)}}
    if size == 4:
        yield {"axes": (3, 2), "grid": (2, 2), "shares": {-3: (6, 1)}}


def values(dtype):
    whole = np.arange(np.prod(SHAPE)).reshape(SHAPE) % 251
    return np.rec.fromarrays([whole * 0.5, whole]).astype(RECORD) if dtype == RECORD else (whole + 1).astype(dtype)


@on_ranks(1, exhaustive(2), 3, exhaustive(4), "openmpi-2")
@pytest.mark.parametrize("every", [False, exhaustive(True)])
def test_every_pair(comm, every):
    """There and back, of several types, with settings of all kinds; also arrays that are not contiguous."""
    with Runtime(comm, workers=2) as rt:
        for number, source in enumerate(splits(comm.size)):
            for other, target in enumerate(splits(comm.size)):
                types = ("f8", "i2", RECORD, "c8")
                for dtype in (*types, "?", "c16") if every else types[(number + other) % 4 :][:1]:
                    whole = values(dtype)
                    settings = {
                        "wait": ("off", "poll", "block", "auto")[(number + 2 * other) % 4],
                        "depth": 1 + other % 3,
                        "chunk": (None, 1, 3)[number % 3],
                    }
                    with Transpose(rt, SHAPE, source, target, dtype, settings=settings) as plan:
                        u = plan.source.scatter(whole if comm.rank == 0 else None)
                        v = plan.forward(u)
                        np.testing.assert_array_equal(v, whole[plan.target.local_slice])
                        assert v.axes == plan.target.axes and v.comm is plan.comm
                        wide = np.zeros((*u.shape[:-1], 2 * u.shape[-1]), u.dtype)[..., ::2]
                        assert plan.backward(v, out=wide) is wide
                        np.testing.assert_array_equal(wide, u)
                        np.testing.assert_array_equal(plan.forward(wide), v)
                        moved = u.redistribute(v)
                        np.testing.assert_array_equal(moved, v)


@on_ranks(1, exhaustive(2), 3, exhaustive(4))
def test_shapes(comm):
    """Odd shapes, no batch, an empty one, arrays of plans, and a communicator of the user's."""
    size = comm.size
    for shape, source, target in (
        ((7, 5), 0, 1),
        ((5,), 0, 0),
        ((0, 3, 4), 1, 2),
        ((2, 1, 1), 1, 2),
        ((9, 3, 2), 0, 2),
    ):
        whole = np.random.default_rng(1).integers(0, 99, shape)
        given = {"axes": source, "shares": {source: dealt(shape[source], size, 1)}}
        with Transpose(comm, shape, given, target, whole.dtype) as plan:
            u = plan.source.scatter(whole if comm.rank == 0 else None)
            for _ in range(2):
                v = plan.forward(u)
                np.testing.assert_array_equal(v, whole[v.local_slice])
                np.testing.assert_array_equal(plan.backward(v), u)
            assert "split along" in plan.describe() and "forward: " in plan.describe()
    whole = random(1, (4, 7, 9), "f8")
    with Runtime(comm) as rt, overlap.FFT2(rt, whole.shape, "f8") as fft:
        u = fft.real.scatter(whole if comm.rank == 0 else None)
        spectrum = fft.forward(u)
        with Transpose(rt, spectrum.global_shape, spectrum, 1, spectrum.dtype) as plan:
            rows = plan.forward(spectrum)
            np.testing.assert_allclose(rows, np.fft.rfft2(whole)[rows.local_slice], rtol=0, atol=1e-12)
        with Transpose(rt, whole.shape, fft.real, {"axes": 0}, "f8", exchange="f4") as plan:
            v = plan.forward(u)
            expected = whole.astype("f4").astype("f8") if size > 1 else whole
            np.testing.assert_array_equal(v, expected[v.local_slice])
            u[0, :1] = 1e300
            if size > 1:
                raises_everywhere(comm, SliceError, "single precision", lambda: plan.forward(u))
                u[0, :1] = 1
                plan.forward(u)


@on_ranks(1, exhaustive(2), 3, exhaustive(4))
def test_of_records(comm):
    """Fields of records, whose numbers begin anywhere."""
    whole = random(1, (3, 5, 6), "f8")
    with Transpose(comm, whole.shape, 1, 2, "f8") as plan:
        given, found = (np.zeros(spec.shape, [("odd", "i1"), ("value", "f8")]) for spec in (plan.source, plan.target))
        given["value"] = whole[plan.source.local_slice]
        for _ in range(2):
            plan.forward(given["value"], out=found["value"])
            np.testing.assert_array_equal(found["value"], whole[plan.target.local_slice])
        plan.backward(found["value"], out=given["value"])
        np.testing.assert_array_equal(given["value"], whole[plan.source.local_slice])


@on_ranks(1, exhaustive(2), 3, exhaustive(4), exhaustive("openmpi-2"))
def test_in_programs(comm):
    """Awaited and started in slice programs, an entry and several at once; a failure is that of all."""
    for workers, wait in ((1, "off"), (2, "poll"), (2, "block")):
        with Runtime(comm, workers=workers, wait=wait, depth=3) as rt:
            whole = random(1, (7, 3, 8, 5), "c16")
            given = {"axes": 3, "shares": {3: dealt(5, comm.size)}}
            with Transpose(rt, whole.shape, 2, given) as plan:
                u, v = plan.source.scatter(whole if comm.rank == 0 else None), plan.target.empty()
                there, back = plan.forward, plan.backward

                async def both(i, slot):
                    await there.apply(u[i], v[i], slot)
                    v[i] *= 2
                    back.pack(v[i], slot)
                    pending = await overlap.start(back.operation(slot, 3))
                    seen = np.abs(u[i]).sum()
                    await pending
                    back.unpack(slot, u[i])
                    assert u[i].size == 0 or seen > 0

                rt.pipelined(both, buffers=lambda: plan.buffers(3))(range(7))
                np.testing.assert_array_equal(v, 2 * whole[v.local_slice])
                np.testing.assert_array_equal(u, 2 * whole[u.local_slice])

                async def fails(i, slot):
                    if i == 4 and comm.rank == comm.size - 1:
                        there.pack(u[i, 0, :, :2], slot)
                    await there.apply(u[i], v[i], slot)

                pipeline = rt.pipelined(fails, buffers=lambda: plan.buffers(3))
                raises_everywhere(comm, SliceError, "expected entries of local shape", lambda: pipeline(range(7)))
                small = rt.pipelined(fails, buffers=lambda: plan.buffers(2))
                raises_everywhere(comm, SliceError, "expected a slot of", lambda: small(range(1)))


@on_ranks(1, exhaustive(2), 3, exhaustive(4))
def test_refused(comm):
    """One error on all ranks for what is wrong on one, or differs."""
    last, size = comm.rank == comm.size - 1, comm.size
    make = lambda shape=(4, 8, 6), source=1, target=2, dtype="f8", **options: Transpose(  # noqa: E731
        comm, shape, source, target, dtype, **options
    ).close()
    make()
    other = overlap.DistArray(np.zeros(3), comm, (3,), (), (slice(0, 3),))
    bad = (
        {"shape": (4, -8, 6)},
        {"shape": ()},
        {"source": 3},
        {"source": {"axes": 1, "shares": {1: (9,) + (0,) * (size - 1)}}},
        {"target": {"axis": 1}},
        {"target": {"axes": (1, 2)}},
        {"target": {"axes": 1, "weights": 3}},
        {"source": other},
        {"target": None},
        {"dtype": "O"},
        {"dtype": "nonsense"},
        {"settings": {"wait": "never"}},
        {"exchange": "f2"},
        {"exchange": "f4", "dtype": "f4"},
    )
    for arguments in bad:
        raises_everywhere(comm, InputError, "expected", lambda: make(**arguments))
        if size > 1:
            raises_everywhere(comm, InputError, "expected", lambda: make(**(arguments if last else {})))
    if size > 1:
        for name, value in (("shape", (4, 8, 7)), ("target", 1), ("dtype", "f4"), ("settings", {"depth": 2})):
            raises_everywhere(comm, InputError, "the same on all ranks", make, **{name: value} if last else {})
    with Transpose(comm, (4, 8, 6), 1, 2, "f8") as plan:
        u = plan.source.empty()
        u[...] = 1
        for wrong, out in ((u.astype("f4"), None), (u[:3], None), (5, None), (u, u), (u, np.zeros(3)), (u, 7)):
            raises_everywhere(comm, InputError, "expected", lambda: plan.forward(wrong, out=out))
            if size > 1:
                arguments = (wrong, out) if last else (u, None)
                raises_everywhere(comm, InputError, "expected", lambda: plan.forward(*arguments))
        if size > 1:
            v = plan.target.empty()
            raises_everywhere(
                comm,
                InputError,
                "forward of Transpose (4, 8, 6)",
                lambda: plan.backward(v) if last else plan.forward(u),
            )
        plan.forward(u)
    raises_everywhere(comm, overlap.ClosedError, "Transpose", lambda: plan.forward(u))
