"""How the kernel shares a core between a worker and a communicator thread that sleeps between polls.

If a communicator thread wakes on a core where a worker computes, it waits until the worker's time slice ends, 3 ms by
default on Linux. That is longer than a whole exchange, and the link is idle meanwhile. Two settings of the calling
thread, neither of which needs a privilege, shorten the wait:

* shorter time slices for the communicator (`take_short_slices`, Linux 6.12 or newer): the scheduler
  lets a thread that asks for less run sooner, as long as it has not had more than its share of the core;
* a lower priority of the workers (`be_nice`), which makes the communicator's share larger: handing messages
  to MPI and taking them takes it most of the core at the beginning of a job.

The kernel may prolong a sleep by its timer slack, 50 us by default, which is as long as an exchange. So a communicator
thread that polls asks for the smallest slack (`set_exact_timers`). One that blocks does not, because an MPI library
that is configured to sleep while it waits would then sleep for 0 s and keep the core busy.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import threading

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
