"""`Schedule`: the steps of all slices of a plan's call, as data, for arrays of one kind.

A schedule is recorded once for each kind of arrays (strides and alignment) and serves all arrays of that kind, whose
addresses are passed with each call. It has three uses:

* `Schedule.slice` is the program of one slice for a pipeline: a generator that computes, and yields the requests that
  the pipeline issues or waits for. Without computing it drains a rank that has failed, and measures T; without
  exchanges it measures C;
* `Schedule.whole_call` has compiled code make the whole call (`compiled_call`) if nothing is hidden;
* `str` prints it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from types import coroutine
from typing import TYPE_CHECKING, Any

import numpy as np

from ...lowlevel.copy_table import WIDTH
from ...lowlevel.memory import address_of
from ...lowlevel.mpi import handle_of, memory_at
from ...runtime import parallel, worker_index
from ...runtime.requests.operations import label_of
from ...runtime.requests.requests import WaitForSlices
from ...runtime.scheduling.whole_call import WholeCall
from .buffers import ArrayReference
from .compiled_call import (
    BASE,
    EXCHANGE,
    EXCHANGE_WORDS,
    FIXED,
    NO_EXCHANGE,
    PROGRAM,
    ROW_WORDS,
    STOP,
    execute_call,
    execute_rows,
)
from .fftw import REQUIRED_ALIGNMENT
from .program import BASES, RECEIVE, SEND
from .steps import Call, Exchange, Run, Split

if TYPE_CHECKING:
    from ...runtime.pipeline import Pipeline
    from ...runtime.requests.operations import Operation, Request

KINDS = 8  # kinds of arrays whose schedules are kept
_FAR = 48  # bits of an address; placeholder addresses begin beyond


class ScheduleRows:
    """Consecutive computing rows of a schedule."""

    __slots__ = ("first", "label", "stop")

    def __init__(self, row: int, label: str) -> None:
        self.first, self.stop, self.label = row, row + 1, label

    def __str__(self) -> str:
        return self.label

    def append(self, label: str) -> None:
        """Add the next row."""
        self.stop += 1
        if label not in self.label.split(", "):
            self.label += f", {label}"


class Parts(list[ScheduleRows]):
    """Rows that several workers share."""

    def __str__(self) -> str:
        return f"{self[0].label} in {len(self)} parts, on all workers"


class Issue:
    """An exchange of a slice; the call's arrays, by number, from which it sends and into which it receives, or None."""

    __slots__ = ("_fixed", "exchange", "receive", "send", "slice")

    def __init__(self, number: int, exchange: Exchange) -> None:
        self.slice, self.exchange = number, exchange
        self.send, self.receive = (_number_of(side.address) for side in (exchange.send, exchange.receive))
        self._fixed = exchange.operation() if self.send is None and self.receive is None else None

    def __str__(self) -> str:
        return f"Alltoallv on communicator {self.exchange.comm.number}"

    def operation(self, addresses: array[int]) -> Operation:
        """Make the operation for arrays at these addresses."""
        if self._fixed is not None:
            return self._fixed
        buffers = []
        for side, number in ((self.exchange.send, self.send), (self.exchange.receive, self.receive)):
            if number is not None:
                address = side.address - stand_in(number) + addresses[number]
                buffers.append(memory_at(address, side.array.nbytes))
            else:
                buffers.append(None)
        return self.exchange.operation(*buffers)


class _Recording:
    """The parts of a schedule while it is recorded.

    Attributes
    ----------
    slices : list of list
        For every slice, the items that Python code handles.
    codes : list of ndarray
        The programs, each once.
    rows : list of ndarray
    slice_of : list of int
        The slice of every row.
    exchanges : dict
        Row -> exchange.
    """

    def __init__(self, slices: Iterable[Iterable[Any]]) -> None:
        self.codes: list[np.ndarray] = []
        self.rows: list[np.ndarray] = []
        self.slice_of: list[int] = []
        self.exchanges: dict[int, Issue] = {}
        self._starts: dict[int, int] = {}  # start of every program in the code, by its `id`
        self._begun = 0
        self.slices = [self._listed(number, steps) for number, steps in enumerate(slices)]

    def _listed(self, number: int, steps: Iterable[Any]) -> list[Any]:
        """Record a slice; return the items that Python code handles."""
        listed: list[Any] = []
        for step in steps:
            if isinstance(step, Run):
                if not len(step.code):
                    continue
                row = self._row(number, step)
                if listed and type(listed[-1]) is ScheduleRows:
                    listed[-1].append(step.label)
                else:
                    listed.append(ScheduleRows(row, step.label))
            elif isinstance(step, Split):
                parts = Parts(
                    ScheduleRows(self._row(number, part), part.label) for part in step.parts if len(part.code)
                )
                if parts:
                    listed.append(parts)
            elif isinstance(step, Exchange):
                issue = Issue(number, step)
                bases = [0] * BASES
                bases[SEND], bases[RECEIVE] = step.send.address, step.receive.address
                self._add(bases, number)[EXCHANGE] = len(self.exchanges)
                self.exchanges[len(self.rows) - 1] = issue
                listed.append(issue)
            else:
                listed.append(step)
        return listed

    def _row(self, number: int, run: Run) -> int:
        code = run.code
        start = self._starts.get(id(code))
        if start is None:
            start = self._starts[id(code)] = self._begun
            self.codes.append(code)
            self._begun += len(code)
        row = self._add(run.bases, number)
        row[PROGRAM], row[STOP] = start, start + len(code)
        return len(self.rows) - 1

    def _add(self, bases: Iterable[int], number: int) -> np.ndarray:
        self.slice_of.append(number)
        row = np.zeros(ROW_WORDS, np.int64)
        row[EXCHANGE] = NO_EXCHANGE
        for base, address in enumerate(map(int, bases)):
            which = _number_of(address)
            row[BASE + 2 * base] = FIXED if which is None else which
            row[BASE + 2 * base + 1] = address - (0 if which is None else stand_in(which))
        self.rows.append(row)
        return row


class Schedule:
    """The steps of a call for arrays of one kind.

    Parameters
    ----------
    labels : sequence
        Names of the slices.
    slices : iterable of iterable of steps
        The steps of each slice (see `steps`), with `stand_ins` for the call's arrays.
    scratch : sequence of int
        Addresses of every worker's scratch memory.
    """

    def __init__(self, labels: Sequence[Any], slices: Iterable[Iterable[Any]], scratch: Sequence[int]) -> None:
        recording = _Recording(slices)
        self._labels, self._scratch = labels, scratch
        self._slices, self._slice_of, self._exchanges = recording.slices, recording.slice_of, recording.exchanges
        self._call: tuple[WholeCall, int] | None = None
        self._code = np.concatenate([np.zeros((0, WIDTH), np.int64), *recording.codes])
        self._table = np.array(recording.rows, np.int64).reshape(-1, ROW_WORDS)
        self._tables = _addresses_and_lengths((self._code, self._table))
        self._address = address_of(self._tables)

    def __str__(self) -> str:
        lines = []
        for label, steps in zip(self._labels, self._slices):
            lines.append(f"{label}: " + "; ".join(map(str, steps)))
        return "\n".join(lines)

    # ---- slice by slice --------------------------------------------------------------------------

    @coroutine
    def slice(self, number: int, addresses: array[int], compute: bool, exchange: bool) -> Generator[Request, Any, None]:
        """Run one slice, with or without computing, with or without exchanges and turns.

        Parameters
        ----------
        number : int
        addresses : array of int
            Addresses of the call's arrays.
        """
        arrays = addresses.buffer_info()[0]
        for step in self._slices[number]:
            kind = type(step)
            if kind is ScheduleRows:
                if compute:
                    self._execute(number, arrays, step)
            elif kind is Issue:
                if exchange:
                    yield step.operation(addresses)
            elif kind is Parts:
                if compute:
                    yield parallel(partial(self._execute, number, arrays), step)
            elif kind is Call:
                if compute:
                    step.function(addresses)
            elif compute if kind is WaitForSlices else exchange:
                yield step

    def _execute(self, number: int, arrays: int, rows: ScheduleRows) -> None:
        """Execute some rows of a slice, in any thread."""
        execute_rows(self._address, rows.first, rows.stop, arrays, self._scratch[worker_index()])

    # ---- all at once -----------------------------------------------------------------------------

    def whole_call(self, pipeline: Pipeline, addresses: array[int]) -> Callable[[], None] | None:
        """Return a function without arguments that makes the call in compiled code; its caller keeps the arrays alive.

        Returns
        -------
        callable or None
            None: the pipeline makes the call.
        """
        if self._call is None:
            self._call = self._prepared(pipeline)
            if self._call is None:
                return None
        call, tables = self._call
        arguments = tables, addresses.buffer_info()[0], self._scratch[0]

        def make(kept: array[int] = addresses) -> None:
            pipeline.make(call, execute_call, arguments)

        return make

    def _prepared(self, pipeline: Pipeline) -> tuple[WholeCall, int] | None:
        """Prepare the whole call; return it with the address of its tables, or None."""
        operations = [
            (row, self._labels[issue.slice], issue.exchange.on_scratch()) for row, issue in self._exchanges.items()
        ]
        call = pipeline.whole_call(len(self._slices), operations, self._spans)
        if call is None:
            return None
        words, kept = [], []
        for issue in self._exchanges.values():
            exchange = issue.exchange
            message = exchange.message
            own = [
                np.array(values, np.intc)
                for values in (
                    message.counts_sent,
                    message.starts_sent,
                    message.counts_received,
                    message.starts_received,
                )
            ]
            kept.append(own)
            words.append([*map(address_of, own), handle_of(message.mpi_type), exchange.comm.word.buffer_info()[0]])
        exchanges = np.array(words, np.uint64).reshape(-1, EXCHANGE_WORDS).view(np.int64)
        tables = self._code, self._table, exchanges, call.mpi, call.state
        listed = _addresses_and_lengths(tables)
        call.kept = kept, tables, listed  # kept alive for MPI and compiled code
        # Compiled code is loaded here, where a failure on one rank is reported to all.
        empty = [np.zeros_like(call.state) if table is call.state else table[:0] for table in tables]
        nothing = _addresses_and_lengths(empty)
        execute_call(address_of(nothing), 0, 0)
        return call, address_of(listed)

    def _spans(self) -> list[tuple[str, str]]:
        """List kind and label of every row, for a trace."""
        spans = []
        for row, number in enumerate(self._slice_of):
            label, issue = self._labels[number], self._exchanges.get(row)
            spans.append(("compute", f"slice {label}") if issue is None else ("communicate", label_of(issue, label)))
        return spans


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


def _addresses_and_lengths(tables: Sequence[np.ndarray]) -> np.ndarray:
    return np.array([(address_of(table), len(table)) for table in tables], np.int64)
