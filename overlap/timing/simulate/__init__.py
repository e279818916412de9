"""Simulation: how long a slice program takes on a machine; the runtime's schedule on a virtual clock.

Lowest first:

    machine     a machine in a few numbers; TOML
    program     slices that compute and exchange; those of the plans
    options     how it runs
    ranks       the runtime's schedule on all ranks, stepped together in compiled code
    run         a simulation, and the closed forms next to it

What is predicted is what runs: issue order, ready steps, core tokens, limits and sleeps are the runtime's; the tests
hold each of them to the runtime's own code on a virtual clock. What is modelled is the machine: see `Machine` and
`ranks`.

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
