"""Copies of the state in other ranks' memory, and a solver of the ranks that are left when some are lost."""

import numpy as np

import overlap

from .solver import Solver
from .state import DIMS


class Copies:
    """The state as it was at the last steps that were saved, kept by other ranks.

    Parameters
    ----------
    solver : Solver
        Made with a runtime that raises `overlap.RankLost`.
    """

    def __init__(self, solver):
        self._protected = overlap.Protected([_array(solver)], copies=min(1, solver.comm.size - 1))
        self._times = {}  # of the steps that are saved, on every rank
        self.save(solver.state)

    def save(self, state):
        """Begin to copy the state as it is to other ranks, and go on (collective)."""
        self._protected.start(state.step)
        self._times[state.step] = state.time

    def restored(self, loss, config):
        """Make a solver of the ranks that are left, with the state that was saved last (collective).

        Parameters
        ----------
        loss : overlap.RankLost
            If more ranks are lost meanwhile, it goes on without them.
        config : Config

        Returns
        -------
        solver : Solver
        copies : Copies
            Those of the ranks that are left.

        Raises
        ------
        ConfigError
            On all ranks, when the sizes do not allow so many ranks.
        overlap.DataLost
            On all ranks, when the ranks that kept a part are lost, too.
        """
        while True:
            try:
                runtime = loss.survivors()
                solver = Solver(runtime, config)
                with runtime.detecting_losses("going on"):
                    state = solver.state
                    state.step, (f,) = self._protected.restore(runtime, like=[_array(solver)])
                    state.f[...], state.time = f, self._times[state.step]
                    return solver, Copies(solver)
            except overlap.RankLost as another:
                loss = another


def shortened(history, time):
    """The samples that were made until a time; those after it are made again."""
    count = np.searchsorted(history["time"], time, side="right")
    return {name: values[:count] for name, values in history.items()}


def _array(solver):
    """This rank's part of the state, as an array that knows where it belongs."""
    state = solver.state
    split = [axis for axis, name in enumerate(DIMS) if name in solver.decomposition.parts]
    return overlap.DistArray(state.f, solver.comm, state.global_shape, split, state.where)
