"""`overlap.compat.mpi4py_fft` on 1 to 6 ranks."""

import threading
import warnings
from itertools import product
from unittest.mock import patch

import numpy as np
import pytest
import threadpoolctl
from communicators import few_left
from everywhere import raised, raises_everywhere
from marks import exhaustive, on_ranks
from mpi4py import MPI
from truth import random

from overlap import InputError
from overlap.compat.mpi4py_fft import PFFT, DistArray, Function, Subcomm, newDistArray
from overlap.compat.mpi4py_fft.pencil import Pencil
from overlap.ranks import holding

FAST = dict(wait="poll", planner_effort="FFTW_ESTIMATE")
OPTIONS = [{}, {"collapse": True}, {"slab": True}, {"grid": (-1,)}, {"grid": (0, 0)}, {"padding": 1.5}]
AXES = {
    2: [None, 0, (-1, 0), ((0,), (1,)), (1,)],
    3: [None, (1, 2), ((0,), (1, 2)), (2, 0), (1,), (2, 0, 1)],
    4: [None, ((0,), (1,), (2, 3)), (1, 3), ((0,), (1, 2, 3)), (2, 0, 1)],
}
SHAPES = {2: [(12, 13), (3, 14)], 3: [(8, 9, 10), (6, 2, 15), (5, 4, 1)], 4: [(6, 7, 4, 9), (2, 5, 1, 14)]}
TOLERANCE = {"f": 2e-5, "d": 1e-12}


# ---- truth -----------------------------------------------------------------------------------


def _spread(values, axis, length, real):
    """Modes along an axis on a finer grid; a shared mode's halves go to both of its twins."""
    values = np.moveaxis(values, axis, 0)
    fine = np.zeros((length // 2 + 1 if real else length, *values.shape[1:]), complex)
    count = len(values)
    if real:
        fine[:count] = values
        if count % 2 == 0:
            fine[count - 1] = values[-1].real / 2
    else:
        for mode in np.fft.fftfreq(count, 1 / count).astype(int):
            fine[mode] = values[mode]
        if count % 2 == 0:
            fine[count // 2] = fine[-(count // 2)] = values[count // 2] / 2
    return np.moveaxis(fine, 0, axis)


def _gathered(values, axis, count, real):
    """Modes of the resolved grid; twins of a shared mode are added."""
    values = np.moveaxis(values, axis, 0)
    found = np.zeros((count, *values.shape[1:]), complex)
    if real:
        found[:] = values[:count]
        if count % 2 == 0:
            found[-1] = 2 * values[count - 1].real
    else:
        for mode in np.fft.fftfreq(count, 1 / count).astype(int):
            found[mode] = values[mode]
        if count % 2 == 0:
            found[count // 2] = values[count // 2] + values[-(count // 2)]
    return np.moveaxis(found, 0, axis)


def forward_truth(u, axes, shape=None):
    """Scaled spectrum on the resolved grid `shape`, the last axis first."""
    shape = u.shape if shape is None else shape
    real = u.dtype.kind == "f"
    fine = u.shape
    for axis in reversed([axis for group in axes for axis in group]):
        half = real and np.isrealobj(u)
        u = (np.fft.rfft if half else np.fft.fft)(u, axis=axis, norm="forward")
        if fine[axis] > shape[axis]:
            u = _gathered(u, axis, shape[axis] // 2 + 1 if half else shape[axis], half)
    return u


def backward_truth(spectrum, axes, shape, fine, real):
    """Values on the grid `fine`, the last axis last."""
    flat = [axis for group in axes for axis in group]
    for axis in flat:
        half = real and axis == flat[-1]
        if fine[axis] > shape[axis]:
            spectrum = _spread(spectrum, axis, fine[axis], half)
        spectrum = (
            np.fft.irfft(spectrum, n=fine[axis], axis=axis, norm="forward")
            if half
            else np.fft.ifft(spectrum, axis=axis, norm="forward")
        )
    return spectrum


def assert_close(comm, found, truth, tolerance):
    largest = comm.allreduce(np.abs(truth).max(initial=0), MPI.MAX)
    error = comm.allreduce(np.abs(found - truth).max(initial=0), MPI.MAX) if (found.shape == truth.shape) else np.inf
    assert error <= tolerance * max(largest, 1), (error, largest)


def cases(sparse):
    every = [case for count in SHAPES for case in product(SHAPES[count], AXES[count], "fdFD", OPTIONS)]
    for number, (shape, axes, kind, options) in enumerate(every):
        grouped = isinstance(axes, tuple) and any(isinstance(group, tuple) and len(group) > 1 for group in axes)
        if number % sparse == 0 and not ("padding" in options and grouped):
            yield shape, axes, kind, options


# ---- transforms ------------------------------------------------------------------------------


@on_ranks
@pytest.mark.parametrize(
    "comm, sparse",
    [(1, 11), (2, 23), (3, 41), *[exhaustive(*values) for values in ((1, 5), (2, 3), (3, 7), (4, 5), (6, 11))]],
)
def test_against_numpy(comm, sparse):
    """Forward and backward, scaled and not, given arrays and the plan's own."""
    count = refused = 0
    for shape, axes, kind, options in cases(sparse):
        try:
            plan = PFFT(comm, shape, axes=axes, dtype=kind, **options, **FAST)
        except InputError as error:  # such as (0, 0) ranks along an axis that must be whole
            assert "whole" in str(error) or "outside of the last group" in str(error), error
            refused += 1
            continue
        try:
            _against_numpy(comm, plan, shape, kind)
        except Exception as error:
            error.add_note(f"{shape=} {axes=} {kind=} {options=}")
            raise
        plan.destroy()
        count += 1
    assert count > refused, (count, refused)


def _against_numpy(comm, plan, shape, kind):
    rng = np.random.default_rng(5)
    tolerance = TOLERANCE[kind.lower()]
    u = random(rng, plan.global_shape(False), plan.dtype(False).name)
    spectrum = random(rng, plan.global_shape(True), plan.dtype(True).name)
    points = np.prod([u.shape[axis] for group in plan.axes for axis in group])
    truth = forward_truth(u, plan.axes, shape)[plan.local_slice(True)]
    given = newDistArray(plan, False)
    given[...] = u[plan.local_slice(False)]
    out = newDistArray(plan)
    assert plan.forward(given, out) is out and np.array_equal(given, u[plan.local_slice(False)])
    assert_close(comm, out, truth, tolerance)
    assert plan.forward(given) is plan.forward.output_array is plan.backward.input_array
    assert plan.backward.output_array is plan.forward.input_array
    plan.forward.input_array[...] = given
    assert_close(comm, plan.forward(normalize=False) / points, truth, tolerance)

    truth = backward_truth(spectrum, plan.axes, shape, u.shape, kind in "fd")[plan.local_slice(False)]
    local = spectrum[plan.local_slice(True)]
    assert_close(comm, plan.backward(local), truth, 10 * tolerance)
    plan.backward.input_array[...] = local
    assert_close(comm, plan.backward(normalize=True) * points, truth, 10 * tolerance)


@on_ranks
@pytest.mark.parametrize("comm, sparse", [(1, 7), (2, 5), (4, 7)])
@pytest.mark.peer
def test_against_mpi4py_fft(comm, sparse):
    """Distributions and values are those of mpi4py-fft, where that can be asked for."""
    import mpi4py_fft

    count = 0
    for shape, axes, kind, options in cases(sparse):
        given = dict(options)
        if "padding" in given:
            given["padding"] = [given["padding"]] * len(shape)
        try:
            peer = mpi4py_fft.PFFT(comm, shape, axes=axes, dtype=kind, **given)
            a = mpi4py_fft.newDistArray(peer, False)
        except (AssertionError, AttributeError):  # fewer points than ranks, among others
            continue
        try:
            plan = PFFT(comm, shape, axes=axes, dtype=kind, **options, **FAST)
        except InputError as error:  # a group that is split there, and transformed in parts
            assert "to be whole" in str(error), error
            continue
        if kind in "fd" and plan.global_shape()[plan.axes[-1][-1]] < 3:
            continue  # real data stay real there when two points become two modes
        for side in (False, True):
            for name in ("shape", "local_slice", "global_shape", "dtype"):
                assert getattr(plan, name)(side) == getattr(peer, name)(side), (name, side, shape, axes, kind, options)
        assert plan.axes == peer.axes and plan.dimensions == peer.dimensions
        assert [one.axis for one in plan.pencil] == [one.axis for one in peer.pencil]
        rng = np.random.default_rng(comm.rank)
        a[...] = random(rng, a.shape, a.dtype.name)
        b = newDistArray(plan, False)
        b[...] = a
        assert a.local_slice() == b.local_slice() and a.global_shape == b.global_shape
        truth = np.array(peer.forward(a))
        tolerance = TOLERANCE[kind.lower()]
        assert_close(comm, plan.forward(b), truth, tolerance)
        spectrum = random(rng, truth.shape, truth.dtype.name)
        assert_close(
            comm,
            plan.backward(spectrum),
            np.array(peer.backward(spectrum)),
            10 * tolerance * np.prod(plan.global_shape()),
        )
        peer.destroy()
        plan.destroy()
        count += 1
    assert count > 20, count


@on_ranks(1, 2, exhaustive(3), exhaustive(4), "openmpi-2")
def test_calls(comm):
    """Whatever assignment accepts is accepted, and arrays may be the same."""
    plan = PFFT(comm, (6, 8, 10), dtype="D", **FAST)
    rng = np.random.default_rng(1)
    u = random(rng, (6, 8, 10), "complex128")
    truth = np.fft.fftn(u, norm="forward")
    local = u[plan.local_slice(False)]
    there = plan.local_slice(True)
    single = np.zeros(plan.shape(), "F")
    assert plan.forward(local, single) is single
    assert_close(comm, single, truth[there], 1e-6)
    assert_close(comm, plan.forward(local.real), np.fft.fftn(u.real, norm="forward")[there], 1e-12)
    assert_close(comm, plan.forward(2), np.fft.fftn(np.full(u.shape, 2), norm="forward")[there], 1e-12)
    for axes in ((0, 1, 2), [-1, -2, -3]):
        assert_close(comm, plan.forward(local, axes=axes), truth[there], 1e-12)
    if comm.size == 1:
        assert plan.forward(local, local) is local
        assert_close(comm, local, truth, 1e-12)
    plan.destroy()
    plan.destroy()
    plan = PFFT(comm, (6, 8, 10), axes=(0, 2), dtype="D", backend="numpy", padding=(1.5, 1, 1))
    assert plan._input_shape == (9, 8, 10) and plan._output_shape == (6, 8, 10)
    local = random(rng, plan.shape(False), "complex128")
    found = np.array(plan.forward(local))
    assert_close(comm, plan.forward(local, axes=(2, 0)), found, 1e-15)
    axes = (1, 2) if comm.rank == 0 else (0, 2)
    raises_everywhere(comm, InputError, "axes of the plan, (0, 2)", plan.forward, local, axes=axes)
    plan.destroy()


@on_ranks(2, exhaustive("openmpi-2"), fresh=True)
def test_plans_that_nobody_destroys(comm):
    """As scripts do: a padded plan beside a plain one, and no goodbye."""
    shape = (6, 8, 10)
    plain, padded = PFFT(comm, shape, **FAST), PFFT(comm, shape, padding=[1.5] * 3, **FAST)
    assert plain.runtime is padded.runtime and padded.global_shape() == (9, 12, 15)
    u = newDistArray(padded, False, rank=1, val=3)
    spectrum = newDistArray(plain, rank=1)
    for component in range(3):
        spectrum[component] = padded.forward(u[component], spectrum[component])
        assert_close(comm, plain.backward(spectrum[component]), np.full(plain.shape(False), 3.0), 1e-12)


# ---- arrays ----------------------------------------------------------------------------------


@on_ranks(1, 2, exhaustive(3), exhaustive(4), exhaustive("openmpi-2"))
def test_arrays(comm):
    """Alignment changes, tensors, and parts of the global array on rank 0."""
    shape = (5, 6, 7)
    for rank, dims in product((0, 1, 2), ((0, 0, 1), (0, 1, 0), (1, 0, 0), (1, 1, 0), None)):
        whole = np.random.default_rng(3).random((2,) * rank + shape)
        a = DistArray(whole.shape, subcomm=dims, rank=rank)
        assert np.prod(a.commsizes) == comm.size and a.rank == rank and a.dimensions == 3
        a[...] = whole[a.local_slice()]
        for axis in (0, 2, 1, -3):
            b = a.redistribute(axis)
            assert b.alignment == axis % 3 and b.global_shape == whole.shape
            assert b.shape[rank + axis % 3] == shape[axis]
            assert np.array_equal(b, whole[b.local_slice()])
            c = DistArray(whole.shape, subcomm=b.pencil.subcomm, alignment=b.alignment, rank=rank)
            assert a.redistribute(out=c) is c and np.array_equal(b, c)
            a = b
        for index in (
            (*[0] * rank, 2, slice(None), 3),
            (*[slice(None)] * rank, -1, 0, slice(None)),
            (*[1] * rank, slice(1, 4), slice(None, None, 2), 0),
        ):
            found = a.get(index)
            assert (found is None) == (comm.rank > 0)
            assert comm.rank or np.array_equal(found, whole[index])
        if rank:
            assert isinstance(a[0], DistArray) and a[0].rank == rank - 1
        assert type(a.v) is np.ndarray and a.v.base is a
        scaled = 2 * a
        assert scaled.local_slice() == a.local_slice()
    line = DistArray((8,), val=2)
    assert line.shape == (8,) and line[0] == 2
    assert "global shape" in str(raised(InputError, a.redistribute, out=line))


@on_ranks(1, 2, exhaustive(3), exhaustive(4), exhaustive("openmpi-2"))
def test_plans_of_arrays(comm):
    """A plan for a given array's distribution, also one that was redistributed."""
    whole = random(np.random.default_rng(4), (6, 7, 8), "float64")
    a = DistArray(whole.shape)
    a[...] = whole[a.local_slice()]
    for axis in (2, 0, 1):
        a = a.redistribute(axis)
        plan = PFFT(comm, darray=a, **FAST)
        assert plan.axes[-1] == (axis,) and plan.local_slice(False) == a.local_slice()
        truth = forward_truth(whole, plan.axes)
        assert_close(comm, plan.forward(a), truth[plan.local_slice()], 1e-12)
        plan.destroy()
    cart = comm.Create_cart(MPI.Compute_dims(comm.size, [0, 0, 1]))
    for subcomm in (Subcomm(comm, (0, 0, 1)), Subcomm(cart)):
        plan = PFFT(subcomm, whole.shape, **FAST)
        truth = forward_truth(whole, plan.axes)
        assert_close(comm, plan.forward(whole[plan.local_slice(False)]), truth[plan.local_slice()], 1e-12)
        plan.destroy()
    cart.Free()


@on_ranks(1, 2, exhaustive(3), exhaustive(4), exhaustive("openmpi-2"))
def test_transfers(comm):
    """Two exchanges, each compared with the known data, and back."""
    whole = random(np.random.default_rng(6), (5, 6, 7), "complex64")
    subcomm = Subcomm(comm, 2)
    pencils = [Pencil(subcomm, whole.shape)]
    pencils += [pencils[0].pencil(0), pencils[0].pencil(0).pencil(-2)]
    local = [whole[pencil.local_slice].copy() for pencil in pencils]
    for one, other, a, b in zip(pencils, pencils[1:], local, local[1:]):
        transfer = one.transfer(other, "F")
        there, back = np.zeros_like(b), np.zeros_like(a)
        transfer.forward(a, there)
        assert np.array_equal(there, b)
        transfer.backward(there, back)
        assert np.array_equal(back, a)
        transfer.destroy()
    subcomm.destroy()


# ---- what is refused -------------------------------------------------------------------------


@on_ranks(1, 2, exhaustive(3), exhaustive(4), exhaustive("openmpi-2"))
def test_refusals(comm):
    """One clear `InputError`, the same on all ranks, also where one rank alone is wrong."""

    for words, options in (
        ("backend 'mkl' is not supported", {"backend": "mkl"}),
        ("transforms to be a dict", {"transforms": [(0,)]}),
        (("options", "spam"), {"spam": 1}),
        ("received int64", {"dtype": int}),
        ("received ['colapse']", {"colapse": True}),
        ("axes from -3 to 2", {"axes": (0, 3)}),
        ("each once", {"axes": (0, 0)}),
        ("axes from -3 to 2", {"axes": ((), (1,))}),
        ("padded axes in groups of their own", {"axes": ((0, 1), (2,)), "padding": 1.5}),
        ("1 or more", {"padding": [1.5, 1]}),
        ("at most 3 axes", {"grid": (1, 1, 1, 1)}),
        (f"{comm.size} rank(s)", {"grid": (comm.size + 1,)}),
        ("grid or slab", {"grid": (0,), "slab": 1}),
        ("two or more positive integers", {"shape": (8,)}),
        ("two or more positive integers", {"shape": (8, 0)}),
        ("received neither", {"shape": None}),
        ("threads", {"threads": 0}),
        ("planner_effort", {"planner_effort": "quick"}),
        ("received", {"axes": {"a": 1}}),
        *(
            (
                ("to be whole", {"axes": ((0, 1), (2,)), "grid": (comm.size,)}),
                (("rank 1", "not supported"), {"backend": "mkl" if comm.rank == 1 else "fftw"}),
                ("same on all ranks", {"backend": "scipy" if comm.rank == 1 else "fftw"}),
                ("same on all ranks", {"shape": (6, 7, 8 + comm.rank)}),
                ("outside of the last group", {"axes": ((0, 1, 2),)}),
            )
            if comm.size > 1
            else ()
        ),
    ):
        raises_everywhere(comm, InputError, words, PFFT, comm, **{"shape": (6, 7, 8)} | options)

    plan = PFFT(comm, (6, 7, 8), **FAST)
    for words, call in (
        ("normalise", lambda: plan.forward(normalise=True)),
        ("axes of the plan", lambda: plan.forward(axes=(0, 1))),
        ("axes of the plan", lambda: plan.backward(axes=None if comm.rank else (0, 1, 2, 2))),
        ("input_array", lambda: plan.forward(np.zeros(3))),
        ("input_array", lambda: plan.forward(np.zeros(3) if comm.rank == 0 else None)),
        ("output_array", lambda: plan.backward(None, np.zeros((1, 1, 1)))),
    ):
        raises_everywhere(comm, InputError, words, call)
    assert plan.forward(1).shape == plan.shape()
    plan.destroy()


@on_ranks(1, 2, exhaustive(3), exhaustive(4), exhaustive("openmpi-2"))
def test_names(comm):
    """What is old warns."""
    plan = PFFT(comm, (4, 5), **FAST)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert Function(plan, False).shape == plan.shape(False)
    assert [one.category for one in caught] == [FutureWarning]
    plan.destroy()


@on_ranks(1, 2, exhaustive(3), exhaustive(4), exhaustive("openmpi-2"))
def test_few_agreements(comm):
    """Where ranks share cores, each costs a millisecond: what is known of the communicator is not asked for again."""
    before = 0
    for _ in range(2):
        plan = PFFT(comm, (6, 7, 8), axes=(0, 1, 2), dtype="d")
        agreements, before = plan.runtime.coordinator._headers - before, plan.runtime.coordinator._headers
        plan.destroy()
    assert agreements <= 13, agreements


@on_ranks(1, 2, exhaustive(3), exhaustive(4), exhaustive("openmpi-2"))
def test_runtimes_are_kept(comm):
    """Without plans a runtime does not hold the thread pools; it goes with its communicator."""

    def threads():
        return [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]

    def plan(of, **options):
        made = PFFT(of, (5, 6), **FAST, **options)
        u = np.full(made.shape(False), 1.0 + made.runtime.deadline_s)
        assert_close(comm, made.backward(made.forward(u)), u, 1e-12)
        assert threads()
        return made

    with few_left(comm, 40 if MPI.get_vendor()[0] == "MPICH" else None):  # Open MPI makes as many as are wanted
        for number in range(60):
            mine = comm.Dup()
            first = plan(mine, deadline_s=30)
            runtime = first.runtime
            other = plan(mine, threads=2)
            first.destroy()
            other.destroy()
            assert not runtime.closed
            if number == 0:
                with threadpoolctl.threadpool_limits(limits=2):
                    again = plan(mine)
                    assert {pool["num_threads"] for pool in threadpoolctl.threadpool_info()} == {1}
                    again.destroy()
                    assert {pool["num_threads"] for pool in threadpoolctl.threadpool_info()} == {2}
                deadline_s = -1 if comm.rank == 0 else 1
                raises_everywhere(comm, InputError, "received -1", PFFT, mine, (5, 6), deadline_s=deadline_s)
            again = plan(mine)
            assert again.runtime is runtime and runtime.deadline_s == 600
            if number % 2:
                mine.Free()
                u = np.ones(again.shape(False))
                assert_close(comm, again.backward(again.forward(u)), u, 1e-12)
                again.destroy()
            else:
                again.destroy()
                mine.Free()
            assert runtime.closed and not threads()
        with patch.object(holding, "MANY", 0):
            crowded = plan(comm)
            crowded.destroy()
            assert crowded.runtime.closed
