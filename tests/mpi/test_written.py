"""Ways in which numpy writes into a `DistArray`, from numpy's own lists; the truth is numpy on the global arrays."""

import inspect
import operator

import numpy as np
import pytest
from everywhere import raises_everywhere
from marks import exhaustive, on_ranks
from numpy.testing.overrides import get_overridable_numpy_array_functions, get_overridable_numpy_ufuncs
from test_distarray import assert_is, flat_list, made, outcome_of

from overlap import DistArray, InputError

UFUNCS = (np.add, np.maximum, np.negative, np.isfinite, np.divmod, np.frexp, np.matmul, np.vecdot)
UNSEEN = {np.fromstring, np.nanargmax, np.nanargmin}  # numpy does not pass on calls of the last two with lists
NAMES = "argmax choose clip concatenate cumsum dot einsum mean median round sum take var"
FUNCTIONS = {np.fft.fft, *(getattr(np, name) for name in NAMES.split())}


def wholes(ranks, dtype, every):
    """Global arrays and the axes along which they are split: most of the parts are 2 x 2, or a row of that."""
    kinds = [((2 * ranks, 2), (0,)), ((2, 2 * ranks), (1,)), ((2, 2), ()), ((ranks, 2), (0,)), ((1, 2), ())]
    if every:
        kinds += [((2 * ranks, 1), (0,)), ((2,), ()), ((2 * ranks,), (0,)), ((1,), (0,)), ((1,), ())]
    draw = np.random.default_rng(7)
    return [(draw.integers(1, 60, shape).astype(dtype), axes) for shape, axes in kinds]


def parts_of(comm, given):
    return [
        made(comm, whole, axes, (comm.size,))
        if axes
        else DistArray(whole.copy(), comm, whole.shape, (), [slice(0, length) for length in whole.shape])
        for whole, axes in given
    ]


def compared(comm, name, call, given, found):
    """Make one call with global arrays and with their parts, and note in `found` what is wrong with it."""
    copies = [whole.copy() for whole, _ in given]
    truth = outcome_of(lambda: call(*copies))
    arrays = parts_of(comm, given)
    result = outcome_of(lambda: call(*arrays))
    refused = isinstance(result, Exception)
    found["refused" if refused else "made"] += 1
    found["written"] += not np.array_equal(arrays[0], given[0][0][arrays[0].local_slice])
    kind = type(result).__name__ if isinstance(result, InputError) else refused
    nothing = kind is True and not all(array.size for array in arrays)  # numpy refuses some calls of empty parts
    found["kinds"].append(None if nothing else kind)
    possible = [copies]
    if refused or isinstance(truth, Exception):  # a result of the parts alone is a plain array, and written nowhere
        possible = [[whole for whole, _ in given]]
        if refused and isinstance(truth, Exception) and "std(" in name:
            possible.append(copies)  # numpy.std writes variances before it refuses integers for their roots
    for array, *wholes_of in zip(arrays, *possible):
        if not any(np.array_equal(array, whole[array.local_slice], equal_nan=True) for whole in wholes_of):
            return f"{array!r}, expected a part of {wholes_of[0]}"
    for one, whole in zip(flat_list(result), flat_list(truth)):
        if isinstance(one, DistArray):
            if isinstance(truth, Exception):
                return f"a result where numpy raises {truth!r}"
            if one.global_shape != np.shape(whole):
                return f"a result of global shape {one.global_shape}, expected {np.shape(whole)}"
            if not np.array_equal(one, whole[one.local_slice], equal_nan=True):
                return f"result {one!r}, expected a part of {whole}"
    return None


def by_ufunc(ufunc):
    """Calls of a ufunc with a target and a source, by name."""
    name, count = ufunc.__name__, ufunc.nin
    some = {"t": lambda t, s: (t,) * count, "s": lambda t, s: (s,) * count, "ts": lambda t, s: (t, s, s)[:count]}
    for which, inputs in some.items():
        yield f"{name}({which})", lambda t, s, inputs=inputs: ufunc(*inputs(t, s))
        for at in sorted({0, ufunc.nout - 1}):

            def out(t, at=at):
                return tuple(t if number == at else None for number in range(ufunc.nout))

            yield f"{name}({which}, out=t)", lambda t, s, i=inputs, o=out: ufunc(*i(t, s), out=o(t))
            yield f"{name}({which}, t)", lambda t, s, i=inputs, o=out: ufunc(*i(t, s), *o(t))
            if ufunc.signature is None and ufunc.nout == 1:
                yield f"{name}({which}, t, where=s)", lambda t, s, i=inputs: ufunc(*i(t, s), out=t, where=s > 30)
                yield f"{name}(1, t, where=s)", lambda t, s: ufunc(*(1,) * count, out=t, where=s > 30)
    if ufunc.signature is None and ufunc.nout == 1:
        yield f"{name}.at(mask)", lambda t, s: ufunc.at(t, s > 30, *(1,) * (count - 1))
        yield f"{name}.at(...)", lambda t, s: ufunc.at(t, ..., *(s,) * (count - 1)) if count > 1 else None
        if count == 2:
            yield f"{name}.outer", lambda t, s: ufunc.outer(s, s, out=t)
            for axis in (0, -1, None, (0, 1)):
                yield f"{name}.reduce({axis})", lambda t, s, axis=axis: ufunc.reduce(s, axis, None, t)
                yield f"{name}.reduce({axis}, True)", lambda t, s, a=axis: ufunc.reduce(s, a, out=t, keepdims=True)
                yield (
                    f"{name}.reduce({axis}, where)",
                    lambda t, s, a=axis: ufunc.reduce(t, a, out=t, initial=1, keepdims=True, where=s > 30),
                )
            for axis in (0, -1):
                yield f"{name}.accumulate({axis})", lambda t, s, axis=axis: ufunc.accumulate(s, axis, out=t)
                yield f"{name}.reduceat({axis})", lambda t, s, axis=axis: ufunc.reduceat(s, [0, 0], axis, out=t)


def by_function(function):
    """Calls of one of numpy's functions that has an argument `out`, by name and by position, also as a method."""
    parameters = list(inspect.signature(function).parameters.values())
    at = next((n for n, one in enumerate(parameters) if one.name == "out"), None)
    if at is None:
        return
    name = function.__name__
    options = [{}] + [{"axis": axis} for axis in (0, -1) if any(one.name == "axis" for one in parameters)]
    options += [{"axis": 0, "keepdims": True}] if any(one.name == "keepdims" for one in parameters) else []
    for inputs in (
        lambda s: (s,),
        lambda s: (s, s),
        lambda s: (s, 0),
        lambda s: (s, 1, s),
        lambda s: ((s, s),),
        lambda s: (0, [s, s]),
        lambda s: ([True, True], s),
        lambda s: ("...,...", s, s),
    ):
        for given in options:
            yield f"{name}({given}, out=t)", lambda t, s, i=inputs, g=given: function(*i(s), **g, out=t)
            if parameters[at].kind == inspect.Parameter.POSITIONAL_OR_KEYWORD:

                def positional(t, s, i=inputs, g=given):
                    args = [*i(s), *(g.get(one.name, one.default) for one in parameters[len(i(s)) : at]), t]
                    return args, {key: value for key, value in g.items() if key == "keepdims"}

                yield f"{name}({given}, t)", lambda t, s, p=positional: function(*p(t, s)[0], **p(t, s)[1])
                if callable(getattr(np.ndarray, name, None)):
                    yield (
                        f"s.{name}({given}, t)",
                        lambda t, s, p=positional: getattr(p(t, s)[0][0], name)(*p(t, s)[0][1:], **p(t, s)[1]),
                    )


def by_assignment():
    """Calls that write into their target without an argument `out`."""
    yield "copyto", lambda t, s: np.copyto(t, s)
    yield "copyto by name", lambda t, s: np.copyto(dst=t, src=s, casting="unsafe")
    yield "copyto where", lambda t, s: np.copyto(t, 1, where=s > 30)
    yield "copyto where by position", lambda t, s: np.copyto(t, 1, "unsafe", s > 30)
    yield "putmask mask", lambda t, s: np.putmask(t, s > 30, 1)
    yield "putmask values", lambda t, s: np.putmask(t, mask=t > 30, values=s)
    yield "place mask", lambda t, s: np.place(t, s > 30, [1])
    yield "place values", lambda t, s: np.place(arr=t, mask=t > 0, vals=s)
    yield "fill_diagonal", lambda t, s: np.fill_diagonal(t, 1)
    yield "fill_diagonal values", lambda t, s: np.fill_diagonal(t, val=s)
    yield "put", lambda t, s: np.put(t, np.arange(t.size), s)
    yield "put method", lambda t, s: t.put(np.arange(t.size), values=s)
    yield "put_along_axis", lambda t, s: np.put_along_axis(t, np.zeros((2, 1), int), s, 1)
    yield "fill", lambda t, s: t.fill(s)
    yield "setfield", lambda t, s: t.setfield(s, t.dtype)
    for name in ("real", "imag", "flat", "T", "mT"):
        yield name, lambda t, s, name=name: setattr(t, name, s)
    for name in ("real", "imag", "T"):
        yield f"{name}[...]", lambda t, s, name=name: operator.setitem(getattr(t, name), ..., s)
    for index in (..., (), slice(None), (None, ...), np.s_[:, ::-1], np.s_[..., 0], np.s_[:1]):
        yield f"t[{index}]", lambda t, s, index=index: operator.setitem(t, index, s)
    yield "t[mask] = 1", lambda t, s: operator.setitem(t, s > 30, 1)
    yield "t[mask] = s", lambda t, s: operator.setitem(t, t > 30, s)
    yield "t[mask, ...] = 1", lambda t, s: operator.setitem(t, (s > 30, ...), 1)
    yield "t[:, mask] = 1", lambda t, s: operator.setitem(t, (slice(None), s > 30), 1)
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "lshift", "matmul"):
        yield f"i{name}", lambda t, s, name=name: getattr(operator, f"i{name}" if name != "pow" else "ipow")(t, s)


def is_local(name, target, source):
    """Return whether a call selects elements by their positions in the local part, or all as they come."""
    part = {"t[slice(None, 1, None)]": (0,), "t[(Ellipsis, 0)]": (target.ndim - 1,)}
    part["t[(slice(None, None, None), slice(None, None, -1))]"] = (1,)
    positions = ("put", "put method", "put_along_axis", "t[mask] = s", "place values")
    return bool(set(part.get(name, ())) & set(target.axes)) or (name in positions and np.prod(source.global_shape) == 1)


@on_ranks(1, exhaustive(2), 3, exhaustive(4), exhaustive("openmpi-2"), deadline_s=1500)
@pytest.mark.parametrize("every", [False, exhaustive(True)])
def test_written(comm, every):
    """Everything that writes into a distributed array does to its parts what it does to the whole, or is refused."""
    functions, ufuncs = FUNCTIONS, UFUNCS
    if every:
        functions = FUNCTIONS | get_overridable_numpy_array_functions() - UNSEEN
        ufuncs = get_overridable_numpy_ufuncs()
    calls = [call for ufunc in sorted(ufuncs, key=lambda one: one.__name__) for call in by_ufunc(ufunc)]
    calls += [
        call
        for function in sorted(functions, key=lambda one: (one.__module__, one.__name__))
        for call in by_function(function)
    ]
    calls += by_assignment()
    found = {"made": 0, "refused": 0, "written": 0, "kinds": []}
    wrong, pairs = [], 0
    for dtype in ("f8", "c16", "i8") if every else ("f8",):
        given = wholes(comm.size, dtype, every and dtype == "f8")
        for target in given:
            for source in given:
                pairs += 1
                arrays = parts_of(comm, (target, source))
                for name, call in calls if every else calls[pairs % 4 :: 4]:
                    if not is_local(name, *arrays) and (problem := compared(comm, name, call, (target, source), found)):
                        wrong.append(
                            f"{name}, t {target[0].shape} along {target[1]}, s {source[0].shape} along {source[1]}: "
                            f"{problem}"
                        )
    count = found["made"] + found["refused"]
    assert not wrong, f"{len(wrong)} of {count}:\n" + "\n".join(wrong[:: len(wrong) // 40 + 1])
    assert found["written"] > 100, found["written"]
    kinds = enumerate(zip(*comm.allgather(found["kinds"]), strict=True))
    assert not (differ := [number for number, some in kinds if len({*some} - {None}) > 1]), differ


@on_ranks(1, exhaustive(2), 3, exhaustive(4), exhaustive("openmpi-2"))
def test_broadcasting(comm):
    """The global shapes decide what can be combined, and how the result is distributed."""
    ranks = comm.size
    rows, row = np.arange(1.0, 4 * ranks + 1).reshape(ranks, 4), np.arange(2.0, 6).reshape(1, 4)
    given = (rows, (0,)), (row, ()), (rows[:, :1], (0,))
    u, v, column = parts_of(comm, given)  # 1 x 4, 1 x 4 and 1 x 1 on each rank
    arrays = list(zip((u, v, column), (rows, row, rows[:, :1])))
    for one, first in arrays:
        for other, second in arrays:
            assert_is(one + other, first + second)
            assert (one + other).global_sum() == (first + second).sum()
            for found, whole in zip(np.divmod(one, other), np.divmod(first, second)):
                assert_is(found, whole)
            assert_is(np.add(one, other, out=np.zeros_like(u)), np.zeros_like(rows) + (first + second))
            assert_is(np.add(one, other, out=np.ones_like(u), where=u > 3), np.where(rows > 3, first + second, 1))
    assert_is(v.T + v, row.T + row)
    assert_is(np.sum(u, 1, keepdims=True, out=np.zeros_like(column)), rows.sum(1, keepdims=True))
    assert_is(np.add.accumulate(u, 1, out=np.zeros_like(u)), rows.cumsum(1))
    (pair,) = parts_of(comm, [(np.stack([rows, 2 * rows]), (1,))])
    assert_is(np.sum(pair, 0, out=np.zeros_like(u)), 3 * rows)
    assert_is(np.mean(pair, axis=0, out=np.zeros_like(u)), 1.5 * rows)
    for write in (
        lambda: operator.iadd(v, u),
        lambda: np.add(u, v, out=v),
        lambda: np.add(v, 1, out=v, where=u > 0),
        lambda: np.sum(u, axis=0, keepdims=True, out=v),
        lambda: np.median(u, 0, v, keepdims=True),
        lambda: np.copyto(v, u),
        lambda: np.copyto(v, 1, where=u > 0),
        lambda: np.put(v, [0], u),
        lambda: operator.setitem(v, ..., u),
        lambda: operator.setitem(v, u > 0, 0),
        lambda: setattr(v, "flat", u),
        lambda: setattr(v, "real", u),
        lambda: setattr(v, "real", column),
    ):
        raises_everywhere(comm, InputError, "received", write)
        assert_is(v, row)
