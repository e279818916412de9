"""Handles signals that end a command.

After SIGTERM or SIGHUP (a terminal was closed) a command ends with all processes that it started. Without a handler
these signals end a Python process at once, and its children go on. Moreover UCX, which MPI libraries load, installs a
handler for SIGHUP that does nothing, unless `UCX_SETTINGS` are in the environment before it is loaded.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

UCX_SETTINGS = {"UCX_DEBUG_SIGNO": "0"}
_SAME_S = 5.0  # when a terminal is closed, the kernel and the shell both send the signal


def send_dropped_again() -> None:
    """From now on, send a signal to this process again if Python has dropped the exception of its handler."""

    def again(dropped: sys.UnraisableHookArgs, printed: Any = sys.unraisablehook) -> None:
        error = dropped.exc_value
        number: int
        if isinstance(error, KeyboardInterrupt):
            number, delay_s = signal.SIGINT, 0.01  # looked up here: the function below must not raise
        elif isinstance(error, SystemExit) and isinstance(error.code, int) and error.code > 128:
            number, delay_s = error.code - 128, _SAME_S
        else:
            printed(dropped)
            return
        timer = threading.Timer(delay_s, os.kill, (os.getpid(), number))
        timer.daemon = True
        timer.start()

    sys.unraisablehook = again


@contextmanager
def ending_by_exception() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise `SystemExit` in the main thread, as Ctrl-C raises KeyboardInterrupt.

    Signals that are ignored (`nohup`) or have a handler of the program keep it. In other threads than the main thread
    this does nothing. A second signal within seconds counts as the same.

    Raises
    ------
    SystemExit
        With the status 128 + the signal's number.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    raised_s = -_SAME_S

    def end(number: int, frame: object) -> None:
        nonlocal raised_s
        if time.monotonic() - raised_s >= _SAME_S:
            raised_s = time.monotonic()
            raise SystemExit(128 + number)

    # Python's own record of handlers: a handler that a library installed in C is not in it, and is replaced.
    ours = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) == signal.SIG_DFL]
    for number in ours:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
