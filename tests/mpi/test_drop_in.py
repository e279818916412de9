"""The drop-in's own arrays, other local transforms, files, names.

The truth is numpy's, scipy's and the global array, known everywhere.
"""

import functools
import itertools
import warnings
import xml.etree.ElementTree
from pathlib import Path

import numpy as np
from everywhere import raised, raises_everywhere
from marks import exhaustive, on_ranks
from test_compat import FAST, assert_close, backward_truth, forward_truth
from test_distarray import folder
from truth import random

import overlap.compat.mpi4py_fft as compat
from overlap import InputError, RankError
from overlap.compat.mpi4py_fft import PFFT, HDF5File, NCFile, fftw, generate_xdmf, newDistArray
from overlap.compat.mpi4py_fft.libfft import FFT
from overlap.compat.mpi4py_fft.mpifft import Transform

# ---- the plan's own arrays -------------------------------------------------------------------


@on_ranks(1, 2, exhaustive(4))
def test_own_arrays_in_any_order(comm, steps=20):
    """Calls at random, with arrays or without, as a model of mpi4py-fft's plan says: it copies always."""
    shape, axes = (4, 5, 6), ((0,), (1,), (2,))
    for kind, asks in itertools.product("dD", (False, True)):
        rng = np.random.default_rng(7)  # the same on all ranks
        plan = PFFT(comm, shape, dtype=kind, **FAST)
        own = [np.zeros(plan.global_shape(side), plan.dtype(side)) for side in (False, True)]
        given = newDistArray(plan, False), newDistArray(plan)
        for _ in range(steps):
            forward, has_input, has_output = rng.random(3) < 0.5
            source, target = (0, 1) if forward else (1, 0)
            transform = plan.forward if forward else plan.backward
            if has_input:
                own[source] = random(rng, own[source].shape, own[source].dtype.name)
                if not forward and kind == "d":  # a spectrum that some real field has
                    own[source] = forward_truth(random(rng, own[target].shape, own[target].dtype.name), axes)
                given[source][...] = own[source][plan.local_slice(bool(source))]
            own[target] = (
                forward_truth(own[0], axes) if forward else backward_truth(own[1], axes, shape, shape, kind == "d")
            )
            here = own[target][plan.local_slice(bool(target))]
            found = transform(given[source] if has_input else None, given[target] if has_output else None)
            assert not has_output or found is given[target]
            assert_close(comm, found, here, 1e-10)
            for array in given:
                array[...] = np.nan
            if asks:
                assert_close(comm, transform.output_array, here, 1e-10)
                assert_close(comm, transform.input_array, own[source][plan.local_slice(bool(source))], 1e-10)
        plan.destroy()


@on_ranks(1, 2, exhaustive(4))
def test_own_arrays_asked_for_late(comm):
    """Who never asks does not pay; who asks late is told, and is served from then on."""
    plan = PFFT(comm, (4, 5, 6), **FAST)
    u, uh = newDistArray(plan, False), newDistArray(plan)
    for value in range(20):
        u[...] = value
        plan.forward(u, uh)
    assert plan.forward._arrays._last[1] is uh
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert np.array_equal(plan.forward.output_array, uh)
        u[...] = 7
        plan.forward(u, uh)
        uh[...] = 0
        assert_close(comm, plan.backward(), np.full(u.shape, 7.0), 1e-12)
    assert [one.category for one in caught] == [RuntimeWarning], caught
    plan.destroy()


@on_ranks(1, 2, exhaustive(4))
def test_masks(comm):
    plan = PFFT(comm, (4, 5, 6), **FAST)
    u = np.ma.masked_less(np.ones(plan.shape(False)), 0)
    for call in (lambda: plan.forward(u), lambda: plan.forward(None, np.ma.zeros(plan.shape(), complex))):
        raises_everywhere(comm, InputError, "mask", call)
    plan.destroy()
    plan = PFFT(comm, (4, 5, 6), backend="numpy")
    masked = np.ma.zeros(plan.shape(), complex)
    alone = fftw.aligned((4, 4), dtype=complex)
    serial = fftw.fftn(alone)
    for call in (
        lambda: plan.forward(u),
        lambda: plan.forward(None, masked),
        lambda: plan.xfftn[0].backward(masked),
        lambda: fftw.fftn(np.ma.array(alone)),
        lambda: serial(np.ma.array(alone)),
        lambda: serial(alone, np.ma.array(alone)),
    ):
        assert "mask" in str(raised(InputError, call))
    plan.destroy()


# ---- other local transforms ------------------------------------------------------------------


@on_ranks(1, 2, exhaustive(4))
def test_cosines_and_sines(comm):
    """Every type along one group of axes or two, with a Fourier transform before them."""
    from scipy import fft

    shape = (5, 6, 7, 8)
    whole = random(np.random.default_rng(2), shape, "float64")
    for one, other in ((1, 2), (2, 3), (3, 4), (4, 1)):

        def part(name, kind):
            return functools.partial(getattr(fftw, name), type=kind)

        cosines = part("dctn", one), part("idctn", one)
        sines = part("dstn", other), part("idstn", other)
        plan = PFFT(comm, shape, axes=((0,), (1,), (2, 3)), grid=(-1,), transforms={(2, 3): cosines, (1,): sines})
        assert "serial" not in plan.describe()
        truth = fft.dctn(whole, axes=(2, 3), type=one)
        lengths = [2 * (n - 1 if one == 1 else n) for n in shape[2:]] + [2 * (shape[1] + (other == 1)), shape[0]]
        truth = np.fft.rfft(fft.dst(truth, axis=1, type=other), axis=0)
        local = whole[plan.local_slice(False)]
        assert (
            plan.dtype() == np.dtype(float)
            and plan.dtype(True) == np.dtype(complex)
            and plan.global_shape(True) == truth.shape
        )
        assert_close(comm, plan.forward(local), truth[plan.local_slice()] / np.prod(lengths), 1e-12)
        assert_close(comm, plan.forward(local, normalize=False), truth[plan.local_slice()], 1e-9)
        plan.forward(local)
        assert_close(comm, plan.backward(), local, 1e-12)
        assert len(plan.xfftn) == len(plan.axes) == len(plan.transfer) + 1
        plan.destroy()
    types = {"d2": (fftw.dctn, fftw.idctn), "s1": (part("dstn", 1), part("idstn", 1))}
    whole = whole[0]
    for groups, kinds in (
        (((2,), (0,), (1,)), {1: "d2"}),  # real until 0 is transformed
        (((1,), (2,), (0,)), {0: "s1", 2: "d2"}),
        (((0,), (1, 2)), {0: "d2", 1: "s1", 2: "s1"}),  # real to the end
    ):
        transforms = {group: types[kinds[group[0]]] for group in groups if group[0] in kinds}
        plan, truth, factor = PFFT(comm, whole.shape, axes=groups, transforms=transforms), whole, 1
        assert "serial" not in plan.describe()
        for axis in [axis for group in reversed(groups) for axis in reversed(group)]:
            length = whole.shape[axis]
            if kind := kinds.get(axis):
                truth = (fft.dct if kind == "d2" else fft.dst)(truth, axis=axis, type=int(kind[1]))
                factor *= 2 * (length + (kind == "s1"))
            else:
                truth = (np.fft.fft if np.iscomplexobj(truth) else np.fft.rfft)(truth, axis=axis)
                factor *= length
        assert plan.dtype(True) == truth.dtype and plan.global_shape(True) == truth.shape
        local = whole[plan.local_slice(False)]
        assert_close(comm, plan.forward(local), truth[plan.local_slice()] / factor, 1e-12)
        assert_close(comm, plan.backward(), local, 1e-12)
        plan.destroy()
    own = {(2,): (lambda *args, **options: fftw.dctn(*args, **options), fftw.idctn)}
    plan = PFFT(comm, whole.shape, axes=((0,), (1,), (2,)), transforms=own)
    assert "serial" in plan.describe()
    local = whole[plan.local_slice(False)]
    assert_close(comm, plan.backward(plan.forward(local)), local, 1e-12)
    plan.destroy()


@on_ranks(1, 2, exhaustive(4))
def test_other_libraries(comm):
    """Each backend, also padded, and long double."""
    whole = random(np.random.default_rng(3), (8, 6, 10), "float64")
    axes = ((0,), (1,), (2,))
    for backend in ("fftw", "pyfftw", "numpy", "scipy"):
        for dtype, tolerance in (("d", 1e-12), ("D", 1e-12), ("f", 2e-5)):
            plan = PFFT(comm, whole.shape, dtype=dtype, backend=backend)
            given = whole.astype(dtype)
            truth = forward_truth(given.astype("D") if backend == "scipy" else given, axes)
            local = given[plan.local_slice(False)]
            assert_close(comm, plan.forward(local), truth[plan.local_slice()], tolerance)
            assert_close(comm, plan.backward(plan.forward(local)), local, tolerance)
            plan.destroy()
    for dtype in "gG":
        plan = PFFT(comm, whole.shape, dtype=dtype)
        found = plan.forward(whole[plan.local_slice(False)])
        assert found.dtype.char == "G"
        given = whole.astype("D") if dtype == "G" else whole
        assert_close(comm, found, forward_truth(given, axes)[plan.local_slice()], 1e-12)
        assert_close(comm, plan.backward(), whole[plan.local_slice(False)], 1e-15)
        plan.destroy()
    fine = (12, 9, 15)
    for dtype in "dD":
        plan = PFFT(comm, whole.shape, dtype=dtype, padding=[1.5] * 3, backend="numpy")
        assert plan.global_shape() == fine
        given = random(np.random.default_rng(4), fine, np.dtype(dtype).name)
        truth = forward_truth(given, axes, whole.shape)
        assert_close(comm, plan.forward(given[plan.local_slice(False)]), truth[plan.local_slice()], 1e-12)
        truth = backward_truth(truth, axes, whole.shape, fine, dtype == "d")
        assert_close(comm, plan.backward(), truth[plan.local_slice(False)], 1e-12)
        plan.destroy()


@on_ranks(1, 2, exhaustive(4))
def test_parts_of_a_plan(comm):
    """`Transform` made of a plan's serial transforms and exchanges does what the plan does."""
    whole = random(np.random.default_rng(5), (6, 7, 8), "float64")
    plan = PFFT(comm, whole.shape, **FAST)
    local = whole[plan.local_slice(False)]
    forward = Transform([one.forward for one in plan.xfftn], [one.forward for one in plan.transfer], plan.pencil)
    backward = Transform(
        [one.backward for one in plan.xfftn[::-1]], [one.backward for one in plan.transfer[::-1]], plan.pencil[::-1]
    )
    assert_close(comm, forward(local), np.array(plan.forward(local)), 1e-13)
    assert forward.output_array is backward.input_array
    assert_close(comm, backward(), local, 1e-13)
    assert isinstance(plan.forward, Transform)
    grid = " x ".join(str(one.size) for one in plan.subcomm)
    assert repr(plan) == f"<PFFT (6, 7, 8) float64 to (6, 7, 5) complex128 over {grid} ranks>"
    assert repr(plan.backward).startswith("<PipelinedTransform of (6, 7, 5) complex128, here (")
    assert repr(forward).startswith("<Transform of (6, 7, 8) float64, here (") and "whole along axis 2" in repr(
        plan.pencil[0]
    )
    assert "received 2, 0" in str(raised(InputError, Transform, [None] * 2, [], plan.pencil))
    plan.destroy()
    assert "freed" in repr(plan) and "freed" in repr(plan.pencil[0])


@on_ranks(1)
def test_serial_transforms(comm):
    """Plans of FFTW's against scipy: given arrays, own ones, all ways to call."""
    from scipy import fft

    rng = np.random.default_rng(6)
    for char, axes in itertools.product("fdg", ((0,), (1,), (1, 0))):
        a = fftw.aligned((6, 9), dtype=char)
        tolerance = {"f": 1e-4, "d": 1e-12, "g": 1e-12}[char]
        values = rng.random(a.shape).astype(char)
        for kind, (name, truth) in itertools.product((1, 2, 3, 4), (("dctn", fft.dctn), ("dstn", fft.dstn))):
            plan = getattr(fftw, name)(a, axes=axes, type=kind, flags=(fftw.FFTW_ESTIMATE,))
            expected = truth(values.astype("d"), axes=axes, type=kind)
            for given, implicit in itertools.product((None, values, values[::-1][::-1]), (True, False)):
                a[...] = values
                out = np.empty_like(a) if given is None else None
                found = plan(given, out, implicit=implicit)
                assert found is (plan.output_array if out is None else out)
                np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)
            inverse = fftw.inverse[getattr(fftw, name)](a, axes=axes, type=kind)
            a[...] = expected
            np.testing.assert_allclose(inverse(normalize=True), values, rtol=0, atol=tolerance)
        a[...] = values
        plan = fftw.rfftn(a, axes=axes)
        a[...] = values
        np.testing.assert_allclose(plan(), np.fft.rfftn(values.astype("d"), axes=axes), rtol=0, atol=tolerance)
        back = fftw.irfftn(plan.output_array, s=[a.shape[axis] for axis in axes], axes=axes, output_array=a)
        plan.output_array[...] = np.fft.rfftn(values.astype("d"), axes=axes)
        np.testing.assert_allclose(back(normalize=True), values, rtol=0, atol=tolerance)
    assert "FFTW_DHT" in str(raised(InputError, fftw.get_planned_FFT, a, a.copy(), (0,), fftw.FFTW_DHT))
    assert "type" in str(raised(InputError, fftw.dctn, a, type=5))
    assert "received float" in str(raised(InputError, fftw.fftn, np.zeros(3)))
    assert "'mkl'" in str(raised(InputError, FFT, (4, 4), backend="mkl"))


# ---- files -----------------------------------------------------------------------------------


@on_ranks(1, 2, exhaustive(4))
def test_files(comm):
    """Arrays, tensors and slices come back; XDMF files name what is there."""
    import h5py

    plan = PFFT(comm, (5, 6, 7), **FAST)
    for rank in (0, 1, 2):
        whole = random(np.random.default_rng(rank), (3,) * rank + (5, 6, 7), "float64")
        u = newDistArray(plan, False, rank=rank)
        u[...] = whole[u.local_slice()]
        for domain in (None, ((0, 1.0), (0, 2.0), (1, 3.0)), tuple(np.arange(n) / n for n in (5, 6, 7))):
            with folder(comm) as place:
                name = str(place / "u.h5")
                file = HDF5File(name, domain, "w")
                for step in range(2):
                    file.write(step, {"u": [u, (u, [slice(None), 4, slice(None)]), (u, [0, slice(None), 6])]})
                u.write(name, "u", 2)
                u.write(file, "v", 0, [slice(None), slice(None), 3], as_scalar=True)
                v = newDistArray(plan, False, rank=rank)
                v.read(name, "u", 2)
                assert np.array_equal(v, u)
                file.read(v, "u", step=1)
                assert np.array_equal(v, u)
                raises_everywhere(comm, RankError, "", v.read, name, "w")
                if comm.rank == 0:
                    whole_slice = (slice(None),) * rank
                    with h5py.File(name) as found:
                        assert np.array_equal(found["u/3D/0"], whole)
                        assert np.array_equal(found["u/2D/slice_4_slice/1"], whole[(*whole_slice, slice(None), 4)])
                        assert np.array_equal(found["u/1D/0_slice_6/0"], whole[(*whole_slice, 0, slice(None), 6)])
                        components = ["".join(map(str, one)) for one in np.ndindex(whole.shape[:rank])]
                        for component, one in zip(components, whole.reshape(-1, 5, 6, 7), strict=True):
                            assert np.array_equal(found[f"v{component}/2D/slice_slice_3/0"], one[..., 3])
                    for order in ("paraview", "visit"):
                        generate_xdmf(name, periodic=(True, False, True), order=order)
                        _check_xdmf(place, name)
                comm.Barrier()
    plan.destroy()


def _check_xdmf(place, name):
    """Every array that is referred to is there, and as large as it is said to be."""
    import h5py

    count = 0
    with h5py.File(name) as file:
        for path in Path(place).glob("*.xdmf"):
            for item in xml.etree.ElementTree.parse(path).iter("DataItem"):
                lengths = [int(length) for length in item.get("Dimensions").split()]
                if item.get("Format") == "HDF":
                    filename, _, where = item.text.strip().partition(":")
                    assert filename == Path(name).name
                    assert file[where].size == np.prod(lengths), (where, lengths)
                    count += 1
                else:
                    assert len(item.text.split()) == lengths[0]
    assert count


# ---- names -----------------------------------------------------------------------------------


@on_ranks(1, 2, exhaustive(4))
def test_names_of_the_library(comm):
    """What mpi4py-fft exports is there; what cannot be had says so when it is called, never when imported."""
    functions = {"PFFT", "DistArray", "newDistArray", "Function", "fftlib", "HDF5File", "NCFile", "generate_xdmf"}
    modules = {"fftw", "io", "libfft", "mpifft", "pencil", "distarray"}
    assert functions | modules | {"__version__"} <= set(dir(compat))
    assert not hasattr(compat, "nothing_of_this_name")
    assert compat.__version__.split(".")[0] == "2" and "D" in compat.fftlib
    array = compat.DistArray((4, 5), (comm.size, 1))
    for call in (lambda: NCFile("u.nc"), lambda: array.write("u.nc")):
        assert "NCFile is not supported" in str(raised(NotImplementedError, call))


@on_ranks(1, 2, exhaustive(4))
def test_different_serial_plans(comm):
    """The ranks call different plans without pipelines, or other directions of one: an error on all, and both work."""
    plans = [PFFT(comm, (4, 6, length), dtype="G", **FAST) for length in (8, 10)]
    last = comm.rank == comm.size - 1
    for transform in (plans[last].forward, plans[last].backward, (plans[0].forward, plans[0].backward)[last]):
        if comm.size > 1:
            raises_everywhere(comm, InputError, "expected the same on all ranks, received", transform)
        for plan in plans:
            whole = random(np.random.default_rng(2), plan.global_shape(), "complex128")
            result = plan.forward(whole[plan.local_slice(False)])
            assert_close(comm, result, forward_truth(whole, ((0,), (1,), (2,)))[plan.local_slice()], 1e-12)
    for plan in plans:
        plan.destroy()
