"""Cases that go wrong on purpose, for the harness's own tests."""

import os
import signal
import sys
import threading
import time
import warnings

import numpy as np
import pytest
from mpi4py import MPI

kept = []


def succeed(comm, word):
    os.write(1, f"{word} from rank {comm.rank} of {comm.size}\n".encode())  # in one piece: the launcher mixes pieces


def fail_an_assertion(comm, rank):
    if comm.rank == rank:
        assert comm.rank == -1, "this is wrong"
    comm.Barrier()


def compare(comm, found, expected):
    assert sorted(found) == expected


def small(comm, case):
    assert case < 2


def warn(comm):
    warnings.warn("careful", stacklevel=1)


def raise_in_a_thread(comm):
    def work():
        raise ZeroDivisionError("in a thread")

    thread = threading.Thread(target=work, name="lonely")
    thread.start()
    thread.join()


def raise_where_nobody_sees(comm):
    async def program():
        pass

    program()


def hang(comm):
    if comm.rank == 1:
        time.sleep(1000)
    comm.Barrier()


def leave_an_orphan(comm):
    if comm.rank == 0:
        os.posix_spawn(
            sys.executable,
            [sys.executable, "-c", "import time; time.sleep(1000)"],
            os.environ,
            setsid=True,
            file_actions=[(os.POSIX_SPAWN_CLOSE, number) for number in range(64)],
        )


def end_early(comm):
    comm.Barrier()
    os._exit(0)


# ---- what is left behind ---------------------------------------------------------------------


def leave(comm, what):
    """Leave something of some kind behind, on rank 0 or on all."""
    if what == "thread":
        threading.Thread(target=threading.Event().wait, daemon=True, name="lonely").start()
    elif what == "file":
        kept.append(open(os.devnull))
    elif what == "communicator":
        kept.append(comm.Dup())
    elif what == "message":
        send = comm.isend("unread", (comm.rank + 1) % comm.size)
        kept.append(send)
        comm.Barrier()
    elif what == "signal handler":
        signal.signal(signal.SIGTERM, lambda *_: None)
    elif what == "priority":
        os.nice(1)
    elif what == "folder":
        os.chdir("/")


def change(comm):
    """Change what is put back silently."""
    warnings.simplefilter("ignore")
    os.environ["OVERLAP_TUNING"] = "somewhere"
    sys.argv = ["else"]
    sys.path.append("nowhere")
    sys.modules["matplotlib"] = None
    np.seterr(all="raise")


def unchanged(comm):
    with pytest.raises(UserWarning):
        warnings.warn("careful", stacklevel=1)
    assert "OVERLAP_TUNING" not in os.environ
    assert sys.argv[0].endswith("rank.py") and "nowhere" not in sys.path
    assert "matplotlib" not in sys.modules
    assert np.geterr()["under"] == "ignore"


def process_id(comm):
    print(os.getpid(), threading.active_count(), MPI.COMM_WORLD.size)


def shared_memory_is_known_by_name(comm):
    """While messages, a shared window and a window of remote memory are there."""
    from overlap.ranks.segments import PREFIX
    from overlap.tools.dead_segments import NAMES, existing

    assert PREFIX in NAMES
    comm.allgather(bytes(100_000))
    windows = [make(800, comm=comm) for make in (MPI.Win.Allocate_shared, MPI.Win.Allocate)]
    with open("/proc/self/maps") as maps:
        mapped = {line.rpartition("/")[2].strip() for line in maps if " /dev/shm/" in line and "(deleted)" not in line}
    assert mapped and all(name.startswith(NAMES) for name in mapped), mapped
    assert mapped <= existing()
    comm.Barrier()
    for window in windows:
        window.Free()
