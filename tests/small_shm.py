"""Starts a command with a small /dev/shm of its own, in a mount namespace; see `SMALL`.

Where namespaces are refused, the command runs as it is, and is told so: its ranks limit the size of their files
instead.
"""

import ctypes
import os
import sys
from pathlib import Path

from rank import FOLDER

SMALL = "OVERLAP_TEST_SHM"  # "own" in the environment of the command, or "refused"
# Open MPI takes memory for its own messages as it needs it, and ends with a SIGBUS where there is none.
OPEN_MPI = "OMPI_MCA_btl_sm_backing_directory"
NBYTES = 2**26  # as in a container; MPI itself needs 2**24
_NEWNS, _NEWUSER, _REC_PRIVATE = 0x20000, 0x10000000, 0x44000


def own():
    """Give this process a /dev/shm of its own, with what it starts; raise an OSError where that is refused."""
    user, group = os.getuid(), os.getgid()
    try:
        _call("unshare", _NEWNS)
    except PermissionError:
        _call("unshare", _NEWNS | _NEWUSER)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _call("mount", None, b"/", None, _REC_PRIVATE, None)
    _call("mount", b"tmpfs", b"/dev/shm", b"tmpfs", 0, f"size={NBYTES}".encode())


def _call(name, *args):
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*args) < 0:
        raise OSError(ctypes.get_errno(), name)


if __name__ == "__main__":
    try:
        own()
    except OSError:
        os.environ[SMALL] = "refused"
    else:
        os.environ[SMALL] = "own"
    os.environ[OPEN_MPI] = os.environ[FOLDER]
    os.execvp(sys.argv[1], sys.argv[1:])
