"""The timing model's expectation for a transform of which nothing but the link was measured.

Latency and bandwidth of an all-to-all are measured once per runtime (`grids.link_of`). The time of computing is taken
as proportional to the bytes of the arrays per worker; this is rough, and refined in later calls (`refining`).
"""

from __future__ import annotations

import math
import os
import platform

from ...runtime import Runtime
from ...timing.model import pipeline_s
from .candidates import Candidates
from .grids import link_of
from .settings import Settings

COMPUTING_S_PER_BYTE = 2e-10  # of input and output, one worker; measured: 1.2e-10 (64^3) to 2.2e-10 (256^3)
OVERHEAD_S = 3e-6  # time per message for its requests in the compiled loop


class Expected:
    """The model's expectation for one transform. Making one is collective.

    Attributes
    ----------
    compute_s, exchange_s : float
        C and T of the whole batch.
    """

    def __init__(self, candidates: Candidates) -> None:
        runtime = candidates.transform.runtime
        self._candidates, self._workers = candidates, runtime.workers
        # Between ranks of one host a core makes the exchange, as a copy. If this core could compute meanwhile, polling
        # hides no more than blocking.
        self._link, self._takes_core = (
            link_of(runtime),
            shared_cores(runtime) <= runtime.workers * runtime.coordinator.size,
        )
        ones = candidates.slices / candidates.slices_of_one
        self.compute_s = COMPUTING_S_PER_BYTE * candidates.nbytes_of_arrays * ones / self._workers
        self.exchange_s = (
            candidates.nbytes * candidates.slices / self._link.bandwidth_Bps + candidates.slices * self._link.latency_s
        )

    def predicted_s(self, settings: Settings) -> float:
        """Return the model's time of the whole batch in seconds."""
        candidates = self._candidates
        wait = "block" if settings.wait == "poll" and self._takes_core else settings.wait
        return pipeline_s(
            self.compute_s,
            candidates.nbytes * candidates.slices,
            self._link,
            slices=candidates.slices,
            chunk=settings.chunk or 1,
            workers=self._workers,
            wait=wait,
            message_overhead_s=OVERHEAD_S,
            depth=settings.depth,
        )

    def entrants(self) -> list[Settings]:
        """Return the settings that planning would try, those that the model prefers first."""
        planned = dict.fromkeys(self._candidates.planned(self.compute_s, self.exchange_s))
        return sorted(planned, key=self.predicted_s)


def shared_cores(runtime: Runtime) -> float:
    """Return the cores of the host of all ranks; infinity if there are several hosts (collective)."""
    count = runtime.cache.get("shared cores")
    if count is None:
        hosts, cores = zip(*runtime.coordinator.allgather((platform.node(), os.sched_getaffinity(0))))
        count = runtime.cache["shared cores"] = len(set().union(*cores)) if len(set(hosts)) == 1 else math.inf
    return count
