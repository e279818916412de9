"""Calls in which nothing is exchanged, each as one call of compiled code.

On one rank there is nobody to agree with. What a pipeline does for a transform then, task after task, is recorded once,
as a list of programs and of what their bases are: so far after the source's address, the target's, or
in memory of their own. A call has only these two addresses to tell.

No Python runs in between. So a signal's handler runs after the call, and needs not be held back. The memory is
the calls' own: a pipeline of another thread may be running.
"""

from __future__ import annotations

from time import perf_counter

import numpy as np
from numpy.lib.array_utils import byte_bounds

from .buffers import Buffers
from .execute import execute_steps
from .fftw import REQUIRED_ALIGNMENT, address_of, zeros
from .program import BASES

KINDS = 8  # of arrays whose calls are kept
ABSOLUTE, OF_SOURCE, OF_TARGET = range(3)


class LocalCalls:
    """The calls of a staged transform on its only rank.

    Parameters
    ----------
    staged : StagedTransform
    tasks : list of Task
    chunk : int
        What these tasks were made for.
    loads : sequence of Load
        Where each call is counted.
    """

    def __init__(self, staged, tasks, chunk, loads):
        self._staged, self._tasks, self._loads = staged.apart(), tasks, loads
        self._slot = Buffers(*(zeros(max(1, length), staged.dtype) for length in staged.buffer_lengths(chunk)))
        self._busy = np.zeros(1, np.int64)
        self._busy_address = address_of(self._busy)
        self._recorded = {}

    def call(self, sources, targets, scale):
        """Return the call for some fields, as a function without arguments.

        Parameters
        ----------
        sources, targets : list of ndarray
            As of `StagedTransform.arrays`.
        scale : float
            What the source is multiplied with.
        """
        arrays = self._staged.arrays(sources, targets)
        source, target = arrays[0][0], arrays[-1][0]
        kind = scale, source.kind, target.kind, source.address % REQUIRED_ALIGNMENT, target.address % REQUIRED_ALIGNMENT
        recorded = self._recorded.get(kind)
        if recorded is None:
            if len(self._recorded) >= KINDS:
                del self._recorded[next(iter(self._recorded))]
            recorded = self._recorded[kind] = self._record(arrays, sources, targets, scale)
        return LocalCall(self, *recorded, source.address, target.address)

    def _record(self, arrays, sources, targets, scale):
        """All programs as one array, and where each begins and what its bases are."""
        places = [(OF_SOURCE, sources, arrays[0][0].address), (OF_TARGET, targets, arrays[-1][0].address)]
        bounds = [
            (
                kind,
                min(low for low, _ in map(byte_bounds, some)),
                max(high for _, high in map(byte_bounds, some)),
                first,
            )
            for kind, some, first in places
        ]
        codes, steps, begun = [], [], 0
        for _, (code, bases) in self._staged.steps(self._tasks, arrays, self._slot, scale):
            if not len(code):
                continue
            codes.append(code)
            step = np.zeros((3, BASES), np.int64)
            for base, address in enumerate(bases.tolist()):
                kind, first = next(
                    ((kind, first) for kind, low, high, first in bounds if low <= address < high), (ABSOLUTE, 0)
                )
                if kind:
                    step[kind - 1, base] = 1
                step[2, base] = address - first
            steps.append([begun, begun + len(code), *step.reshape(-1)])
            begun += len(code)
        return np.concatenate(codes), np.array(steps, np.int64)


class LocalCall:
    """A call for some arrays, which whoever makes it keeps alive."""

    __slots__ = ("_arguments", "_calls", "_loads")

    def __init__(self, calls, code, steps, source, target):
        self._calls, self._loads = calls, calls._loads
        self._arguments = code, steps, calls._busy_address, source, target

    def __call__(self):
        started = perf_counter()
        done = execute_steps(*self._arguments)
        took_s = perf_counter() - started
        if not done:
            raise RuntimeError(
                "expected threads to call a transform one at a time, received a call while another thread is in one"
            )
        for load in self._loads:
            load.add(took_s, took_s, 1)
