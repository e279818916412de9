"""The worker pool, N threads that take the next ready step when they are free; limits of other libraries' pools."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import threadpoolctl

from ..scheduling.ready_steps import ReadySteps, here


class Workers(ReadySteps):
    """A pool of daemon threads, one for each `worker_index`.

    `nice` is added to the threads' nice value (Linux: per thread, no privilege needed). On a core that a worker shares
    with the communicator, a lower priority lets the communicator in at once when it wakes, and takes nothing from the
    worker while it sleeps.
    """

    def __init__(self, indices: range, nice: int, on_error: Callable[[BaseException], object]) -> None:
        super().__init__(on_error)
        self._threads = worker_threads(indices, nice, lambda index: self.work())

    def end(self) -> None:
        """Have all threads end, without waiting for them. Nothing may be ready or running."""
        for _ in self._threads:
            self.stop()

    def close(self) -> None:
        """Stop and join the threads. Nothing may be ready or running."""
        self.end()
        for thread in self._threads:
            thread.join()
        self._threads = []


def worker_threads(indices: Iterable[int], nice: int, work: Callable[[int], object]) -> list[threading.Thread]:
    """Start workers: daemon threads that call ``work(index)``, with a nice value added to that of their maker."""

    def run(index: int) -> None:
        here.index = index
        be_nice(nice)
        # OpenMP keeps a thread count for each thread; this one is lost when the thread ends.
        threadpoolctl.threadpool_limits(limits=1, user_api="openmp")
        work(index)

    threads = [threading.Thread(target=run, args=(index,), daemon=True, name=f"worker {index}") for index in indices]
    for thread in threads:
        thread.start()
    return threads


# Thread pools of libraries (BLAS, OpenMP, FFTW through pyfftw) are process-wide, so the limit is
# counted: set by the first runtime that opens, restored by the last one that closes.
_pools_lock = threading.Lock()
_pools_users = 0
_pools_limit: Any = None
_pools_known: tuple[int, Any] = (-1, None)  # number of modules at the last search, and the search's result


@contextmanager
def single_threaded_pools() -> Iterator[None]:
    """Limit BLAS, OpenMP and FFTW pools to one thread each; restore them at the last exit."""
    global _pools_users, _pools_limit
    with _pools_lock:
        _pools_users += 1
        if _pools_users == 1:
            _pools_limit = _pools().limit(limits=1), _limit_pyfftw(1)
    try:
        yield
    finally:
        with _pools_lock:
            _pools_users -= 1
            if _pools_users == 0:
                libraries, pyfftw_threads = _pools_limit
                libraries.restore_original_limits()
                _limit_pyfftw(pyfftw_threads)
                _pools_limit = None


def _pools() -> Any:
    """Return the thread pools of all loaded libraries; search again if modules have been imported."""
    global _pools_known
    if _pools_known[0] != len(sys.modules):
        _pools_known = len(sys.modules), threadpoolctl.ThreadpoolController()
    return _pools_known[1]


def _limit_pyfftw(threads: int | None) -> int | None:
    """Set the default thread count of pyfftw, if the program uses it; returns the previous one."""
    pyfftw = sys.modules.get("pyfftw")
    if pyfftw is None or threads is None:
        return None
    previous, pyfftw.config.NUM_THREADS = pyfftw.config.NUM_THREADS, threads
    return previous


# ---- priorities ----------------------------------------------------------------------------------
#
# How the kernel shares a core between a worker and a communicator thread that sleeps between polls.
#
# If a communicator thread wakes on a core where a worker computes, it waits until the worker's time slice ends, 3 ms by
# default on Linux. That is longer than a whole exchange, and the link is idle meanwhile. Two settings of the calling
# thread, neither of which needs a privilege, shorten the wait:
#
# * shorter time slices for the communicator (`take_short_slices`, Linux 6.12 or newer): the scheduler
#   lets a thread that asks for less run sooner, as long as it has not had more than its share of the core;
# * a lower priority of the workers (`be_nice`), which makes the communicator's share larger: handing messages
#   to MPI and taking them takes it most of the core at the beginning of a job.
#
# The kernel may prolong a sleep by its timer slack, 50 us by default, which is as long as an exchange. So a
# communicator thread that polls asks for the smallest slack (`set_exact_timers`). One that blocks does not, because an
# MPI library that is configured to sleep while it waits would then sleep for 0 s and keep the core busy.

SHORT_SLICE_S = 100e-6  # the least that Linux grants

_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274, "riscv64": 274, "ppc64le": 355, "s390x": 345}
_SET_TIMER_SLACK = 29  # PR_SET_TIMERSLACK
_ATTRIBUTES = struct.Struct("=IIQiIQQQII")  # struct sched_attr up to its utilisation clamps


def be_nice(increment: int) -> None:
    """Lower the calling thread's priority; do nothing on other systems than Linux."""
    if increment and sys.platform == "linux":
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + increment)


def take_short_slices() -> None:
    """Ask for short time slices for the calling thread, if the kernel supports them."""
    number = _SCHED_SETATTR.get(os.uname().machine)
    if sys.platform != "linux" or number is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    nice = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, 0, nice, 0, round(SHORT_SLICE_S * 1e9), 0, 0, 0, 0)
    ctypes.CDLL(None).syscall(number, 0, attributes, 0)


def set_exact_timers(exact: bool) -> None:
    """Let the calling thread's sleeps end on time if `exact`, else within the default slack."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_TIMER_SLACK, int(exact), 0, 0, 0)  # 0: the default
