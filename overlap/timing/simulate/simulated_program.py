"""Simulated programs, whose slices compute, exchange, compute, ..., and those of the plans.

A slice here is the content of one slot: a chunk of the user's slices that travel in one message, as in `overlap.fft`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ...arrays import Weights, block, chunks, length_of
from ...checks import choice_problem, integer_problem, number_problem
from ...errors import InputError, repr_of
from ...runtime.trace import Span
from .machine import Machine, numbers_problem, refuse

_OF_SLICE = re.compile(r"\bslice (\d+)$")  # end of the labels of steps and exchanges
WORKLOADS = {"fft2": ("f4", "f8", "c8", "c16"), "operation": ("f4", "f8")}  # and their data types


@dataclass(frozen=True, slots=True)
class SimulatedTransfer:
    """The part of one rank in an all-to-all.

    Attributes
    ----------
    nbytes : float
        Bytes sent to all other ranks together.
    messages : int
        Number of ranks with which it exchanges messages.

    Examples
    --------
    >>> from overlap.timing.simulate import Machine, Options, Program, SimulatedTransfer, simulate
    >>> machine = Machine(name="mine", fft_flops=4e9, copy_Bps=5e9, latency_s=1e-5, bandwidth_Bps=1e9)
    >>> transfer = SimulatedTransfer(nbytes=1e6, messages=1)
    >>> program = Program(steps=((1e-3, 1e-3),) * 16, transfers=((transfer,),) * 16)  # compute, exchange, compute
    >>> simulate(program, machine, Options(ranks=2)).wall_s > 16e-3
    True
    """

    nbytes: float
    messages: int


@dataclass(frozen=True, slots=True)
class Program:
    """The program of one rank: slices, each of which computes, exchanges, computes, ...

    Attributes
    ----------
    steps : tuple of tuple of float
        For each slice, the seconds that one thread computes before, between and after the exchanges.
    transfers : tuple of tuple of SimulatedTransfer
        For each slice its exchanges, one fewer than its steps.

    Raises
    ------
    InputError
        Steps and transfers do not fit, or a time or size is negative or not finite.

    Examples
    --------
    >>> from overlap.timing.simulate import Program, SimulatedTransfer
    >>> transfer = SimulatedTransfer(nbytes=1e6, messages=1)
    >>> program = Program(steps=((1e-3, 1e-3),) * 16, transfers=((transfer,),) * 16)  # compute, exchange, compute
    >>> round(program.compute_s, 6)
    0.032
    """

    steps: tuple[tuple[float, ...], ...]
    transfers: tuple[tuple[SimulatedTransfer, ...], ...]

    def __post_init__(self) -> None:
        if len(self.steps) != len(self.transfers):
            raise InputError(f"transfers: expected those of {len(self.steps)} slices, received {len(self.transfers)}")
        for steps, transfers in set(zip(self.steps, self.transfers)):
            if len(steps) != len(transfers) + 1:
                raise InputError(
                    f"steps: expected one more than the {len(transfers)} exchanges "
                    f"of their slice, received {len(steps)}"
                )
            for value in (
                *steps,
                *(number for transfer in transfers for number in (transfer.nbytes, transfer.messages)),
            ):
                if not 0 <= value < math.inf:
                    raise InputError(f"steps, transfers: expected finite numbers >= 0, received {value}")

    @classmethod
    def alike(cls, slices: int, steps: Sequence[float], transfers: Sequence[SimulatedTransfer]) -> Program:
        """Make a program of `slices` slices that are all alike.

        Parameters
        ----------
        slices : int
        steps : sequence of float
            Seconds of one slice before, between and after its exchanges.
        transfers : sequence of SimulatedTransfer
            The exchanges of one slice.

        Returns
        -------
        Program
        """
        return cls((tuple(steps),) * slices, (tuple(transfers),) * slices)

    @classmethod
    def of_trace(cls, spans: Iterable[Span], machine: Machine, rank: int = 0) -> Program:
        """Make the program of one call of a slice program, from its trace on one rank.

        Trace a call with ``wait="off"``, so that no time contains waiting for other slices, and clear the trace before
        it. An exchange gets the bytes that the machine sends in the time that it took.

        Parameters
        ----------
        spans : iterable of Span
            From `Trace.gather`, or `timeline.read_chrome`.
        machine : Machine
            The machine on which the call was traced.
        rank : int, optional

        Returns
        -------
        Program

        Raises
        ------
        InputError
            The spans are not those of one call of a slice program.
        """
        slices: dict[int, list[Span]] = {}
        for span in sorted(spans, key=lambda span: span.start_s):
            named = _OF_SLICE.search(span.label)
            if named and span.rank == rank and span.kind != "call":
                slices.setdefault(int(named[1]), []).append(span)
        kinds = {"compute": 0, "communicate": 1}
        if not slices or any(kinds[span.kind] != at % 2 for own in slices.values() for at, span in enumerate(own)):
            raise InputError(
                f"spans: expected those of one call of a slice program on rank {rank}, in which each slice computes, "
                f"exchanges, computes, ...; received {len(slices)} slices"
            )
        steps, transfers = [], []
        for _, own in sorted(slices.items()):
            times = [span.end_s - span.start_s for span in own]
            steps.append(tuple(times[0::2]))
            sent = [max(0.0, seconds - machine.latency_s) * machine.bandwidth_Bps for seconds in times[1::2]]
            transfers.append(tuple(SimulatedTransfer(nbytes, 1) for nbytes in sent))
        return cls(tuple(steps), tuple(transfers))

    def scaled(self, factor: float) -> Program:
        """Return a program with the same exchanges, whose computing takes `factor` times as long.

        Parameters
        ----------
        factor : float

        Returns
        -------
        Program
        """
        if factor == 1:
            return self
        return Program(tuple(tuple(factor * seconds for seconds in steps) for steps in self.steps), self.transfers)

    @property
    def compute_s(self) -> float:
        """Return the seconds that one thread would compute in all."""
        return math.fsum(map(math.fsum, self.steps))


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A job of the library's plans, described by the arguments of `FFT2`.

    Attributes
    ----------
    workload : {"fft2", "operation"}
        A forward transform of each slice; or four fields from spectral to real space, their
        product, and one field back (`FFT2.pointwise`).
    slices : int
    shape : tuple of int
        Global ``(ny, nx)`` of a slice in real space.
    dtype : str
        The data type in real space.

    Raises
    ------
    InputError
        A value is out of its range.

    Examples
    --------
    >>> from overlap.timing.simulate import Machine, Workload
    >>> machine = Machine(name="mine", fft_flops=4e9, copy_Bps=5e9, latency_s=1e-5, bandwidth_Bps=1e9)
    >>> program = Workload(workload="operation", slices=16, shape=(256, 256), dtype="f8").program(4, machine)
    >>> len(program.steps)
    16
    """

    workload: str = "fft2"
    slices: int = 64
    shape: tuple[int, int] = (512, 512)
    dtype: str = "c16"

    def __post_init__(self) -> None:
        refuse(choice_problem("workload", self.workload, WORKLOADS, listed=False))
        refuse(
            choice_problem(f"dtype of {self.workload}", self.dtype, WORKLOADS[self.workload], listed=False),
            integer_problem("slices", self.slices, 1),
        )
        if not isinstance(self.shape, Sequence) or len(self.shape) != 2:
            raise InputError(f"expected shape to be (ny, nx), received {repr_of(self.shape)}")
        refuse(*(integer_problem("shape", length, 1) for length in self.shape))

    def program(
        self,
        ranks: int,
        machine: Machine,
        *,
        rank: int = 0,
        chunk: int = 1,
        compute_s: float | None = None,
        workers: int = 1,
        weights: Weights = None,
    ) -> Program:
        """Make the program of one of `ranks` ranks. With even shares rank 0 has the most work.

        Parameters
        ----------
        ranks, rank : int
        machine : Machine
            Gives the speed of local FFTs.
        chunk : int
            Slices per message, at most.
        compute_s : float, optional
            C of all slices of this rank with `workers` workers, if it was measured. It is divided among the steps in
            proportion to the operations of their FFTs.
        workers : int
        weights : tuple of numbers, optional
            One per rank; shares are proportional to them.

        Returns
        -------
        Program

        Raises
        ------
        InputError
            A value is out of its range.
        """
        refuse(
            integer_problem("ranks", ranks, 1),
            integer_problem("chunk", chunk, 1),
            integer_problem("workers", workers, 1),
            None if compute_s is None else number_problem("compute_s", compute_s),
        )
        refuse(
            integer_problem("rank", rank, 0, ranks - 1),
            None if weights is None else numbers_problem("weights", weights, ranks),
        )
        sweeps, transfers = self._slice(ranks, rank, weights)
        if compute_s is None:
            # Threads share caches and memory bandwidth, so each of them takes longer.
            seconds_per_flop = (
                workers / machine.threads.speedup(workers, math.prod(self.shape) / ranks) / machine.fft_flops
            )
        else:
            seconds_per_flop = workers * compute_s / (self.slices * (sum(sweeps) or 1))
        steps, exchanges = [], []
        for part in chunks(self.slices, chunk):
            count = length_of(part)
            steps.append(tuple(count * flops * seconds_per_flop for flops in sweeps))
            exchanges.append(tuple(SimulatedTransfer(count * nbytes, messages) for nbytes, messages in transfers))
        return Program(tuple(steps), tuple(exchanges))

    def flops(self, ranks: int, rank: int = 0) -> list[tuple[float, ...]]:
        """Count the FFT operations of every step of every slice, as 5 n log2 n."""
        return [self._slice(ranks, rank)[0]] * self.slices

    def _slice(
        self, ranks: int, rank: int, weights: Weights = None
    ) -> tuple[tuple[float, ...], tuple[tuple[float, int], ...]]:
        """Return, of one slice, the operations of each step and the bytes sent and partners of each exchange."""
        ny, nx = self.shape
        real = np.dtype(self.dtype).kind != "c"
        itemsize = np.result_type(self.dtype, "c8").itemsize
        width = nx // 2 + 1 if real else nx
        rows, columns = (length_of(block(length, ranks, weights)[rank]) for length in (ny, width))
        row_sweep = rows * _flops(nx) / (2 if real else 1)
        column_sweep = columns * _flops(ny)
        # Empty pieces are not sent, so a rank has no more partners than there are pieces that are not empty.
        partners = max(min(ranks, width) if rows else 1, min(ranks, ny) if columns else 1) - 1
        forward = rows * (width - columns) * itemsize, partners
        if self.workload == "fft2":
            return (row_sweep, column_sweep), (forward,)
        backward = 4 * columns * (ny - rows) * itemsize, partners
        return (4 * column_sweep, 5 * row_sweep, column_sweep), (backward, forward)


def _flops(n: int) -> float:
    """Return the operations of a complex FFT of n points, counted as 5 n log2 n."""
    return 5 * n * math.log2(n) if n > 1 else 0.0
