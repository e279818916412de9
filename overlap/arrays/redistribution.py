"""Moves the parts of a distributed array between ranks: to one rank, or to the places of another distribution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index as as_integer
from typing import Any

import numpy as np

from ..checks import refuse_masks
from ..errors import InputError, repr_of
from ..ranks.door import collective_section
from ..ranks.interrupts import holding_signals
from .crossing import Crossing
from .distribution import Distribution, Placed, part_of
from .exchange import array_section, exchange_problem, mpi_type, refuse_objects, rounded
from .pieces import pieces_on
from .topology import same_ranks
from .weights import checked, checked_shares


def gather(
    comm: Any, local: np.ndarray, where: Distribution, root: int, index: Sequence[int | slice] | None
) -> np.ndarray | None:
    """Bring the global array, or a part of it, to one rank (collective); see `DistArray.gather`."""
    with array_section(comm, "gather", where) as agreed:
        target = _root(root, comm)
        wanted = _indices(index, where)
        try:
            shape, held, place = part_of(wanted, where.global_shape, where.local_slice)
        except (IndexError, TypeError) as error:
            raise InputError(
                f"expected integers and slices inside of {where.global_shape}, received {repr_of(index)}: {error}"
            ) from None
        agreed.update(root=target, index=repr(wanted), dtype=local.dtype.str)
        whole = np.empty(shape if comm.rank == target else 0, local.dtype)
    with pieces_on(target, comm, local[(..., *held)], place) as pieces:
        for box, piece in pieces or ():
            whole[box] = piece
    return whole if comm.rank == target else None


@holding_signals
def scatter(comm: Any, array: Any, where: Distribution, dtype: np.dtype[Any], root: int) -> np.ndarray:
    """Send every rank its part of a global array that one rank holds (collective); see `ArraySpec.scatter`."""
    whole = np.empty(0, dtype)
    with collective_section(comm, "scatter") as agreed:
        source = _root(root, comm)
        if comm.rank == source:
            refuse_masks(array=array)
            whole = np.asarray(array)
            if whole.shape != where.global_shape or not np.can_cast(whole.dtype, dtype, "same_kind"):
                raise InputError(
                    f"expected an array of shape {where.global_shape} and a dtype that can be cast to {dtype}, "
                    f"received {whole.shape} and {whole.dtype}"
                )
        agreed.update(root=source, global_shape=where.global_shape, dtype=dtype.str)
    local = np.empty(where.shape, dtype)
    boxes = comm.gather(where.local_slice, source)
    pieces = [np.ascontiguousarray(whole[box], dtype).reshape(-1) for box in boxes or ()]
    counts = [piece.size for piece in pieces]
    kind = mpi_type(dtype)
    send = [np.concatenate(pieces), counts, kind] if boxes is not None else None
    comm.Scatterv(send, [local, kind], source)
    return local


def _root(root: Any, comm: Any) -> int:
    try:
        return range(comm.size)[as_integer(root)]
    except (TypeError, IndexError):
        raise InputError(f"expected root to be one of {comm.size} ranks, received {repr_of(root)}") from None


def _indices(index: Any, where: Distribution) -> tuple[Any, ...]:
    """Return one index for each axis."""
    count = len(where.global_shape)
    try:
        wanted = (slice(None),) * count if index is None else tuple(index)
    except TypeError:
        wanted = ()
    if len(wanted) != count:
        raise InputError(f"expected {count} indices, received {repr_of(index)}")
    return wanted


def redistribute(
    comm: Any,
    local: np.ndarray,
    where: Distribution,
    axes: int | Sequence[int] | Placed,
    grid: Sequence[int] | None,
    weights: Sequence[Any] | None,
    exchange: str | None,
    shares: Mapping[int, Sequence[int]] | None,
) -> tuple[np.ndarray, Any, Distribution]:
    """Split a global array in another way (collective), see `DistArray.redistribute`; return the new local part, the
    communicator and the part's place."""
    with array_section(comm, "redistribute", where) as agreed:
        refuse_objects(local.dtype)
        if problem := exchange_problem(exchange, local.dtype):
            raise InputError(problem)
        new_where, said = split_as(comm, where, axes, grid, weights, shares)
        agreed.update(dtype=local.dtype.str, **said, exchange=exchange)
        target = np.empty(new_where.shape, local.dtype)
        sent_from = rounded(local, exchange if comm.size > 1 else None)
    crossing = Crossing.between(comm.allgather((where.local_slice, new_where.local_slice)), comm.rank)
    crossing.exchange(comm, sent_from, target, sent_from.dtype)
    return target, comm, new_where


def split_as(
    comm: Any,
    where: Distribution,
    axes: int | Sequence[int] | Placed,
    grid: Sequence[int] | None = None,
    weights: Sequence[Any] | None = None,
    shares: Mapping[int, Sequence[int]] | None = None,
) -> tuple[Distribution, dict[str, Any]]:
    """Return the distribution that the user's arguments describe, and the values that must be the same on all ranks;
    raise an `InputError` on this rank if the arguments do not fit the array."""
    if isinstance(axes, Placed):
        return _place_of(axes, comm, where), {}
    chosen, sizes = _grid(axes, grid, comm.size, len(where.global_shape))
    along = dict(zip(chosen, sizes))
    uneven, problem = checked(weights, comm.size)
    parts = [along.get(axis, 1) for axis in range(len(where.global_shape))]
    given, wrong = checked_shares(shares, where.global_shape, parts)
    if problem := problem or wrong:
        raise InputError(problem)
    new_where = where.split_along(chosen, sizes, comm.rank, uneven, given)
    return new_where, {"axes": chosen, "grid": sizes, "weights": uneven, "shares": given}


def _place_of(like: Placed, comm: Any, where: Distribution) -> Distribution:
    """Return the distribution of an object; raise if its global array has another shape or other ranks."""
    if like.comm is None or not same_ranks(like.comm, comm):
        raise InputError(
            "expected a pattern that is distributed over the ranks of the array, in the same order, received "
            f"{repr_of(like):.100} of {'no communicator' if like.comm is None else 'another communicator'}"
        )
    pattern = Distribution(like.global_shape, like.axes, like.local_slice)
    if pattern.global_shape != where.global_shape:
        raise InputError(f"expected an array of global shape {where.global_shape}, received {pattern.global_shape}")
    return pattern


def _grid(axes: Any, grid: Any, ranks: int, count: int) -> tuple[list[int], list[int]]:
    """Return axes, counted from 0, and ranks along each."""
    try:
        chosen = [as_integer(axes)] if not isinstance(axes, Sequence) else [as_integer(axis) for axis in axes]
        sizes = [ranks] if grid is None and len(chosen) == 1 else [as_integer(size) for size in grid or ()]
        split_axes = [range(count)[axis] for axis in chosen]
        fits = len(sizes) == len(chosen) == len(set(split_axes)) and min(sizes) > 0 and int(np.prod(sizes)) == ranks
    except (TypeError, IndexError, ValueError):
        fits = False
    if not fits:
        raise InputError(
            f"expected different axes of {count} and a grid of {ranks} ranks along them, received axes "
            f"{repr_of(axes):.80} and grid {repr_of(grid):.80}"
        )
    return split_axes, sizes
