"""The exceptions of `overlap`. All derive from `OverlapError`."""


class OverlapError(Exception):
    """Base class of every exception raised by `overlap`."""


class InputError(OverlapError, ValueError):
    """Bad or disagreeing input, found before any work was accepted.

    The check is collective: every rank of the communicator raises it with the same message,
    and nothing was computed, sent or overwritten.
    """


class SliceError(OverlapError, RuntimeError):
    """A step of a pipeline failed on one rank; every rank raises this with the same message.

    Attributes
    ----------
    rank : int
        Rank (in the runtime's communicator) on which the step failed first.
    slice : str
        The slice whose step failed, as text (``"?"`` for a failure outside of any slice).
    traceback_text : str
        The traceback of the original exception, formatted on the rank where it was raised.
    """

    def __init__(self, rank, slice, summary, traceback_text):
        super().__init__(
            f"slice {slice} failed on rank {rank}: {summary}\n"
            f"--- traceback on rank {rank} ---\n{traceback_text.rstrip()}")
        self.rank = rank
        self.slice = slice
        self.summary = summary
        self.traceback_text = traceback_text

    def __reduce__(self):
        return type(self), (self.rank, self.slice, self.summary, self.traceback_text)


class ClosedError(OverlapError, RuntimeError):
    """A runtime or plan was used after `close`."""


class ThreadLevelError(OverlapError, RuntimeError):
    """The MPI library was initialised with too low a thread level."""


class LinksUnavailable(OverlapError, RuntimeError):
    """Shaped links cannot be made here; the message says why."""
