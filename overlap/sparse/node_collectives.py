"""`NodeCollectives`: collectives by shared memory, for an object whose ranks are on one node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import numpy as np

from ..collectives import Collectives
from ..errors import RankError
from ..ranks.failures import heard
from ..ranks.standalone_coordinator import StandaloneCoordinator


class NodeCollectives:
    """Collectives of an object, made anew after a failure elsewhere has ended them.

    Parameters
    ----------
    coordinator : StandaloneCoordinator
        The object's.
    """

    def __init__(self, coordinator: StandaloneCoordinator) -> None:
        self._coordinator = coordinator
        with coordinator.watching("making collectives") as comm:
            self._made = Collectives(comm, deadline_s=coordinator.deadline_s)
        self._made.holding.warning = None  # a part of the coordinator's object

    @classmethod
    def of(cls, coordinator: StandaloneCoordinator) -> Self | None:
        """Make collectives; None if the ranks are on several nodes, or if there is only one rank (collective)."""
        if coordinator.size == 1:
            return None
        made = cls(coordinator)
        if made._made.nodes > 1:
            made.free()
            return None
        return made

    def call(self, collective: Callable[..., None], *arrays: np.ndarray) -> None:
        """Call a method of `Collectives` (collective)."""
        count = len(heard)
        try:
            collective(self._made, *arrays)
        except RankError:
            if not self._made._ended_elsewhere or len(heard) > count:
                raise
            # All ranks have raised this before, and do the same here.
            self._made.close()
            self._made = self._made._renewed(self._coordinator.comm)
            self._made.holding.warning = None
            collective(self._made, *arrays)

    def fail(self, error: BaseException) -> None:
        """End them on this rank alone, by an exception that leaves the object's block."""
        self._made._fail_alone(error)

    def free(self) -> None:
        """Free them (collective)."""
        self._made.close()
