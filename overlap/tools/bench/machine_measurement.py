"""Measures a machine for the simulation, on ranks of that machine; two ranks on different hosts are enough.

Each number is measured by a small program; none of these programs is a pipeline that is predicted later.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from time import perf_counter, sleep, thread_time
from typing import Any, Self

import numpy as np
from mpi4py import MPI

from ...errors import InputError
from ...fft import FFT2
from ...fft.engine.fftw import zeros
from ...fft.engine.lines import LineTransform
from ...runtime import Runtime
from ...runtime.scheduling.host import WakeEvent
from ...runtime.threads.workers import set_exact_timers, take_short_slices
from ...timing.messages import fit_message_time
from ...timing.simulate import Machine, Workload
from ...timing.thread_scaling import ThreadScaling
from .rounds import medians, seconds_of, timed

LARGE = 1 << 18, 1 << 19, 1 << 20, 1 << 21  # bytes per message
ROUNDS = 5
SERIES_ROUNDS = 3  # of a series of exchanges
PLANE = 512, 512
WORK_S = 0.25
PAUSE_S = 1e-3
POLL_EVERY_S = 200e-6
THREADED_PLANES = 64, 128, 256, 512  # points along each axis
THREADED_POINTS = 1 << 21  # points of a batch of such planes

Times = dict[tuple[int, float], float]  # seconds of an exchange, by the bytes of a message and the pause before


def measure_machine(comm: MPI.Intracomm, name: str, burst_nbytes: int = 0) -> Machine:
    """Measure the machine. Collective; every rank returns the same.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
    name : str
    burst_nbytes : int
        The size of the links' token bucket, which cannot be measured here.

    Returns
    -------
    Machine

    Raises
    ------
    InputError
        There is only one rank.
    """
    if comm.size < 2:
        raise InputError("expected at least 2 ranks to measure a network, received 1")
    series = [exchange_times(comm)]  # others follow later: what disturbs this one may have ended by then
    work = _Work()
    message_s, byte_s = _core_time(comm, work)
    series.append(exchange_times(comm))
    hosts = len(set(comm.allgather(MPI.Get_processor_name())))
    values = dict(
        fft_flops=_fft_flops(comm),
        byte_s=byte_s if hosts > 1 else 0.0,
        jitter=_jitter(comm, work),
        operation_s=_operation_s(),
        poll_s=_poll_s(),
        wake_s=_wake_s(),
        threads=_threads(comm),
    )
    series.append(exchange_times(comm))
    latency_s, bandwidth_Bps = link_of(series, comm.size - 1, burst_nbytes)
    # This time includes polls and wake-ups, which the simulation counts separately.
    message_s = min(message_s, 0.5 * latency_s)
    values |= dict(
        copy_Bps=_copy_Bps() if hosts > 1 else bandwidth_Bps,
        latency_s=latency_s - message_s,
        bandwidth_Bps=bandwidth_Bps,
        message_s=message_s,
    )
    values = comm.bcast(values)
    return Machine(name=name, burst_nbytes=float(burst_nbytes), ranks_per_node=comm.size // hosts, **values)


def _timed(comm: MPI.Intracomm, function: Callable[[], object], rounds: int = ROUNDS) -> float:
    """Return the median over the rounds of the slowest rank's time, in seconds."""
    return median([timed(comm, function) for _ in range(rounds + 1)][1:])


def exchange_times(comm: MPI.Intracomm) -> Times:
    """Time exchanges of one byte and of large messages, one after the other and after pauses: one short series.

    Collective; the same on all ranks.
    """

    def exchanges(nbytes: int, pause_s: float) -> Callable[[], None]:
        buffers = _two_buffers(comm, nbytes)

        def run() -> None:
            for _ in range(_repeats(nbytes)):
                until = perf_counter() + pause_s
                while perf_counter() < until:
                    pass
                comm.Alltoallv(*buffers)

        return run

    keys = [(1, 0.0), *((nbytes, pause_s) for nbytes in LARGE for pause_s in (0.0, PAUSE_S))]
    seconds = medians(seconds_of(comm, {key: exchanges(*key) for key in keys}, SERIES_ROUNDS, warm=0))
    return {(nbytes, pause_s): seconds[nbytes, pause_s] / _repeats(nbytes) - pause_s for nbytes, pause_s in keys}


def _repeats(nbytes: int) -> int:
    return min(400, max(16, (16 << 20) // nbytes))


def link_of(series: Sequence[Times], others: int, burst_nbytes: int = 0) -> tuple[float, float]:
    """Find latency and bandwidth from several series of `exchange_times`.

    Other work of the machine only makes exchanges longer, and may do so for as long as a series takes: the shortest of
    the series' times counts. The bandwidth is fitted to the times of large exchanges. The latency is the remaining time
    of an exchange that follows a pause, as between two steps of a program; by then the token bucket has spent its
    credit.

    Parameters
    ----------
    series : sequence of dict
    others : int
        Number of ranks to which each rank sends.
    burst_nbytes : int
        Size of the token bucket.

    Returns
    -------
    latency_s, bandwidth_Bps : float
        The bandwidth is finite.
    """
    times_s = {key: min(one[key] for one in series) for key in series[0]}
    sizes, in_a_row_s = [nbytes * others for nbytes in LARGE], [times_s[nbytes, 0.0] for nbytes in LARGE]
    bandwidth_Bps = fit_message_time(sizes, in_a_row_s).bandwidth_Bps
    if not math.isfinite(bandwidth_Bps):
        # On a disturbed machine the times may not grow at all. The best measured rate is then a lower bound.
        bandwidth_Bps = max(nbytes / time_s for nbytes, time_s in zip(sizes, in_a_row_s))
    paused = [times_s[nbytes, PAUSE_S] - max(0, nbytes * others - burst_nbytes) / bandwidth_Bps for nbytes in LARGE]
    return max(times_s[1, 0.0], median(paused)), bandwidth_Bps


def _two_buffers(comm: MPI.Intracomm, nbytes: int) -> list[Any]:
    """Make the arguments of an Alltoallv that sends `nbytes` to every other rank."""
    counts = [0 if rank == comm.rank else nbytes for rank in range(comm.size)]
    places = [rank * nbytes for rank in range(comm.size)]
    arrays = np.zeros((2, comm.size * nbytes), np.uint8)
    return [[array, counts, places, MPI.BYTE] for array in arrays]


class _Work:
    """Runs FFTs on a thread and counts them, to measure how much a core computes while it communicates."""

    def __init__(self) -> None:
        self._lines = zeros((64, 512), complex)
        self._one = LineTransform(self._lines, self._lines, 1, True, "measure")
        self._ended = threading.Event()
        self.count = 0
        self.unit_s = min(self._seconds() for _ in range(20))

    def _seconds(self, repeats: int = 20) -> float:
        started = perf_counter()
        for _ in range(repeats):
            self._one.execute(self._lines, self._lines)
        return (perf_counter() - started) / repeats

    def step_s(self) -> float:
        """Time a step of about a millisecond."""
        return self._seconds(max(1, round(1e-3 / self.unit_s)))

    def _run(self) -> None:
        while not self._ended.is_set():
            self._one.execute(self._lines, self._lines)
            self.count += 1

    def __enter__(self) -> Self:
        self.count = 0
        self._ended.clear()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._ended.set()
        self._thread.join()


def _core_time(comm: MPI.Intracomm, work: _Work) -> tuple[float, float]:
    """Measure the core time that exchanges take from a computing thread: per message, and per byte."""
    costs = []
    for nbytes in (1 << 12, 1 << 20):
        buffers = _two_buffers(comm, nbytes)
        seconds = []
        for _ in range(ROUNDS):
            comm.Barrier()
            exchanges = 0
            with work:
                started = perf_counter()
                while comm.bcast(perf_counter() - started < WORK_S):
                    for _ in range(8):
                        request = comm.Ialltoallv(*buffers)
                        while not request.Test():
                            sleep(POLL_EVERY_S)
                        exchanges += 1
                wall_s, count = perf_counter() - started, work.count
            seconds.append(comm.allreduce(max(0.0, wall_s - count * work.unit_s) / exchanges, MPI.MAX))
        costs.append(median(seconds) / (comm.size - 1))
    byte_s = max(0.0, (costs[1] - costs[0]) / ((1 << 20) - (1 << 12)))
    return costs[0], byte_s


def _jitter(comm: MPI.Intracomm, work: _Work) -> float:
    """Measure how much steps of about a millisecond vary: standard deviation of their logarithm.

    The estimate comes from the mean of the larger of two times, because ranks wait for the slower one. For normal
    variables this mean is 1/sqrt(pi) standard deviations above the mean of one.
    """
    steps = np.log([work.step_s() for _ in range(300)])
    larger = np.maximum(steps[::2], steps[1::2]).mean() - steps.mean()
    return comm.allreduce(float(larger * np.sqrt(np.pi)), MPI.MAX)


def _wake_s() -> float:
    """Measure how much too late a sleeping thread wakes."""
    oversleeps: list[float] = []

    def measure() -> None:
        take_short_slices()
        set_exact_timers(True)
        wake_event = WakeEvent()
        for _ in range(400):
            started = perf_counter()
            wake_event.sleep(POLL_EVERY_S)
            oversleeps.append(perf_counter() - started - POLL_EVERY_S)

    thread = threading.Thread(target=measure)
    thread.start()
    thread.join()
    return max(0.0, sum(oversleeps) / len(oversleeps))


def _poll_s(tests: int = 2000) -> float:
    """Measure the core time of one test of a request that is under way."""
    request = MPI.COMM_SELF.Irecv(np.zeros(1), tag=1)
    started = thread_time()
    for _ in range(tests):
        request.Test()
    seconds = (thread_time() - started) / tests
    MPI.COMM_SELF.Send(np.zeros(1), dest=0, tag=1)
    request.Wait()
    return seconds


def _operation_s(slices: int = 1000) -> float:
    """Measure the loop's own time for a slice of a plan that computes next to nothing."""
    settings = {"wait": "poll", "depth": 16, "chunk": 1}
    with FFT2(MPI.COMM_SELF, (slices, 2, 2), "c16", settings=settings) as plan:
        field, modes = plan.real.empty(), plan.spectrum.empty()
        field[...] = 1.0
        return _timed(MPI.COMM_SELF, lambda: plan.forward(field, out=modes)) / slices


def _fft_flops(comm: MPI.Intracomm) -> float:
    """Measure the rate of a plan's local work, packing included."""
    workload = Workload(slices=16, shape=PLANE)
    flops = sum(map(sum, workload.flops(comm.size)))
    with FFT2(comm, (workload.slices, *PLANE), workload.dtype, settings={"wait": "off", "chunk": 1}) as plan:
        field, spectrum = plan.real.empty(), plan.spectrum.empty()
        field[...] = 1.0
        return flops / _timed(comm, lambda: plan.forward.compute(field, out=spectrum))


def _copy_Bps() -> float:
    source, target = np.zeros((2, 1 << 23), np.uint8)
    return source.nbytes / _timed(MPI.COMM_SELF, lambda: np.copyto(target, source))


def _threads(comm: MPI.Intracomm) -> ThreadScaling:
    """Measure how much faster several threads compute than one, on rank 0 with all cores of its host, while other ranks
    sleep.
    """
    table = {}
    if comm.rank == 0:
        with _all_cores() as cores:
            counts = [2**k for k in range(1, cores.bit_length()) if 2**k <= cores]
            for n in THREADED_PLANES if counts else ():
                one_s, *several_s = (_planes_s(n, threads) for threads in (1, *counts))
                table[n] = {threads: one_s / seconds for threads, seconds in zip(counts, several_s)}
    asleep = comm.Ibarrier()
    while not asleep.Test():
        sleep(PAUSE_S)
    return ThreadScaling.of_table(table)


@contextmanager
def _all_cores() -> Iterator[int]:
    """Allow this process all cores of the host that it may have; return their number."""
    pinned = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))  # the kernel keeps those that are allowed
    try:
        yield len(os.sched_getaffinity(0))
    finally:
        os.sched_setaffinity(0, pinned)


def _planes_s(n: int, threads: int) -> float:
    """Time a batch of FFTs of planes of n x n points, which all stay on this rank, in seconds."""
    with (
        Runtime(MPI.COMM_SELF, workers=threads) as runtime,
        FFT2(
            runtime, (THREADED_POINTS // n**2, n, n), complex, settings={"wait": "off" if threads == 1 else "poll"}
        ) as plan,
    ):
        field, spectrum = plan.real.empty(), plan.spectrum.empty()
        field[...] = 1.0
        plan.forward.settle(field, out=spectrum)
        return _timed(MPI.COMM_SELF, lambda: plan.forward(field, out=spectrum))
