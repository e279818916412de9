"""Cases that go wrong on purpose, for the harness's own tests."""

import os
import subprocess
import sys
import threading
import time
import warnings


def succeed(comm, word):
    print(f"{word} from rank {comm.rank} of {comm.size}", flush=True)


def fail_an_assertion(comm, rank):
    if comm.rank == rank:
        assert comm.rank == -1, "this is wrong"
    comm.Barrier()


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
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"],
                         start_new_session=True)


def end_early(comm):
    comm.Barrier()
    os._exit(0)
