"""What a case may not leave behind on a rank that runs the next one, and what is put back for it.

Put back silently, as a process of its own would start with it: the environment, `sys.argv`, `sys.path`, modules hidden
by None, warnings filters, numpy's error state; FFTW forgets its wisdom, the drop-in its runtimes. Anything else that
differs fails the case by name: threads, open descriptors (but for fonts, which matplotlib keeps open), shared memory
segments, duplicates of the world communicator, unreceived messages, signal handlers, priority, cores, the folder,
resource limits, the garbage collector's switch, sizes of thread pools.
"""

import contextlib
import functools
import gc
import os
import resource
import signal
import sys
import threading
import time
import warnings
from pathlib import Path

LIMITS = (resource.RLIMIT_AS, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE)
PATIENCE_S = 3.0  # for threads that have been told to end


class Snapshot:
    """The state of this process before a case."""

    def __init__(self):
        if fftw := sys.modules.get("overlap.fft.engine.fftw"):
            fftw.forget()
        self.environ = dict(os.environ)
        self.lists = [(list_, list(list_)) for list_ in (sys.argv, sys.path, warnings.filters)]
        self.hidden = {name for name, module in sys.modules.items() if module is None}
        self.modules = dict(sys.modules)
        self.errors = sys.modules["numpy"].geterr() if "numpy" in sys.modules else None
        self.found = survey()

    def restore(self):
        """Put back what a case may change."""
        os.environ.clear()
        os.environ.update(self.environ)
        for (list_, content), (owner, name) in zip(
            self.lists, ((sys, "argv"), (sys, "path"), (warnings, "filters")), strict=True
        ):
            list_[:] = content
            setattr(owner, name, list_)
        warnings._filters_mutated()
        for name in [name for name, module in sys.modules.items() if module is None]:
            if name not in self.hidden:
                del sys.modules[name]
        sys.modules.update(self.modules)
        if shared := sys.modules.get("overlap.compat.kept_runtimes"):
            from mpi4py import MPI

            shared.SHARED.of(MPI.COMM_WORLD).close()
            MPI.COMM_WORLD.Delete_attr(shared.SHARED._key)
        if door := sys.modules.get("overlap.ranks.door"):
            door.close_doors()
        if self.errors:
            sys.modules["numpy"].seterr(**self.errors)

    def left(self):
        """What differs now, as texts; threads have a moment to end."""
        end = time.monotonic() + PATIENCE_S
        gc.collect()
        while "threads" in (differs := self.differences()) and time.monotonic() < end:
            time.sleep(0.02)
        return [f"{name}: {text}" for name, text in differs.items()]

    def differences(self):
        """What differs now, by name."""
        found = survey()
        return {name: text for name, before in self.found.items() if (text := difference(before, found[name]))}


def difference(before, after):
    """What is new in a set, or how a value has changed; None if nothing to complain of."""
    if isinstance(before, set):
        return ", ".join(sorted(after - before))
    if isinstance(before, dict):
        return ", ".join(
            f"{name} was {value}, is {after[name]}"
            for name, value in before.items()
            if name in after and after[name] != value
        )
    return None if before == after else f"were {before}, are {after}"


def survey():
    """What is compared, by name."""
    return {
        "threads": {thread.name for thread in threading.enumerate()},
        "descriptors": descriptors(),
        "shared memory": segments(),
        "duplicates of the communicator": duplicates()[0],
        "messages": messages(),
        "signal handlers": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "priority": os.nice(0),
        "cores": sorted(os.sched_getaffinity(0)),
        "folder": os.getcwd(),
        "limits": {number: resource.getrlimit(number) for number in LIMITS},
        "garbage collector": gc.isenabled(),
        "pools": pools(),
    }


def descriptors():
    """Open files and channels, each as its number and what it is."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the listing's own
            found.add(f"{entry.name} -> {os.readlink(entry)}")
    return {name for name in found if not name.endswith(".ttf")}


def segments():
    """Named shared memory that this process has mapped."""
    with open("/proc/self/maps") as maps:
        return {line.split(maxsplit=5)[5].rstrip() for line in maps if " /dev/shm/" in line and "(deleted)" not in line}


@functools.cache
def duplicates():
    """The number of duplicates that are not freed, counted by MPI itself, as a list of one."""
    from mpi4py import MPI

    count = [0]

    class Counted:
        """The value of a duplicate's attribute: without a delete function, for the reason that `KeptWith` gives."""

        def __del__(self):
            count[0] -= 1

    def copied(comm, key, value):
        count[0] += 1
        return Counted()

    MPI.COMM_WORLD.allreduce(0)  # for which mpi4py makes a duplicate of its own, and keeps it
    MPI.COMM_WORLD.Set_attr(MPI.Comm.Create_keyval(copied), "counted")
    return count


def messages():
    from mpi4py import MPI

    return MPI.COMM_WORLD.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)


def pools():
    """The number of threads of every library that has its own."""
    if "threadpoolctl" not in sys.modules:
        return {}
    return {pool["filepath"]: pool["num_threads"] for pool in sys.modules["threadpoolctl"].threadpool_info()}
