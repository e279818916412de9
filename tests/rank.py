"""What runs on a rank of the tests' MPI jobs: one case alone, or cases in turn; see `jobs`.

The asserts of cases show their values: modules of ``tests/mpi`` are imported through pytest's own rewriting.
"""

import faulthandler
import gc
import importlib
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from pathlib import Path

FOLDER = "OVERLAP_TEST_FOLDER"  # where a rank of a job of its own notes that it came to the end
PATH = "__path__"  # the key of a path in JSON
SHOW_STACKS = signal.SIGUSR2  # how a serving rank is asked where it is
PARENT_LOST_S = 20.0  # past its deadline a case ends by itself, whoever should have ended it


def encoded(value):
    """JSON, in which paths keep being paths."""
    return json.dumps(value, default=lambda path: {PATH: str(path)})


def decoded(text):
    return json.loads(text, object_hook=lambda found: Path(found[PATH]) if PATH in found else found)


def rewrite_asserts():
    """Import cases as pytest imports tests, so that a failed assert shows what it compared."""
    os.environ.setdefault("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    os.environ.pop("PYTEST_ADDOPTS", None)  # meant for the session, and for its plugins
    from _pytest.assertion import pytest_assertrepr_compare, util
    from _pytest.config import _prepareconfig

    config = _prepareconfig(
        [
            "--noconftest",
            "-c",
            os.devnull,
            "--rootdir",
            os.curdir,
            "-o",
            "python_files=*_cases.py */tests/mpi/*.py test_*.py",
        ]
    )

    def compare(op, left, right):
        lines = pytest_assertrepr_compare(config, op, left, right) or ()
        return "\n~".join(line.replace("\n", "\\n") for line in lines).replace("%", "%%") or None

    util._config, util._reprcompare = config, compare


def functions_of(case):
    """The functions of ``"module:function"``, of several joined by commas; a module is named once."""
    found, module = [], None
    for item in case.split(","):
        *named, function = item.split(":")
        (module,) = named or [module]
        found.append(getattr(importlib.import_module(module), function))
    return found


def show(text):
    """Print what went wrong on this rank, in one piece."""
    from mpi4py import MPI

    rank = MPI.COMM_WORLD.rank
    sys.stdout.flush()
    sys.stderr.write("".join(f"[rank {rank}] {line}\n" for line in text.rstrip().splitlines()))
    sys.stderr.flush()


def watch_threads(fail):
    """Exceptions that Python would print and forget fail the case: `fail` receives their text."""

    def noticed(kind, error, where, source):
        fail("".join(traceback.format_exception(kind, error, where)) + f"in {source!r}")

    threading.excepthook = lambda hook: noticed(*hook)
    sys.unraisablehook = lambda hook: noticed(hook.exc_type, hook.exc_value, hook.exc_traceback, hook.object)


# ---- a case alone ----------------------------------------------------------------------------


def abort(text):
    """Show what went wrong and end the job; other ranks have a moment to join in."""
    from mpi4py import MPI

    show(text)
    time.sleep(0.3)
    if not MPI.Is_finalized():
        MPI.COMM_WORLD.Abort(1)
    os._exit(1)


def run(case, args, end):
    """One case; the process ends with it, by itself or through `abort`, before the time `end`."""
    left_s = end - time.monotonic()
    faulthandler.dump_traceback_later(max(0.8 * left_s, left_s - 3), exit=True)
    watch_threads(abort)
    from mpi4py import MPI

    try:
        functions = functions_of(case)
        gc.freeze()
        gc.enable()
        for function in functions:
            function(MPI.COMM_WORLD, **args)
    except BaseException:
        abort(traceback.format_exc())
    Path(os.environ[FOLDER], f"rank{MPI.COMM_WORLD.rank}").touch()


# ---- cases in turn ---------------------------------------------------------------------------


class Server:
    """One rank that waits for cases and runs them; it sleeps in a read, not in MPI, meanwhile.

    A case that fails is the last one: `jobs` ends the processes then. Until it does, the rank goes
    on waiting, so that its stacks can still be shown.
    """

    def __init__(self, path):
        self.channel = socket.socket(socket.AF_UNIX)
        self.channel.connect(path)
        self.sending = threading.Lock()  # a failing thread answers besides the main thread
        self.own = os.dup(1), os.dup(2)
        self.imported = 0  # modules, when the collector last had a look at all objects

    def send(self, **answer):
        with self.sending:
            self.channel.sendall(json.dumps(answer).encode() + b"\n")

    def fail(self, text):
        show(text)
        self.send(failed=True)

    def serve(self):
        from mpi4py import MPI

        faulthandler.register(SHOW_STACKS)
        watch_threads(self.fail)
        self.send(rank=MPI.COMM_WORLD.rank, pid=os.getpid())
        for line in self.channel.makefile("rb"):
            self.handle(**decoded(line))

    def handle(self, case, args, deadline_s, folder):
        """Run a case, with its output in its own files, and answer once."""
        from leftovers import Snapshot
        from mpi4py import MPI

        redirect(folder)
        faulthandler.dump_traceback_later(deadline_s + PARENT_LOST_S, exit=True)
        try:
            for function in functions_of(case):
                self.freeze()
                before = Snapshot()
                function(MPI.COMM_WORLD, **args)
                before.restore()
                if left := before.left():
                    raise AssertionError(f"{function.__name__} left behind: " + "; ".join(left))
        except BaseException:
            self.fail(traceback.format_exc())
        else:
            sys.stdout.flush()
            sys.stderr.flush()
            faulthandler.cancel_dump_traceback_later()
            for number, own in enumerate(self.own, 1):
                os.dup2(own, number)
            self.send(failed=False)

    def freeze(self):
        """Spare the collector what modules hold: it runs after every case, and they are most of it."""
        if len(sys.modules) != self.imported:
            gc.enable()
            gc.collect()
            gc.freeze()
            self.imported = len(sys.modules)


def redirect(folder):
    """Let this rank's standard output and error go to two new files."""
    from mpi4py import MPI

    for number, name in ((1, "out"), (2, "err")):
        with open(f"{folder}/{name}{MPI.COMM_WORLD.rank}", "wb") as file:
            os.dup2(file.fileno(), number)


if __name__ == "__main__":
    gc.disable()  # until all is imported: a quarter of the time of a start would go into collecting what stays
    rewrite_asserts()
    if sys.argv[1] == "serve":
        Server(sys.argv[2]).serve()
    else:
        run(sys.argv[2], decoded(sys.argv[3]), float(sys.argv[4]))
