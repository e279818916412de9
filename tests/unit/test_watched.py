"""Every collective that the library makes for itself goes through `Coordinator`, which the deadline watches."""

import ast
from pathlib import Path

import overlap

PACKAGE = Path(overlap.__file__).parent
# What makes or uses communicators is `runtime`; the tools are MPI programs of their own, and `timing` measures the MPI
# library itself. `collectives` serves users without a runtime, with a deadline of its own while it waits.
ELSEWHERE = ("ranks", "runtime", "tools", "timing", "collectives")

PICKLED_CALLS = "allgather allreduce alltoall bcast exscan gather recv reduce scan scatter send sendrecv ssend"
BUFFER_CALLS = """Allgather Allgatherv Allreduce Alltoall Alltoallv Alltoallw Barrier Bcast Exscan Gather
Gatherv Recv Reduce Scan Scatter Scatterv Send Sendrecv Ssend"""
PICKLED, BUFFERS = {*PICKLED_CALLS.split()}, {*BUFFER_CALLS.split()}
BUFFERS |= {"I" + name.lower() for name in BUFFERS}
MAKERS = {"Allocate_shared", "Clone", "Create", "Create_cart", "Create_group", "Dup", "Split_type", "Sub"}

# Calls that a user makes on a communicator of the user's own, without any runtime: nobody is inside
# of the library when one of them begins.
USERS_OWN = {
    "arrays/distarray.py": "Barrier gather",
    "arrays/crossing.py": "Alltoallv",
    "arrays/redistribution.py": "gather allgather Scatterv",
    "arrays/reductions.py": "allgather",
    "arrays/pieces.py": "Recv Send allgather recv send",
    "compat/fluidfft/base.py": "gather scatter",  # of a DistArray, as below
    "compat/mpi4py_fft/pencil.py": "Create_cart Sub",
}
# Watched where the function is called; operations of an `AsyncComm`, to be awaited; a message that a probe has found.
ELSEWISE_SAFE = {
    "arrays/exchange.py": "Allgather",
    "fft/planning/tournament.py": "send",
    "fft/stepping.py": "send",  # a generator's
    "halo/point_to_point.py": "Barrier Recv Send allgather",
}
# `Collectives` has a deadline of its own.
COORDINATORS = {"coordinator", "_coordinator", "_collectives"}


def unwatched(source):
    """Communicators' methods that are called neither by a `Coordinator`, nor watched, nor awaited: (line, name)."""
    tree = ast.parse(source)
    # `comm.Alltoallv(...)` of an `AsyncComm` makes no call but an `Operation`, to be awaited.
    operations = {node.value for node in ast.walk(tree) if isinstance(node, (ast.Await, ast.Return))}
    watched = {
        inside
        for node in ast.walk(tree)
        if isinstance(node, ast.With)
        and any(
            isinstance(item.context_expr, ast.Call) and getattr(item.context_expr.func, "attr", None) == "watching"
            for item in node.items
        )
        for inside in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in watched or not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        name, receiver = node.func.attr, node.func.value
        if getattr(receiver, "attr", getattr(receiver, "id", None)) in COORDINATORS:
            continue
        while isinstance(receiver, ast.Attribute):
            receiver = receiver.value
        if getattr(receiver, "id", None) == "np":  # np.logical_and.reduce
            continue
        if name in PICKLED | MAKERS or (name in BUFFERS and node not in operations):
            yield node.lineno, name


def test_no_collective_but_through_control():
    allowed = {(path, name) for some in (USERS_OWN, ELSEWISE_SAFE) for path in some for name in some[path].split()}
    found = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        module = path.relative_to(PACKAGE)
        if module.parts[0] in ELSEWHERE:
            continue
        for line, name in unwatched(path.read_text()):
            where = module.as_posix(), name
            assert where in allowed, (
                f"{module}:{line}: {name} is not watched by the deadline, and a rank that fails "
                "leaves the others in it: use the coordinator"
            )
            found.add(where)
    assert found == allowed, f"allowed, but not there any more: {allowed - found}"


def test_what_the_test_finds():
    def names(source):
        return [name for _, name in unwatched(source)]

    assert names("runtime.comm.allgather(1)\nx.handle.Barrier()\ncomm.Dup()") == ["allgather", "Barrier", "Dup"]
    assert names("async def f():\n    await comm.Allreduce(a)\n") == []
    assert names("with coordinator.watching('x') as comm:\n    comm.Barrier()\ncomm.Dup()") == ["Dup"]
    assert names("def exchanged(comm):\n    return comm.Alltoallv(a, b)\n") == []
    assert names("self.runtime.coordinator.allgather(1)\ncoordinator.bcast(2)\ncomm.reduce(x)\nnp.add.reduce(x)") == [
        "reduce"
    ]
