"""Keeps copies of the state in other ranks' memory, and makes a solver of the ranks that are left if some are lost."""

import numpy as np

import overlap

from .solver import Solver
from .state import DIMS


class Copies:
    """Keeps the state of the last saved steps in the memory of other ranks.

    Parameters
    ----------
    solver : Solver
        Made with a runtime that raises `overlap.RankLost`.
    """

    def __init__(self, solver):
        self._protected = overlap.Protected([_array(solver)], copies=min(1, solver.comm.size - 1))
        self._times = {}  # times of the saved steps, on every rank
        self.save(solver.state)

    def save(self, state):
        """Begin to copy the present state to other ranks, and return (collective)."""
        self._protected.start(state.step)
        self._times[state.step] = state.time

    def restored(self, loss, config):
        """Make a solver of the ranks that are left, with the state that was saved last (collective).

        Parameters
        ----------
        loss : overlap.RankLost
            The loss; if more ranks are lost meanwhile, the run goes on without them, too.
        config : Config

        Returns
        -------
        solver : Solver
        copies : Copies
            Copies on the ranks that are left.

        Raises
        ------
        ConfigError
            On all ranks, if the sizes do not allow so many ranks.
        overlap.DataLost
            On all ranks, if the ranks that kept a part are lost, too.
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
    """Return the samples up to a time; later ones will be made again."""
    count = np.searchsorted(history["time"], time, side="right")
    return {name: values[:count] for name, values in history.items()}


def _array(solver):
    """Return this rank's part of the state as a distributed array."""
    state = solver.state
    split = [axis for axis, name in enumerate(DIMS) if name in solver.decomposition.parts]
    return overlap.DistArray(state.f, solver.comm, state.global_shape, split, state.where)
