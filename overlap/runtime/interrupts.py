"""Ctrl-C while a pipeline is called: a failure of this rank like any other."""

import signal
import threading


class Interrupts:
    """While a pipeline is called, Ctrl-C is a failure of this rank like any other.

    Raised at once, it would leave the other ranks waiting. On other threads than the main one, and
    where the program handles the signal itself, nothing changes.
    """

    def __enter__(self):
        self._job = None
        self._interrupted = False
        self._handler = signal.getsignal(signal.SIGINT)
        self._ours = (threading.current_thread() is threading.main_thread()
                      and self._handler is signal.default_int_handler)
        if self._ours:
            signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, kind, error, tb):
        if self._ours:
            signal.signal(signal.SIGINT, self._handler)
        if self._interrupted and not isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt from error

    def fail(self, job):
        """From now on an interrupt, or one that has come already, fails `job`."""
        self._job = job
        if self._interrupted:
            job.fail(None, KeyboardInterrupt())

    def _interrupt(self, *_):
        self._interrupted = True
        if self._job is not None:
            self._job.fail(None, KeyboardInterrupt())
