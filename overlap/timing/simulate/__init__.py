"""Simulation: how long a slice program takes on a machine; its schedule on a virtual clock.

Lowest first:

    clock       virtual time, light threads
    machine     a machine in a few numbers; TOML
    program     slices that compute and exchange; those of the plans
    options     how it runs
    network     when an exchange is over
    rank        the runtime's own code on the virtual clock

What is predicted is what runs: issue order, ready steps, core tokens, limits and sleeps are the runtime's
own code. What is modelled is the machine: see `Machine`, `Network` and `Rank`.

Ranks that are all alike (one program, no jitter) are at every moment in the same state, so one of
them is simulated and stands for all; the result is that of simulating each of them. Otherwise
every rank is simulated.
"""

from ...renamed import old_names
from .machine import Machine
from .options import Options
from .program import WORKLOADS, Program, SimulatedTransfer, Workload
from .run import Prediction, Result, predict, simulate

__all__ = [
    "WORKLOADS",
    "Machine",
    "Options",
    "Prediction",
    "Program",
    "Result",
    "SimulatedTransfer",
    "Workload",
    "predict",
    "simulate",
]

__getattr__ = old_names(__name__, Transfer="SimulatedTransfer")
