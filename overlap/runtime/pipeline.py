"""`Pipeline`: a slice program made callable."""

from time import perf_counter

import numpy as np
from mpi4py import MPI

from .interrupts import Interrupts


class Pipeline:
    """A slice program made callable: see `Runtime.pipelined`.

    Attributes
    ----------
    wait : str
        The way to wait that the last call used; `"auto"` before the first one.
    slots : list
        The slots' buffers, `depth` of them, or None each.
    """

    def __init__(self, runtime, program, slot, skeleton, depth, wait, in_flight, polls):
        self.depth = depth
        self.wait = wait
        self.in_flight = in_flight
        self.polls = polls
        self.slots = [slot() if slot is not None else None for _ in range(depth)]
        self._runtime = runtime
        self._program = program
        self._skeleton = skeleton
        self._has_buffers = slot is not None
        self._name = getattr(program, "__qualname__", repr(program))
        ways = ("poll", "block", "off") if runtime.workers == 1 else ("poll", "block")
        self._trial = {way: [] for way in ways} if wait == "auto" else None

    def __call__(self, slices, *args, problem=None, **agreed):
        """Run all slices to their end (collective).

        Parameters
        ----------
        slices : sequence
            One entry per slice, as many on every rank.
        args
            Passed to the program.
        problem, agreed
            As in `Runtime.preflight`.

        Raises
        ------
        InputError
            Before anything ran, on all ranks.
        SliceError
            A slice failed on some rank; the same on all ranks. The runtime is usable again.
        """
        runtime = self._runtime
        with runtime._exclusive(), Interrupts() as interrupts:
            slices = list(slices)
            wait = self._next_wait()
            runtime.preflight(
                problem, pipeline=self._name, slices=len(slices), depth=self.depth, wait=wait,
                in_flight=self.in_flight, polls=self.polls, **agreed)
            started = perf_counter()
            runtime._run(
                interrupts, slices, self._bound(self._program, args),
                self._skeleton and self._bound(self._skeleton, args),
                self.slots, self.depth, wait, self.in_flight, self.polls)
            if self._trial is not None and slices:
                self._judge(wait, (perf_counter() - started) / len(slices))

    def _bound(self, function, args):
        if self._has_buffers:
            return lambda key, buffers: function(key, buffers, *args)
        return lambda key, buffers: function(key, *args)

    def _next_wait(self):
        if self._trial is None:
            return self.wait
        return min(self._trial, key=lambda wait: len(self._trial[wait]))

    def _judge(self, wait, seconds_per_slice):
        """After two calls every way, all ranks keep the way whose better call was the fastest."""
        self._trial[wait].append(seconds_per_slice)
        if all(len(seconds) == 2 for seconds in self._trial.values()):
            best = np.array([min(seconds) for seconds in self._trial.values()])
            with self._runtime._watched("the choice of the way to wait"):
                self._runtime._control.Allreduce(MPI.IN_PLACE, best, MPI.MAX)
            self.wait = list(self._trial)[int(np.argmin(best))]
            self._trial = None
