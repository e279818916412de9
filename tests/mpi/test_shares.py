"""Given shares on real ranks: plans, halos, blocks and arrays, against numpy on the global array; bad ones refused."""

import numpy as np
from everywhere import raises_everywhere
from marks import exhaustive, on_ranks
from truth import random

import overlap
from overlap import FFT2, FFT3, FFTN, Blocks, Halo, InputError, agreed_blocks
from overlap.arrays import length_of
from overlap.arrays import shares as weighted


def dealt(length, ranks, first=0):
    """Shares in the manner of Dedalus, whole chunks from one rank on: the last ranks may have less, or nothing."""
    each = -(-length // ranks)
    each += each % 2
    found = [min(each, max(0, length - rank * each)) for rank in range(ranks)]
    return tuple(np.roll(found, first).tolist())


def assert_plan(comm, plan, whole, truth, shares):
    """The plan's arrays have just these parts, and it transforms as numpy does."""
    for spec, side in ((plan.real, "real"), (plan.spectrum, "spectrum")):
        parts = comm.allgather(spec.local_slice)
        for axis, each in shares.get(side, {}).items():
            starts = {part[axis].start: length_of(part[axis]) for part in parts if length_of(part[axis])}
            assert [starts[start] for start in sorted(starts)] == [one for one in each if one], (side, axis, parts)
    u = plan.real.empty()
    u[...] = whole[plan.real.local_slice]
    found = plan.forward(u)
    np.testing.assert_allclose(found, truth[plan.spectrum.local_slice], rtol=0, atol=1e-11)
    np.testing.assert_allclose(plan.backward(found), u, rtol=0, atol=1e-13)


@on_ranks(1, exhaustive(2), 3, exhaustive(4), "openmpi-2")
def test_planes(comm):
    """FFT2: both orders, a spectrum that is split as real space is, fine grids, zeros, few and many planes."""
    size = comm.size
    for dtype, nx in (("c16", 9), ("f8", 13)):
        modes = nx if dtype == "c16" else nx // 2 + 1
        for planes, ny in ((5, 11), (1, 6)):
            whole = random(1, (planes, ny, nx), dtype)
            truth = (np.fft.fft2 if dtype == "c16" else np.fft.rfft2)(whole)
            shares = {"real": {-2: dealt(ny, size)}, "spectrum": {-1: dealt(modes, size, 1)}}
            with FFT2(comm, whole.shape, dtype, layout={"shares": shares}) as plan:
                assert_plan(comm, plan, whole, truth, shares)

                @plan.pointwise(dealias="3/2")  # on a finer grid, of the same shares
                def product(a):
                    return a * 2

                spectrum = plan.forward(plan.real.scatter(whole if comm.rank == 0 else None))
                inner = [n for n, k in enumerate(np.fft.fftfreq(ny, 1 / ny)) if abs(k) < ny / 2]
                found = product(spectrum).gather()
                if comm.rank == 0:
                    np.testing.assert_allclose(found[:, inner], 2 * truth[:, inner], rtol=0, atol=1e-11)
                copied = plan.on(plan.runtime)
                assert copied.real.global_shape == plan.real.global_shape
                copied.close()
            turned = {"real": shares["real"], "spectrum": {-2: shares["spectrum"][-1]}}
            with FFT2(comm, whole.shape, dtype, layout={"shares": turned, "order": "transposed"}) as plan:
                assert_plan(comm, plan, whole, truth.swapaxes(1, 2), turned)
            same = {"real": {1: dealt(ny, size, 1)}}
            with FFT2(comm, whole.shape, dtype, layout={"shares": same, "restore": True}) as plan:
                assert plan.real.local_slice[1] == plan.spectrum.local_slice[1]
                assert_plan(comm, plan, whole, truth, same)


@on_ranks(1, exhaustive(2), 3, exhaustive(4))
def test_fields(comm):
    """FFT3 on slabs and pencils, and FFTN."""
    size = comm.size
    for grid in sorted({(size, 1), (1, size)} | ({(2, size // 2)} if size % 2 == 0 else set())):
        P, Q = grid
        for dtype, modes in (("f8", 6), ("c16", 11)):
            whole = random(1, (2, 7, 9, 11), dtype)
            truth = (np.fft.fftn if dtype == "c16" else np.fft.rfftn)(whole, axes=(1, 2, 3))
            shares = {"real": {-3: dealt(7, Q), -2: dealt(9, P)}, "spectrum": {2: dealt(9, Q, 1), 3: dealt(modes, P)}}
            with FFT3(comm, whole.shape, dtype, layout={"shares": shares, "grid": grid}) as plan:
                assert_plan(comm, plan, whole, truth, shares)


@on_ranks(exhaustive(1), 2, 3, exhaustive(4))
def test_shares_and_weights_of_any_axes(comm):
    """FFTN: given shares, and weights, of the axes that are split before and after, whichever are transformed."""
    size = comm.size
    weights = tuple(1 + 2 * rank for rank in range(size))
    for shape, dtype, options, layout in (
        ((5, 6, 7), "f8", {"split": 0}, {}),
        ((5, 9, 7), "c16", {"axes": (2, 0), "split": 0}, {}),
        ((7, 6, 5), "c16", {"axes": 1, "split": 1, "norm": "ortho"}, {}),
        ((7, 5, 4), "f8", {"axes": (1, 2), "split": 0}, {}),  # nothing is exchanged
        ((2, 7, 4, 9), "f8", {"axes": (1, 3), "split": 1}, {}),
        ((8, 7, 5), "c16", {"split": 0}, {"restore": True}),
        ((7, 9, 6, 5), "c16", {"split": (0, 1)}, {"grid": (size, 1)}),
        ((7, 9, 6, 5), "f8", {"split": (1, 0)}, {"grid": (2, size // 2) if size % 2 == 0 else (1, size)}),
    ):
        whole = random(1, shape, dtype)
        axes = options.get("axes", range(len(shape)))
        axes = (axes,) if isinstance(axes, int) else axes

        def truth_of(values):
            modes = np.fft.fftn if values.dtype.kind == "c" else np.fft.rfftn
            return modes(values, axes=axes, norm=options.get("norm"))

        options |= {"settings": {"effort": "estimate", "wait": "poll"}}
        with FFTN(comm, shape, dtype, layout=layout, **options) as plan:
            ends = {"real": plan.real, "spectrum": plan.spectrum}
            along = {side: size if len(spec.axes) == 1 else 2 for side, spec in ends.items()}
            given = {
                side: {
                    axis: dealt(spec.global_shape[axis], along[side], axis not in plan.real.axes) for axis in spec.axes
                }
                for side, spec in ends.items()
            }
        for shares, more in (
            (given, {}),
            ({"real": given["real"]}, {"weights": weights}),  # of axes that are not named
            ({}, {"weights": weights}),
        ):
            with FFTN(comm, shape, dtype, layout=layout | more | {"shares": shares}, **options) as plan:
                assert_plan(comm, plan, whole, truth_of(whole), shares)
                spectrum = plan.spectrum.scatter(truth_of(whole) if comm.rank == 0 else None)
                found = plan.pointwise(lambda a: a * a)(spectrum).gather()
                if comm.rank == 0:
                    np.testing.assert_allclose(found, truth_of(whole**2), rtol=0, atol=1e-11)
                for side, spec in (("real", plan.real), ("spectrum", plan.spectrum)):
                    if more and not shares and len(spec.axes) == 1:
                        (axis,) = spec.axes
                        parts = tuple(length_of(part[axis]) for part in comm.allgather(spec.local_slice))
                        assert parts == weighted(spec.global_shape[axis], weights), (side, parts)


@on_ranks(1, exhaustive(2), 3, exhaustive(4))
def test_axes_apart(comm):
    """FFTN of an axis that stays split: one of two factors, of which given shares are multiples; weights."""
    size = comm.size
    line = random(1, (24,), "c16")
    apart = {"real": {0: (0,) * (size - 1) + (24,)}}
    with FFTN(comm, line.shape, layout={"shares": apart}) as plan:
        assert_plan(comm, plan, line, np.fft.fft(line), apart)
    if size > 1:
        some = {"real": {0: (23, 1, *(0,) * (size - 2))}}
        raises_everywhere(comm, InputError, "multiples", lambda: FFTN(comm, line.shape, layout={"shares": some}))
    line = random(1, (144,), "c16")
    rows, columns = ([12 * each for each in dealt(12, size, first)] for first in (0, 1))
    truth = np.fft.fft(line)
    for layout in (
        {"shares": {"real": {0: rows}, "spectrum": {0: columns}}},
        {"weights": [1 + 2 * rank for rank in range(size)]},
    ):
        with FFTN(comm, line.shape, layout=layout) as plan:
            assert_plan(comm, plan, line, truth, layout.get("shares", {}) if size > 1 else {})
    for layout in ({"shares": {"real": {0: rows}}}, {"weights": [1 + 2 * rank for rank in range(size)]}):
        with FFTN(comm, line.shape, layout={"order": "transposed"} | layout) as plan:
            (k,) = plan.wavenumbers()
            assert_plan(comm, plan, line, Reordered(truth, k.astype(int)), layout.get("shares", {}))


class Reordered:
    """A truth of which a rank's part has certain modes."""

    def __init__(self, truth, modes):
        self._mine = truth[modes]

    def __getitem__(self, where):
        return self._mine


@on_ranks(1, exhaustive(2), 3, exhaustive(4), exhaustive("openmpi-2"))
def test_blocks_and_arrays(comm):
    """Ghost cells of given blocks, and arrays that are moved to given shares and back."""
    size = comm.size
    cells = (2,) * (size - 1) + (5,)
    blocks = agreed_blocks(comm, (sum(cells), 4), (size, 1), periodic=True, shares={0: cells})
    assert [length_of(blocks.part(rank)[0]) for rank in range(size)] == list(cells)
    rows, columns = np.meshgrid(np.arange(sum(cells)), np.arange(4), indexing="ij")
    whole = 10.0 * rows + columns
    with Halo(comm, blocks) as halo:
        u = np.zeros(blocks.local_shape(comm.rank))
        u[blocks.own(comm.rank)] = whole[blocks.part(comm.rank)]
        halo.exchange(u)
        first = blocks.part(comm.rank)[0].start
        np.testing.assert_array_equal(u, np.pad(whole, 1, mode="wrap")[first : first + len(u)])
    some = (3, 0, 2, 1)[:size]
    empty = Blocks((sum(some),), (size,), width=0, shares={-1: some})
    assert [length_of(empty.part(rank)[0]) for rank in range(size)] == list(some)
    array = random(1, (7, 5, 3), "c8")
    with FFTN(comm, array.shape, "c8", axes=2, split=0) as plan:
        u = plan.real.scatter(array if comm.rank == 0 else None)
    v = u.redistribute(1, shares={1: dealt(5, size, 1)})
    assert comm.allgather(v.shape[1]) == list(dealt(5, size, 1))
    np.testing.assert_array_equal(v, array[v.local_slice])
    w = v.redistribute((0, 2), (1, size), shares={-1: dealt(3, size)}, weights=[1 + rank for rank in range(size)])
    np.testing.assert_array_equal(w, array[w.local_slice])
    assert comm.allgather(w.shape[2]) == list(dealt(3, size))


@on_ranks(1, exhaustive(2), 3, exhaustive(4))
def test_shares_refused(comm):
    """One error on all ranks: another sum, a negative one, too many, unlike on ranks, of an axis that is whole."""
    size, last = comm.size, comm.rank == comm.size - 1
    good = (8,) + (0,) * (size - 1)
    with FFT2(comm, (4, 8, 8)) as plan:
        u = plan.real.empty()
    makers = (
        lambda s: FFT2(comm, (4, 8, 8), layout={"shares": {"real": s}}).close(),
        lambda s: FFT3(comm, (8, 8, 8), layout={"shares": {"real": s}, "grid": (size, 1)}).close(),
        lambda s: FFTN(comm, (4, 8, 8), axes=1, split=1, layout={"shares": {"real": s}}).close(),
        lambda s: agreed_blocks(comm, (4, 8, 8), (1, size, 1), width=0, shares=s),
        lambda s: u.redistribute(1, shares=s),
    )
    for make in makers:
        make({1: good})
        for bad in (
            {1: (9, *good[1:])},
            {1: (9, -1, *good[2:]) if size > 1 else (-8,)},
            {1: (*good, 0)},
            {1: (4.0, *good[1:])},
            {0: (2, *good[1:])},
            {7: good},
            {1: good, -2: good},
            [good],
            5,
        ):
            raises_everywhere(comm, InputError, "shares", lambda: make(bad))
            if size > 1:
                raises_everywhere(comm, InputError, "", lambda: make(bad if last else {1: good}))
        if size > 1:
            differs = {1: (7, 1, *good[2:]) if last else good}
            raises_everywhere(comm, InputError, "the same on all ranks", lambda: make(differs))
    for bad in ({"imaginary": {1: good}}, {"real": 3}, {1: good}, "real"):
        raises_everywhere(comm, InputError, "shares", lambda: FFT2(comm, (4, 8, 8), layout={"shares": bad}))
    both = {"real": {1: good}, "spectrum": {1: good[::-1]}}
    if size > 1:
        raises_everywhere(
            comm, InputError, "in both spaces", FFT2, comm, (4, 8, 8), layout={"shares": both, "restore": True}
        )
        raises_everywhere(comm, InputError, "grid together with shares", FFT3, comm, (8, 8, 8), layout={"shares": both})
    raises_everywhere(comm, InputError, "no other", overlap.Bracket, comm, (3, 4, 8, 5), layout={"shares": both})
