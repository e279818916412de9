"""What plans of any dimension have in common: their end, and checks of their arguments.

A `Plan` has the attributes ``runtime``, ``_owns_runtime``, ``closed``, ``forward`` and
``backward``, and an `ArraySpec` of real space (``real``) and of the spectrum (``spectrum``).
"""

import numpy as np

from ..errors import ClosedError
from ..runtime import arguments

WAITS = ("auto", *arguments.WAITS)
ORDERS = ("natural", "transposed")
NORMS = (None, "backward", "ortho", "forward")
DTYPES = tuple(np.dtype(kind) for kind in ("f4", "f8", "c8", "c16"))


class Plan:
    """Base of `FFT2` and `FFT3`."""

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()

    def close(self):
        """Free what the plan holds (collective); closes the runtime if the plan made it."""
        if not self.closed:
            self.closed = True
            self.forward = self.backward = _Closed()
            for transform in self._living():
                transform.release()
            self._close_runtime()

    def _close_runtime(self):
        if self._owns_runtime:
            self.runtime.close()

    def _living(self):
        """The plan's transforms that are in use on this rank, a list."""
        raise NotImplementedError


class _Closed:
    """Stands for the transforms of a closed plan."""

    def __call__(self, *args, **kwargs):
        raise ClosedError("expected a plan in use, received one that was closed")

    def __getattr__(self, name):
        self()


# ---- what is wrong with an argument, or None -----------------------------------------------------

def comm_problem(own, comm):
    if not own.same_ranks(comm):
        return f"expected a comm of the runtime's ranks in the same order, received {comm!r}"
    return None


def dtype_problem(dtype):
    try:
        known = np.dtype(dtype) in DTYPES
    except Exception:  # a bad text can be a SyntaxError, among others
        known = False
    return None if known else (
        f"expected a dtype of {', '.join(map(str, DTYPES))}, received {dtype!r}")


def choice_problem(**choices):
    """Of arguments by name: the value, and what is allowed."""
    for name, (value, allowed) in choices.items():
        if not isinstance(value, str | None) or value not in allowed:
            return f"expected {name} to be one of {allowed}, received {value!r}"
    return None


def count_problem(**counts):
    for name, value in counts.items():
        if value is not None and not (isinstance(value, int) and value >= 1):
            return f"expected {name} to be a positive integer or None, received {value!r}"
    return None


def integers(values):
    """A sequence of integers as a tuple, or None."""
    try:
        found = tuple(int(value) for value in values)
        return found if found == tuple(values) else None
    except (TypeError, ValueError, OverflowError):
        return None
