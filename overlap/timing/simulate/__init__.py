"""Simulation of the time that slices take on a machine, by the rule of the runtime's loop on a virtual clock.

Lowest first:

    machine     a machine in a few numbers; TOML
    program     slices that compute and exchange; those of the plans
    options     how the program runs
    ranks       all ranks, stepped together in compiled code
    run         a simulation, beside the closed forms

What each thread does next is decided by the functions by which the runtime's loop decides it. The tests compare the
times with those of the loop's source on a virtual clock. Only the machine is a model: see `Machine` and `ranks`.

If all ranks are alike (one program, no jitter), they are in the same state at any time, so one of them is simulated and
represents all; the result is the same as if each of them were simulated. Otherwise every rank is simulated.
"""

from ...ranks.objects import old_names
from .machine import Machine, Options
from .simulated_program import WORKLOADS, Program, SimulatedTransfer, Workload
from .simulation import Prediction, Result, predict, simulate

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
