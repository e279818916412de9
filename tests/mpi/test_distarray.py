"""`DistArray` on 1 to 4 ranks."""

import copy
import os
import pickle
import shutil
import tempfile
import warnings
from pathlib import Path

import numpy as np
from everywhere import outcome, raised, raises_everywhere, same_everywhere
from marks import exhaustive, on_ranks
from mpi4py import MPI

import overlap
from overlap import DistArray, InputError, RankError
from overlap.arrays import Distribution, placed_as

SHAPE = (4, 6, 6)
INDICES = [
    0,
    -1,
    (Ellipsis, 2),
    np.s_[::-1],
    np.s_[1:],
    np.s_[:, ::-1],
    np.s_[:, :, ::-1],
    np.s_[:, :, 1:5:2],
    np.s_[2, :, ::-1],
    np.s_[:, None],
    np.s_[None, ..., None],
    np.s_[..., :0],
    np.s_[:, 0],
    np.s_[:, 0:2],
    np.s_[3, :, 4],
    np.s_[0, 0, 0],
    (),
    Ellipsis,
    np.int64(1),
    np.s_[1, ..., np.newaxis, 2],
]


def splits(comm):
    """Ways to split the axes of `SHAPE` over the ranks, as (axes, grid)."""
    yield from (((axis,), (comm.size,)) for axis in range(3))
    yield (1, 2), tuple(MPI.Compute_dims(comm.size, 2))


def made(comm, whole, axes, grid):
    """The local part of a global array."""
    where = Distribution(whole.shape, axes, ()).split_along(axes, grid, comm.rank)
    return DistArray(whole[where.local_slice].copy(), comm, whole.shape, axes, where.local_slice)


def values(dtype="f8"):
    return (np.arange(np.prod(SHAPE)).reshape(SHAPE) * (1 + 1j if np.dtype(dtype).kind == "c" else 1)).astype(dtype)


def assert_is(found, whole):
    """A distributed array is the part of `whole` that it says it is, on every rank, and gathers to it."""
    assert type(found) is DistArray and found.global_shape == whole.shape, (found, whole.shape)
    assert np.array_equal(found, whole[found.local_slice])
    gathered = found.gather()
    assert gathered is None if found.comm.rank else np.array_equal(gathered, whole)


@on_ranks(1, exhaustive(2), 3, exhaustive(4), exhaustive("openmpi-2"))
def test_views(comm):
    """Views carry the distribution that is theirs, or are plain arrays."""
    whole = values()
    for axes, grid in splits(comm):
        u = made(comm, whole, axes, grid)
        # A square local part looks the same after a transpose: its shape tells nothing.
        for order in ((0, 1, 2), (0, 2, 1), (2, 1, 0), (1, 2, 0), (-1, 0, 1)):
            assert_is(u.transpose(order), whole.transpose(order))
            assert_is(u.transpose(*order), whole.transpose(order))
            assert_is(np.transpose(u, order), whole.transpose(order))
        assert_is(u.T, whole.T)
        assert_is(u.mT, whole.mT)
        assert_is(u.swapaxes(0, -1), whole.swapaxes(0, 2))
        assert_is(np.moveaxis(u, 0, 1), np.moveaxis(whole, 0, 1))
        assert_is(u.T[::-1].T if 2 not in axes else u.T.T, whole[..., ::-1] if 2 not in axes else whole)
        for index in INDICES:
            items = index if isinstance(index, tuple) else (index,)
            if Ellipsis not in items:
                items = (*items, Ellipsis)
            at = items.index(Ellipsis)
            missing = 3 - sum(item is not None and item is not Ellipsis for item in items)
            items = [item for item in (*items[:at], *[slice(None)] * missing, *items[at + 1 :]) if item is not None]
            whole_along = all(items[axis] == slice(None) for axis in axes)
            if not whole_along and 0 in u.shape:
                continue
            try:
                found = u[index]
            except IndexError:  # a position that another rank holds
                found = np.empty(0)
            if not whole_along:
                assert not isinstance(found, DistArray), index
            else:
                assert_is(found, whole[index])
        for array in (
            u.real,
            u.imag,
            u.astype("c16"),
            u.view(),
            copy.deepcopy(u),
            np.abs(u),
            u.round(),
            np.zeros_like(u),
            np.clip(u, 0, 3),
            u.conj(),
            np.add(u, 1, out=np.empty_like(u)),
            2 * u,
            u == u,
            u[...],
            copy.copy(u),
            u.reshape(u.shape),
        ):
            assert type(array) is DistArray and array.local_slice == u.local_slice
        assert u.size == 0 or not isinstance(u.sum(), np.ndarray)
        assert type(np.asarray(u)) is np.ndarray
        z = made(comm, values("c16"), axes, grid)
        assert_is(z.real, values("c16").real)
        assert_is(z.imag, values("c16").imag)
        z.imag = 0
        assert_is(z, values("c16").real)


@on_ranks(1, exhaustive(2), 3, exhaustive(4), exhaustive("openmpi-2"))
def test_without_a_place(comm):
    """All of numpy's functions return a `DistArray` that is where it says it is, or none."""
    from numpy.testing.overrides import get_overridable_numpy_array_functions, get_overridable_numpy_ufuncs

    whole = values("f8") / 7 - 3
    files = {np.save, np.savez, np.savez_compressed, np.savetxt}
    functions = [
        *sorted(
            (get_overridable_numpy_array_functions() | get_overridable_numpy_ufuncs()) - files,
            key=lambda one: one.__name__,
        ),
        np.array,
        np.asanyarray,
        np.require,
        np.ndarray.view,
        copy.copy,
        copy.deepcopy,
        iter,
        lambda a, *given: np.array(a, *given, subok=True),
        lambda a: np.array(a, subok=True, ndmin=5),
        lambda a: np.asanyarray(a, "f4"),
        lambda a: a.flat[:],
        lambda a: a.flat[[0, 1]],
        lambda a: list(a),
        lambda a: a.sum(0, keepdims=True),
        lambda a: np.copy(a, subok=True),
        lambda a: np.nan_to_num(a, copy=False),
        lambda a: np.add.accumulate(a, 0),
        lambda a: np.add.reduceat(a, [0, 1], 1),
        lambda a: np.subtract.outer(a, a[0]),
        lambda a: np.lib.stride_tricks.as_strided(a, subok=True),
        lambda a: np.ma.masked_invalid(a).data,
        lambda a: a**2,
        lambda a: a**0.5,
        lambda a: a @ a.swapaxes(1, 2),
        lambda a: divmod(a, 2),
        lambda a: -a,
        lambda a: a[..., None] * np.ones(3),
        lambda a: a > 2,
        lambda a: a.getfield("i4", 4),
        lambda a: a.round(1),
        lambda a: a.argmax(0),
        lambda a: np.pad(a, 1),
        lambda a: a[[3, 2, 1, 0]],
        lambda a: a[a > 3],
        lambda a: a @ np.ones((a.shape[-1],) * 2),
        lambda a: a.view("i4"),
    ]
    functions += [getattr(np.ndarray, name) for name in dir(np.ndarray) if not name.startswith("_")]
    given = [(), (0,), (1,), (2,), (1, 0), ((2, 1, 0),), (SHAPE,), ("f8",), ("i8",), ("F",), (slice(1),)]
    left_out = {"dump", "tofile", "setflags", "resize", "shape", "strides", "dtype", "data", "ctypes"}
    places = 0
    for axes, grid in list(splits(comm))[:2]:
        for function in functions:
            name = getattr(function, "__name__", "")
            if name in left_out:
                continue

            def calls(a, function=function):
                if not callable(function):  # an attribute
                    yield lambda: function.__get__(a)
                    return
                for some in given:
                    yield lambda some=some: function(a, *some)
                for some in ((a, a), ([a, a],), (a > 0, a, a), (a, a, 1), ((0, 1, 2), a)):
                    yield lambda some=some: function(*some)

            for local, everywhere in zip(calls(made(comm, whole, axes, grid)), calls(whole.copy())):
                for found, truth in zip(*(flat_list(outcome_of(call)) for call in (local, everywhere))):
                    if not isinstance(found, DistArray) or isinstance(truth, Exception):
                        continue
                    assert type(found) is DistArray and found.comm is comm, name
                    assert found.shape == tuple(part.stop - part.start for part in found.local_slice), name
                    if function is not np.empty_like:
                        assert found.global_shape == np.shape(truth), (name, truth)
                        assert np.array_equal(found, truth[found.local_slice], equal_nan=truth.dtype.kind == "f"), name
                    places += 1
    assert places > 500, places  # something was looked at


def outcome_of(call):
    """What a call returns, or the exception that it raises."""
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return call()
    except Exception as error:
        return error


def flat_list(found):
    """What is in a result of numpy's."""
    if isinstance(found, tuple | list) or hasattr(found, "__next__"):
        return [one for part in found for one in flat_list(part)]
    return [found]


@on_ranks(1, exhaustive(2), 3, exhaustive(4), exhaustive("openmpi-2"))
def test_in_place(comm):
    """The shape of what has a place stays; values may be assigned from what is distributed alike."""
    whole = values()
    u = made(comm, whole, (1,), (comm.size,))
    for name, value in (("shape", (2, 3)), ("dtype", "i8"), ("strides", (8, 8))):
        raises_everywhere(comm, InputError, f"{name} of a DistArray", setattr, u, name, value)
    raises_everywhere(comm, InputError, "shape of a DistArray", u.resize, (3, 3))
    raises_everywhere(comm, InputError, "comm", setattr, u, "comm", 3)
    u.flat = 2
    assert (u == 2).all()
    u[...] = made(comm, whole, (1,), (comm.size,))
    u[0] = u[1]
    u.sort(0)
    assert u.local_slice[0] == slice(0, 4)
    for where in (
        ((4, 6, 6), (7,), (slice(0, 4), slice(0, 6), slice(0, 6))),
        ((4, 6, 6), (1,), (slice(0, 4), slice(0, 6))),
        ((4, 6, 6), (1,), (slice(0, 2), slice(0, 6), slice(0, 6))),
        ((4, 6, 6), (1,), (slice(0, 4), slice(0, 7), slice(0, 6))),
        ((4, 6, 6), (1,), (slice(None), slice(0, 6), slice(0, 6))),
        ((4, 6, 5.0), (1,), (slice(0, 4), slice(0, 6), slice(0, 6))),
    ):
        raises_everywhere(comm, InputError, "received", DistArray, np.zeros(SHAPE), comm, *where)
    raises_everywhere(
        comm, InputError, "comm", DistArray, np.zeros(SHAPE), "world", SHAPE, (), [slice(0, length) for length in SHAPE]
    )


@on_ranks(1, exhaustive(2), 3, exhaustive(4), exhaustive("openmpi-2"))
def test_two_communicators(comm):
    """Arrays of other ranks, or of the same in another order, or with other shares, are not combined."""
    whole = values()
    u = made(comm, whole, (1,), (comm.size,))
    same, reversed_ranks = comm.Dup(), comm.Split(0, -comm.rank)
    alike = made(same, whole, (1,), (comm.size,))
    assert_is(u + alike, 2 * whole)
    assert_is(u.redistribute(alike), whole)
    target = np.empty_like(u)
    found = [DistArray(np.array(u), MPI.COMM_SELF, u.shape, (), [slice(0, length) for length in u.shape])]
    if comm.size > 1:
        other = np.roll(np.arange(comm.size), 1)[comm.rank]
        where = Distribution(SHAPE, (1,), ()).split_along((1,), (comm.size,), int(other))
        found.append(DistArray(np.array(u), reversed_ranks, SHAPE, (1,), u.local_slice))
        if 6 % comm.size == 0:
            found.append(DistArray(np.array(u), comm, SHAPE, (1,), where.local_slice))
    for v in found:
        before = u.copy()
        if comm.size > 1:
            for combine in (
                lambda v=v: u - v,
                lambda v=v: v * u,
                lambda v=v: np.add(u, v),
                lambda v=v: np.add(u, 1, out=v),
                lambda v=v: np.copyto(u, v),
                lambda v=v: u.__isub__(v),
                lambda v=v: u.__setitem__(Ellipsis, v),
                lambda v=v: u.clip(0, v),
            ):
                raised(InputError, combine)
                assert np.array_equal(u, before)
            if v.comm is not comm:
                raises_everywhere(comm, InputError, "ranks", u.redistribute, v)
    raises_everywhere(comm, InputError, "communicator", u.redistribute, pickle.loads(pickle.dumps(u)))
    with overlap.FFT2(reversed_ranks, (4, 6, 6), "f8", settings={"wait": "off"}) as plan:
        if comm.size > 1:
            raises_everywhere(comm, InputError, "ranks of the array", u.redistribute, plan.real)
    # An array of length 1 along a whole axis is broadcast, one along a split axis is not.
    assert_is(u * u[:, :, :1] - u[0], whole * whole[:, :, :1] - whole[0])
    assert np.array_equal(target.shape, u.shape)
    plan = overlap.FFT2(same, (4, 6, 6), "f8", settings={"wait": "off"})
    same.Free()
    raises_everywhere(comm, InputError, "freed", alike.gather)
    raises_everywhere(comm, InputError, "freed", plan.real.scatter, np.zeros((4, 6, 6)))
    raises_everywhere(comm, InputError, "freed", plan.real.from_function, lambda y, x: y)
    plan.close()
    reversed_ranks.Free()


@on_ranks(1, exhaustive(2), 3, exhaustive(4), exhaustive("openmpi-2"))
def test_other_arguments_on_one_rank(comm):
    """What is wrong on one rank, or differs, is one error on all, and the next call works."""
    whole = values()
    u = made(comm, whole, (1,), (comm.size,))
    last = comm.rank == comm.size - 1

    class Raises:
        def __iter__(self):
            raise TypeError("mine")

        __index__ = __fspath__ = __iter__

    with folder(comm) as place:
        calls = [
            (
                u.gather,
                (),
                {"root": (None, "0", comm.size, 0.5), "index": (0, "abc", (0, 0), (9, 0, 0), (None, 0, 0), Raises())},
            ),
            (
                u.redistribute,
                (2,),
                {"grid": (3, (0,), "a", (comm.size, 2)), "weights": (1, "a", [-1.0] * comm.size, Raises())},
            ),
            (u.redistribute, (), {"axes": (3, None, 0.5, "a", (1, 2), u[0], Raises())}),
            (
                u.save,
                (place / "u.h5",),
                {"name": (1, "a/b", None), "dims": (3, ("a", "b"), Raises()), "coords": (3, {"x": [1]})},
            ),
            (u.save, (), {"path": (None, 3.0, Raises())}),
            (u.to_xarray, (), {"name": (1, None), "dims": (3, ("a", "a", "b")), "coords": (3,), "root": (None, 9)}),
        ]
        good = {"axes": 2, "path": place / "u.h5"}
        for function, args, wrong in calls:
            for name, those in wrong.items():
                for value in those:
                    options = {name: value if last else good[name]} if name in good else ({name: value} if last else {})
                    error = outcome(function, *args, **options)
                    assert isinstance(error, InputError | RankError), (function, name, value, error)
                    same_everywhere(comm, str(error))
                    assert_is(u.redistribute(2), whole)
        for function, different in (
            (u.gather, [{"root": 0}, {"root": comm.size - 1}]),
            (u.gather, [{}, {"index": (0, 0, 0)}]),
            (u.redistribute, [{"axes": 0}, {"axes": 2}]),
            (u.redistribute, [{"axes": u}, {"axes": 2}]),
            (u.save, [{"path": place / "a.h5"}, {"path": place / "b.h5"}]),
            (u.save, [{"path": place / "a.h5"}, {"path": place / "a.h5", "coords": {"axis_0": [0, 1, 2, 4]}}]),
            (u.to_xarray, [{"name": "a"}, {"name": "b"}]),
        ):
            if comm.size > 1:
                raises_everywhere(comm, InputError, "the same on all ranks", function, **different[last])
                assert_is(u.redistribute(2), whole)


@on_ranks(1, exhaustive(2), 3, exhaustive(4), "openmpi-2")
def test_arithmetic(comm):
    """Arrays of one distribution are combined; square local parts of different ones are refused."""
    whole = np.arange((4 * comm.size) ** 2.0).reshape(4 * comm.size, -1)
    rows = made(comm, whole, (0,), (comm.size,))
    columns = made(comm, whole, (1,), (comm.size,))
    assert_is(rows * rows + 1, whole * whole + 1)
    assert_is(rows.T + columns, whole.T + whole)
    rows *= 2
    assert_is(rows, 2 * whole)
    tall = made(comm, whole[:, :4], (0,), (comm.size,))  # 4 x 4 on every rank
    for combine in (lambda: tall + tall.T, lambda: np.multiply(tall.T, tall)):
        raises_everywhere(comm, InputError, "one distribution", combine)


@on_ranks(1, exhaustive(2), 3, exhaustive(4), exhaustive("openmpi-2"))
def test_of_plans(comm):
    """The arrays of a plan: one slice of the batch is gathered."""
    with overlap.FFT2(comm, (3, 8, 8), "f8", settings={"wait": "off"}) as plan:
        u = plan.real.empty()
        u[...] = values_of(plan.real)
        whole = plan.forward(u).gather()
        for z in range(3):
            part = plan.forward(u)[z].gather()
            assert part is None if comm.rank else np.array_equal(part, whole[z])
        assert "FFT2" in repr(plan) and f"{comm.size} rank" in repr(plan)
        assert "forward" in repr(plan.forward) and "(3, 8, 8)" in repr(plan.forward), repr(plan.forward)
        assert "(3, 8, 8)" in repr(plan.real) and "float64" in repr(plan.real)


@on_ranks(1, exhaustive(2), 3, exhaustive(4), exhaustive("openmpi-2"))
def test_of_other_plans(comm):
    """A plan takes arrays of its own distribution: none of other ranks, another order of them, or other shares."""
    reversed_ranks, same = comm.Split(0, -comm.rank), comm.Dup()
    shape = (2, 4 * comm.size, 8)
    last = comm.rank == comm.size - 1
    with (
        overlap.FFT2(comm, shape, settings={"wait": "off"}) as plan,
        overlap.FFT2(reversed_ranks, shape, settings={"wait": "off"}) as other,
    ):
        u, out = (
            made(comm, np.ones(spec.global_shape, complex), spec.axes, (comm.size,))
            for spec in (plan.real, plan.spectrum)
        )
        product = plan.pointwise(lambda a, b: a * b)
        expected = plan.forward(u, out=out).copy()
        found = [
            (plan.forward, (u,), (placed_as(DistArray, np.array(u), reversed_ranks, u.distribution),), "communicator"),
            (plan.forward, (u,), (other.real.empty(),), "expected an input of" if comm.size > 1 else "communicator"),
            (plan.forward, (u,), (placed_as(DistArray, np.array(u), MPI.COMM_SELF, u.distribution),), "communicator"),
            (
                product,
                (out, out),
                (out, placed_as(DistArray, np.array(out), reversed_ranks, out.distribution)),
                "communicator",
            ),
        ]
        if comm.size > 1:  # the place of the rank before this one
            place = shifted(u.distribution, comm)
            found.append((plan.forward, (u,), (DistArray(np.array(u), comm, shape, (1,), place),), "global shape"))
            tall = (2, 4 * comm.size * comm.size, 8)
            found.append(
                (plan.forward, (u,), (DistArray(np.array(u), comm, tall, (1,), u.local_slice),), "global shape")
            )
            for transform, good, wrong, words in found:
                words = words, f"rank {comm.size - 1}"
                raises_everywhere(comm, InputError, words, transform, *(wrong if last else good))
                assert np.array_equal(plan.forward(u), expected)
            wrong, words = other.spectrum.empty(), ("expected out", "redistribute")
            raises_everywhere(comm, InputError, words, plan.forward, u, out=wrong if last else out)
        alike = placed_as(DistArray, np.array(u), same, u.distribution)
        unpickled = pickle.loads(pickle.dumps(u))
        for array in (alike, unpickled, np.array(u)):
            assert np.array_equal(plan.forward(array), expected)
    reversed_ranks.Free()
    same.Free()


def shifted(where, comm):
    return comm.sendrecv(where.local_slice, (comm.rank + 1) % comm.size, source=(comm.rank - 1) % comm.size)


def values_of(spec):
    return np.arange(np.prod(spec.global_shape)).reshape(spec.global_shape)[spec.local_slice]


@on_ranks(1, exhaustive(2), 3, exhaustive(4), exhaustive("openmpi-2"))
def test_parts(comm):
    """Parts of the global array by global positions."""
    whole = values()
    for axes, grid in splits(comm):
        u = made(comm, whole, axes, grid)
        for index in ((0, slice(None), 5), (slice(None), -1, slice(4, 0, -2)), (3, 2, 1)):
            for root in {0, comm.size - 1}:
                found = u.gather(root, index)
                assert (found is None) == (comm.rank != root)
                assert found is None or np.array_equal(found, whole[index])
        for index in ((0, 0), (9, 0, 0), (None, 0, 0)):
            raises_everywhere(comm, InputError, "received", u.gather, 0, index)


@on_ranks(1, exhaustive(2), 3, exhaustive(4), exhaustive("openmpi-2"))
def test_pickles(comm):
    """The distribution travels, the communicator does not; it can be given back."""
    whole = values()
    for axes, grid in splits(comm):
        u = made(comm, whole, axes, grid)
        for array in (u, u.T, u[..., None]):
            found = pickle.loads(pickle.dumps(array))
            assert type(found) is DistArray and found.comm is None
            assert found.local_slice == array.local_slice and found.axes == array.axes
            assert np.array_equal(found, array)
            raises_everywhere(comm, InputError, "communicator", found.gather)
            found.comm = comm
            assert_is(found, {id(u): whole}.get(id(array), whole.T if array.ndim == 3 else whole[..., None]))


@on_ranks(1, exhaustive(2), 3, exhaustive(4), exhaustive("openmpi-2"))
def test_redistributed(comm):
    """Every way to split, from every other."""
    for dtype in ("f8", "c8", "?"):
        whole = values(dtype)
        for axes, grid in splits(comm):
            u = made(comm, whole, axes, grid)
            for others, other_grid in splits(comm):
                found = u.redistribute(others, other_grid)
                assert found.axes == others and found.dtype == whole.dtype
                assert_is(found, whole)
                assert_is(u.T.redistribute(found.T), whole.T)
                weights = [(3, 0.5, 2, 0.01, 1, 1)[rank] for rank in range(comm.size)]
                uneven = u.redistribute(others, other_grid, weights)
                assert_is(uneven, whole)
                assert_is(uneven.redistribute(found), whole)
            assert_is(u.redistribute(-1), whole)
            for arguments in (
                (3,),
                ((0, 1),),
                ((0, 1), (comm.size, 2)),
                ((0, 0), (comm.size, 1)),
                (u[0],) if 0 not in axes else (3,),
            ):
                raises_everywhere(comm, InputError, "received", u.redistribute, *arguments)
            bad = [1.0] * comm.size
            if comm.rank == comm.size - 1:
                bad[-1] = -1.0
            words = "-1.0]", f"rank {comm.size - 1}: " if comm.size > 1 else ""
            raises_everywhere(comm, InputError, words, u.redistribute, -1, None, bad)
            if comm.size > 1:
                bad[-1] = 2.0 + comm.rank
                raises_everywhere(
                    comm, InputError, "weights: expected the same on all ranks", u.redistribute, -1, None, bad
                )


@on_ranks(1, exhaustive(2), 3, exhaustive(4), exhaustive("openmpi-2"))
def test_different_arrays(comm):
    """The ranks do the same with arrays that are split otherwise, or something else with one: an error on all."""
    last = comm.rank == comm.size - 1
    rows, columns = (made(comm, values(), (axis,), (comm.size,)) for axis in (1, 2))
    uneven = Distribution(SHAPE, (1,), ()).split_along((1,), (comm.size,), comm.rank, weights=range(1, comm.size + 1))
    uneven = DistArray(values()[uneven.local_slice], comm, SHAPE, (1,), uneven.local_slice)
    with folder(comm) as place:
        path = place / "u.h5"
        for other in (columns, uneven):
            u = other if last else rows
            for way in (lambda: u.redistribute(0), u.gather, u.global_sum, u.global_max, lambda: u.save(path)):
                if comm.size > 1:
                    raises_everywhere(comm, InputError, "make up the global array", way)
                    assert not path.exists()
        rows.save(path)
        ways = (
            rows.global_sum,
            rows.global_mean,
            rows.global_max,
            rows.global_min,
            rows.gather,
            lambda: rows.load(path),
        )
        for way, another in zip(ways, (*ways[1:], ways[0])):
            if comm.size > 1:
                raises_everywhere(comm, InputError, "call: expected the same on all ranks", another if last else way)
        assert_is(rows, values())
        assert rows.global_sum() == values().sum() and rows.global_max() == values().max()


@on_ranks(1, exhaustive(2), 3, exhaustive(4), exhaustive("openmpi-2"))
def test_masked(comm):
    """Masked arrays are refused: their masks would be ignored."""
    where = Distribution((4, 4), (0,), ()).split_along((0,), (comm.size,), comm.rank)
    array = np.ma.masked_greater(np.ones(where.shape), 3)
    raises_everywhere(comm, InputError, "mask", DistArray, array, comm, (4, 4), (0,), where.local_slice)
    with overlap.FFT2(comm, (3, 8, 8), "f8", settings={"wait": "off"}) as plan:
        u = np.ma.masked_less(np.ones(plan.real.shape), 0)
        raises_everywhere(comm, InputError, "mask", plan.forward, u if comm.rank == 0 else u.data)
        out = np.ma.zeros(plan.spectrum.shape, complex)
        raises_everywhere(comm, InputError, "mask", plan.forward, u.data, out=out)


@on_ranks(1, exhaustive(2), 3, exhaustive(4), exhaustive("openmpi-2"))
def test_shown(comm):
    """A repr says what it is, also without data or communicator."""
    u = made(comm, values(), (1,), (comm.size,))
    text = repr(u)
    assert "(4, 6, 6)" in text and "float64" in text and f"rank {comm.rank} of {comm.size}" in text
    assert "axes (1,)" in text and repr(np.asarray(u)) in text
    assert "no communicator" in repr(pickle.loads(pickle.dumps(u)))
    assert repr(u.view(np.ndarray)) == repr(np.asarray(u))


# ---- files -----------------------------------------------------------------------------------


class folder:
    """A folder that all ranks see while a block runs."""

    def __init__(self, comm):
        self.comm = comm

    def __enter__(self):
        self.path = Path(self.comm.bcast(tempfile.mkdtemp() if self.comm.rank == 0 else None))
        return self.path

    def __exit__(self, *exc_info):
        self.comm.Barrier()
        if self.comm.rank == 0:
            shutil.rmtree(self.path)
        self.comm.Barrier()


@on_ranks(1, exhaustive(2), 3, exhaustive(4), exhaustive("openmpi-2"))
def test_files(comm):
    """What was saved is loaded, by other splits too, and has named axes for h5py and xarray."""
    import h5py
    import xarray

    dims, coords = ("z", "y", "x"), {"x": np.linspace(0, 1, 6)}
    for dtype in ("f8", "c16", "f4"):
        whole = values(dtype)
        with folder(comm) as place:
            for axes, grid in splits(comm):
                u = made(comm, whole, axes, grid)
                u.save(place / "u.h5", "u", dims, coords)
                for others, other_grid in splits(comm):
                    v = made(comm, np.zeros_like(whole), others, other_grid)
                    assert v.load(place / "u.h5", "u") is v
                    assert_is(v, whole)
                u.T.save(place / "t.h5")
                found = u.to_xarray(dims, coords, "u")
                if comm.rank:
                    assert found is None
                    continue
                assert found.dims == dims and found.name == "u" and np.array_equal(found, whole)
                assert np.array_equal(found.sel(x=1.0), whole[..., -1])
                with h5py.File(place / "t.h5") as file:
                    assert np.array_equal(file["data"], whole.T)
                with xarray.open_dataset(place / "u.h5", engine="h5netcdf") as file:
                    assert file["u"].dims == dims and np.array_equal(file["u"], whole)
                    assert np.array_equal(file["x"], coords["x"])
            comm.Barrier()


@on_ranks(1, exhaustive(2), 3, exhaustive(4), exhaustive("openmpi-2"))
def test_bad_files(comm):
    """One error on all ranks, and the old file as it was."""
    u = made(comm, values(), (1,), (comm.size,))
    with folder(comm) as place:
        u.save(place / "u.h5")
        before = (place / "u.h5").read_bytes()
        for error, words, function, args in (
            (InputError, "names of axes", u.save, (place / "u.h5", "data", ("z", "y"))),
            (InputError, "names of axes", u.save, (place / "u.h5", "data", ("z", "y", "data"))),
            (InputError, "coordinates", u.save, (place / "u.h5", "data", None, {"axis_0": [1]})),
            (InputError, "coordinates", u.save, (place / "u.h5", "data", None, {"x": [1]})),
            (RankError, "failed on rank 0", u.save, (place / "no" / "u.h5",)),
            (RankError, "failed on rank 0", u.save, ("/dev/full",)),
            (RankError, "no.h5", u.load, (place / "no.h5",)),
            (RankError, "v", u.load, (place / "u.h5", "v")),
            (InputError, "(6, 6, 4)", u.T.load, (place / "u.h5",)),
            (InputError, "int8", u.astype("i1").load, (place / "u.h5",)),
        ):
            raises_everywhere(comm, error, words, function, *args)
        comm.Barrier()
        assert (place / "u.h5").read_bytes() == before and os.listdir(place) == ["u.h5"]
        comm.Barrier()
