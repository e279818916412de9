"""`Crew`: the threads of a runtime that compute in the calls of its plans, beside the thread that makes the call."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from ...lowlevel.memory import address_of, line_zeros
from ...ranks.watchdog import abort_on
from ..loop import words as w
from ..loop.loop import dismiss, serve
from .workers import begin_worker


class Crew:
    """Threads that sleep in compiled code until a call needs them. They are started by the first such call.

    Parameters
    ----------
    workers : int
        Threads that compute, the calling thread included: the crew has one less.
    nice : int
        Added to the threads' nice value.

    Attributes
    ----------
    control : int
        Address of the runtime's control, see `words`.
    call : object
        The call whose Python functions the threads call.
    """

    def __init__(self, workers: int, nice: int) -> None:
        self._workers, self._nice = workers, nice
        self._memory = line_zeros(8 * (w.WORKERS + w.LINE_WORDS * workers)).view(np.int64)
        self.control = address_of(self._memory)
        self._shared: list[Any] = [None]
        self._threads: list[threading.Thread] = []

    @property
    def call(self) -> Any:
        return self._shared[0]

    @call.setter
    def call(self, call: Any) -> None:
        self._shared[0] = call

    def start(self) -> None:
        """Start the threads, if that has not been done."""
        if self._threads:
            return
        self._threads = [
            threading.Thread(
                target=_serve,
                args=(self._memory, self._shared, worker, self._nice),
                daemon=True,
                name=f"worker {worker}",
            )
            for worker in range(1, self._workers)
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Have all threads end, without waiting for them. No call may be under way."""
        dismiss(self.control)

    def close(self) -> None:
        """End and join the threads. No call may be under way."""
        self.end()
        for thread in self._threads:
            thread.join()
        self._threads = []


def _serve(memory: np.ndarray, shared: list[Any], worker: int, nice: int) -> None:
    """Serve calls in a thread, which keeps the control's memory alive."""
    begin_worker(worker, nice)
    slot, control = w.NONE, address_of(memory)
    try:
        while (slot := serve(control, worker, slot)) != w.LEFT:
            shared[0].call_python(slot)
    except BaseException as error:
        abort_on(error)
