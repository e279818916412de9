"""The operations of MPI in mpi4py's methods: for whom they wait, and where their arguments say so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .records import ALL, FROM_ROOT, LOCAL, NEIGHBOURS, PREFIX, TO_ROOT

# Collectives by the ranks for which they wait, and the position of the root among their arguments.
COLLECTIVES = {
    **dict.fromkeys(("Barrier", "Allgather", "Allgatherv", "Alltoall", "Alltoallv", "Alltoallw", "Allreduce"), ALL),
    **dict.fromkeys(("Reduce_scatter_block", "Reduce_scatter"), ALL),
    **dict.fromkeys(("Bcast", "Scatter", "Scatterv"), FROM_ROOT),
    **dict.fromkeys(("Gather", "Gatherv", "Reduce"), TO_ROOT),
    **dict.fromkeys(("Scan", "Exscan"), PREFIX),
    **dict.fromkeys((f"Neighbor_{name}" for name in ("allgather", "allgatherv")), NEIGHBOURS),
    **dict.fromkeys((f"Neighbor_{name}" for name in ("alltoall", "alltoallv", "alltoallw")), NEIGHBOURS),
}
ROOTS = {"Bcast": 2, "Gather": 3, "Gatherv": 3, "Scatter": 3, "Scatterv": 3, "Reduce": 4}
PICKLED_ROOTS = {"bcast": 2, "gather": 2, "scatter": 2, "reduce": 3}
SENDS = ("Send", "Bsend", "Ssend", "Rsend")
RECEIVES = (  # positions of the status and of the source
    *(("Recv", 4, 2), ("recv", 4, 2)),
    *(("Sendrecv", 7, 5), ("sendrecv", 7, 5), ("Sendrecv_replace", 6, 4)),
)
CREATIONS = {
    **dict.fromkeys(("Dup", "Dup_with_info", "Clone", "Create", "Split", "Split_type", "Sub"), ALL),
    **dict.fromkeys(("Create_cart", "Create_graph", "Create_dist_graph_adjacent", "Create_dist_graph"), ALL),
    **dict.fromkeys(("Create_group", "Create_intercomm", "Merge", "Shrink"), LOCAL),  # not all ranks, or not in order
    **dict.fromkeys(("Spawn", "Spawn_multiple", "Accept", "Connect"), LOCAL),
}
OF_NO_RANK = ("Probe", "Mprobe", "probe", "mprobe")
BUFFERS = ("sendbuf", "buf", "recvbuf")

# Which of the requests a call has completed, by what it has returned.
COMPLETED: dict[str, Callable[[Any, Any], Any]] = {
    "Wait": lambda requests, result: requests,
    "wait": lambda requests, result: requests,
    "Test": lambda requests, result: requests if result else (),
    "test": lambda requests, result: requests if result[0] else (),
    "Waitall": lambda requests, result: requests,
    "waitall": lambda requests, result: requests,
    "Testall": lambda requests, result: requests if result else (),
    "testall": lambda requests, result: requests if result[0] else (),
    "Waitany": lambda requests, result: _at(requests, [result]),
    "waitany": lambda requests, result: _at(requests, [result[0]]),
    "Testany": lambda requests, result: _at(requests, [result[0]]) if result[1] else (),
    "testany": lambda requests, result: _at(requests, [result[0]]) if result[1] else (),
    "Waitsome": lambda requests, result: _at(requests, result or ()),
    "waitsome": lambda requests, result: _at(requests, result[0] or ()),
    "Testsome": lambda requests, result: _at(requests, result or ()),
    "testsome": lambda requests, result: _at(requests, result[0] or ()),
}
OF_SEVERAL = {name for name in COMPLETED if name[4:]} | {"Startall"}  # methods of the class


def _at(requests: Any, indices: Any) -> list[Any]:
    return [requests[index] for index in indices if 0 <= index < len(requests)]
