"""Signals that end a command.

SIGTERM and SIGHUP (a terminal that is closed) are one thing here: the command ends, and with it all that
it started. Two things stand in the way. Left alone, they end a Python process at once, which then ends
nothing else; and UCX, which MPI libraries load, takes SIGHUP for itself and does nothing with it, unless
`UCX_SETTINGS` are in the environment before it is loaded.
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
_SAME_S = 5.0  # a closed terminal is signalled twice, by the kernel and by the shell


def send_dropped_again() -> None:
    """Send signals again whose exceptions Python has dropped, in this process from now on."""

    def again(dropped: sys.UnraisableHookArgs, printed: Any = sys.unraisablehook) -> None:
        error = dropped.exc_value
        number: int
        if isinstance(error, KeyboardInterrupt):
            number, delay_s = signal.SIGINT, 0.01  # not in this function, which may raise no more than those
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

    A signal that is ignored (`nohup`) or that has a handler of the program's own stays as it is. In other
    threads this does nothing. A signal that follows another within seconds is taken for the same.

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

    # What Python knows: a handler that a library made is not among it, and is replaced.
    ours = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) == signal.SIG_DFL]
    for number in ours:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
