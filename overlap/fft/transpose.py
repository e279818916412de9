"""`Transpose`: changes of arrays' distribution, entry by entry; the exchanges are hidden.

An *entry* is the part of an array for one index of its leading axes, which are not split. Each slice packs some entries
into its slot's buffers, exchanges them, and unpacks the received ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ..arrays import Distribution, chunks, length_of, mpi_type
from ..arrays.crossing import Crossing
from ..arrays.distribution import Placed
from ..arrays.exchange import Overflow, dtype_sent, exchange_problem, travelling
from ..arrays.redistribution import split_as
from ..checks import count_problem
from ..compiled.copy_table import CopyTable
from ..errors import InputError
from ..ranks.exclusive import thread_level
from ..ranks.interrupts import holding_signals
from ..ranks.objects import Described, Uncopied
from ..ranks.resource import marked_call
from ..runtime.loop.words import BASES, RECEIVE, SEND, SOURCE, TARGET
from ..runtime.on_runtime import OnRuntime, PlanComm
from ..runtime.plan_call import CallKind
from ..runtime.requests.operations import Operation, of_slices
from .arguments import integers, local_nbytes, memory_problem, record, shown
from .array_spec import ArraySpec
from .constructor import of_plan
from .engine.message import starts_of
from .engine.program import ArrayReference
from .engine.schedule import Schedule, Schedules, addresses_of
from .engine.steps import AnyStep, Call, Exchange, Run
from .planning.settings import Settings, settings_problem

MESSAGE_NBYTES = 256 * 1024  # least bytes of a rank's message, if there are enough entries
DEPTH = 4
Split = int | Sequence[int] | Mapping[str, Any] | Placed
"""The distribution of an array: split axes, arguments of `DistArray.redistribute`, or another array or spec."""


class Transpose(OnRuntime):
    """A plan that moves arrays from one distribution to another, and back.

    The two may differ in axes, grids of ranks, weights or shares. Leading axes that are split in neither are the batch:
    their entries are exchanged one after the other, each while others are packed and unpacked. Making, calling and
    closing a plan is collective.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm, Runtime or AsyncComm
        See `Plan`; all ranks of the runtime.
    shape : tuple of int
        Global shape.
    source, target : int, sequence of int, dict, DistArray or ArraySpec
        How arrays are split before and after: the axes, a dict of the arguments of `DistArray.redistribute`
        (``{"axes": (0, 1), "grid": (2, 2), "shares": {0: (5, 3)}}``), or an array or spec with that distribution.
    dtype : dtype
        Any data type without Python objects.
    settings : Settings or dict, optional
        `wait`, `depth`, `in_flight`, and in `chunk` the entries per message. Settings that are not given are
        chosen.
    exchange : {None, "f4"}
        ``"f4"``: doubles are sent as singles. All numbers are rounded, also those that stay on their rank.

    Attributes
    ----------
    source, target : ArraySpec
        The arrays before and after: what this rank holds, and ``empty()`` ones.
    forward, backward : TransposeDirection
        Call them: ``v = plan.forward(u, out=None)``, ``u = plan.backward(v)``.

    Raises
    ------
    InputError
        On all ranks, if an argument is bad or differs between ranks.

    Examples
    --------
    >>> with overlap.Transpose(comm, (3, 8, 6), 1, 2, dtype="i4") as rows_to_columns:
    ...     u = rows_to_columns.source.empty()
    ...     u[...] = 7
    ...     v = rows_to_columns.forward(u)
    ...     back = rows_to_columns.backward(v)
    >>> v.axes, back.axes
    ((2,), (1,))
    """

    _kind = "Transpose"

    @of_plan
    @holding_signals
    def __init__(
        self,
        comm: PlanComm,
        shape: Sequence[int],
        source: Split,
        target: Split,
        dtype: DTypeLike = complex,
        *,
        settings: Settings | dict[str, Any] | None = None,
        exchange: str | None = None,
    ) -> None:
        super().__init__(comm)
        with self._making():
            requested, problem = record(Settings, settings, "settings")
            problem = self._check_ranks() or _problem(shape, dtype) or problem or settings_problem(requested)
            problem = problem or exchange_problem(exchange, dtype)
            lengths, places, said = integers(shape) or (), [], {}
            if problem is None:
                try:
                    for name, split in (("source", source), ("target", target)):
                        where, said[name] = _place(self.comm, lengths, name, split)
                        places.append(where)
                except InputError as error:
                    problem = str(error)
            problem = problem or memory_problem(2 * local_nbytes(lengths, dtype, self.comm.size))
            self.runtime.preflight(
                problem,
                plan=self._kind,
                shape=lengths,
                dtype=None if problem else str(np.dtype(dtype)),
                exchange=exchange,
                **said,
                **asdict(requested),
            )
            before, after = places
            self.dtype, self.exchange = np.dtype(dtype), exchange if self.comm.size > 1 else None
            self._overflow = None if self.exchange is None else Overflow()
            count = len(lengths)
            self.source, self.target = (
                ArraySpec(self.comm, (), lengths, {axis - count: place.local_slice[axis] for axis in place.axes}, dtype)
                for place in places
            )
            self._batch = lengths[: min((axis for place in places for axis in place.axes), default=count - 1)]
            first, run = len(self._batch), self._batch[-1] if self._batch else 1
            parts = before.local_slice[first:], after.local_slice[first:]
            crossing = Crossing.between(self.runtime.coordinator.allgather(parts), self.comm.rank)
            self._ways = crossing, crossing.reversed()
            # Entries of a message are consecutive along the last axis of the batch.
            nbytes = max(1, local_nbytes(lengths[first:], dtype, self.comm.size))
            self._chunk = max(1, min(run, requested.chunk or MESSAGE_NBYTES // nbytes))
            self._keys = [
                (*index, part) for index in product(*map(range, self._batch[:-1])) for part in chunks(run, self._chunk)
            ]
            sides = self.source, self.target
            self.forward, self.backward = (
                TransposeDirection(self, name, way, ends, requested)
                for name, way, ends in zip(("forward", "backward"), self._ways, (sides, sides[::-1]))
            )

    @marked_call
    def buffers(self, entries: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Make the buffers of one slice in flight, for slice programs of your own.

        Parameters
        ----------
        entries : int, optional
            Largest number of entries in a message; by default that of the plan's own messages.

        Returns
        -------
        tuple of ndarray
            A slot for the methods of `forward` and `backward`; make one for each slot of a pipeline.

        Raises
        ------
        InputError
            On this rank: `entries` is no positive integer.
        """
        self._check_in_use()
        if entries is not None and (problem := count_problem("entries", entries)):
            raise InputError(problem)
        kind, room = dtype_sent(self.dtype, self.exchange), self._chunk if entries is None else entries
        pairs = [way.buffers(kind, room) for way in self._ways]
        send, receive = (max(lengths, key=len) for lengths in zip(*pairs))
        return send, receive

    @marked_call
    def describe(self) -> str:
        """Return the plan's distributions, and how it runs, as text."""
        self._check_in_use()
        return "\n".join(
            [self._title(), self.forward._described(), self.backward._described(), f"MPI at {thread_level()}"]
        )

    def _release(self, closing: ExitStack) -> None:
        for name in ("forward", "backward"):
            if hasattr(self, name):
                closing.callback(getattr(self, name).release)

    def _compared(self) -> str:
        return f"{self._kind} {self.source.global_shape} {self.dtype}"

    def _title(self) -> str:
        return (
            f"Transpose {self.source.global_shape} {self.dtype}, split along {self.source.axes} and "
            f"{self.target.axes}, {self._sharers()}{travelling(self.exchange)}"
        )


class TransposeDirection(Uncopied, Described):
    """One direction of a `Transpose`: call it with an array, or await it in slice programs.

    In a slice program ``await t.forward.apply(u[i], v[i], slot)`` moves an entry, with a slot of `Transpose.buffers`.
    To compute something during the exchange, use the parts: `pack`, ``pending = await
    overlap.start(t.forward.operation(slot))``, then ``await pending`` and `unpack`. If a message has several entries,
    arrays have an additional first axis.

    Attributes
    ----------
    source, target : ArraySpec
        The input and output arrays.

    Examples
    --------
    >>> with overlap.Runtime(comm) as rt, overlap.Transpose(rt, (4, 8, 6), 1, 2, "f8") as t:
    ...     u, v = t.source.empty(), t.target.empty()
    ...     u[...] = 1.0
    ...     @rt.pipelined(buffers=t.buffers)
    ...     async def program(i, slot):
    ...         await t.forward.apply(u[i], v[i], slot)
    ...         v[i] *= 2
    ...     program(range(4))
    >>> float(v.max())
    2.0
    """

    def __init__(
        self, plan: Transpose, name: str, crossing: Crossing, sides: tuple[ArraySpec, ArraySpec], settings: Settings
    ) -> None:
        self._plan, self._name, self._crossing = plan, name, crossing
        self._calls = plan.runtime.coordinator._calls
        self.source, self.target = sides
        self._entry_shapes = [spec.shape[len(plan._batch) :] for spec in sides]
        depth = settings.depth or max(1, min(DEPTH, len(plan._keys)))
        hides = plan.comm.size > 1 and len(plan._keys) > 1
        wait = settings.wait if settings.wait != "auto" else "poll" if hides or plan.runtime.workers > 1 else "off"
        limit = min(settings.in_flight or depth, depth)
        agreed = {"slices": len(plan._keys), "depth": depth, "wait": wait, "in_flight": limit}
        self._kind: Any = CallKind(plan.runtime.threads, f"{name} of {plan._known_as}", agreed, wait, limit)
        self._slots: Any = [[ArrayReference(buffer) for buffer in plan.buffers()] for _ in range(depth)]
        self._depth = depth
        self._messages: dict[int, TransposeMessage] = {}
        self._schedules = Schedules()

    @marked_call
    def __call__(self, array: np.ndarray, out: np.ndarray | None = None) -> Any:
        """Move an array (collective).

        Parameters
        ----------
        array : ndarray or DistArray
            This rank's part, distributed like `source` of the plan, for `backward` like `target`.
        out : ndarray, optional
            Where to put the result.

        Returns
        -------
        DistArray
            A new one, or `out`.

        Raises
        ------
        InputError, SliceError
            On all ranks: an array does not fit; a number is too large for ``exchange="f4"``.
        """
        self._plan._check_in_use()
        problem: str | Exception | None = self.source.problem(array, "an input")
        result: Any = out
        if out is None:
            try:
                result = self.target.empty()
            except Exception as error:  # perhaps on this rank alone
                problem = error
        elif problem is None:
            problem = self.target.target_problem(out, "out")
            if problem is None and np.may_share_memory(array, out):
                problem = "expected out to share no memory with an input, received arrays that do"
        if problem is not None:
            self._kind.refuse(problem if isinstance(problem, Exception) else InputError(problem))
        given, made = np.asarray(array), np.asarray(result)
        # Compiled code needs aligned elements; views of records may have none.
        if not given.flags.aligned:
            given = given.copy()
        target = made if made.flags.aligned else np.empty(made.shape, made.dtype)
        arrays = [one if self._plan._batch else one[None] for one in (given, target)]
        try:
            call = self._schedules.of(self._record, arrays).call(self._kind)
        except Exception as error:  # perhaps on this rank alone
            self._kind.refuse(error)
        call.make(addresses_of(arrays))
        if target is not made:
            made[...] = target
        return result

    def _record(self, located: Sequence[ArrayReference]) -> Schedule:
        tables: list[CopyTable] = []
        keys, nothing = self._plan._keys, [0] * self._plan.runtime.workers  # no scratch memory
        schedule = Schedule(keys, self._steps(located[0], located[1], tables), nothing, self._depth)
        schedule.kept = tables
        return schedule

    def _steps(
        self, source: ArrayReference, target: ArrayReference, tables: list[CopyTable]
    ) -> Iterator[list[AnyStep]]:
        """Yield the steps of every slice; add the tables to which they refer."""
        plan, crossing, overflow = self._plan, self._crossing, self._plan._overflow
        keys: list[Any] = plan._keys
        dtype = dtype_sent(plan.dtype, plan.exchange)
        for number, key in enumerate(keys):
            send, receive = self._slots[number % self._depth]
            entries = length_of(key[-1])
            given, made = (one.part(one.array[key]) for one in (source, target))
            packing = crossing.packing(given.array, dtype, entries, overflow)
            unpacking = crossing.unpacking(made.array, dtype, entries)
            tables += [packing, unpacking]
            bases = np.zeros(BASES, np.int64)
            bases[[SOURCE, TARGET, SEND, RECEIVE]] = given.address, made.address, send.address, receive.address
            steps: list[AnyStep] = [Run(packing.program([SOURCE], [SEND, RECEIVE]), bases, "pack")]
            if overflow is not None:
                steps.append(Call(lambda addresses: overflow.check(), "check what was rounded"))
            if plan.comm.size > 1:
                if entries not in self._messages:
                    self._messages[entries] = TransposeMessage(crossing.counts(entries), dtype)
                steps.append(Exchange(plan._comm, self._messages[entries], send, receive))
            steps.append(Run(unpacking.program([SOURCE, RECEIVE], [TARGET]), bases, "unpack"))
            yield steps

    def pack(self, source: np.ndarray, slot: tuple[np.ndarray, np.ndarray]) -> None:
        """Fill a slot with entries, before `operation` is awaited.

        Parameters
        ----------
        source : ndarray
            An entry's local part, or several of them along a first axis.
        slot : tuple of ndarray
            From `Transpose.buffers`.

        Raises
        ------
        InputError
            In the slice: an array or a slot does not fit, or a number is too large for ``exchange="f4"``.
        """
        entries = self._several(source, 0)
        self._fits(slot, len(entries))
        self._crossing.pack(entries, *slot, len(entries), self._plan._overflow)

    def operation(self, slot: tuple[np.ndarray, np.ndarray], entries: int = 1) -> Operation:
        """Return the exchange of `entries` entries, to be awaited or started; for a skeleton, too.

        Parameters
        ----------
        slot : tuple of ndarray
        entries : int

        Returns
        -------
        Operation

        Raises
        ------
        InputError
            In the slice: the slot has no room for this number of entries.
        """
        self._fits(slot, entries)
        return self._plan._comm.Alltoallv(*self._crossing.messages(*slot, entries))

    def unpack(self, slot: tuple[np.ndarray, np.ndarray], target: np.ndarray) -> None:
        """Store the entries that `operation` has received, as many as were packed.

        Parameters
        ----------
        slot : tuple of ndarray
        target : ndarray
            The entry's local part, or those of several along a first axis.

        Raises
        ------
        InputError
            In the slice: an array or a slot does not fit.
        """
        entries = self._several(target, 1)
        self._fits(slot, len(entries))
        self._crossing.unpack(slot[1], entries, len(entries))

    @of_slices
    async def apply(self, source: np.ndarray, target: np.ndarray, slot: tuple[np.ndarray, np.ndarray]) -> None:
        """Move entries, for slice programs: awaits one exchange; see `pack` and `unpack`.

        Parameters
        ----------
        source, target : ndarray
            An entry's local parts before and after, or those of several along a first axis.
        slot : tuple of ndarray

        Raises
        ------
        InputError
            In the slice: see `pack` and `unpack`.
        """
        self.pack(source, slot)
        await self.operation(slot, len(self._several(source, 0)))
        self.unpack(slot, target)

    def release(self) -> None:
        """Drop the buffers."""
        self._slots = None
        self._schedules.forget()

    def _title(self) -> str:
        return (
            f"TransposeDirection {self._name}: {self.source.global_shape} {self._plan.dtype}, split along "
            f"{self.source.axes}, to one split along {self.target.axes}"
        )

    def _has_ended(self) -> bool:
        return self._plan._has_ended()

    def _described(self) -> str:
        """Return how the direction runs, as text."""
        sent, chunk = self._crossing.sizes[0] * self._plan.dtype.itemsize, self._plan._chunk
        return (
            f"{self._name}: {len(self._plan._keys)} message(s) of at most {chunk} entries, {sent * chunk} bytes from "
            f"this rank; wait {self._kind.wait}, depth {self._depth}"
        )

    def _several(self, array: np.ndarray, side: int) -> np.ndarray:
        """Return one entry or several as an array of several entries."""
        shape, dtype = self._entry_shapes[side], self._plan.dtype
        if isinstance(array, np.ndarray) and array.dtype == dtype:
            if array.shape == shape:
                return np.asarray(array)[None]
            if array.shape[1:] == shape:
                return np.asarray(array)
        raise InputError(
            f"expected entries of local shape {shape}, or some of them along a first axis, of dtype {dtype}, received "
            f"{getattr(array, 'shape', None)} and {getattr(array, 'dtype', type(array).__name__)}"
        )

    def _fits(self, slot: Any, entries: int) -> None:
        """Raise an error if `slot` has no room for `entries` entries, since MPI would read or write beyond it."""
        self._plan._check_in_use()
        if problem := count_problem("entries", entries):
            raise InputError(problem)
        needed, kind = self._crossing.sizes, dtype_sent(self._plan.dtype, self._plan.exchange)
        if not (
            isinstance(slot, tuple)
            and [getattr(buffer, "dtype", None) for buffer in slot] == [kind, kind]
            and all(buffer.ndim == 1 and len(buffer) >= entries * size for buffer, size in zip(slot, needed))
        ):
            raise InputError(f"expected a slot of Transpose.buffers({entries}), received {shown(slot)}")


class TransposeMessage:
    """The places of the pieces that a slice of a `Transpose` sends and receives, as those of a `Message`."""

    def __init__(self, counts: Sequence[Sequence[int]], dtype: np.dtype) -> None:
        # Elements of any type, as so many numbers of the longest type of MPI that divides them.
        nbytes = next(length for length in (8, 4, 2, 1) if dtype.itemsize % length == 0)
        self.mpi_type = mpi_type(f"i{nbytes}")
        times = dtype.itemsize // nbytes
        self.counts_sent, self.counts_received = ([times * count for count in some] for some in counts)
        self.starts_sent, self.starts_received = map(starts_of, (self.counts_sent, self.counts_received))


def _place(comm: Any, lengths: tuple[int, ...], name: str, split: Split) -> tuple[Distribution, dict[str, Any]]:
    """Return the distribution of arrays of a shape, and the values of it that must be equal on all ranks."""
    if not isinstance(split, Mapping):
        split = {"axes": split}
    if "axes" not in split or not set(split) <= {"axes", "grid", "weights", "shares"}:
        raise InputError(f"{name}: expected a dict with axes, grid, weights or shares, received {shown(split)}")
    whole = Distribution(lengths, (), tuple(slice(0, length) for length in lengths))
    try:
        return split_as(comm, whole, **split)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None


def _problem(shape: Any, dtype: Any) -> str | None:
    """Return what is wrong with the global shape or the data type, or None."""
    lengths = integers(shape)
    if not lengths or min(lengths) < 0:
        return f"expected a shape of one integer >= 0 or more, received {shown(shape)}"
    try:
        kind = np.dtype(dtype)
        good = kind.itemsize > 0 and not kind.hasobject and kind.subdtype is None
    except Exception:  # a bad text can be a SyntaxError, among others
        good = False
    return None if good else f"expected a dtype of numbers or records of them, received {shown(dtype)}"
