"""Recipes of the FFTs: plans, transforms, functions, arrays."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from generated import Call, Lab, Subject, constructor, each
from generated_runtime import OF_LAYERS

import overlap
import overlap.fft
from overlap.arrays import DistArray

SETTINGS = {"wait": "off", "depth": 2, "chunk": 1, "in_flight": 1, "effort": "estimate", "late": 0.0}
SHAPES = {"FFT2": (2, 4, 6), "FFT3": (4, 4, 6), "FFTN": (4, 4, 6)}
MODES = (2, 2, 3, 5)  # of a bracket
AFTER_LOSSES = "makes a plan on the ranks that are left: see test_losses"
NO_COMM = {"comm": "there is no communicator over which a rank could tell the others"}
NUMPYS = "numpy's, of the local part alone"
ANY_DTYPE = "only the shape counts"
CLOSING = {"close": "to close twice is allowed"}
OF_ENGINE = each(
    """
        repeated replace_by before candidates configuration configure forget made_results message_count
        message_nbytes nbytes_of_arrays nbytes_per_slice prepare recorded refuse release run_planes scratch
        shares slot_nbytes steps trial_arrays trial_fields exchanged check_in_use
    """,
    "for plans and the engine, which know whether the plan is open",
)
OF_ENGINE |= each("settings nbytes_in_flight", "what the last calls had can be read afterwards")


def plan(lab: Lab, kind: str, dtype: Any = complex, **layout: Any) -> Any:
    some = (lab.holders,) * 3
    shape = SHAPES[kind] if lab.holders == lab.size else (2, *some[1:]) if kind == "FFT2" else some
    return getattr(overlap, kind)(lab.comm, shape, dtype, layout=layout, settings=SETTINGS, tuning="")


def bracket(lab: Lab) -> Any:
    modes = MODES if lab.holders == lab.size else (2, lab.holders, lab.holders, 5)
    one = overlap.Bracket(lab.comm, modes, settings={**SETTINGS, "late": None}, tuning="")
    one.advect(filled(one.advecting))
    return one


def one_slice(lab: Lab, one: Any) -> dict[str, Any]:
    """Arguments of a bracket's calls in slice programs."""
    return {"f": filled(one.spectrum)[0], "out": one.spectrum.empty()[0], "buffers": one.buffers()}


def transpose(lab: Lab) -> Any:
    length = 4 if lab.holders == lab.size else lab.holders
    return overlap.Transpose(lab.comm, (2, length, length), 1, 2)


def whole(spec: Any, seed: int = 3) -> np.ndarray:
    """A global array of a spec's, alike on all ranks."""
    some = np.random.default_rng(seed).standard_normal((2, *spec.global_shape))
    return (some[0] + 1j * some[1] if spec.dtype.kind == "c" else some[0]).astype(spec.dtype)


def filled(spec: Any) -> Any:
    array = spec.empty()
    array[...] = whole(spec)[spec.local_slice]
    return array


def transformed(lab: Lab, one: Any, arguments: dict[str, Any], result: Any) -> None:
    spec, source = one.outputs[0], one.inputs[0]
    axes = (-2, -1) if source.dimensions == 2 else (-3, -2, -1)
    assert np.allclose(result, np.fft.fftn(whole(source), axes=axes)[spec.local_slice])


def squared(a: np.ndarray) -> np.ndarray:
    return a * a


def transform_calls(right: Any) -> dict[str, Call]:
    def good(lab, one):
        return {"arrays": tuple(map(filled, one.inputs)), "out": one.outputs[0].empty()}

    return {
        "__call__": Call(good, right),
        "compute": Call(good),
        "communicate": Call(good),
        "settle": Call(good, legal={"budget_s=infinite": "the default"}),
        "describe": Call(local=True),
        "tune": Call(lambda lab, one: {"budget_s": 0.05}, legal={"progress=None": ""}, costly=True),
    }


def given_by(make: Any, name: Any) -> Any:
    """What a plan that `make` makes has, or gives."""

    def made(lab: Lab) -> Any:
        one = make(lab)
        return lab.given_by(one, name(one) if callable(name) else getattr(one, name))

    return made


def close_owner(lab: Lab, one: Any) -> None:
    lab.owner_of(one).close()


def plan_constructor(kind: str, **good: Any) -> Subject:
    return constructor(
        f"overlap.{kind}",
        getattr(overlap, kind),
        Call(
            lambda lab, one: {"settings": SETTINGS, "tuning": "", **good},
            untold=NO_COMM,
            legal={"dtype=None": "numpy's None is float64", "layout=empty": "", "kinds=None": "Fourier transforms"},
            done=lambda plan: plan.close(),
        ),
    )


def decorated(lab: Lab, function: Any, first: Any, *args: Any, **kwargs: Any) -> Any:
    """Make a pointwise transform; of no function, that of what decorates one."""
    made = function(first, *args, **kwargs)
    return made(squared) if first is None else made


def plan_subject(kind: str) -> Subject:
    return Subject(
        (f"overlap.{kind}",),
        make=partial(plan, kind=kind),
        close=lambda lab, one: one.close(),
        words=("plan", kind, "FFT"),
        use=lambda lab, one: one.forward(filled(one.real)),
        working=CLOSING,
        internal={"on": AFTER_LOSSES},
        calls={
            "balance": Call(lambda lab, one: {"arrays": (filled(one.real),)}, legal={"arrays": "any number"}),
            "describe": Call(local=True),
            "pointwise": Call(
                lambda lab, one: {"function": squared, "inputs": 1},
                legal={"function=None": "it gives a decorator"},
                run=decorated,
            ),
            "operators": Call(
                lambda lab, one: {"lengths": 1.0, "dealias": "3/2"},
                legal={"lengths=None": "2 pi", "dealias=None": "no finer grid"},
            ),
            "tune": Call(lambda lab, one: {"budget_s": 0.05}, costly=True),
            "wavenumbers": Call(lambda lab, one: {"lengths": 1.0}, local=True, legal={"lengths=None": "2 pi"}),
        },
    )


def function_calls() -> dict[str, Call]:
    """The functions like scipy.fft's."""

    def good(lab: Lab, one: Any, name: str) -> dict[str, Any]:
        inverse, real = "i" in name[:2], name[1] == "r" or name[0] == "r"
        kind = f"FFT{'2' if name.endswith('2') else '3'}"
        spec = getattr(one, f"{kind}{'r' if real else ''}")
        x = filled(spec.spectrum if inverse else spec.real)
        of_one = {} if name[-1] in "2n" else {"axis": next(axis for axis in range(3) if axis not in x.axes)}
        return {"x": x, "comm": lab.comm, "workers": 1, "norm": "ortho", "exchange": "f4"} | of_one

    return {
        name: Call(
            partial(good, name=name),
            right_function(name),
            legal={
                "comm=None": "a DistArray brings its own",
                "overwrite_x": "any truth value, as of scipy's",
                "s": "",
                "n": "",
            },
        )
        for name in overlap.fft.__all__
        if name.endswith(("fft", "fft2", "fftn"))
    } | {"close_plans": Call()}


def plans(lab: Lab) -> Any:
    """Plans whose arrays are transformed by functions, which take arrays that are split along one axis."""
    slab = {"grid": (1, lab.size)}
    return SimpleNamespace(
        FFT2=plan(lab, "FFT2"),
        FFT3=plan(lab, "FFT3", **slab),
        FFT2r=plan(lab, "FFT2", float),
        FFT3r=plan(lab, "FFT3", float, **slab),
    )


def a_field(lab: Lab, one: Any) -> Any:
    return filled(one._plan.spectrum)


def two_fields(lab: Lab, one: Any) -> Any:
    return a_field(lab, one), a_field(lab, one)


def half_mean_squares(one: Any) -> np.ndarray:
    """The energy of the two fields together, by Parseval's theorem."""
    spectrum = whole(one._plan.spectrum)
    return np.mean(np.abs(np.fft.ifftn(spectrum, axes=(-2, -1))) ** 2, axis=(-2, -1))


def right_energy(lab: Lab, one: Any, arguments: dict[str, Any], result: Any) -> None:
    assert np.allclose(result, half_mean_squares(one))


def right_spectrum(lab: Lab, one: Any, arguments: dict[str, Any], result: Any) -> None:
    spectrum = whole(one._plan.spectrum)
    points = spectrum.shape[-2:]
    modes = np.meshgrid(*(np.fft.fftfreq(n, 1 / n) for n in points), indexing="ij")
    shells = np.rint(np.hypot(*modes)).astype(int)
    energies = (np.abs(spectrum) ** 2).sum(axis=0) / np.prod(points) ** 2
    k, found = result
    assert np.allclose(found, np.bincount(shells.ravel(), energies.ravel(), len(k)))


def right_function(name: str) -> Any:
    """What numpy's function of this name gives, rounded as in the exchange."""

    def right(lab: Lab, one: Any, arguments: dict[str, Any], result: Any) -> None:
        x = arguments["x"]
        everything = np.zeros(x.global_shape, x.dtype)
        for where, part in lab.gathered((x.local_slice, np.asarray(x))):
            everything[where] = part
        axis = {"axis": arguments["axis"]} if "axis" in arguments else {}
        if "n" in name:
            axis = {"axes": (-3, -2, -1)}
        truth = getattr(np.fft, name)(everything, norm="ortho", **axis)
        assert truth.shape == result.global_shape, (truth.shape, result.global_shape)
        assert np.allclose(result, truth[result.local_slice], atol=1e-5 * np.abs(truth).max())

    return right


def right_reduction(name: str) -> Any:
    """What numpy says of the whole array."""
    truths = {"global_norm": np.linalg.norm, "global_vdot": lambda whole: whole @ whole}
    truth = truths.get(name) or getattr(np, name.removeprefix("global_"))
    return lambda lab, one, arguments, result: np.testing.assert_allclose(result, truth(np.arange(6.0 * lab.holders)))


def close_all(lab: Lab, one: Any) -> None:
    overlap.fft.close_plans()
    for plan_of_some in vars(one).values():
        plan_of_some.close()


def distarray(lab: Lab) -> Any:
    length, first = lab.count(3), 3 * min(lab.rank, lab.holders)
    return DistArray(
        np.arange(length * 2.0).reshape(length, 2) + 2 * first,
        lab.comm,
        (3 * lab.holders, 2),
        (0,),
        (slice(first, first + length), slice(0, 2)),
    )


def gathered(lab: Lab, one: Any, arguments: dict[str, Any], result: Any) -> None:
    if lab.rank == 0:
        assert np.array_equal(result, np.arange(6.0 * lab.holders).reshape(-1, 2))


def path_of(lab: Lab) -> str:
    """A file in a folder that all ranks know; it has an array."""
    import os
    import tempfile

    path = lab.comm.bcast(tempfile.gettempdir() + f"/generated-{os.getpid()}.h5")
    distarray(lab).save(path)
    lab.files.add(path)
    return path


OF_STEPS = {
    "t=negative": "any time",
    "t=nan": "for the user's function only",
    "t=infinite": "for the user's function only",
    "state=shape": "of any shape that goes with that of linear",
}

IN_BOXES = {"shape": (4, 4, 4), "dtype": "f8", "norm": "ortho", "exchange": "f4"}

SUBJECTS = (
    plan_constructor("FFT2", **IN_BOXES | {"shape": (2, 4, 4)}, kinds=("dct2", "r2c"), layout={"order": "natural"}),
    plan_constructor("FFT3", **IN_BOXES, kinds=("dct2", "c2c", "r2c"), layout={"order": "natural"}),
    plan_constructor("FFTN", **IN_BOXES, axes=(0, 2), split=0, s=(4, 6), kinds=("dct2", "r2c"), layout={}),
    plan_constructor(
        "Bracket", shape=MODES, spacing=(1.0, 2.0), settings={**SETTINGS, "late": None}, points=(8, 8), exchange="f4"
    ),
    plan_subject("FFT2"),
    plan_subject("FFT3"),
    plan_subject("FFTN"),
    Subject(
        ("overlap.Bracket",),
        make=bracket,
        close=lambda lab, one: one.close(),
        words=("plan", "Bracket", "runtime"),
        use=("__call__",),
        working=CLOSING,
        internal={"on": AFTER_LOSSES},
        calls={
            "__call__": Call(lambda lab, one: {"f": filled(one.spectrum), "out": one.spectrum.empty()}),
            "advect": Call(lambda lab, one: {"a": filled(one.advecting)}),
            "apply": Call(
                one_slice,
                legal={"buffers": OF_LAYERS},
                run=lambda lab, function, *args, **kwargs: in_program(lab.one.runtime, function, *args, **kwargs),
            ),
            "operations": Call(one_slice, legal={"buffers": OF_LAYERS}, local=True),
            "buffers": Call(local=True),
            "balance": Call(lambda lab, one: {"arrays": (filled(one.spectrum),)}, legal={"arrays": "any number"}),
            "describe": Call(local=True),
            "tune": Call(lambda lab, one: {"budget_s": 0.05}, costly=True),
        },
    ),
    Subject(
        ("overlap.Transpose",),
        make=transpose,
        close=lambda lab, one: one.close(),
        words=("plan", "Transpose"),
        use=lambda lab, one: one.forward(filled(one.source)),
        working=CLOSING,
        functions={"Transpose": overlap.Transpose},
        calls={
            "Transpose": Call(
                lambda lab, one: {
                    "shape": (2, 4, 4),
                    "source": 1,
                    "target": {"axes": 2},
                    "dtype": "f8",
                    "settings": {"depth": 2},
                    "exchange": "f4",
                },
                untold=NO_COMM,
                legal={"dtype=None": "numpy's None is float64", "source=negative": "from the end", "settings=None": ""},
                done=lambda plan: plan.close(),
            ),
            "buffers": Call(lambda lab, one: {"entries": 2}, local=True, legal={"entries=None": "the plan's"}),
            "describe": Call(local=True),
        },
    ),
    Subject(
        ("overlap.fft.TransposeDirection",),
        make=given_by(transpose, "forward"),
        close=close_owner,
        words=("plan", "Transpose", "runtime"),
        use=("__call__",),
        internal={"release": "for the plan"},
        calls={
            "__call__": Call(lambda lab, one: {"array": filled(one.source), "out": one.target.empty()}),
            "pack": Call(lambda lab, one: {"source": filled(one.source), "slot": one._plan.buffers(2)}, local=True),
            "operation": Call(lambda lab, one: {"slot": one._plan.buffers(2), "entries": 2}, local=True),
            "unpack": Call(lambda lab, one: {"slot": one._plan.buffers(2), "target": one.target.empty()}, local=True),
            "apply": Call(
                lambda lab, one: {
                    "source": filled(one.source),
                    "target": one.target.empty(),
                    "slot": one._plan.buffers(2),
                },
                run=lambda lab, function, *args, **kwargs: in_program(lab.one._plan.runtime, function, *args, **kwargs),
            ),
        },
    ),
    *(
        Subject(
            names,
            make=make,
            close=close_owner,
            words=("plan", "transform"),
            use=("__call__",),
            kind=overlap.fft.Transform,
            internal=OF_ENGINE,
            calls=transform_calls(right),
        )
        for names, make, right in (
            (("overlap.fft.Transform",), given_by(partial(plan, kind="FFT2"), "forward"), transformed),
            (("overlap.fft.Transform of FFT3",), given_by(partial(plan, kind="FFT3"), "forward"), transformed),
            (
                ("overlap.fft.Transform of FFT2.pointwise", "overlap.fft.Pointwise"),
                given_by(partial(plan, kind="FFT2"), lambda one: one.pointwise(squared)),
                lambda *_: None,
            ),
            (
                ("overlap.fft.Transform of FFT3.pointwise",),
                given_by(partial(plan, kind="FFT3"), lambda one: one.pointwise(squared)),
                lambda *_: None,
            ),
            (("overlap.fft.Transform of Bracket",), given_by(bracket, "transform"), lambda *_: None),
        )
    ),
    Subject(
        tuple(f"overlap.fft.{name}" for name in function_calls()),
        make=plans,
        close=close_all,
        functions={name: getattr(overlap.fft, name) for name in function_calls()},
        calls=function_calls(),
    ),
    Subject(
        ("overlap.DistArray",),
        make=distarray,
        internal=each(
            """
                T mT real imag argpartition argsort astype choose compress copy cumprod cumsum diagonal dot
                flatten ravel repeat reshape squeeze swapaxes take trace transpose view __copy__ __deepcopy__
                __getitem__ __setstate__ __array_finalize__ __array_function__ __array_wrap__
            """,
            NUMPYS,
        ),
        functions={"DistArray": DistArray},
        calls={
            "DistArray": Call(
                lambda lab, one: {
                    "buffer": np.asarray(one),
                    "comm": lab.comm,
                    "global_shape": one.global_shape,
                    "axes": one.axes,
                    "local_slice": one.local_slice,
                },
                local=True,
                legal={
                    "comm=None": "an array without one is as good, until ranks meet",
                    "buffer=texts": ANY_DTYPE,
                    "buffer=objects": ANY_DTYPE,
                },
            ),
            **{
                name: Call(right=right_reduction(name))
                for name in ("global_sum", "global_mean", "global_max", "global_min")
            },
            "global_norm": Call(lambda lab, one: {"ord": 2}, right_reduction("global_norm")),
            "global_vdot": Call(lambda lab, one: {"other": one}, right_reduction("global_vdot")),
            "gather": Call(lambda lab, one: {"root": 0, "index": (slice(None), slice(None))}, gathered),
            "redistribute": Call(
                lambda lab, one: {
                    "axes": 1,
                    "grid": (lab.size,),
                    "weights": (1.0,) * lab.size,
                    "exchange": "f4",
                    "shares": {},
                },
                lambda lab, one, arguments, result: gathered(lab, one, {}, result.gather()),
                legal={"axes=negative": "the last one, as of numpy"},
            ),
            "save": Call(lambda lab, one: {"path": path_of(lab)}),
            "load": Call(lambda lab, one: {"path": path_of(lab)}),
            "to_xarray": Call(),
        },
    ),
    Subject(
        ("overlap.fft.SpectralOperators",),
        make=given_by(partial(plan, kind="FFT2"), lambda one: one.operators()),
        close=close_owner,
        words=("plan", "FFT2"),
        use=lambda lab, one: one.energy(a_field(lab, one)),
        kind=overlap.fft.SpectralOperators,
        calls={
            "curl": Call(lambda lab, one: {"vector": two_fields(lab, one)}, local=True),
            "derivative": Call(
                lambda lab, one: {"field": a_field(lab, one), "axis": -1, "order": 2},
                local=True,
                legal={"axis=negative": "-1 is x"},
            ),
            "divergence": Call(lambda lab, one: {"vector": two_fields(lab, one)}, local=True),
            "energy": Call(lambda lab, one: {"fields": two_fields(lab, one)}, right_energy),
            "energy_spectrum": Call(lambda lab, one: {"fields": two_fields(lab, one)}, right_spectrum),
            "gradient": Call(lambda lab, one: {"field": a_field(lab, one)}, local=True),
            "inverse_laplacian": Call(lambda lab, one: {"field": a_field(lab, one)}, local=True),
            "laplacian": Call(lambda lab, one: {"field": a_field(lab, one)}, local=True),
            "product": Call(lambda lab, one: {"one": a_field(lab, one), "other": a_field(lab, one)}),
            "wavenumbers": Call(local=True),
        },
    ),
    Subject(
        ("overlap.fft.TimeStepper",),
        make=lambda lab: overlap.TimeStepper(-1.0, lambda t, y: 0 * y, 0.1),
        close=None,
        functions={"TimeStepper": overlap.TimeStepper},
        calls={
            "TimeStepper": Call(
                lambda lab, one: {"linear": np.ones(2), "nonlinear": lambda t, y: 0 * y, "dt": 0.1, "scheme": "rk4"},
                local=True,
                legal={"linear=shape": "as many as there are modes here"},
            ),
            "step": Call(lambda lab, one: {"t": 0.0, "state": np.ones(2)}, local=True, legal=OF_STEPS),
            "run": Call(
                lambda lab, one: {"state": np.ones(2), "steps": 1, "t": 0.0, "each": np.multiply},
                local=True,
                legal={"each=None": "nothing is called", **OF_STEPS},
                skipped={"steps=huge": "so many steps take for ever"},
            ),
        },
    ),
    Subject(
        ("overlap.fft.ArraySpec",),
        make=given_by(partial(plan, kind="FFT2"), "real"),
        close=None,
        functions={},
        calls={
            "empty": Call(local=True),
            "from_function": Call(
                lambda lab, one: {"function": np.add, "lengths": 1.0}, legal={"lengths=None": "2 pi"}
            ),
            "grid": Call(lambda lab, one: {"lengths": 1.0}, local=True, legal={"lengths=None": "2 pi"}),
            "scatter": Call(
                lambda lab, one: {"array": whole(one), "root": 0}, legal={"array": "only the root's is looked at"}
            ),
            "planes": Call(
                lambda lab, one: {"array": one.empty()},
                local=True,
                legal={"array=texts": ANY_DTYPE, "array=objects": ANY_DTYPE},
            ),
            "problem": Call(
                lambda lab, one: {"array": one.empty(), "name": "it"},
                local=True,
                legal=each("array name", "it says what is wrong"),
            ),
            "wrap": Call(
                lambda lab, one: {"array": np.asarray(filled(one))},
                local=True,
                legal={"array=texts": ANY_DTYPE, "array=objects": ANY_DTYPE},
            ),
        },
    ),
)


def in_program(runtime: overlap.Runtime, function: Any, *args: Any, **kwargs: Any) -> Any:
    """Await in a program of a plan's own runtime."""

    async def program(z: int) -> None:
        await function(*args, **kwargs)

    runtime.pipelined(program, skeleton="agree")(range(1))
