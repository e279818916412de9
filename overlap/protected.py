"""`Protected`: fields that survive the loss of ranks, by copies in other ranks' memory.

Diskless checkpoints (Plank, Li, Puening, "Diskless Checkpointing", IEEE TPDS 9, 1998). Every rank keeps a copy of its
part of the fields at a step, and sends it to partners. Two saves are kept and used in turns: a save overwrites the one
before the last. It begins with a header, which a rank reaches only after it has received all of the last save. So one
save is complete whenever a rank is lost.

Each saved part ends with its step and a checksum. A part counts as complete if these are right, whatever status MPI
reports for messages that a loss has interrupted.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from operator import index
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from .arrays import DistArray, Distribution, placed_as, same_ranks
from .arrays.crossing import Crossing, common
from .arrays.distribution import Placed, parts_problem, within
from .compiled.memory import whole_lines
from .errors import DataLost, InputError, formatted, repr_of
from .output.problems import shown, step_problem
from .ranks.holding import DropWarning
from .ranks.interrupts import holding_signals
from .ranks.resource import Calls, CollectiveContext, Telling, marked_call
from .ranks.standalone_coordinator import StandaloneCoordinator
from .ranks.wait import wait_for
from .runtime import Runtime

_FREEING = "freeing protected fields"
_TAG = 11
_MOST_NBYTES = 2**30  # largest size of a message
_STEP, _CHECKSUM, _WRITTEN, _WORDS = range(4)  # words at the end of a part
_GENERATIONS = 2
_numbers = itertools.count(1)
_in_transit: list[tuple[list[MPI.Request], list[list[_Part]]]] = []  # messages of saves that have not completed


class Restored(NamedTuple):
    """The step and the fields of the last save.

    Attributes
    ----------
    step : int
    fields : list of DistArray
        In the order in which they are protected, distributed over the surviving ranks.

    Examples
    --------
    >>> overlap.protected.Restored(step=10, fields=[]).step
    10
    """

    step: int
    fields: list[DistArray]


class _Part:
    """Memory for a rank's part of all fields, with the step and the checksum at its end."""

    def __init__(self, nbytes: int) -> None:
        self.memory = np.zeros(whole_lines(nbytes) + _WORDS * 8, np.uint8)
        self._data, self.words = self.memory[:nbytes], self.memory[-_WORDS * 8 :].view(np.int64)

    def fill(self, fields: Sequence[DistArray], step: int) -> None:
        """Copy the fields as they are now."""
        self.words[_WRITTEN] = 0
        first = 0
        for field in fields:
            self._data[first : first + field.nbytes].view(field.dtype).reshape(field.shape)[...] = np.asarray(field)
            first += field.nbytes
        self.words[:] = step, self._found(), 1

    def _found(self) -> int:
        data: Any = self._data
        return zlib.crc32(data)

    def whole(self) -> int | None:
        """Return the step of the saved part; None if the part is not complete."""
        if not self.words[_WRITTEN] or self._found() != self.words[_CHECKSUM]:
            return None
        return int(self.words[_STEP])

    def field(self, number: int, places: Sequence[Distribution], dtypes: Sequence[np.dtype]) -> np.ndarray:
        """Return this part's array of field `number`, given the distributions of all fields."""
        sizes = [int(np.prod(place.shape)) * dtype.itemsize for place, dtype in zip(places, dtypes)]
        first = sum(sizes[:number])
        items = self._data[first : first + sizes[number]].view(dtypes[number])
        return items.reshape(places[number].shape)

    def messages(self) -> list[np.ndarray]:
        """Cut the part into messages that MPI can send."""
        return [self.memory[first : first + _MOST_NBYTES] for first in range(0, len(self.memory), _MOST_NBYTES)]


class Protected(CollectiveContext):
    """Keeps copies of fields in the memory of other ranks, and restores them from there when a rank is lost.

    Parameters
    ----------
    fields : DistArray, or sequence of them
        All distributed over the ranks of one runtime, as arrays of its plans are; made with ``on_loss="raise"`` if it
        is to survive. Every save reads them, so update them in place: ``w[...] = step(w)``.
    copies : int
        How many other ranks keep each part, on other nodes if there are any. This many ranks may be lost at once. With
        0 a rank keeps its own part alone, as the last rank that is left must.

    Raises
    ------
    InputError
        On all ranks: an argument is not valid, or differs between ranks.
    RankLost
        A rank was lost meanwhile.

    Notes
    -----
    Each rank keeps two saves, each with a copy of its own part and those of `copies` other ranks.

    Examples
    --------
    >>> with overlap.FFT2(comm, (4, 8, 8), dtype="f8") as plan:
    ...     u = plan.real.empty()
    ...     u[...] = 1.0
    ...     with overlap.Protected(u, copies=0) as protected:
    ...         protected.save(10)
    ...         u[...] = 0.0
    ...         step, (before,) = protected.restore(plan.runtime)
    >>> step, bool((before == 1).all())
    (10, True)
    """

    @holding_signals
    def __init__(
        self, fields: DistArray | Sequence[DistArray], copies: int = 1, *, deadline_s: float | None = 60.0
    ) -> None:
        listed = [fields] if isinstance(fields, DistArray) else list(fields)
        comm = _communicator(listed)
        self._coordinator = coordinator = StandaloneCoordinator(comm, deadline_s, DropWarning("a Protected"))
        super().__init__()
        with coordinator.collective_section("protecting fields", coordinator.close):
            coordinator.check(
                "protecting fields", _problem(listed, comm, copies), copies=shown(copies), fields=len(listed)
            )
            described = [(field.global_shape, field.dtype.str) for field in listed]
            coordinator.check("protecting fields", None, fields=described)
            # Tells it from any other one, of other ranks too, that another rank may restore at the same time.
            self._known_as = coordinator.bcast(f"number {next(_numbers)} of rank {MPI.COMM_WORLD.rank}, of {described}")
            self._fields, self.copies = listed, index(copies)
            self._dtypes = [field.dtype for field in listed]
            self._whole_shapes = [field.global_shape for field in listed]
            ranks_places = coordinator.allgather((MPI.Get_processor_name(), [field.distribution for field in listed]))
            self._places = [places for _, places in ranks_places]
            for number, field in enumerate(listed):
                if problem := parts_problem(
                    (places[number].local_slice for places in self._places), field.global_shape
                ):
                    raise InputError(f"field {number}: {problem}")
            nodes = [name for name, _ in ranks_places]
            size, rank = coordinator.size, coordinator.rank
            shifts = _shifts(nodes, self.copies)
            self._partners = [(rank + shift) % size for shift in shifts]
            # The owners of the parts that this rank keeps.
            self._owners = [rank, *((rank - shift) % size for shift in shifts)]
            sizes = [self._nbytes(owner) for owner in self._owners]
            self._parts = [[_Part(nbytes) for nbytes in sizes] for _ in range(_GENERATIONS)]
            self._far = [nodes[partner] != nodes[rank] for partner in self._partners]
        self._saves = 0
        self._requests: list[MPI.Request] = []
        coordinator.holding.add(partial(MPI.Request.Waitall, self._requests))
        if coordinator.size > 1:
            self._begun()

    def _title(self) -> str:
        fields = ", ".join(f"{shape} {dtype}" for shape, dtype in zip(self._whole_shapes, self._dtypes))
        size = self._coordinator.size
        return f"Protected: {fields} over {size} rank(s), kept {self.copies + 1} times, {self._saves} save(s)"

    def _nbytes(self, rank: int) -> int:
        """Return the bytes of a rank's part of all fields."""
        return sum(int(np.prod(place.shape)) * dtype.itemsize for place, dtype in zip(self._places[rank], self._dtypes))

    @property
    def nbytes(self) -> int:
        """Return the bytes of memory that this rank uses for saves."""
        self.check_open()
        return sum(part.memory.nbytes for parts in self._parts for part in parts)

    def describe(self) -> str:
        """Return as text which ranks keep which copies, and the memory that they take."""
        partners = ", ".join(
            f"rank {partner} ({'another' if far else 'the same'} node)"
            for partner, far in zip(self._partners, self._far)
        )
        own = self._nbytes(self._coordinator.rank)
        return (
            f"{len(self._dtypes)} field(s), {own / 2**20:.1f} MiB of them on rank {self._coordinator.rank}, whose "
            f"copies are kept by {partners or 'nobody'}; {self.nbytes / 2**20:.1f} MiB here: {_GENERATIONS} saves of "
            f"{self.copies + 1} parts; {self._saves} saved so far"
        )

    # ---- saving ------------------------------------------------------------------------------

    @holding_signals
    @marked_call
    def save(self, step: int) -> None:
        """Save the fields as they are: `start`, then wait until all ranks have received their copies (collective).

        Parameters
        ----------
        step : int
            Number of the step, which `restore` returns with the fields.

        Raises
        ------
        InputError
            On all ranks: the steps differ, or a field has another shape or place than before.
        """
        self.start(step)
        self.wait()

    @holding_signals
    @marked_call
    def start(self, step: int) -> None:
        """Begin to save the fields as they are, and return (collective).

        You may write to them at once. Messages progress during other MPI calls, for instance those of pipelines. The
        next `start` waits for its end.

        Parameters
        ----------
        step : int

        Raises
        ------
        InputError
            See `save`.
        """
        self.wait()
        coordinator = self._coordinator
        # After this header all ranks have received the last save, so the one before it may be overwritten.
        coordinator.check("saving fields", self._changed() or step_problem(step), step=shown(step))
        own_part, *kept_parts = self._parts[self._saves % _GENERATIONS]
        self._saves += 1
        sources = self._owners[1:]
        with coordinator.watching("the beginning of a save") as comm:
            for part, source in zip(kept_parts, sources):
                self._requests += [comm.Irecv(message, source, _TAG) for message in part.messages()]
            own_part.fill(self._fields, index(step))
            for partner in self._partners:
                self._requests += [comm.Isend(message, partner, _TAG) for message in own_part.messages()]

    @marked_call
    def test(self) -> bool:
        """Let the save that has begun progress, and return whether it has ended on this rank."""
        self.check_open()
        with self._coordinator.watching("a save"):
            if self._requests and MPI.Request.Testall(self._requests):
                self._requests.clear()
        return not self._requests

    @marked_call
    def wait(self) -> None:
        """Wait until this rank has sent and received all messages of the save that has begun."""
        self.check_open()
        self._complete()

    def _complete(self) -> None:
        if self._requests:
            with self._coordinator.watching("a save"):
                wait_for(lambda: MPI.Request.Testall(self._requests))
            self._requests.clear()

    def _changed(self) -> str | None:
        """Return a text that names a field whose distribution or type has changed, or None."""
        own_places = self._places[self._coordinator.rank]
        for number, (field, place, dtype) in enumerate(zip(self._fields, own_places, self._dtypes)):
            if field.distribution != place or field.dtype != dtype:
                return (
                    f"expected field {number} of {place} and {dtype}, as when it was protected, received one of "
                    f"{field.distribution} and {field.dtype}"
                )
        return None

    # ---- restoring ---------------------------------------------------------------------------

    @holding_signals
    @marked_call
    def restore(self, runtime: Runtime, like: Sequence[Placed] | None = None) -> Restored:
        """Restore the newest step of which all parts are left (collective over the ranks of a runtime).

        Parameters
        ----------
        runtime : Runtime
            A runtime of the surviving ranks, or of all ranks.
        like : sequence of ArraySpec or DistArray, optional
            Arrays or specs with the distribution of the restored fields; by default even along the axes that were
            split.

        Returns
        -------
        Restored
            The step, and new arrays over the ranks of the runtime.

        Raises
        ------
        InputError
            On all ranks: nothing has been saved, or `like` does not fit.
        DataLost
            On all ranks, if some part of every step is lost, with the rank and all ranks that kept its copies.
        RankLost
            Another rank was lost meanwhile. Restore again, with the next runtime.
        """
        self.check_open()
        if not isinstance(runtime, Runtime):
            raise InputError(f"expected a Runtime, received {repr_of(runtime)}")
        coordinator = runtime.coordinator
        with runtime.collective_section("restoring fields"):
            places, problem = self._targets(runtime, like)
            problem = problem or (None if self._saves else "expected a save before, received none")
            runtime.preflight(problem, protected=self._known_as)
            kept = [(owner, part) for parts in self._parts for owner, part in zip(self._owners, parts)]
            steps = [part.whole() for _, part in kept]
            answers = coordinator.allgather(
                ([(owner, step) for (owner, _), step in zip(kept, steps) if step is not None], places)
            )
        # Raises on all ranks if parts are missing.
        step, providers = _newest([held for held, _ in answers], len(self._places))
        provided = {
            owner: part
            for (owner, part), part_step in zip(kept, steps)
            if part_step == step and providers[owner] == coordinator.rank
        }
        targets = [rank_targets for _, rank_targets in answers]
        with runtime.collective_section("bringing fields back"):
            fields = [
                self._brought(runtime, number, provided, providers, [rank_targets[number] for rank_targets in targets])
                for number in range(len(self._dtypes))
            ]
        return Restored(step, fields)

    def _targets(self, runtime: Runtime, like: Any) -> tuple[list[Distribution], str | None]:
        """Return this rank's distributions of the restored fields, and what is wrong with `like`, or None."""
        comm = runtime.comm.source
        if like is None:
            return [
                Distribution(shape, place.axes, ()).split_along(
                    place.axes, MPI.Compute_dims(comm.size, len(place.axes)), comm.rank
                )
                for shape, place in zip(self._whole_shapes, self._places[0])
            ], None
        try:
            distributions = [Distribution(array.global_shape, array.axes, array.local_slice) for array in like]
            fits = [array.global_shape for array in distributions] == self._whole_shapes
            fits = fits and all(same_ranks(array.comm, comm) for array in like)
        except Exception as error:
            return [], f"expected like to be arrays, or specs of a plan, received {formatted(error)[0]}"
        if fits:
            return distributions, None
        shapes = [array.global_shape for array in like]
        return [], (
            f"expected like to be of shapes {self._whole_shapes} over the ranks of the runtime, received {shapes}"
            + " over other ranks" * (shapes == self._whole_shapes)
        )

    def _brought(
        self,
        runtime: Runtime,
        number: int,
        provided: dict[int, _Part],
        providers: list[int],
        targets: list[Distribution],
    ) -> DistArray:
        """Restore field `number` with its new distribution; each part comes from the rank that provides it."""
        coordinator, dtype = runtime.coordinator, self._dtypes[number]
        boxes = [places[number].local_slice for places in self._places]
        kept = [
            (part.field(number, self._places[owner], self._dtypes), boxes[owner])
            for owner, part in sorted(provided.items())
        ]
        sent = [
            [(field, within(box, place)) for field, place in kept for box in common(place, [target.local_slice])]
            for target in targets
        ]
        own_target = targets[coordinator.rank]
        coming = [
            [
                within(region, own_target.local_slice)
                for region in common(own_target.local_slice, [box for box, by in zip(boxes, providers) if by == rank])
            ]
            for rank in range(coordinator.size)
        ]
        crossing = Crossing([[box for _, box in rank_pieces] for rank_pieces in sent], coming, coordinator.rank)
        pieces = [[field[box] for field, box in rank_pieces] for rank_pieces in sent]
        whole = np.empty(own_target.shape, dtype)
        with coordinator.exclusive.used("restoring a field"), coordinator.watchdog.watching("restoring a field"):
            crossing.exchange(coordinator.comm, pieces, whole, dtype)
        return placed_as(DistArray, whole, runtime.comm.source, own_target)

    # ---- the end -----------------------------------------------------------------------------

    def close(self) -> None:
        """Free the copies (collective).

        Raises
        ------
        BusyError
            A call of the object is under way; nothing is freed.
        """
        if self.closed:
            return
        with self._coordinator.closing(_FREEING):
            self.closed = True
            try:
                if self._coordinator.left is None:
                    self._complete()
            finally:
                self._drop()
                self._coordinator.close()

    @property
    def _calls(self) -> Calls:
        return self._coordinator._calls

    def _ending_calls(self) -> AbstractContextManager[bool]:
        return self._coordinator.ending_calls()

    def _fail(self, error: BaseException) -> Telling | None:
        if self.closed:
            return None
        with self._coordinator.closing(_FREEING):
            if self._coordinator.size == 1 or self._coordinator.left is not None:
                self.close()
                return None
            self.closed = True
            return self._coordinator.leave(error, self._drop)

    def _drop(self) -> None:
        """Drop the copies, except while MPI may still read or write them."""
        self._over()
        if self._requests:  # not completed, because a rank is lost or has left
            _in_transit.append((self._requests, self._parts))
        self._requests, self._parts = [], []

    def _closed_by_fork(self) -> None:
        super()._closed_by_fork()
        self._coordinator.close_in_child()


def _communicator(fields: list[Any]) -> MPI.Intracomm:
    """Return the communicator of the fields, on whose ranks all other arguments are checked."""
    for field in fields:
        if isinstance(field, DistArray) and field.comm is not None and field.comm != MPI.COMM_NULL:
            comm: MPI.Intracomm = field.comm
            return comm
    raise InputError(f"expected a DistArray, or several, that have a communicator, received {repr_of(fields):.100}")


def _problem(fields: list[Any], comm: MPI.Intracomm, copies: Any) -> str | None:
    """Return what is wrong with the arguments, as text, or None."""
    for field in fields:
        if not isinstance(field, DistArray) or not same_ranks(field.comm, comm):
            return (
                f"expected fields to be DistArrays over the ranks of one communicator, received {repr_of(field):.100}"
            )
        if field.dtype.hasobject:
            return f"expected fields without Python's objects, received {field.dtype}"
    try:
        fits = not isinstance(copies, bool) and 0 <= index(copies) < comm.size
    except Exception:
        fits = False
    if fits:
        return None
    return f"expected copies to be a number from 0 to {comm.size - 1}, less than the ranks, received {repr_of(copies)}"


def _shifts(nodes: list[str], copies: int) -> list[int]:
    """Choose the distances in ranks to the partners, such that most of them are on other nodes, all different.

    All ranks use the same shifts, so each of them keeps as many parts as any other.
    """
    size = len(nodes)

    def near(shift: int) -> int:
        return sum(nodes[rank] == nodes[(rank + shift) % size] for rank in range(size))

    return sorted(range(1, size), key=near)[:copies]


def _newest(held: list[list[tuple[int, int]]], owners: int) -> tuple[int, list[int]]:
    """Find the newest step of which every part exists, and the rank that provides each part; raise `DataLost` if none.

    `held` has, for each rank, owner and step of every part that it has; `owners` ranks there were before the loss.
    """
    have: dict[int, dict[int, int]] = {}  # step -> owner -> the first rank that has the part
    for rank, parts in enumerate(held):
        for owner, step in parts:
            have.setdefault(step, {}).setdefault(owner, rank)
    for step in sorted(have, reverse=True):
        if len(have[step]) == owners:
            return step, [have[step][owner] for owner in range(owners)]
    lost = {step: [owner for owner in range(owners) if owner not in parts] for step, parts in sorted(have.items())}
    raise DataLost(
        "expected a step of which all parts are left, received "
        + ("; ".join(f"step {step} without those of ranks {ranks}" for step, ranks in lost.items()) or "none")
        + ": these ranks are lost, and so are all that kept their copies"
    )
