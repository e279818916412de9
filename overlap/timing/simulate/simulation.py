"""Running a simulation, beside the closed forms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...errors import InputError
from .. import model
from .machine import Machine, Options
from .ranks import run
from .simulated_program import Program


@dataclass(frozen=True)
class Result:
    """The result of a simulation.

    Attributes
    ----------
    wall_s : float
        Time until the last rank has ended.
    order : list of (int, int)
        The exchanges in the issue order, which is that of every rank: slice, and index within the slice.
    simulated : int
        Number of ranks that were simulated.

    Examples
    --------
    >>> from overlap.timing.simulate import Machine, Options, Program, SimulatedTransfer, simulate
    >>> machine = Machine(name="mine", fft_flops=4e9, copy_Bps=5e9, latency_s=1e-5, bandwidth_Bps=1e9)
    >>> program = Program.alike(2, (1e-3, 1e-3), (SimulatedTransfer(nbytes=1e6, messages=1),))
    >>> simulate(program, machine, Options(wait="off")).order
    [(0, 0), (1, 0)]
    """

    wall_s: float
    order: list[tuple[int, int]]
    simulated: int


def simulate(
    program: Program | Sequence[Program], machine: Machine, options: Options, *, every_rank: bool = False
) -> Result:
    """Run a program on a virtual machine.

    Parameters
    ----------
    program : Program or sequence of Program
        The program of all ranks; or a program for each of them, with the same exchanges at the same positions.
    machine : Machine
    options : Options
    every_rank : bool
        Simulate every rank even if one represents all.

    Returns
    -------
    Result

    Raises
    ------
    InputError
        There is not one program per rank, or the programs differ in their exchanges.

    Examples
    --------
    >>> from overlap.timing.simulate import Machine, Options, Program, SimulatedTransfer, simulate
    >>> machine = Machine(name="mine", fft_flops=4e9, copy_Bps=5e9, latency_s=1e-5, bandwidth_Bps=1e9)
    >>> transfer = SimulatedTransfer(nbytes=1e6, messages=1)
    >>> program = Program(steps=((1e-3, 1e-3),) * 16, transfers=((transfer,),) * 16)  # compute, exchange, compute
    >>> off, poll = (simulate(program, machine, Options(wait=wait)).wall_s for wait in ("off", "poll"))
    >>> bool(poll < off)
    True
    """
    alike = isinstance(program, Program)
    if isinstance(program, Program):
        programs: Sequence[Program] = (program,) * options.ranks
    else:
        programs = program
        _check(programs, options)
    alone = alike and not machine.jitter and not every_rank and options.speeds is None
    count = 1 if alone else options.ranks
    outcome = run(
        machine,
        programs[:count],
        options.speeds or (1.0,) * count,
        options,
        _factors(programs[:count], machine, options),
    )
    stuck = np.flatnonzero(outcome.ends_s < 0).tolist()
    if stuck:
        raise RuntimeError(f"ranks {stuck[:8]} of the simulation wait for ever")
    return Result(float(np.max(outcome.ends_s)), list(map(tuple, outcome.order.tolist())), count)


def _factors(programs: Sequence[Program], machine: Machine, options: Options) -> np.ndarray:
    """Draw the factors, of mean 1, of the times of each rank's steps."""
    if not machine.jitter:
        return np.empty((len(programs), 0))
    count = sum(map(len, programs[0].steps))
    mean = -(machine.jitter**2) / 2
    seeds = np.random.SeedSequence(options.seed).spawn(len(programs))
    return np.array([np.random.default_rng(seed).lognormal(mean, machine.jitter, count) for seed in seeds])


def _check(programs: Sequence[Program], options: Options) -> None:
    if not isinstance(programs, Sequence) or len(programs) != options.ranks:
        raise InputError(f"program: expected one, or one for each of {options.ranks} ranks")
    shapes = {tuple(map(len, program.transfers)) for program in programs}
    if len(shapes) > 1:
        raise InputError(
            "program: expected the same number of exchanges in each slice on all "
            f"ranks, received {len(shapes)} different ones"
        )


@dataclass(frozen=True)
class Prediction:
    """Simulated times beside those of the model.

    Attributes
    ----------
    compute_s, communication_s : float
        C and T, each simulated without the other.
    off_s, wall_s : float
        Simulated without overlap, and with the given options.
    model_s : float
        The closed form for `wait` with fill and drain (`model.no_overlap_s`, `block_s`, `poll_s`).

    Examples
    --------
    >>> from overlap.timing.simulate import Machine, Options, Program, SimulatedTransfer, predict
    >>> machine = Machine(name="mine", fft_flops=4e9, copy_Bps=5e9, latency_s=1e-5, bandwidth_Bps=1e9)
    >>> transfer = SimulatedTransfer(nbytes=1e6, messages=1)
    >>> program = Program(steps=((1e-3, 1e-3),) * 16, transfers=((transfer,),) * 16)  # compute, exchange, compute
    >>> prediction = predict(program, machine, Options(wait="poll"))
    >>> bool(prediction.bound_s <= prediction.wall_s < prediction.off_s)
    True
    """

    compute_s: float
    communication_s: float
    off_s: float
    wall_s: float
    model_s: float

    @property
    def bound_s(self) -> float:
        """Return max(C, T), below which no schedule can be."""
        return max(self.compute_s, self.communication_s)

    @property
    def gain(self) -> float:
        """Return the gain over the time without overlap, as a ratio."""
        return self.off_s / self.wall_s

    @property
    def hidden(self) -> float:
        """Return the share of min(C, T) that is hidden; see `model.hidden`."""
        return model.hidden(self.compute_s, self.communication_s, self.wall_s)


def predict(program: Program, machine: Machine, options: Options) -> Prediction:
    """Simulate a program, its computing alone, and its communication alone.

    Parameters
    ----------
    program : Program
    machine : Machine
    options : Options

    Returns
    -------
    Prediction

    Examples
    --------
    >>> from overlap.timing.simulate import Machine, Options, Program, SimulatedTransfer, predict
    >>> machine = Machine(name="mine", fft_flops=4e9, copy_Bps=5e9, latency_s=1e-5, bandwidth_Bps=1e9)
    >>> transfer = SimulatedTransfer(nbytes=1e6, messages=1)
    >>> program = Program(steps=((1e-3, 1e-3),) * 16, transfers=((transfer,),) * 16)  # compute, exchange, compute
    >>> prediction = predict(program, machine, Options(wait="poll"))
    >>> bool(prediction.bound_s <= prediction.wall_s < prediction.off_s)
    True
    """
    computing = Program(tuple((sum(steps),) for steps in program.steps), ((),) * len(program.steps))
    talking = Program(tuple((0.0,) * len(steps) for steps in program.steps), program.transfers)
    off = replace(options, wait="off", workers=1)
    alone = replace(options, wait="off" if options.workers == 1 else "poll")
    compute_s = simulate(computing, machine, alone).wall_s
    communication_s = simulate(talking, machine, off).wall_s
    wall_s = simulate(program, machine, options).wall_s
    off_s = simulate(program, machine, off).wall_s
    if options.workers > 1:  # the runtime's "off" has one worker; C + T of the model has all of them
        off_s = compute_s + communication_s
    slices = len(program.steps)
    if options.wait == "off":
        model_s = model.no_overlap_s(compute_s, communication_s)
    elif options.wait == "block":
        model_s = model.block_s(compute_s, communication_s, options.workers, slices=slices)
    else:
        model_s = model.poll_s(compute_s, communication_s, slices=slices, workers=options.workers)
    return Prediction(compute_s, communication_s, off_s, wall_s, model_s)
