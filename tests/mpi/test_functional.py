"""The functions with scipy.fft's names on 1 to 3 ranks."""

from itertools import permutations

import numpy as np
import scipy.fft
from everywhere import outcome, raised, raises_everywhere, same_everywhere
from marks import on_ranks
from mpi4py import MPI
from truth import random

import overlap
from overlap import InputError, fft
from overlap.arrays import block
from overlap.fft import functional
from overlap.fft import scipy_backend as backend


@on_ranks(1, 2)
def test_like_scipy(comm):
    """All functions, on distributed and on plain arrays, against scipy on the whole array."""
    rng = np.random.default_rng(3)
    whole = random(rng, (4, 8, 6), "c16")
    for name, axes, norm in (
        ("fft2", (-2, -1), None),
        ("fftn", None, "ortho"),
        ("rfft2", (1, 2), "forward"),
        ("rfftn", (-3, -2, -1), None),
        ("fftn", (-2, -1), None),
    ):
        data = whole.real if name.startswith("r") else whole
        count = 3 if axes is None else len(axes)
        part = block(data.shape[-count], comm.size)[comm.rank]
        where = (slice(None),) * (3 - count) + (part,)
        options = {"norm": norm} | ({} if axes is None else {"axes": axes})
        spectrum = getattr(fft, name)(np.ascontiguousarray(data[where]), comm, workers=1, **options)
        expected = getattr(scipy.fft, name)(data, **options)
        assert isinstance(spectrum, overlap.DistArray) and spectrum.global_shape == expected.shape
        np.testing.assert_allclose(spectrum, expected[spectrum.local_slice], rtol=1e-12, atol=1e-12)
        inverse = name.replace("rfft", "irfft") if name.startswith("r") else "i" + name
        back = getattr(fft, inverse)(spectrum, **options)
        np.testing.assert_allclose(back, data[back.local_slice], rtol=1e-12, atol=1e-12)
        again = getattr(fft, name)(back, overwrite_x=True, **options)
        np.testing.assert_allclose(again, spectrum, rtol=1e-11, atol=1e-11)
        plain = getattr(fft, inverse)(np.array(spectrum), comm, s=data.shape[-count:], split=4 - count, **options)
        assert np.array_equal(plain, back)
        assert np.array_equal(getattr(fft, inverse)(np.array(spectrum), comm, split=1 - count, **options), back)
    for dtype in ("?", "u1", "i2", "i8", "f2", ">f4", "f4", ">f8"):
        found = fft.rfft2(np.ones((comm.size, 2), dtype)[comm.rank : comm.rank + 1], comm)
        assert found.dtype == scipy.fft.rfft2(np.ones((2, 2), dtype)).dtype, dtype
    fft.close_plans()


@on_ranks(1, 2)
def test_any_axes(comm):
    """Any axes in any order, wherever the array is split, against scipy on the whole array."""
    rng = np.random.default_rng(6)
    shape = (5, 6, 7, 4)
    data = random(rng, shape, "c16")
    served = 0
    for real in (False, True):
        whole = data.real if real else data
        for axes in ((1,), (3,), (0, 1), (2, 0), (3, 2), (1, 3, 0), (1, 2, 3), (3, 2, 1, 0), None):
            for split in range(4):
                part = block(shape[split], comm.size)[comm.rank]
                where = [slice(0, length) for length in shape]
                where[split] = part
                u = overlap.DistArray(whole[tuple(where)], comm, shape, (split,), where)
                forward, inverse = ("rfftn", "irfftn") if real else ("fftn", "ifftn")
                order = tuple(range(4)) if axes is None else axes
                if comm.size > 1 and real and split == order[-1]:
                    assert "redistribute" in str(raised(InputError, getattr(fft, forward), u, axes=axes))
                    continue
                spectrum = getattr(fft, forward)(u, axes=axes)
                expected = getattr(scipy.fft, forward)(whole, axes=axes)
                np.testing.assert_allclose(spectrum, expected[spectrum.local_slice], rtol=0, atol=1e-11)
                back = getattr(fft, inverse)(spectrum, s=[shape[axis] for axis in order], axes=axes)
                np.testing.assert_allclose(back, whole[back.local_slice], rtol=0, atol=1e-12)
                served += 1
    assert served == 72 - (9 if comm.size > 1 else 0)
    fft.close_plans()


@on_ranks(1, 2)
def test_of_one_axis(comm):
    """`fft` and its like: an array of one dimension stays split, and others where nothing else can be split."""
    rng = np.random.default_rng(8)
    for shape, axis, dtype in (((48,), 0, "c16"), ((135,), -1, "c8"), ((1, 36), 1, "c16"), ((6, 7), 0, "c16")):
        whole = random(rng, shape, dtype)
        part = [slice(0, length) for length in shape]
        part[axis] = block(shape[axis], comm.size)[comm.rank]
        eps = 100 * np.finfo(dtype).eps
        for norm in (None, "ortho"):
            spectrum = fft.fft(whole[tuple(part)], comm, axis=axis, norm=norm)
            expected = scipy.fft.fft(whole, axis=axis, norm=norm)
            np.testing.assert_allclose(spectrum, expected[spectrum.local_slice], rtol=0, atol=eps)
            back = fft.ifft(spectrum, axis=axis, norm=norm)
            np.testing.assert_allclose(back, whole[back.local_slice], rtol=0, atol=eps)
        if len(shape) == 1:  # in even shares, which may not be those of the plan
            even = np.ascontiguousarray(expected[tuple(part)])
            back = fft.ifft(even, comm, norm="ortho")
            np.testing.assert_allclose(back, whole[back.local_slice], rtol=0, atol=eps)
    real = rng.standard_normal((6, 8))
    rows = block(6, comm.size)[comm.rank]
    half = fft.rfft(real[rows], comm, split=0)
    np.testing.assert_allclose(half, scipy.fft.rfft(real)[rows], rtol=0, atol=1e-13)
    np.testing.assert_allclose(fft.irfft(half, n=8), real[rows], rtol=0, atol=1e-13)
    if comm.size > 1:
        raises_everywhere(
            comm, InputError, "product of two numbers", fft.fft, np.ones(7 if comm.rank == 0 else 6), comm
        )
        raises_everywhere(comm, InputError, "", fft.rfft, np.ones(8), comm)
        raises_everywhere(comm, InputError, "split to name the axis", fft.ifft, np.ones((4, 4), complex), comm)
    fft.close_plans()


@on_ranks(1, 2)
def test_other_lengths(comm):
    """Zeros are added and ends cut as scipy does, of points and of modes, along whole and split axes."""
    rng = np.random.default_rng(9)
    shape = (5, 6, 7)
    whole = random(rng, shape, "c16")
    for name in ("fftn", "ifftn", "rfftn", "irfftn"):
        for axes, s in (((1, 2), (8, 5)), ((0, 1, 2), (4, 8, 9)), ((2, 0), (3, 11)), (None, (9, 2)), ((1,), (4,))):
            data = whole.real if name[0] == "r" else whole
            expected = getattr(scipy.fft, name)(data, s, axes, "ortho")
            for split in range(3):
                part = [slice(0, length) for length in shape]
                part[split] = block(shape[split], comm.size)[comm.rank]
                x = np.ascontiguousarray(data[tuple(part)])
                for given in (x, overlap.DistArray(x, comm, shape, (split,), part)):
                    options = {"s": s, "axes": axes, "norm": "ortho", "split": split}
                    try:
                        found = getattr(fft, name)(given, comm, **options)
                    except InputError as error:
                        assert comm.size > 1 and "redistribute" in str(error), error
                        continue
                    assert found.global_shape == expected.shape
                    np.testing.assert_allclose(found, expected[found.local_slice], rtol=0, atol=1e-13)
    line = np.ones(block(20, comm.size)[comm.rank].stop - block(20, comm.size)[comm.rank].start)
    for n in (16, 36):
        found = fft.fft(line, comm, n=n)
        np.testing.assert_allclose(found, scipy.fft.fft(np.ones(20), n)[found.local_slice], rtol=0, atol=1e-12)
    fft.close_plans()


@on_ranks(1, 2)
def test_inverse_of_a_plain_array(comm):
    """Rows are not taken for columns: an inverse is told which axis is split, or refuses."""
    size = 4 * comm.size
    whole = np.fft.fft2(np.random.default_rng(5).standard_normal((3, size, size)))
    part = slice(4 * comm.rank, 4 * comm.rank + 4)
    rows, columns = (np.ascontiguousarray(whole[where]) for where in (np.s_[:, part], np.s_[:, :, part]))
    expected = np.fft.ifft2(whole)
    assert np.allclose(fft.ifft2(columns, comm, split=2), expected[:, part])
    given = overlap.DistArray(rows, comm, whole.shape, (1,), (slice(0, 3), part, slice(0, size)))
    if comm.size == 1:
        assert np.allclose(fft.ifft2(rows, comm), expected)
    else:
        for name in ("ifft2", "irfft2", "ifftn", "irfftn"):
            inverse = getattr(fft, name)
            axis = 2 - name.endswith("n")
            raises_everywhere(comm, InputError, f"split={axis}", inverse, rows, comm)
    assert np.allclose(fft.ifft2(given.redistribute(2)), expected[:, part])
    for found in (fft.ifft2(given), fft.ifft2(rows, comm, split=1), fft.ifft2(given, axes=(1, 2))):
        np.testing.assert_allclose(found, expected[found.local_slice], rtol=1e-12, atol=1e-12)
    for split in (3, -4, 1.0, "x"):
        assert "split" in str(raised(InputError, fft.fft2, rows, comm, split=split))
    fft.close_plans()


@on_ranks(1, 2, 3)
def test_inverses_along_short_axes(comm):
    """An inverse of a spectrum is numpy's, also where an axis is shorter than the number of ranks, or refused."""
    for shape in ((1, 12), (1, 16), (2, 12), (3, 1, 12), (12, 1), (1, 2, 1, 9)):
        whole = np.fft.fftn(np.random.default_rng(6).random(shape))
        for split in range(len(shape)):
            part = [slice(None)] * len(shape)
            part[split] = block(shape[split], comm.size)[comm.rank]
            for name in ("ifft2", "ifftn"):
                try:
                    found = getattr(fft, name)(np.ascontiguousarray(whole[tuple(part)]), comm, split=split)
                except InputError as error:
                    assert "redistribute" in str(error), (shape, split, error)
                else:
                    expected = getattr(np.fft, name)(whole)[found.local_slice]
                    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    fft.close_plans()


class Unwilling:
    """An object that can't be taken for anything."""

    def __array__(self, *args, **kwargs):
        raise ValueError("mine")

    __index__ = __iter__ = __len__ = __array__


@on_ranks(1, 2)
def test_asked_differently(comm):
    """Whatever one rank gives for any argument: one error on all ranks, and the next call is right."""
    if comm.size == 1:
        return
    whole = np.random.default_rng(6).standard_normal((4, 4 * comm.size, 8))
    part = slice(4 * comm.rank, 4 * comm.rank + 4)
    rows = np.ascontiguousarray(whole[:, part])
    placed = overlap.DistArray(rows, comm, whole.shape, (1,), (slice(0, 4), part, slice(0, 8)))
    half = comm.Split(comm.rank == 0)
    last = comm.rank == comm.size - 1
    wrong = {
        "x": (None, "rows", 3, rows[0], rows[:, :, :3], rows[:3], rows[:, :1], rows.astype("f4"), rows + 1j,
              rows[:, :, :0], np.ma.masked_less(rows, 0), rows.astype(object), Unwilling(), rows.astype("g")),
        "s": (3, (4, 8, 8), (4.0, 8), "ab", Unwilling(), (None, None)),
        "axes": (1, (1,), (0, 1), (1.0, 2), "ab", (0, 1, 2), Unwilling()),
        "norm": (1, "ortho", "none", ["ortho"], np.ones(2), Unwilling()),
        "workers": (2, 0, -1, 10**6, 1.5, "1", np.nan, Unwilling()),
        "split": (2, "a", 1.5, Unwilling()),
        "exchange": ("f4", "f8", 4, ["f4"], Unwilling()),
    }  # fmt: skip
    expected = np.fft.fft2(whole)

    def works():
        found = fft.fft2(rows, comm)
        assert np.allclose(found, expected[found.local_slice])

    for name in ("fft2", "rfft2", "fftn", "rfftn"):
        for argument, values in wrong.items():
            for value in values if name in ("fft2", "rfft2") else values[-1:]:
                options = {"x": rows, "axes": (-2, -1)}
                if last:
                    options[argument] = value
                if name == "rfft2" and not (
                    argument == "x" and isinstance(value, np.ndarray) and value.dtype == complex
                ):
                    continue
                error = outcome(getattr(fft, name), comm=comm, **options)
                assert isinstance(error, InputError | overlap.RankError), (name, argument, value, error)
                same_everywhere(comm, str(error))
                works()
    for given, options in (
        (placed if last else rows, {"comm": comm}),
        (placed, {"comm": half if last else comm}),
        (placed, {"comm": "world" if last else None}),
        (placed.T if last else placed, {}),
        (placed.astype("f4") if last else placed, {}),
    ):
        raises_everywhere(comm, InputError, "", fft.fft2, given, **options)
        works()
    spectrum = fft.rfft2(placed)
    for options in ({"s": (4 * comm.size, 9)}, {"norm": "ortho"}, {"split": 0}, {"workers": 2}):
        raises_everywhere(comm, InputError, "", fft.irfft2, spectrum, **options if last else {})
        assert np.allclose(fft.irfft2(spectrum), rows)
    half.Free()
    fft.close_plans()


@on_ranks(1, 2)
def test_served_differently(comm):
    """Ranks whose plans are known, and that ask for different ones: one error on all, and the next call is right."""
    n = 4 * comm.size
    whole = np.random.default_rng(12).standard_normal((2, n, n)) + 1j
    part = slice(4 * comm.rank, 4 * comm.rank + 4)
    rows = np.ascontiguousarray(whole[:, part])
    placed = overlap.DistArray(rows, comm, whole.shape, (1,), (slice(0, 2), part, slice(0, n)))
    turned = overlap.DistArray(placed.T.copy(), comm, whole.T.shape, (1,), placed.T.local_slice)
    ways = {
        "fft2": lambda: fft.fft2(placed),
        "of other axes": lambda: fft.fft2(turned, axes=(1, 0)),
        "plain": lambda: fft.fft2(rows, comm),
        "ortho": lambda: fft.fft2(placed, norm="ortho"),
        "inverse": lambda: fft.ifft2(placed, axes=(2, 1)),
        "two workers": lambda: fft.fft2(placed, workers=2),
        "two workers, ortho": lambda: fft.fft2(placed, norm="ortho", workers=2),
        "single precision": lambda: fft.fft2(placed.astype("c8")),
        "one axis": lambda: fft.fft(placed, axis=2),
        "longer": lambda: fft.fft2(placed, s=(n, n + 2)),
    }

    def works():
        spectrum = fft.fft2(placed)
        np.testing.assert_allclose(spectrum, np.fft.fft2(whole)[spectrum.local_slice], rtol=0, atol=1e-11)
        np.testing.assert_allclose(fft.ifft2(spectrum), rows, rtol=0, atol=1e-12)

    for way in ways.values():
        for _ in range(3):
            way()
    assert len(kept_plans(comm)) == functional.KEPT
    for mine, theirs in permutations(ways, 2):
        if comm.size > 1 and {mine, theirs} != {"fft2", "plain"}:  # of one plan
            error = raises_everywhere(comm, InputError, "", ways[theirs if comm.rank == comm.size - 1 else mine])
            assert "expected the same on all ranks, received" in str(error), (mine, theirs, error)
        works()
    fft.close_plans()


@on_ranks(1, 2)
def test_served_alike(comm):
    """What one rank alone writes in another way, or has a plan for, is the same on all ranks: it is right."""
    last = comm.rank == comm.size - 1
    for _ in range(2):
        for length in (4 * comm.size, 4 * comm.size + 1):  # the last rank has four rows of both
            whole = np.random.default_rng(length).standard_normal((length, 6))
            rows = block(length, comm.size)[comm.rank]
            for options in ({}, {"axes": [0, 1] if last else (0, 1)}, {"axes": (-2, -1) if last else (0, 1)}):
                found = fft.fft2(whole[rows], comm, **options)
                np.testing.assert_allclose(found, np.fft.fft2(whole)[found.local_slice], rtol=0, atol=1e-12)
                back = fft.ifft2(found, comm if last else None, workers=np.int8(1) if last else None)
                np.testing.assert_allclose(back, whole[back.local_slice], rtol=0, atol=1e-13)
    for wrong in ({"axes": (0, True)}, {"axes": (0.0, 1)}, {"workers": True}, {"split": 0.0}):
        raises_everywhere(comm, InputError, "", fft.fft2, whole[rows], comm, **wrong)
    fft.close_plans()


@on_ranks(1, 2)
def test_threads_are_agreed(comm):
    """Another number of workers on each rank: the example of a hang."""
    x = np.ones((3, 4, 6))
    if comm.size > 1:
        raises_everywhere(comm, InputError, "workers", fft.fft2, x, comm, workers=1 + comm.rank)
    for workers in (0, -1, 10**6, True, 1.0):
        raises_everywhere(comm, InputError, "workers", fft.fft2, x, comm, workers=workers)
    assert fft.fft2(x, comm, workers=np.int8(2)).shape[0] == 3
    fft.close_plans()


@on_ranks(1, 2)
def test_refused(comm):
    """What cannot be served is said, on all ranks."""
    u = np.ones((3, 4, 6))
    for options, said in (
        ({"s": (4, 0)}, "s to be 2 positive integers"),
        ({"axes": (0, 3)}, "from -3 to 2"),
        ({"axes": ()}, "from -3 to 2"),
        ({"axes": (0, -3)}, "each once"),
        ({"norm": "other"}, "norm"),
    ):
        error = raised(InputError, fft.fft2, u, comm, **options)
        assert said in str(error)
        same_everywhere(comm, str(error).split("received")[0])
    raises_everywhere(
        comm,
        InputError,
        "expected x to be an array without a mask",
        fft.fft2,
        np.ma.masked_less(u, 1) if comm.rank == 0 else u,
        comm,
    )
    assert "comm" in str(raised(InputError, fft.fft2, u))
    assert "real" in str(raised(InputError, fft.rfft2, u + 1j, comm))
    fft.close_plans()


@on_ranks(1, 2)
def test_plans_are_kept_and_bounded(comm):
    """The same plan serves the same call; of many, the last ones are kept."""
    for length in range(2, 2 * functional.KEPT + 2):
        fft.fft2(np.ones((1, 2, length)), comm)
    plans = kept_plans(comm)
    assert len(plans) == functional.KEPT
    last = plans[-1]
    fft.fft2(np.ones((1, 2, length)), comm)
    assert kept_plans(comm) == plans
    fft.fft2(np.ones((1, 2, length - functional.KEPT + 1)), comm)  # the oldest: then it is none any more
    fft.fft2(np.ones((1, 2, 2)), comm)
    assert not plans[0].closed and plans[1].closed and len(kept_plans(comm)) == functional.KEPT
    fft.close_plans()
    assert last.closed
    mine = comm.Dup()
    fft.fft2(np.ones((1, 2, 3)), mine)
    held = functional._plans.of(mine)
    (last,) = kept_plans(mine)
    mine.Free()
    assert last.closed and last.runtime.closed and held not in functional._plans.every


def kept_plans(comm):
    """Those that are kept for a communicator."""
    return list(functional._plans.of(comm)._kept.values())


@on_ranks(1, 2)
def test_freed_beside_other_attributes(comm):
    """A communicator with plans and with other attributes is freed, however many attributes MPI has room for."""
    comm.Create_cart([comm.size]).Free()  # only since there is one, MPICH looks for topologies
    others, key = [], MPI.Comm.Create_keyval()
    for _ in range(64):  # MPICH makes room for 32 attributes, and for more when it needs it
        mine = comm.Dup()
        held = functional._plans.of(mine)
        mine.bcast(None)  # mpi4py's own attribute
        mine.Free()
        assert held not in functional._plans.every
        others.append(comm.Dup())
        others[-1].Set_attr(key, None)
    for other in others:
        other.Free()


@on_ranks(1, 2)
def test_arrays_of_a_freed_communicator(comm):
    """What needs the communicator says on each rank that it was freed; what is local goes on."""
    mine = comm.Dup()
    plan = overlap.FFT2(mine, (2, 2 * comm.size, 4), dtype="f8")
    arrays, u = plan.real, plan.real.from_function(lambda y, x: x + 0 * y)
    plan.close()
    mine.Free()
    calls = (u.gather, u.global_norm, lambda: u.save("u.npy"), lambda: arrays.from_function(lambda y, x: x))
    for call in (*calls, lambda: arrays.scatter(np.zeros(arrays.global_shape)), lambda: fft.fft2(u)):
        assert "freed" in str(raised(InputError, call))
    assert np.array_equal(u + u, 2 * np.asarray(u)) and arrays.empty().shape == u.shape


@on_ranks(1, 2)
def test_numpy_counts(comm):
    """Counts and times may be numpy's numbers; a deadline may be None."""
    with (
        overlap.Runtime(
            comm,
            workers=np.int64(2),
            depth=np.int32(4),
            in_flight=np.int8(2),
            agree_every=np.int64(3),
            deadline_s=np.float64(30),
        ) as runtime,
        overlap.FFT2(runtime, (6, 8, 8), "f8") as plan,
    ):
        assert type(runtime.workers) is int and type(runtime.depth) is int
        np.testing.assert_allclose(plan.backward(plan.forward(np.ones(plan.real.shape))), 1)
    with overlap.Runtime(comm, deadline_s=None) as runtime:
        assert runtime.deadline_s is None


@on_ranks(1)
def test_backend_of_scipy(comm):
    """What scipy.fft returns or raises with overlap as its backend is what it does without."""
    rng = np.random.default_rng(4)
    served = []
    transform = functional._transform

    def counted(*arguments):
        result = transform(*arguments)
        served.append(arguments)
        return result

    functional._transform = counted
    least, backend.LEAST_POINTS = backend.LEAST_POINTS, 1
    try:
        for shape in (6, 5), (3, 8, 9), (2, 3, 4, 6), (4, 1), (1, 4):
            for name in backend.SERVED:
                for dtype, tolerance in ("f8", 1e-13), ("c16", 1e-13), ("f4", 2e-6), ("c8", 2e-6):
                    x = random(rng, shape, dtype)
                    expected, received = with_and_without(name, x)
                    agree(expected, received, tolerance, name, shape, dtype)
        # All combinations but: complex input of rfft2 and rfftn, the n-dimensional ones of four axes, and irfft2
        # and irfftn of one mode, which leaves no point.
        assert len(served) == 5 * 8 * 4 - 5 * 2 * 2 - (2 * 4 + 2 + 4) - 2 * 4
        served.clear()
        x = rng.standard_normal((4, 6, 8))
        for options in (
            {"norm": "ortho"},
            {"norm": "forward", "workers": 2},
            {"axes": (1, 2)},
            {"s": (6, 8)},
            {"s": (4, 9)},
            {"overwrite_x": True},
            {"workers": -1},
        ):
            agree(*with_and_without("fft2", x, **options), 1e-13, options)
        assert len(served) == 7
        agree(*with_and_without("irfft2", x, s=(6, 3)), 1e-13)
        agree(*with_and_without("fft2", x[::-1, :, ::2]), 1e-13)
        agree(*with_and_without("fftn", np.asfortranarray(x)), 1e-13)
        with scipy.fft.set_workers(2):
            agree(*with_and_without("rfftn", x), 1e-13)
        assert len(served) == 11
        for name, options in (
            ("fft2", {"axes": (0, 1)}),
            ("fft2", {"axes": (2, 1)}),
            ("fftn", {"axes": (-1,)}),
            ("fft", {}),
            ("dctn", {}),
            ("fft2", {"axes": (1, 1)}),
            ("fft2", {"axes": (0, 7)}),
            ("fft2", {"norm": "none"}),
            ("fft2", {"workers": 0}),
            ("fft2", {"workers": 1.5}),
            ("rfft2", {"workers": -(10**6)}),
            ("fft2", {"colour": "red"}),
            ("fftn", {"plan": 3}),
        ):
            agree(*with_and_without(name, x, **options), 0, name, options)
        for other in (
            x.astype("g"),
            x.astype(">f8"),
            x.astype("i4"),
            x.astype("f2"),
            x[:, :0],
            x.tolist(),
            np.float64(1),
            np.ma.masked_array(x, x > 0),
            None,
            overlap.DistArray(x, comm, x.shape, (0, 1, 2), [slice(0, length) for length in x.shape]),
        ):
            agree(*with_and_without("fft2", other), 0, type(other))
        assert len(served) == 11
        with overlap.Runtime(comm, workers=2) as runtime:

            @runtime.pipelined
            async def program(z):
                with scipy.fft.set_backend(fft):
                    spectra[z] = scipy.fft.fft2(x)
                await runtime.comm.Barrier()

            spectra = [None] * 8
            program(range(8))
        for spectrum in spectra:
            agree(scipy.fft.fft2(x), spectrum, 1e-13)
    finally:
        functional._transform, backend.LEAST_POINTS = transform, least
    agree(*with_and_without("fft2", rng.standard_normal((2, 256, 256))), 1e-13)
    fft.close_plans()


def with_and_without(name, x, **options):
    """What a function of scipy.fft returns or raises without and with overlap as its backend."""

    def called():
        try:
            return getattr(scipy.fft, name)(x, **options)
        except Exception as error:
            return error

    given = x.copy() if isinstance(x, np.ndarray) else x
    expected = called()
    with scipy.fft.set_backend(fft):
        received = called()
    if isinstance(x, np.ndarray) and not options.get("overwrite_x"):
        assert np.array_equal(x, given, equal_nan=x.dtype.kind in "fc")
    return expected, received


def agree(expected, received, tolerance, *what):
    """The same numbers, but for rounding, of the same type; or the same error."""
    assert type(expected) is type(received), (expected, received, what)
    if isinstance(expected, Exception):
        assert str(expected) == str(received), what
    else:
        assert expected.dtype == received.dtype and expected.shape == received.shape, what
        np.testing.assert_allclose(
            received, expected, rtol=0, atol=tolerance * np.abs(expected).max(initial=1), err_msg=str(what)
        )
