"""`Bracket` on 1 to 4 ranks and two MPI libraries."""

from itertools import product

import numpy as np
import pytest
from marks import exhaustive, on_ranks
from test_fft_errors import grouped

import overlap

SPACING = 0.3, 0.7


def modes(shape, seed):
    """Global random modes ``(..., nky, nkx)`` of real fields."""
    random = np.random.default_rng(seed)
    f = random.standard_normal(shape) + 1j * random.standard_normal(shape)
    f[..., 0, :] += np.conj(f[..., 0, ::-1])
    return f


def whole(f):
    """All modes ``(..., -M ... M, -K ... K)``."""
    return np.concatenate([np.conj(f[..., :0:-1, ::-1]), f], axis=-2)


def direct(a, f):
    """The bracket by a direct sum over pairs of modes: -(k'_x k''_y - k'_y k''_x) a_k' f_k''."""
    nky, nkx = a.shape[-2:]
    ky = SPACING[0] * np.arange(1 - nky, nky)
    kx = SPACING[1] * np.arange(-(nkx // 2), nkx // 2 + 1)
    a, f = whole(a), whole(f)
    total = np.zeros((4 * nky - 3, 2 * nkx - 1), complex)
    for i in range(2 * nky - 1):
        for j in range(nkx):
            cross = kx[j] * ky[:, None] - ky[i] * kx
            total[i : i + 2 * nky - 1, j : j + nkx] -= cross * a[i, j] * f
    middle, most = 2 * nky - 2, nkx // 2
    return total[middle : middle + nky, nkx - 1 - most : nkx + most]


def run(comm, a, f, **options):
    """The global brackets, as the ranks of `comm` find them together; None elsewhere."""
    points, workers, exchange = options.pop("points", None), options.pop("workers", 1), options.pop("exchange", None)
    with (
        overlap.Runtime(comm, workers=workers) as runtime,
        overlap.Bracket(runtime, f.shape, SPACING, points=points, settings=options, exchange=exchange) as bracket,
    ):
        bracket.advect(np.ascontiguousarray(a[:, bracket.rows]))
        mine = np.ascontiguousarray(f[:, :, bracket.rows])
        parts = comm.gather(bracket(mine))
        assert np.array_equal(mine, f[:, :, bracket.rows])
    return np.concatenate(parts, axis=2) if comm.rank == 0 else None


def direct_sum(comm, mode, shape=(2, 3, 9, 17), points=None):
    """Every plane against the sum over all pairs of a 17 x 17 mode set."""
    a, f = modes(shape[1:], 1), modes(shape, 2)
    found = run(comm, a, f, wait=mode, points=points)
    if comm.rank == 0:
        truth = np.array([[direct(a[p], f[z, p]) for p in range(shape[1])] for z in range(shape[0])])
        assert abs(found - truth).max() <= 1e-13 * abs(truth).max()


@on_ranks
@pytest.mark.parametrize(
    "comm, mode, points", [(1, "off", None), (2, "poll", None), (3, "block", [25, 26]), exhaustive(4, "auto", [27, 49])]
)
def test_direct_sum_over_modes(comm, mode, points):
    direct_sum(comm, mode=mode, points=points)


@on_ranks(1, 3)
def test_invariants(comm):
    """mean {a, f}, mean a {a, f} and mean f {a, f} vanish; {a, a} = 0; {a, f} = -{f, a}."""
    shape = (1, 4, 8, 21)
    a, f = modes(shape[1:], 3), modes(shape, 4)
    b = run(comm, a, f)
    c = run(comm, f[0], a[None])
    nothing = run(comm, a, a[None])
    if comm.rank == 0:
        size = abs(b).max()
        assert abs(b[0, :, 0, 10]).max() <= 1e-13 * size
        assert abs(nothing).max() <= 1e-13 * size
        assert abs(b + c).max() <= 1e-13 * size
        for other in (a, f[0]):
            products = whole(b[0]) * np.conj(whole(other))
            assert abs(products.sum(axis=(1, 2))).max() <= 1e-13 * abs(products).sum()


@on_ranks(2, exhaustive(4), exhaustive("openmpi-3"))
def test_same_bits_on_any_ranks(comm):
    """Any ranks, workers, depth and mode give the bits of one rank without overlap."""
    for shape in ((5, 6, 7, 9), (3, 5, 3, 5), (4, 2, 5, 7), (2, 3, 1, 3), (2, 3, 3, 1)):
        a, f = modes(shape[1:], 5), modes(shape, 6)
        alone = comm.Split(comm.rank)
        truth = run(alone, a, f, wait="off")
        alone.Free()
        for ranks in range(1, comm.size + 1):
            part = comm.Split(int(comm.rank < ranks))
            if comm.rank < ranks:
                for mode, workers, depth in (
                    ("off", 1, 1),
                    ("poll", 1, 2),
                    ("poll", 3, 4),
                    ("block", 2, 3),
                    ("auto", 1, 4),
                ):
                    found = run(part, a, f, wait=mode, workers=workers, depth=depth)
                    if comm.rank == 0:
                        assert np.array_equal(found, truth), (shape, ranks, mode, workers)
            part.Free()


@on_ranks(1, exhaustive(2), 3)
def test_repeated_calls(comm):
    """Calls with the same arrays and with others give the same bits, with any number of planes and in every way."""
    for slices, planes, nky, wait in [
        *product((1,), range(1, 9), (comm.size - 1 or 1, 5), ("off", "auto")),
        *product((1,), (1, 4), (5,), ("poll",)),
        *product((3,), (1, 2, 5), (4,), ("off",)),
    ]:
        shape = slices, planes, nky, 7
        a, f = modes(shape[1:], 9), modes(shape, 10)
        with overlap.Bracket(comm, shape, SPACING, settings={"wait": wait}) as bracket:
            bracket.advect(np.ascontiguousarray(a[:, bracket.rows]))
            mine = np.ascontiguousarray(f[:, :, bracket.rows])
            expected = np.array(bracket(mine))
            bracket.transform.settle(mine)
            out, held = np.empty_like(expected), []
            for _ in range(3):
                assert np.array_equal(bracket(mine, out=np.empty_like(out)), expected)
                assert np.array_equal(bracket(mine, out=out), expected)
                held.append(bracket(mine))
            assert all(np.array_equal(one, expected) for one in held)
            bracket.advect(np.ascontiguousarray(f[0][:, bracket.rows]))  # another field
            assert np.array_equal(bracket(mine, out=out), bracket(mine, out=np.empty_like(out)))
            assert slices > 1 or not (abs(out) > 1e-12 * abs(mine).max(initial=0.0) ** 2).any()  # {f, f} vanishes


@on_ranks(1, 3)
def test_speed(comm):
    """The largest gradient of a plane wave."""
    shape = (1, 2, 4, 9)
    a = np.zeros(shape[1:], complex)
    a[1, 2, 6] = 0.5  # cos(2 dkx x + 2 dky y)
    with overlap.Bracket(comm, shape, SPACING) as bracket:
        bracket.advect(np.ascontiguousarray(a[:, bracket.rows]))
        largest = max(comm.allgather(bracket.speed))
    k = np.hypot(2 * SPACING[0], 2 * SPACING[1])
    assert abs(largest - k) <= 0.05 * k  # the crest lies between points of the grid


@on_ranks(1, exhaustive(2), 3, "openmpi-2", exhaustive("openmpi-3"))
def test_own_program(comm):
    """`apply` inside a slice program with other awaits."""
    shape = (6, 4, 5, 7)
    a, f = modes(shape[1:], 7), modes(shape, 8)
    with overlap.Runtime(comm, workers=2) as runtime, overlap.Bracket(runtime, shape, SPACING) as bracket:
        bracket.advect(np.ascontiguousarray(a[:, bracket.rows]))
        mine = np.ascontiguousarray(f[:, :, bracket.rows])
        expected, found = bracket(mine), bracket.spectrum.empty()
        sums = np.zeros((shape[0], 1))

        @runtime.pipelined(buffers=bracket.buffers, depth=3, wait="poll")
        async def program(z, slot):
            await runtime.comm.Allreduce(np.ones(1), sums[z])
            await bracket.apply(mine[z], found[z], slot)

        program(range(shape[0]))
        assert np.array_equal(found, expected)
        assert (sums == comm.size).all()


@on_ranks(1, exhaustive(2), 3)
def test_old_argument_of_apply(comm):
    """`apply` accepts `compute`, and warns in the slice program: False awaits the same, and computes nothing."""
    shape = (4, 4, 5, 7)
    a, f = modes(shape[1:], 7), modes(shape, 8)
    with overlap.Runtime(comm) as runtime, overlap.Bracket(runtime, shape, SPACING) as bracket:
        bracket.advect(np.ascontiguousarray(a[:, bracket.rows]))
        mine = np.ascontiguousarray(f[:, :, bracket.rows])
        expected, found = bracket(mine), bracket.spectrum.empty()

        @runtime.pipelined(buffers=bracket.buffers, wait="off")
        async def program(z, slot, compute):
            await bracket.apply(mine[z], found[z], slot, compute=compute)

        for compute in (True, comm.rank == 0):  # ranks that await something else raise an error
            with pytest.warns(DeprecationWarning, match="Bracket.apply needs no compute now") as warnings:
                program(range(shape[0]), compute)
            assert {one.filename for one in warnings} == {__file__}
            assert compute is not True or np.array_equal(found, expected)


@on_ranks(1, 2)
def test_bad_input(comm):
    """One clear error on every rank, and the plan goes on."""
    last = comm.rank == comm.size - 1
    for arguments, words in (
        ({"shape": (2, 3, 4)}, "expected shape (slices, planes, nky, nkx)"),
        ({"shape": (2, 3, 4, 6 if last else 5)}, "with an odd nkx"),
        ({"shape": (10**12, 3, 4, 5)}, "expected arrays that fit into memory"),
        ({"shape": (2, 3, [4, 5], 5)}, "expected shape (slices, planes, nky, nkx)"),
        ({"shape": (2, 3, 4, 5 + 2 * comm.rank)}, "shape: expected the same on all ranks"),
        ({"spacing": (1.0, 0.0)}, "expected spacing (dky, dkx) of two positive numbers"),
        ({"spacing": 1.0}, "expected spacing (dky, dkx)"),
        ({"points": (9, 7)}, "at least 3 K + 1 for modes up to K, (10, 7)"),
        ({"wait": "maybe"}, "expected wait to be one of"),
        ({"effort": "none"}, "expected effort to be one of"),
        ({"chunk": 2}, "expected a chunk of 1 or None"),
        ({"depth": 0}, "expected depth to be an integer from 1 to 65536"),
        ({"depth": 1 + comm.rank}, "depth: expected the same on all ranks"),
    ):
        if comm.size == 1 and words.endswith("the same on all ranks"):
            continue
        arguments = {"shape": (2, 3, 4, 5), "wait": "poll"} | arguments
        with pytest.raises(overlap.InputError) as caught:
            overlap.Bracket(comm, **grouped(arguments))
        assert words in str(caught.value)
    with overlap.Bracket(comm, (2, 3, 4, 5)) as bracket:
        good = bracket.spectrum.empty()
        good[...] = 0
        wrong = {"shape": good[:1], "dtype": good.real, "strides": good[..., ::-1]}
        for what, array in wrong.items():
            with pytest.raises(overlap.InputError) as caught:
                bracket(array if last else good)
            assert f"rank {comm.size - 1}: expected an input of local shape" in str(caught.value), what
        with pytest.raises(overlap.InputError, match="expected out to share no memory"):
            bracket(good, out=good)
        with pytest.raises(overlap.InputError, match="expected a of local shape"):
            bracket.advect(good if last else good[0])
        bracket.advect(good[0])
        assert not bracket(good).any()
    with pytest.raises(overlap.ClosedError):
        bracket(good)


@on_ranks(1, 2)
def test_settings_are_chosen(comm):
    """What is left open is chosen in the first call, or by `tune`; the bits stay the same."""
    shape = (24, 4, 5, 7)
    a, f = modes(shape[1:], 11), modes(shape, 12)
    with overlap.Runtime(comm, workers=2) as runtime, overlap.Bracket(runtime, shape, SPACING) as bracket:
        assert bracket.real is None and bracket.spectrum.global_shape == shape
        assert bracket.spectrum.shape == (*shape[:2], len(range(shape[2])[bracket.rows]), shape[3])
        bracket.advect(np.ascontiguousarray(a[:, bracket.rows]))
        mine = np.ascontiguousarray(f[bracket.spectrum.local_slice])
        assert bracket.transform.settings.wait == "auto"
        expected = np.array(bracket(mine))
        chosen = bracket.transform.settings
        assert chosen.wait in ("off", "block", "poll") and chosen.chunk == 1
        assert str(chosen) in bracket.describe() and repr(bracket).startswith("<Bracket of 24 slices")
        gained = bracket.tune(0.3)
        assert gained == {"bracket": bracket.transform.tuned}
        same = comm.allgather((chosen, bracket.transform.settings, bracket.transform.tuned))
        assert all(each == same[0] for each in same)
        assert np.array_equal(bracket(mine), expected)
        bracket.transform.compute(mine)
        bracket.transform.communicate(mine)
        assert np.array_equal(bracket.transform(mine), expected)
    with pytest.raises(overlap.ClosedError):
        bracket.tune(0.1)
    with (
        overlap.Runtime(comm) as runtime,
        overlap.Bracket(runtime, shape, SPACING, settings=overlap.Settings("poll", depth=3)) as bracket,
    ):
        bracket.advect(np.ascontiguousarray(a[:, bracket.rows]))
        assert np.array_equal(bracket(mine), expected)
        assert (bracket.transform.settings.wait, bracket.transform.settings.depth) == ("poll", 3)
        assert bracket.transform.nbytes_in_flight == 3 * bracket.nbytes_per_slot
        with overlap.Runtime(comm) as other, bracket.on(other) as again:
            again.advect(np.ascontiguousarray(a[:, bracket.rows]))
            assert np.array_equal(again(mine), expected) and again.points == bracket.points
            assert again.transform.settings == bracket.transform.settings
    with pytest.raises(overlap.ClosedError):
        bracket.on(comm)
