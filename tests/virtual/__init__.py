"""The source of the compiled loop on a virtual clock: what `overlap.timing.simulate` says is held to it.

The loop and its rule run unchanged, each of their threads a greenlet. What is simulated is what they stand on: threads
(`clock`), MPI (`network`), and the time that computing and communicating take on the cores of a rank (`rank`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from overlap.timing.simulate import Machine, Options, Program

from .clock import Clock
from .network import Network
from .rank import Rank


def run(programs: Sequence[Program], machine: Machine, options: Options) -> tuple[float, list[tuple[int, int]]]:
    """Run one program per rank, or one that stands for all; until when, and the exchanges as they were issued."""
    count, clock = len(programs), Clock()
    network = Network(clock, machine, options.ranks, count)
    speeds = options.speeds or (1.0,) * count
    ranks = []
    for number, seed in enumerate(np.random.SeedSequence(options.seed).spawn(count)):
        random = np.random.default_rng(seed) if machine.jitter else None
        what = programs[number].scaled(1 / speeds[number])
        ranks.append(Rank(number, clock, network, machine, what, options, random))
    clock.run()
    ends_s = [rank.end_s for rank in ranks]
    assert None not in ends_s
    return max(ends_s), network.order
