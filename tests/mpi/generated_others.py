"""Recipes of the collectives, of the drop-in for mpi4py-fft, and of files with steps of fields."""

from __future__ import annotations

import os
import tempfile
from types import SimpleNamespace
from typing import Any

import numpy as np
from generated import Call, Lab, Subject, constructor, each
from generated_fft import distarray
from generated_runtime import pieces, reduced, reduces, wholes
from mpi4py import MPI

import overlap
from overlap.collectives import Collectives
from overlap.compat import mpi4py_fft

NO_COMM = {"comm": "there is no communicator over which a rank could tell the others"}
OF_ARRAYS = {
    "val": "filled if it is a number",
    "dtype=None": "numpy's None is float64",
    "global_shape=empty": "an array of no axes, of this rank alone",
    "strides": "of an array with one axis",
}
NOT_LOOKED_AT = "not looked at on this rank"
IN_PLACE = {"sendbuf=None": "for MPI.IN_PLACE, as in mpi4py: another result"}
STAYS = "as in mpi4py-fft, where what a plan knows of its arrays, and these, outlive it"
NUMPYS = "numpy's, of the local part alone"


def fast(lab: Lab) -> Collectives:
    return Collectives(lab.comm)


def heard(lab: Lab, function: Any, *args: Any, **kwargs: Any) -> Any:
    """Make the call, and a barrier, in which those hear of an error who were through with the call."""
    result = function(*args, **kwargs)
    lab.one.Barrier()
    return result


def copies(lab: Lab, one: Any, arguments: dict[str, Any], result: Any) -> None:
    assert (arguments["recvbuf"] == 1).all()


# ---- the drop-in -----------------------------------------------------------------------------------


def cube(lab: Lab) -> tuple[int, int, int]:
    length = 4 if lab.holders == lab.size else lab.holders
    return length, length, length


def pfft(lab: Lab) -> Any:
    return mpi4py_fft.PFFT(lab.comm, cube(lab), dtype="D", wait="off", planner_effort="FFTW_ESTIMATE")


def field(lab: Lab) -> Any:
    array = mpi4py_fft.DistArray(cube(lab), (0, 1, 1), val=1.0)
    return array


def transform(lab: Lab) -> Any:
    one = pfft(lab)
    return lab.given_by(one, one.forward)


def serial_transform(lab: Lab) -> Any:
    """Make a plan with other local transforms, whose steps follow each other."""
    functions = mpi4py_fft.fftw.fftn, mpi4py_fft.fftw.ifftn
    one = mpi4py_fft.PFFT(
        lab.comm, cube(lab), ((0,), (1, 2)), "D", transforms={(1, 2): functions}, planner_effort="FFTW_ESTIMATE"
    )
    return lab.given_by(one, one.forward)


def first_mode(lab: Lab, one: Any, arguments: dict[str, Any], result: Any) -> None:
    """All but the first mode of a constant are 0."""
    if MPI.COMM_WORLD.allreduce(isinstance(arguments["input_array"], np.ndarray), MPI.LAND):
        assert np.isclose(MPI.COMM_WORLD.allreduce(abs(np.asarray(result)).sum()), 1.0)


def transfer(lab: Lab) -> Any:
    """An exchange between two pencils."""
    here = field(lab).pencil
    return here.transfer(here.pencil(0), "d")


def exchanged(lab: Lab, one: Any) -> dict[str, Any]:
    return {"arrayA": np.ones(one.subshapeA), "arrayB": np.ones(one.subshapeB)}


def arrived(lab: Lab, one: Any, arguments: dict[str, Any], result: Any) -> None:
    assert (arguments["arrayB"] == 1.0).all() and (arguments["arrayA"] == 1.0).all()


def snapshots(lab: Lab) -> Any:
    path = lab.comm.bcast(f"{tempfile.gettempdir()}/generated-{os.getpid()}-drop-in.h5")
    lab.files.add(path)
    one = mpi4py_fft.HDF5File(path, mode="w")
    one.write(0, {"u": [field(lab)]})
    return one


def drop_in_transform(name: str, make: Any, good: Any, legal: dict[str, str], working: Any = None) -> Subject:
    return Subject(
        (name,),
        make=make,
        close=lambda lab, one: lab.owner_of(one).destroy(),
        words=("plan", "PFFT", "transform"),
        use=("__call__",),
        working=each("dtypes input_array output_array input_pencil output_pencil", STAYS) | (working or {}),
        internal=each("release", "of the plan"),
        calls={
            "__call__": Call(good, first_mode, legal=legal | {"input_array=nan": "one number for all"}),
            "describe": Call(local=True),
        },
    )


COLLECTIVES = (
    constructor(
        "overlap.collectives.Collectives",
        Collectives,
        Call(lambda lab, one: {"max_nbytes": 4096}, untold=NO_COMM, done=lambda one: one.free()),
    ),
    Subject(
        ("overlap.collectives.Collectives",),
        make=fast,
        close=lambda lab, one: one.free(),
        words=("collectives", "Collectives"),
        use=("Allreduce",),
        working={"close": "to close twice is allowed", "free": "likewise", "broken": "a freed one is as useless"},
        once=True,
        calls={
            "Allgather": Call(wholes, copies, skipped=IN_PLACE, run=heard),
            "Allreduce": Call(reduces, reduced, skipped=IN_PLACE, run=heard),
            "Barrier": Call(),
            "check_open": Call(local=True),
            "Bcast": Call(lambda lab, one: {"buf": np.ones(2), "root": 0}, run=heard),
            "Gather": Call(
                lambda lab, one: wholes(lab, one) | {"root": 0}, legal={"recvbuf": NOT_LOOKED_AT}, run=heard
            ),
            "Reduce": Call(
                lambda lab, one: reduces(lab, one) | {"root": 0}, legal={"recvbuf": NOT_LOOKED_AT}, run=heard
            ),
            "Scatter": Call(
                lambda lab, one: pieces(lab, one) | {"root": 0}, copies, legal={"sendbuf": NOT_LOOKED_AT}, run=heard
            ),
            "allreduce": Call(
                lambda lab, one: {"value": 1.0},
                lambda lab, one, arguments, result: lab.gathered(result) and None,
                legal={"value=negative": "a number", "value=nan": "a number", "value=infinite": "a number"},
                run=heard,
            ),
        },
    ),
)

DROP_IN = (
    constructor(
        "overlap.compat.mpi4py_fft.PFFT",
        mpi4py_fft.PFFT,
        Call(
            lambda lab, one: {
                "shape": (4, 4, 4),
                "axes": (0, 1, 2),
                "dtype": "d",
                "grid": (-1,),
                "padding": False,
                "planner_effort": "FFTW_ESTIMATE",
                "wait": "off",
                "exchange": "f4",
            },
            untold=NO_COMM,
            legal=each("collapse overwrite_input slab padding", "any truth value, as of mpi4py-fft's")
            | {"dtype=None": "numpy's None is float64", "grid=longer": "any axes that MPI may split"},
            done=lambda one: one.destroy(),
        ),
    ),
    Subject(
        ("overlap.compat.mpi4py_fft.PFFT",),
        make=pfft,
        close=lambda lab, one: one.destroy(),
        words=("plan", "PFFT"),
        use=lambda lab, one: one.forward(np.ones(one.shape(False))),
        working={"destroy": "to destroy twice is allowed"}
        | each("dimensions dtype global_shape local_slice shape", STAYS),
        calls={
            name: Call(local=True, legal={"forward_output": "any truth value, as of mpi4py-fft's"})
            for name in ("shape", "local_slice", "global_shape", "dtype", "describe")
        },
    ),
    drop_in_transform(
        "overlap.compat.mpi4py_fft.PFFT.forward",
        transform,
        lambda lab, one: {"input_array": np.ones(one.input_array.shape, one.dtypes[0]), "normalize": True},
        {"normalize": "any truth value, as of mpi4py-fft's"},
    ),
    drop_in_transform(
        "overlap.compat.mpi4py_fft.PFFT.forward of serial transforms",
        serial_transform,
        lambda lab, one: {
            "input_array": np.ones(one.input_array.shape, one.dtypes[0]),
            "output_array": np.zeros_like(one.output_array),
            "options": {"normalize": True},
        },
        {"options": "whatever the local transforms take"},
        each("describe", STAYS),
    ),
    Subject(
        ("overlap.compat.mpi4py_fft.pencil.Transfer",),
        make=transfer,
        calls={"forward": Call(exchanged, arrived), "backward": Call(lambda lab, one: exchanged(lab, one))},
        internal={"destroy": "it holds nothing"},
    ),
    Subject(
        (
            "overlap.compat.mpi4py_fft.DistArray",
            "overlap.compat.mpi4py_fft.newDistArray",
            "overlap.compat.mpi4py_fft.Function",
        ),
        make=lambda lab: SimpleNamespace(u=field(lab), plan=pfft(lab)),
        close=lambda lab, one: one.plan.destroy(),
        functions={
            "newDistArray": mpi4py_fft.newDistArray,
            "DistArray": mpi4py_fft.DistArray,
            "DistArray of the world": mpi4py_fft.DistArray,
        },
        calls={
            "newDistArray": Call(
                lambda lab, one: {"pfft": one.plan},
                local=True,
                legal=each("forward_output view", "any truth value") | {"val": "filled if it is a number"},
            ),
            "DistArray": Call(
                lambda lab, one: {"global_shape": (4, 4, 4), "subcomm": one.u.subcomm, "val": 1.0, "rank": 0},
                local=True,
                legal=OF_ARRAYS,
                untold={"subcomm": "without communicators all ranks of the world make some"},
            ),
            "DistArray of the world": Call(
                lambda lab, one: {"global_shape": (4, 4, 4), "val": 1.0, "alignment": 1, "rank": 0},
                legal=OF_ARRAYS,
                untold={"subcomm": "whoever gives communicators does not hear of it"},
                skipped={"global_shape=empty": "an array of no axes is of this rank alone"},
            ),
        },
    ),
    Subject(
        ("overlap.compat.mpi4py_fft.DistArray's methods",),
        make=field,
        kind=mpi4py_fft.DistArray,
        internal=each("__new__ __array_finalize__ __getitem__", NUMPYS) | each("local_slice", "no arguments"),
        calls={
            "get": Call(lambda lab, one: {"gslice": (0, slice(None), slice(None))}),
            "get_pencil_and_transfer": Call(lambda lab, one: {"axis": 1}, local=True),
            "redistribute": Call(lambda lab, one: {"axis": 1}),
            "write": Call(
                lambda lab, one: {"filename": snapshots(lab).filename, "name": "v"},
                legal={"as_scalar": "any truth value"},
            ),
            "read": Call(lambda lab, one: {"filename": snapshots(lab).filename, "name": "u"}),
        },
    ),
    constructor(
        "overlap.compat.mpi4py_fft.HDF5File",
        mpi4py_fft.HDF5File,
        Call(lambda lab, one: {"h5name": snapshots(lab).filename, "domain": ((0.0, 1.0),) * 3}),
    ),
    Subject(
        ("overlap.compat.mpi4py_fft.HDF5File",),
        make=snapshots,
        internal={
            "open": "as of h5py's",
            "close": "nothing stays open: writing and reading open it again",
            "backend": "a name",
        },
        calls={
            "write": Call(
                lambda lab, one: {"step": 1, "fields": {"u": [field(lab)]}}, legal={"as_scalar": "", "others": ""}
            ),
            "read": Call(lambda lab, one: {"u": field(lab), "name": "u"}, legal={"others": "without effect"}),
        },
    ),
    Subject(
        ("overlap.compat.mpi4py_fft.Subcomm",),
        make=lambda lab: None,
        functions={"Subcomm": mpi4py_fft.Subcomm},
        calls={
            "Subcomm": Call(
                lambda lab, one: {"comm": lab.comm, "dims": (0, 1)},
                untold=NO_COMM,
                legal={"reorder": "any truth value"},
                done=lambda one: one.destroy(),
            )
        },
    ),
)


# ---- steps of fields in a file ---------------------------------------------------------------------


def steps_path(lab: Lab) -> str:
    path: str = lab.comm.bcast(f"{tempfile.gettempdir()}/generated-{os.getpid()}-steps.h5")
    lab.files.add(path)
    return path


def steps(lab: Lab) -> Any:
    one = overlap.Output(lab.comm, steps_path(lab), "w")
    one.write({"u": distarray(lab), "energy": 1.0}, step=0, time=0.0)
    return one


def filled(lab: Lab, one: Any, arguments: dict[str, Any], result: Any) -> None:
    assert np.array_equal(np.asarray(arguments["fields"]["u"]), np.asarray(distarray(lab)))


def protected(lab: Lab) -> Any:
    """Copies of a field, of which one step is saved."""
    lab.field = distarray(lab)
    one = overlap.Protected(lab.field, min(1, lab.size - 1))
    one.save(1)
    lab.runtime = overlap.Runtime(lab.comm, wait="off")
    return one


def unprotect(lab: Lab, one: Any) -> None:
    one.free()
    lab.runtime.close()


def restored(lab: Lab, one: Any, arguments: dict[str, Any], result: Any) -> None:
    assert np.array_equal(np.asarray(result.fields[0]), np.asarray(lab.field))


OUTPUT = (
    constructor(
        "overlap.Output",
        overlap.Output,
        Call(
            lambda lab, one: {
                "path": steps_path(lab),
                "mode": "w",
                "attrs": {"viscosity": 0.5},
                "dims": {"u": ("y", "x")},
                "coords": {"x": [0.0, 1.0]},
                "exchange": "f4",
            },
            untold=NO_COMM,
            legal={
                "attrs=unknown": "any names",
                "coords=unknown": "of no axis that there is",
                "dims=unknown": "of no field that there is",
            },
            done=lambda one: one.close(),
        ),
    ),
    Subject(
        ("overlap.Output",),
        make=steps,
        close=lambda lab, one: one.close(),
        words=("Output",),
        use=("read",),
        working={"close": "to close twice is allowed"},
        calls={
            "check_open": Call(local=True),
            "write": Call(
                lambda lab, one: {
                    "fields": {"u": distarray(lab), "energy": 2.0},
                    "step": (one.steps or [0])[-1] + 1,
                    "time": 1.0,
                },
                legal={"time=negative": "any finite number"},
            ),
            "read": Call(lambda lab, one: {"fields": {"u": distarray(lab)}, "step": 0}, filled),
            "truncate": Call(lambda lab, one: {"step": 0}, legal={"step=huge": "nothing is behind it"}),
        },
    ),
    constructor(
        "overlap.Protected",
        overlap.Protected,
        Call(
            lambda lab, one: {"fields": [distarray(lab)], "copies": 0},
            untold={"fields": "the communicator is theirs"},
            legal={"fields=longer": "a field may be protected twice"},
            done=lambda one: one.free(),
        ),
    ),
    Subject(
        ("overlap.Protected",),
        make=protected,
        close=unprotect,
        words=("Protected",),
        use=("save", "restore"),
        working={"close": "to close twice is allowed", "free": "likewise"},
        calls={
            "check_open": Call(local=True),
            "save": Call(lambda lab, one: {"step": 2}),
            "start": Call(lambda lab, one: {"step": 3}),
            "restore": Call(
                lambda lab, one: {"runtime": lab.runtime, "like": [lab.field]},
                restored,
                untold={"runtime": "it has the communicator"},
            ),
            "test": Call(local=True),
            "wait": Call(local=True),
            "describe": Call(local=True),
        },
    ),
)
