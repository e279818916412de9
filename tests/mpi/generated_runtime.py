"""Recipes of the runtime: `Runtime`, its pipelines and communicators, what slices await."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from generated import Call, Lab, Subject, constructor, each
from mpi4py import MPI

import overlap

SLICES = 3
OF_LAYERS = "for the library's own layers, by which plans and functions are made"


def runtime(lab: Lab, **options: Any) -> overlap.Runtime:
    """A small runtime; it is kept, for one that is dropped where ranks differ would be told of."""
    lab.lost.append(one := overlap.Runtime(lab.comm, depth=2, wait="poll", **options))
    return one


def in_program(lab: Lab, function: Any, *args: Any, **kwargs: Any) -> Any:
    """Await what a function gives, in a slice program of the subject's runtime."""
    found = []

    async def program(z: int) -> None:
        found.append(await function(*args, **kwargs))

    lab.runtime.pipelined(program, skeleton="agree")(range(1))
    return found[0]


async def summing(z: int, out: np.ndarray) -> None:
    """Add a number of every rank's."""
    number = np.array([z + 1.0])
    await summing.comm.Allreduce(MPI.IN_PLACE, number)
    out[z] = number[0]


def summed(lab: Lab, one: Any, arguments: dict[str, Any], result: Any) -> None:
    """The sums that `summing` has written."""
    if arguments.get("args", (lab.out,))[0] is lab.out:  # not another array of this rank's
        assert np.array_equal(lab.out, lab.size * np.arange(1.0, SLICES + 1)), lab.out
    lab.out[:] = 0


def program_of(lab: Lab, rt: Any) -> dict[str, Any]:
    lab.out = np.zeros(SLICES)
    summing.comm = rt.comm
    return {"program": summing}


def piped(lab: Lab, function: Any, *args: Any, **kwargs: Any) -> Any:
    """Make a pipeline, and call it: that tells all ranks."""
    pipeline = function(*args, **kwargs)
    if args and args[0] is None:
        pipeline = pipeline(summing)
    return pipeline(range(SLICES), *([None] if kwargs.get("buffers") is not None else []), lab.out)


def pipeline(lab: Lab) -> Any:
    rt = runtime(lab)
    lab.out = np.zeros(SLICES)
    summing.comm = rt.comm
    return lab.given_by(rt, rt.pipelined(summing))


def collective_section(lab: Lab, function: Any, *args: Any, **kwargs: Any) -> None:
    with function(*args, **kwargs):
        pass


def with_runtime(lab: Lab) -> Any:
    lab.runtime = runtime(lab)
    return SimpleNamespace(rt=lab.runtime)


def wrapped(lab: Lab) -> Any:
    lab.runtime = runtime(lab)
    return lab.given_by(lab.runtime, lab.runtime.wrap(lab.ring))


def fast(lab: Lab) -> Any:
    lab.runtime = runtime(lab)
    try:
        return lab.given_by(lab.runtime, lab.runtime.collectives())
    except overlap.OverlapError:  # of all ranks: shared memory is short
        lab.runtime.close()
        raise


def ones(lab: Lab) -> np.ndarray:
    return np.ones(2)


def reduces(lab: Lab, one: Any) -> dict[str, Any]:
    return {"sendbuf": np.ones(2), "recvbuf": np.zeros(2)}


def pieces(lab: Lab, one: Any) -> dict[str, Any]:
    return {"sendbuf": np.ones(2 * lab.size), "recvbuf": np.zeros(2)}


def wholes(lab: Lab, one: Any) -> dict[str, Any]:
    return {"sendbuf": np.ones(2), "recvbuf": np.zeros(2 * lab.size)}


def reduced(lab: Lab, one: Any, arguments: dict[str, Any], result: Any) -> None:
    assert np.array_equal(arguments["recvbuf"], [lab.size] * 2), arguments


def positional(*args: Any) -> Any:
    return lambda lab, one: {"args": tuple(each(lab) if callable(each) else each for each in args)}


def buffers_of(name: str) -> Any:
    """Good arguments of a call of an `AsyncComm`."""

    def many(lab):
        return np.zeros(2 * lab.size)

    def counts(lab):
        return [np.zeros(2 * lab.size), [2] * lab.size]

    def vectors(lab):
        return [np.zeros(2 * lab.size), [2] * lab.size, [2 * r for r in range(lab.size)], MPI.DOUBLE]

    def blocks(lab):
        return [np.zeros(2 * lab.size), [2] * lab.size, [16 * r for r in range(lab.size)], [MPI.DOUBLE] * lab.size]

    def single(lab):
        return np.zeros(2)

    known = {
        "Allreduce": (single, single),
        "Allgather": (single, many),
        "Allgatherv": (single, counts),
        "Alltoall": (many, many),
        "Alltoallv": (vectors, vectors),
        "Alltoallw": (blocks, blocks),
        "Barrier": (),
        "Bcast": (single,),
        "Exscan": (single, single),
        "Gather": (single, many),
        "Gatherv": (single, counts),
        "Reduce": (single, single),
        "Reduce_scatter": (many, single),
        "Reduce_scatter_block": (many, single),
        "Scan": (single, single),
        "Scatter": (many, single),
        "Scatterv": (counts, single),
        "Send": (single, MPI.PROC_NULL),
        "Recv": (single, MPI.PROC_NULL),
        "Bsend": (single, MPI.PROC_NULL),
        "Sendrecv": (single, MPI.PROC_NULL, 0, single, MPI.PROC_NULL, 0),
        "Sendrecv_replace": (single, MPI.PROC_NULL, 0, MPI.PROC_NULL, 0),
        "Ssend": (single, MPI.PROC_NULL),
        "Rsend": (single, MPI.PROC_NULL),
    }
    four, two = (lambda lab: np.zeros(4)), (lambda lab: np.zeros(2))  # of two neighbours

    def starts(lab):
        return [np.zeros(4), [2, 2], [0, 2], MPI.DOUBLE]

    def typed(lab):
        return [np.zeros(4), [2, 2], [0, 16], [MPI.DOUBLE] * 2]

    known |= {
        "Neighbor_allgather": (two, four),
        "Neighbor_allgatherv": (two, starts),
        "Neighbor_alltoall": (four, four),
        "Neighbor_alltoallv": (starts, starts),
        "Neighbor_alltoallw": (typed, typed),
    }
    return positional(*known[name])


LIKE_MPI = each("args=more args=fewer args=shape", "as mpi4py has it: defaults, and long receivers")
LIKE_MPI |= {"args=None": "None is MPI.IN_PLACE, or an empty buffer, as in mpi4py"}
FOUND_LATE = {
    "args=shape": "MPI finds it on this rank alone, when others have made a request that it now will not match"
}
NOT_SENT = {"args=None": "it sends nothing, and Open MPI lets the neighbours wait for it"}
FROM_ANYBODY = {"args=fewer": "without a source it waits for whatever comes"}
TO_NOBODY = {"args": "nothing is sent or received, and no buffer looked at"}
AT_ROOT = {"args": "the first one is looked at on the root alone"}


def async_calls() -> dict[str, Call]:
    from overlap.runtime.requests.requests import CALLS, PERSISTENT

    found = {}
    for name in CALLS:
        good = buffers_of(name)
        more = TO_NOBODY if "end" in name or name == "Recv" else AT_ROOT if name.startswith("Scatter") else {}
        skipped = FROM_ANYBODY if name == "Recv" else NOT_SENT if name == "Neighbor_alltoallw" else {}
        found[name] = Call(good, run=in_program, legal=LIKE_MPI | more, skipped=skipped)
        found[f"I{name.lower()}"] = Call(good, run=in_program_started, legal=LIKE_MPI | more, skipped=skipped)
        if name in PERSISTENT:
            found[f"{name}_init"] = Call(good, run=in_program_kept, legal=LIKE_MPI | more, skipped=FOUND_LATE | skipped)
    return found


def in_program_started(lab: Lab, function: Any, *args: Any, **kwargs: Any) -> Any:
    async def both() -> Any:
        return await (await function(*args, **kwargs))

    return in_program(lab, both)


def in_program_kept(lab: Lab, function: Any, *args: Any, **kwargs: Any) -> Any:
    request = function(*args, **kwargs)

    async def kept() -> Any:
        return await request

    return in_program(lab, kept)


SUBJECTS = (
    constructor(
        "overlap.Runtime",
        overlap.Runtime,
        Call(
            lambda lab, one: {"workers": 1, "depth": 2, "wait": "poll", "in_flight": 1, "entry_deadline_s": 30.0},
            untold={"comm": "there is no communicator over which a rank could tell the others"},
            done=lambda rt: rt.close(),
        ),
    ),
    Subject(
        ("overlap.Runtime",),
        make=runtime,
        close=lambda lab, rt: rt.close(),
        words=("runtime", "Runtime"),
        use=("pipelined",),
        working={"close": "to close twice is allowed", "check_open": "see the calls"},
        internal={
            **each("pause resume enter", OF_LAYERS),
            **each("shrink detecting_losses", "where ranks are lost: see test_losses"),
        },
        calls={
            "check_open": Call(local=True),
            "collectives": Call(
                lambda lab, rt: {"max_nbytes": 4096}, untold={"comm": "it is collective over this communicator"}
            ),
            "loads": Call(),
            "pipelined": Call(program_of, summed, run=piped),
            "preflight": Call(legal={"problem": "it is told"}),
            "collective_section": Call(lambda lab, rt: {"what": "testing"}, run=collective_section),
            "wrap": Call(untold={"comm": "it is collective over this communicator"}),
        },
    ),
    Subject(
        ("overlap.runtime.Pipeline",),
        make=pipeline,
        close=lambda lab, one: lab.owner_of(one).close(),
        words=("runtime", "Runtime"),
        use=("__call__",),
        internal={"known": OF_LAYERS},
        calls={
            "__call__": Call(
                lambda lab, one: {"slices": range(SLICES), "args": (lab.out,)},
                summed,
                legal={"problem": "it is told", "agree": "anything that has a text", "args": "the program's"},
            )
        },
    ),
    Subject(
        ("overlap.runtime.AsyncComm",),
        make=wrapped,
        close=lambda lab, one: lab.owner_of(one).close(),
        words=("runtime", "Runtime"),
        use=("Allreduce",),
        working={"source": "the user's own communicator", "runtime": "the runtime that it belongs to"},
        internal={"renew": OF_LAYERS, "free": OF_LAYERS, "same_ranks": OF_LAYERS},
        calls=async_calls()
        | {"Split": Call(lambda lab, one: {"color": 0, "key": 0}, legal={"key=negative": "any order"})},
    ),
    Subject(
        ("overlap.runtime.AsyncCollectives",),
        make=fast,
        close=lambda lab, one: lab.owner_of(one).close(),
        words=("runtime", "collectives"),
        use=("Allreduce",),
        working={"made_by": "what it is made of", "broken": "a closed one is as useless"},
        internal={"renew": OF_LAYERS, "free": OF_LAYERS},
        calls={
            "Barrier": Call(run=in_program),
            "Bcast": Call(lambda lab, one: {"buf": np.ones(2)}, run=in_program),
            "Scatter": Call(pieces, legal={"sendbuf": "not looked at on this rank"}, run=in_program),
            "Gather": Call(wholes, legal={"recvbuf": "not looked at on this rank"}, run=in_program),
            "Allgather": Call(wholes, run=in_program),
            "Reduce": Call(reduces, legal={"recvbuf": "not looked at on this rank"}, run=in_program),
            "Allreduce": Call(reduces, reduced, run=in_program),
            "allreduce": Call(lambda lab, one: {"value": 1.0}, run=in_program, legal={"value": "a number"}),
        },
    ),
    Subject(
        (
            "overlap.all_of",
            "overlap.barrier",
            "overlap.parallel",
            "overlap.stagger",
            "overlap.start",
            "overlap.take_turn",
            "overlap.wait_for_slices",
            "overlap.worker_index",
        ),
        make=with_runtime,
        close=lambda lab, one: one.rt.close(),
        functions={
            name: getattr(overlap, name)
            for name in ("all_of", "barrier", "parallel", "stagger", "start", "take_turn", "wait_for_slices")
        },
        calls={
            "all_of": Call(
                lambda lab, one: {"operations": (one.rt.comm.Barrier(), one.rt.comm.Allreduce(np.ones(1), np.ones(1)))},
                run=in_program,
            ),
            "barrier": Call(run=in_program),
            "parallel": Call(
                lambda lab, one: {"function": [].append, "parts": (1, 2)},
                run=in_program,
                legal=dict.fromkeys(
                    (f"parts={value}" for value in ("empty", "longer", "members", "text")), "whatever has items"
                ),
            ),
            "stagger": Call(
                lambda lab, one: {"number": 0, "depth": 2},
                run=in_program,
                legal={"number=huge": "a late slice", "depth=huge": "many slots"},
            ),
            "start": Call(
                lambda lab, one: {"operation": one.rt.comm.Barrier()},
                run=lambda lab, function, operation: in_program_started(lab, lambda: function(operation)),
            ),
            "take_turn": Call(run=in_program),
            "wait_for_slices": Call(
                lambda lab, one: {"stop": 0, "start": 0}, run=in_program, legal={"start=huge": "none is waited for"}
            ),
        },
    ),
)
