"""Signatures of operations: what must be equal in all slices, and on all ranks.

`full_signature` has everything that draining needs to know of an operation: name, communicator, root, peers, tags,
reduction, data types and counts. If a program's skeleton is learned, all its slices must have the same.

`collective_signature` is the part that MPI requires to be equal on all ranks of the communicator. It must be cheap,
because it is computed for every operation. Where MPI leaves freedom, or where a message is specified in an unusual way,
it leaves values out, so that it never rejects a correct program.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from operator import index
from typing import Any, Protocol

import numpy as np
from mpi4py import MPI

from ...errors import formatted

_EXCHANGE = ("sendbuf", "recvbuf")
_ROOTED = (*_EXCHANGE, "root")
_REDUCTION = (*_EXCHANGE, "op")

# Every awaitable call with the names of its arguments, in mpi4py's order.
PARAMETERS: dict[str, tuple[str, ...]] = {
    "Barrier": (),
    "Bcast": ("buf", "root"),
    "Gather": _ROOTED,
    "Gatherv": _ROOTED,
    "Scatter": _ROOTED,
    "Scatterv": _ROOTED,
    "Allgather": _EXCHANGE,
    "Allgatherv": _EXCHANGE,
    "Alltoall": _EXCHANGE,
    "Alltoallv": _EXCHANGE,
    "Alltoallw": _EXCHANGE,
    "Reduce": (*_REDUCTION, "root"),
    "Allreduce": _REDUCTION,
    "Reduce_scatter": (*_EXCHANGE, "recvcounts", "op"),
    "Reduce_scatter_block": _REDUCTION,
    "Scan": _REDUCTION,
    "Exscan": _REDUCTION,
    "Neighbor_allgather": _EXCHANGE,
    "Neighbor_allgatherv": _EXCHANGE,
    "Neighbor_alltoall": _EXCHANGE,
    "Neighbor_alltoallv": _EXCHANGE,
    "Neighbor_alltoallw": _EXCHANGE,
    "Send": ("buf", "dest", "tag"),
    "Ssend": ("buf", "dest", "tag"),
    "Recv": ("buf", "source", "tag", "status"),
    "Sendrecv": ("sendbuf", "dest", "sendtag", "recvbuf", "source", "recvtag", "status"),
    "Sendrecv_replace": ("buf", "dest", "sendtag", "source", "recvtag", "status"),
}
_DEFAULTS = {
    "root": 0,
    "op": MPI.SUM,
    "tag": 0,
    "sendtag": 0,
    "recvtag": MPI.ANY_TAG,
    "source": MPI.ANY_SOURCE,
    "recvcounts": None,
    "status": None,
    "recvbuf": None,
}
_BUFFERS = frozenset(("buf", "sendbuf", "recvbuf"))
_OPS = {
    getattr(MPI, name).handle: name
    for name in ("MAX", "MIN", "SUM", "PROD", "LAND", "BAND", "LOR", "BOR", "LXOR", "BXOR", "MAXLOC", "MINLOC")
}

# The first of these arguments that is a buffer determines the size of the message, which is equal on all ranks.
_SIZED_BY = {
    "Bcast": ("buf",),
    "Allgather": ("recvbuf",),
    "Alltoall": ("recvbuf",),
    "Allreduce": ("recvbuf",),
    "Reduce_scatter_block": ("recvbuf",),
    "Reduce": _EXCHANGE,
    "Scan": _EXCHANGE,
    "Exscan": _EXCHANGE,
    "Gather": _EXCHANGE,
    "Scatter": ("recvbuf", "sendbuf"),
}
# Buffers with the blocks of all ranks: a count given for them is that of one block.
_BLOCKS = {"Allgather": "recvbuf", "Alltoall": "recvbuf", "Gather": "recvbuf", "Scatter": "sendbuf"}
# Arguments that matter on the root alone.
_AT_ROOT = {"Gather": "recvbuf", "Gatherv": "recvbuf", "Reduce": "recvbuf", "Scatter": "sendbuf", "Scatterv": "sendbuf"}
_SENT_ALONE = frozenset(("Gather", "Reduce"))  # ranks that are not the root only send
_ONE_BLOCK = frozenset(("Gather", "Scatter"))  # the size of one block is equal on all ranks
_RECEIVED = frozenset(("Allgather", "Alltoall", "Allreduce"))
_OWN = frozenset(name for name in PARAMETERS if name.startswith(("Neighbor", "Send", "Ssend", "Recv")))
# For these only the name must be equal on all ranks; for point-to-point operations (None) nothing.
_BY_NAME: dict[str, tuple[Any, ...] | None] = {
    name: (name,) for name in ("Barrier", "Allgatherv", "Alltoallv", "Alltoallw")
} | dict.fromkeys(_OWN)
_TYPE_NAMES: dict[np.dtype, str] = {}


class Ranks(Protocol):
    """What signatures need from an operation's communicator."""

    number: int
    rank: int
    size: int
    weight: int

    @property
    def source(self) -> MPI.Comm:
        """Return the mpi4py communicator of the same ranks."""


def arguments(operation: Any) -> dict[str, Any]:
    """Return all arguments by name, with mpi4py's defaults."""
    names = PARAMETERS[operation.name]
    given = dict(zip(names, operation.args)) | operation.kwargs
    return {name: given[name] if name in given else _DEFAULTS.get(name) for name in names}


def full_signature(operation: Any) -> tuple[Any, ...]:
    """Return what must be equal in all slices: ``(name, communicator, (argument, value), ...)``.

    Raises a `TypeError` or a `ValueError` if MPI could not accept an argument; not every such argument is detected.
    """
    signature: list[Any] = [operation.name, operation.comm.number]
    for name, value in arguments(operation).items():
        if name in _BUFFERS:
            value = layout(value)
        elif name == "op":
            value = _op_name(value)
        elif name == "recvcounts":
            value = _numbers(value)
        elif name != "status" and value is not None:
            value = index(value)
        if name != "status":
            signature.append((name, value))
    return tuple(signature)


def described(operation: Any) -> str:
    """Return an operation with its signature as text, for messages."""
    try:
        name, number, *terms = operation.full_signature()
    except Exception:
        return str(operation)
    inside = ", ".join(f"{name}={shown(value)}" for name, value in terms)
    return f"{name}({inside}) on communicator {number}"


def alike(one: Any, other: Any) -> bool:
    """Return whether two operations have the same `full_signature`, which may raise.

    It is fast if their arguments have the same types.
    """
    if (
        one.name == other.name
        and one.comm is other.comm
        and not one.kwargs
        and not other.kwargs
        and len(one.args) == len(other.args)
    ):
        for left, right in zip(one.args, other.args):
            if left is right:
                continue
            kind = type(left)
            if kind is not type(right):
                break
            if kind is np.ndarray:
                if left.size != right.size or left.dtype != right.dtype:
                    break
            elif kind is not int or left != right:
                break
        else:
            return True
    return one.full_signature() == other.full_signature()


def collective_signature(operation: Any) -> tuple[Any, ...] | None:
    """Return what must be equal on all ranks besides the communicator; None if nothing must.

    If arguments cannot be read, the signature is the problem's text, which differs from those of other ranks and tells
    them what is wrong.
    """
    name, args = operation.name, operation.args
    if name in _BY_NAME:
        return _BY_NAME[name]
    if name in _RECEIVED and len(args) == 2 and not operation.kwargs:
        received = args[1]
        if type(received) is np.ndarray:  # the usual case
            return name, _TYPE_NAMES.get(received.dtype) or _type_name(received.dtype), received.nbytes, 0, "SUM"
    try:
        given = arguments(operation)
        kind, nbytes = _message(operation, given)
        signature = (name, kind, nbytes, index(given.get("root") or 0), _op_name(given.get("op", MPI.SUM)))
        # If there are no counts, mpi4py gathers those of all ranks.
        return (*signature, given["recvcounts"] is not None) if name == "Reduce_scatter" else signature
    except Exception as error:
        return name, formatted(error)[0]


def problem(operation: Any) -> str | None:
    """Return why MPI would reject the call on this rank, as text, or None; not every error is detected.

    While a program is learned, a rank whose call MPI rejects does not know what to issue in its place, and the other
    ranks would already be in the call. So errors must be found before.
    """
    names = PARAMETERS[operation.name]
    own = {*names[: len(operation.args)], *operation.kwargs}
    if len(operation.args) > len(names) or not own <= set(names):
        received = f"{len(operation.args)} and {', '.join(operation.kwargs)}"
        return f"expected the arguments {', '.join(names)}, received {received}"
    optional = _DEFAULTS.keys() - (() if operation.name == "Sendrecv" else {"recvbuf"})
    if missing := [name for name in names if name not in own and name not in optional]:
        return f"expected the arguments {', '.join(names)}, received none for {', '.join(missing)}"
    try:
        values = arguments(operation)
        if operation.name == "Reduce_scatter" and values["recvcounts"] is None and is_in_place(values["sendbuf"]):
            return "expected recvcounts where sendbuf is MPI.IN_PLACE, received none"
        elsewhere = "root" in values and index(values["root"]) != operation.comm.rank
        peers = [values[name] for name in ("dest", "source") if name in values]
        for name in own - {"status"}:
            value = values[name]
            if name in _BUFFERS:
                if not (elsewhere and name == _AT_ROOT.get(operation.name)) and MPI.PROC_NULL not in map(index, peers):
                    layout(value)
            elif name == "op":
                _op_name(value)
            elif name == "recvcounts":
                _numbers(value)
            else:
                index(value)
    except Exception as error:
        return formatted(error)[0]
    return None


def sent(operation: Any) -> int:
    """Return the messages that a point-to-point operation sends minus those that it receives; 0 for others."""
    if operation.name not in _OWN or operation.name.startswith("Neighbor"):
        return 0
    given = arguments(operation)
    return ("dest" in given and given["dest"] != MPI.PROC_NULL) - (
        "source" in given and given["source"] != MPI.PROC_NULL
    )


def has_nobody(operation: Any) -> bool:
    """Return whether the only peer is `MPI.PROC_NULL`, so that nothing is sent or received."""
    given = arguments(operation)
    peers = [given[name] for name in ("dest", "source") if name in given]
    return bool(peers) and all(peer == MPI.PROC_NULL for peer in peers)


def is_receive(operation: Any) -> bool:
    """Return whether the operation receives one message and sends none, so that it can be cancelled."""
    return operation.name == "Recv"


def is_send(operation: Any) -> bool:
    """Return whether the operation sends one message and receives none, so that it only reads its buffer."""
    return operation.name in ("Send", "Ssend")


def _message(operation: Any, given: dict[str, Any]) -> tuple[str | None, int | None]:
    """Return type and bytes of a message, which must be equal on all ranks; None for what is not certain."""
    names = _SIZED_BY.get(operation.name, ())
    if operation.name in _SENT_ALONE and index(given["root"]) != operation.comm.rank:
        names = ("sendbuf",)
        if given["sendbuf"] is None:
            return None, 0
    which, buffer = next(
        ((which, given[which]) for which in names if given[which] is not None and given[which] is not MPI.IN_PLACE),
        (None, None),
    )
    if buffer is None:
        return None, None
    kind, counts = _layout_of(buffer)
    ranks = operation.comm.size
    in_place = operation.name == "Reduce_scatter_block" and is_in_place(given["sendbuf"])  # recvbuf has all blocks
    blocks = in_place or which == _BLOCKS.get(operation.name)
    if isinstance(buffer, (list, tuple)):
        if isinstance(counts, tuple):
            return None, None
        datatype = next((part for part in buffer[1:] if isinstance(part, MPI.Datatype)), None)
        given_count = any(not isinstance(part, (MPI.Datatype, str)) for part in buffer[1:])
        kind, size = (
            (_leaf(datatype), datatype.Get_size()) if datatype is not None else (kind, memoryview(buffer[0]).itemsize)
        )
        nbytes = counts * size * (ranks if blocks and given_count else 1)
    else:
        nbytes = _nbytes(buffer)
    if operation.name in _SENT_ALONE and not nbytes:
        kind = None  # an empty message may be given as None, without a type
    return kind, nbytes // ranks if in_place or (blocks and operation.name in _ONE_BLOCK) else nbytes


def is_in_place(buffer: Any) -> bool:
    """Return whether mpi4py reads a send buffer as ``MPI.IN_PLACE``."""
    return buffer is None or buffer is MPI.IN_PLACE


def layout(buffer: Any) -> tuple[Any, Any] | None:
    """Return a message's data type and count(s); None for ``MPI.IN_PLACE`` and for no buffer."""
    return None if buffer is None or buffer is MPI.IN_PLACE else _layout_of(buffer)


def _layout_of(buffer: Any) -> tuple[Any, Any]:
    if isinstance(buffer, np.ndarray):
        if not (buffer.flags.c_contiguous or buffer.flags.f_contiguous):
            raise ValueError(f"expected a contiguous array, received one with strides {buffer.strides}")
        return _type_name(buffer.dtype), buffer.size
    if isinstance(buffer, (list, tuple)):
        if not 2 <= len(buffer) <= 4:
            raise ValueError(f"expected a message of 2 to 4 items, received {len(buffer)}")
        data, *rest = buffer
        types: list[Any] = [_datatype_name(part) for part in rest if isinstance(part, (MPI.Datatype, str))]
        types += [
            tuple(map(_datatype_name, part))
            for part in rest
            if isinstance(part, (list, tuple)) and part and isinstance(part[0], MPI.Datatype)
        ]
        counts = [
            _counts(part)
            for part in rest
            if not isinstance(part, (MPI.Datatype, str))
            and not (isinstance(part, (list, tuple)) and part and isinstance(part[0], MPI.Datatype))
        ]
        counts = [part for part in counts if part is not None]
        kind = types[0] if types else (layout(data) or (None,))[0]
        if not counts:
            return kind, _entries(data, rest)
        return kind, counts[0] if len(counts) == 1 else tuple(counts)
    try:
        view = memoryview(buffer)
    except TypeError:
        if buffer is MPI.BOTTOM or hasattr(buffer, "__dlpack__") or hasattr(buffer, "__cuda_array_interface__"):
            return None, _nbytes(buffer)
        raise TypeError(
            "expected a buffer or a list of a buffer, counts and a data type, received "
            f"an object of {type(buffer).__name__}"
        ) from None
    return _type_name(np.dtype(view.format if view.format != "B" else "u1")), view.nbytes


def _entries(data: Any, rest: Sequence[Any]) -> int:
    """Return the number of items of a message whose count is not given."""
    datatype = next((part for part in rest if isinstance(part, MPI.Datatype)), None)
    nbytes = _nbytes(data)
    return nbytes // datatype.extent if datatype is not None and datatype.extent > 0 else nbytes


def _nbytes(data: Any) -> int:
    for view in (memoryview, MPI.buffer):  # the latter takes DLPack's and CUDA's arrays, too
        with suppress(TypeError):
            return view(data).nbytes
    return 0


def _counts(part: Any) -> int | tuple[Any, ...] | None:
    """Return a count, the counts of all ranks, or a pair of tuples of counts and of displacements.

    mpi4py reads a tuple as such a pair, in which one number stands for all ranks.
    """
    if isinstance(part, tuple) and len(part) == 2:
        return tuple((number,) if isinstance(number, int) else number for number in map(_numbers, part))
    return _numbers(part)


def _numbers(part: Any) -> int | tuple[Any, ...] | None:
    """Return counts or displacements as a number or a tuple of numbers; None if none are given."""
    if part is None:
        return None
    if isinstance(part, (list, tuple, np.ndarray)):
        return tuple(_numbers(number) for number in part)
    number = index(part)
    if number < 0:
        raise ValueError(f"expected counts and displacements of at least 0, received {number}")
    return number


def _type_name(dtype: np.dtype) -> str:
    name = _TYPE_NAMES.get(dtype)
    if name is None:
        if dtype.kind in "OU":
            raise TypeError(f"expected an array of numbers, received one of {dtype}")
        name = _TYPE_NAMES[dtype] = f"{dtype.kind}{dtype.itemsize}"
    return name


def _datatype_name(datatype: MPI.Datatype | str) -> str:
    if isinstance(datatype, str):
        datatype = MPI.Datatype.fromcode(datatype)
    if datatype.is_predefined:
        return datatype.typestr
    return f"derived type of {datatype.Get_size()} bytes, extent {datatype.extent}"


def _op_name(op: MPI.Op) -> str:
    return _OPS.get(op.handle, "user's")


def _leaf(datatype: MPI.Datatype | None) -> str | None:
    """Return the type that a derived type is made of; None if there are several."""
    while datatype is not None and not datatype.is_predefined:
        datatype = datatype.decode()[2].get("datatype")
    return None if datatype is None else datatype.typestr


def shown(value: object) -> str:
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str):
        return f"{value[1]} of {value[0]}"
    return "none" if value is None else str(value)


# ---- pieces --------------------------------------------------------------------------------------
#
# Check that the pieces of all ranks in a ``Gatherv`` or ``Scatterv`` are as long as the root expects.
#
# The check is made for persistent requests only, because it costs a collective. MPI itself need not detect such an
# error.

# The argument with a rank's own piece, and the one with all pieces, on the root.
_PIECES = {"Gatherv": ("sendbuf", "recvbuf"), "Scatterv": ("recvbuf", "sendbuf")}


def pieces(operation: Any) -> tuple[Any, Any] | None:
    """Return type and count of this rank's piece of a ``Gatherv`` or ``Scatterv``, and on the root those of all pieces.

    An entry is None if there is no such piece, or if its length is not certain. Returns None for other operations.
    """
    if operation.name not in _PIECES:
        return None
    given = arguments(operation)
    own, whole = (given[name] for name in _PIECES[operation.name])
    is_root = index(given["root"]) == operation.comm.rank
    if is_root and is_in_place(own):
        return None, layout(whole)
    return (None, 0) if own is None else layout(own), layout(whole) if is_root else None


def pieces_problem(everyone: list[tuple[Any, Any] | None]) -> str | None:
    """Return a text that names the first rank whose piece is not as long as the root expects, or None."""
    known = [each for each in everyone if each is not None]
    whole = next((whole for _, whole in known if whole is not None), None)
    if whole is None or not whole[1] or not isinstance(whole[1], tuple) or whole[1][0] is None:
        return None
    kind, counts = whole
    if isinstance(counts[0], tuple):  # displacements are given, too
        counts = counts[0] * len(known) if len(counts[0]) == 1 else counts[0]
    for rank, ((own, _), expected) in enumerate(zip(known, counts)):
        if own is None or isinstance(own[1], tuple):
            continue
        if own[1] != expected if own[0] == kind else bool(own[1]) != bool(expected):
            return f"expected a piece of {expected} items of {kind} on rank {rank}, received {shown(own)}"
    return None
