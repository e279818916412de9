"""`Schedule`: the steps of all slices of a plan's call, as the tables of the compiled loop, for arrays of one kind.

A schedule is recorded once for each kind of arrays (strides and alignment) and serves all arrays of that kind, whose
addresses are passed with each call: while it is recorded, each array has a placeholder address without memory, so every
address is an offset from the beginning of array *k*. `Schedule.call` makes a call of it; `str` prints it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ...compiled.copy_table import WIDTH
from ...compiled.memory import address_of, line_zeros
from ...compiled.mpi import handle_of
from ...runtime.loop import words as w
from ...runtime.plan_call import CallKind, PlanCall
from ...runtime.requests.requests import TakeTurn, WaitForSlices
from .fftw import REQUIRED_ALIGNMENT
from .message import Message
from .program import ArrayReference
from .steps import Call, Exchange, Run, Split

KINDS = 8  # kinds of arrays whose schedules are kept
_FAR = 48  # bits of an address; placeholder addresses begin beyond


class _Recording:
    """What a schedule's tables are made of."""

    def __init__(self, slices: Iterable[Iterable[Any]]) -> None:
        self.codes: list[np.ndarray] = []  # the programs, each once
        self.rows: list[Sequence[int]] = []
        self.row_slices: list[int] = []  # the slice of every row
        self.functions: list[tuple[Callable[[Any], None], int]] = []  # each with its slice
        self.exchanges: list[tuple[Exchange, int]] = []
        self.exchange_words: list[Sequence[int]] = []
        self.kept: list[Any] = []  # what the words refer to
        self._starts: dict[int, int] = {}  # start of every program in the code, by its `id`
        self._begun = 0
        self._arguments: dict[int, list[int]] = {}  # words of every message, by its `id`
        # For every slice, its items and their descriptions.
        self.slices = [
            [item for step in steps for item in self._items(number, step)] + [((w.END, number, 0), "")]
            for number, steps in enumerate(slices)
        ]

    def _items(self, number: int, step: Any) -> list[tuple[tuple[int, int, int], str]]:
        """Record a step of a slice; return its items, with descriptions."""
        if isinstance(step, Run):
            return [((w.RUN, self._row(number, step), 0), step.label)] if len(step.code) else []
        if isinstance(step, Split):
            rows = [self._row(number, part) for part in step.parts if len(part.code)]
            if not rows:
                return []
            return [((w.SPLIT, rows[0], rows[-1] + 1), f"{step.parts[0].label} in {len(rows)} parts, on all workers")]
        if isinstance(step, Exchange):
            self.exchanges.append((step, number))
            self.exchange_words.append(
                [*_located(step.send.address), *_located(step.receive.address), *self._message(step.message, step.comm)]
            )
            return [((w.EXCHANGE, len(self.exchanges) - 1, 0), f"Alltoallv on communicator {step.comm.number}")]
        if isinstance(step, Call):
            self.functions.append((step.function, number))
            return [((w.CALL, len(self.functions) - 1, 0), step.label)]
        if isinstance(step, WaitForSlices):
            return [((w.WAIT, step.start, step.stop), str(step))]
        assert isinstance(step, TakeTurn)
        return [((w.TURN, 0, 0), str(step))]

    def _row(self, number: int, run: Run) -> int:
        code = run.code
        start = self._starts.get(id(code))
        if start is None:
            start = self._starts[id(code)] = self._begun
            self.codes.append(code)
            self._begun += len(code)
        bases = [word for address in map(int, run.bases) for word in _located(address)]
        self.rows.append([start, start + len(code), *bases])
        self.row_slices.append(number)
        return len(self.rows) - 1

    def _message(self, message: Message, comm: Any) -> list[int]:
        """Return the words of an exchange after its buffers."""
        words = self._arguments.get(id(message))
        if words is None:
            own = [
                np.array(values, np.intc)
                for values in (
                    message.counts_sent,
                    message.starts_sent,
                    message.counts_received,
                    message.starts_received,
                )
            ]
            self.kept += [own, message]
            words = self._arguments[id(message)] = [*map(address_of, own), handle_of(message.mpi_type)]
        return [*words, comm.word.buffer_info()[0]]


class Schedule:
    """The steps of a call for arrays of one kind."""

    def __init__(
        self,
        labels: Sequence[Any],  # names of the slices
        slices: Iterable[Iterable[Any]],  # the steps of each slice, with `stand_ins` for the call's arrays
        scratch: Sequence[int],  # addresses of every worker's scratch memory
        depth: int,  # slots
    ) -> None:
        recording = self._recording = _Recording(slices)
        self._labels = labels
        self._depth = depth = max(1, min(depth, len(recording.slices)))
        of_slots = [[item for items in recording.slices[slot::depth] for item, _ in items] for slot in range(depth)]
        ends = np.cumsum([0, *map(len, of_slots)])
        turns = [sum(item[w.KIND] in (w.EXCHANGE, w.TURN) for item in items) for items in of_slots]
        visits = [slot for turn in range(max(turns, default=0)) for slot in range(depth) if turn < turns[slot]]
        self._items = _table([item for items in of_slots for item in items], w.ITEM_WORDS)
        self._tables = (
            np.concatenate([np.zeros((0, WIDTH), np.int64), *recording.codes]),
            _table(recording.rows, w.ROW_WORDS),
            _table(recording.exchange_words, w.EXCHANGE_WORDS),
            self._items,
            _table(zip(ends[:-1].tolist(), ends[1:].tolist()), w.BOUND_WORDS),
            np.array(visits, np.int64),
            np.array(scratch, np.int64),
        )
        self._calls: dict[CallKind, PlanCall] = {}
        self.kept: Any = None  # memory to which the programs refer and nothing else

    def __str__(self) -> str:
        lines = []
        for label, items in zip(self._labels, self._recording.slices):
            lines.append(f"{label}: " + "; ".join(text for _, text in items if text))
        return "\n".join(lines)

    def call(self, kind: CallKind) -> PlanCall:
        """Return the calls of a kind with this schedule."""
        call = self._calls.get(kind)
        if call is None:
            recording = self._recording
            call = self._calls[kind] = PlanCall(
                kind,
                self._listed,
                self._items,
                self._depth,
                self._labels,
                recording.functions,
                recording.exchanges,
                recording.row_slices,
            )
        return call

    def _listed(self, mpi: np.ndarray, state: np.ndarray) -> tuple[Any, np.ndarray]:
        """Return a list of tables for a call, whose memory it keeps alive, and the slots' words."""
        slots = line_zeros(8 * w.SLOT_WORDS * self._depth).view(np.int64).reshape(-1, w.SLOT_WORDS)
        ended = np.zeros(len(self._recording.slices), np.int64)
        return _Listed((*self._tables, mpi, state, slots, ended)), slots


class Schedules:
    """The schedules of a plan's calls, each recorded for the first arrays of its kind."""

    def __init__(self) -> None:
        self._made: dict[Any, Schedule] = {}

    def of(
        self, record: Callable[[list[ArrayReference]], Schedule], arrays: Sequence[np.ndarray], *also: Any
    ) -> Schedule:
        """Return the schedule of calls with arrays like these; ``record(arrays)`` makes it for located arrays."""
        kind = also, kind_of(arrays)
        schedule = self._made.get(kind)
        if schedule is None:
            if len(self._made) >= KINDS:
                del self._made[next(iter(self._made))]
            schedule = self._made[kind] = record(stand_ins(arrays))
        return schedule

    def forget(self) -> None:
        """Forget all schedules, which are not valid any more."""
        self._made.clear()

    def __len__(self) -> int:
        return len(self._made)


class _Listed:
    """Addresses and lengths of tables, which it keeps alive."""

    def __init__(self, tables: Sequence[np.ndarray]) -> None:
        self.tables = tables
        self.words = np.array([(address_of(table), len(table)) for table in tables], np.int64)


def _table(rows: Iterable[Iterable[int]], width: int) -> np.ndarray:
    """Return rows of words as a table; handles of MPI may be unsigned."""
    words = [word % 2**64 for row in rows for word in row]
    return np.array(words, np.uint64).view(np.int64).reshape(-1, width)


def _located(address: int) -> tuple[int, int]:
    """Return an address as the two words of a base."""
    which = _number_of(address)
    return (w.FIXED, address) if which is None else (which, address - stand_in(which))


def stand_ins(arrays: Sequence[np.ndarray]) -> list[ArrayReference]:
    """Return a call's arrays with placeholder addresses, so that the recorded steps serve all arrays of their kind."""
    return [
        ArrayReference(array, stand_in(number) + address_of(array) % REQUIRED_ALIGNMENT)
        for number, array in enumerate(arrays)
    ]


def addresses_of(arrays: Iterable[np.ndarray]) -> array[int]:
    """Return the addresses of a call's arrays, for its schedule: rounded down to FFTW's alignment."""
    return array("q", [address_of(given) & -REQUIRED_ALIGNMENT for given in arrays])


def kind_of(arrays: Iterable[np.ndarray]) -> tuple[Any, ...]:
    """Return the kind of a call's arrays, on which its schedule depends."""
    return tuple((array.strides, address_of(array) % REQUIRED_ALIGNMENT) for array in arrays)


def stand_in(number: int) -> int:
    """Return the placeholder address for the beginning of the call's array `number`."""
    return (number + 1) << _FAR


def _number_of(address: int) -> int | None:
    """Return the number of the array to which a placeholder address belongs; None for a real address."""
    number = (address + (1 << _FAR - 1)) >> _FAR
    return None if number == 0 else number - 1
