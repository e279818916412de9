"""`Plan`: the base class of plans of transforms; `Balance`: shares in proportion to the ranks' speeds.

The speeds are measured by a plan's own computing on all ranks at once. They are found from the time of the steps that
compute (`Load.computing_s`), not from that of calls, in which all ranks take as long as the slowest.
`overlap.arrays.speeds` estimates the certain gain of new shares.
"""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ..arrays import DistArray, Weights, checked
from ..arrays.weights import MEASURE, ROUND_S, ROUNDS, speeds_of, weights_of
from ..ranks.exclusive import thread_level
from ..ranks.resource import marked_call
from ..runtime.on_runtime import OnRuntime, PlanComm
from ..timing import seconds_of
from .arguments import record
from .array_layout import ArrayLayout, shares_problem
from .array_spec import ArraySpec
from .planning.plan_cache import PlanCache, Tuning, path_of
from .planning.settings import Settings, Tuned
from .planning.tournament import budget_problem, choose, median_seconds, on_trial, seconds, tune, use_settings
from .transform import Progress, Transform

KEPT_GAIN = 1.02  # least measured gain of new shares; with less the plan returns to the old ones


@dataclass(frozen=True)
class Balance:
    """The result of balancing; the same on all ranks, except for the arrays.

    Attributes
    ----------
    speeds : tuple of float
        Speeds of all ranks relative to the fastest one.
    weights : tuple of int or None
        The plan's weights from now on; None: shares are even.
    changed : bool
    gain : float
        Time of the plan's transforms before divided by that after, on arrays of zeros; 1 if nothing has changed.
    arrays : tuple of DistArray
        The arrays that were passed, in the plan's new distribution.

    Examples
    --------
    >>> with overlap.FFT2(comm, (8, 16, 16)) as plan:
    ...     found = plan.balance(plan.real.empty())
    >>> found.speeds[comm.rank] <= 1, found.arrays[0].global_shape
    (True, (8, 16, 16))
    """

    speeds: tuple[float, ...]
    weights: Weights
    changed: bool
    gain: float
    arrays: tuple[Any, ...] = ()

    def __str__(self) -> str:
        speeds = " : ".join(f"{speed:.2f}" for speed in self.speeds)
        if not self.changed:
            return f"balance: speeds {speeds}; nothing to gain, shares stay"
        return f"balance: speeds {speeds}; {self.gain:.2f}x as fast with weights {self.weights}"


@contextmanager
def few_entries(transform: Transform, what: str) -> Iterator[int]:
    """Return a ``with`` block in which a transform is configured for trials of a few entries: their number."""
    settings = transform.settings
    count = transform.candidates(transform, transform.requested).parts[0]
    with on_trial(transform, what):
        transform.configure(settings, count)
        yield count
        transform.configure(settings)


def computing_s(transforms: Sequence[Transform]) -> list[float]:
    """Measure, round by round, the seconds that this rank computes in a trial of all transforms (collective)."""
    measured_s = np.zeros(ROUNDS)
    for transform in transforms:
        with few_entries(transform, "measuring the speeds of all ranks") as count:
            arrays, coordinator = transform.trial_arrays(count), transform.runtime.coordinator
            # Including the synchronization of all ranks, which takes longer than a small run.
            once_s = coordinator.maximum(
                min(seconds_of(partial(seconds, transform, arrays, "compute")) for _ in range(2))
            )
            runs = max(1, math.ceil(ROUND_S / len(transforms) / max(once_s, 1e-6)))
            load = transform.runtime.load
            for number in range(ROUNDS):
                before_s = load.computing_s
                for _ in range(runs):
                    seconds(transform, arrays, "compute")
                measured_s[number] += (load.computing_s - before_s) / runs
    return [float(each) for each in measured_s]


def whole_s(transforms: Sequence[Transform]) -> float:
    """Measure the seconds of trials of all transforms with their present settings (collective)."""
    total_s = 0.0
    for transform in transforms:
        with few_entries(transform, "timing a transform") as count:
            median_seconds(transform, count, 1)
            total_s += median_seconds(transform, count)
    return total_s


class Plan(OnRuntime):
    """Base of `FFT2`, `FFT3`, `FFTN` and `Bracket`.

    Making, calling and closing a plan is collective over all ranks of its runtime.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm, Runtime or AsyncComm
        For an mpi4py communicator the plan makes a `Runtime` of its own, with one worker, and closes it at its own end.
        A `Runtime`, or one of its communicators (from `Runtime.wrap` or `AsyncComm.Split`), is shared with others and
        stays open.

    Attributes
    ----------
    real, spectrum : ArraySpec
        The arrays of real space and of the spectrum: this rank's part, and ``empty()`` to make them. If a plan has no
        public arrays in real space, `real` is None.
    runtime : Runtime
    comm : mpi4py.MPI.Comm
        The ranks over which the arrays are split, for collectives of your own.
    exchange : {None, "f4"}
        The format of numbers in messages.
    closed : bool
    """

    real: ArraySpec | None = None
    spectrum: ArraySpec
    _tuning: Tuning
    _memory: PlanCache | None
    _requested: Settings
    _weights: Weights
    exchange: str | None = None

    def __init__(self, comm: PlanComm) -> None:
        super().__init__(comm)
        self._made = 0
        self._makers: weakref.WeakKeyDictionary[Transform, Callable[[Any], Transform]] = weakref.WeakKeyDictionary()
        self._transforms: weakref.WeakValueDictionary[int, Transform] = (
            weakref.WeakValueDictionary()
        )  # number, equal on all ranks -> transform
        self._kernels: weakref.WeakValueDictionary[tuple[Any, ...], Any] = weakref.WeakValueDictionary()

    def _release(self, closing: ExitStack) -> None:
        closing.callback(self._forget)
        for transform in list(self._transforms.values()):
            closing.callback(transform.release)

    @marked_call
    def describe(self) -> str:
        """Return as text the settings of the plan, their memory, and the alternatives that were measured."""
        self._check_in_use()
        lines = [self._title()]
        for _, transform in sorted(self._transforms.items()):
            lines += [transform.describe(), *map(str, transform.trials)]
        return "\n".join([*lines, *self._notes(), f"MPI at {thread_level()}"])

    @marked_call
    def tune(self, budget_s: float = 30.0, progress: Progress | None = None) -> dict[str, Tuned]:
        """Search for the fastest settings of all transforms, and use them (collective).

        All transforms made so far share the time. The result goes to the plan's tuning file, if it has one;
        later plans of the same kind read it from there.

        Parameters
        ----------
        budget_s : float
            Seconds that the search may take, approximately.
        progress : callable, optional
            ``progress(what, done, total)``, called on rank 0 now and then, in seconds.

        Returns
        -------
        dict
            A `Tuned` for the name of each transform.

        Raises
        ------
        InputError
            On all ranks, when an argument is bad or the file cannot be written.
        """
        self._check_in_use()
        with self.runtime.collective_section(f"tuning a plan, {self._known_as}"):
            self.runtime.preflight(budget_problem(budget_s, progress) or self._tuning.problem(), budget_s=budget_s)
            self._before_tuning_or_balancing()
            self._tuning.forget()
            self._kernels.clear()  # the plans that are measured must be those in FFTW's wisdom
            alive = self._alive()
            tuned: dict[str, Any] = {}  # transforms with the same name are planned alike
            for transform in alive:
                tuned.setdefault(transform.name, transform)
            share_s = budget_s / max(1, len(tuned))
            for position, (name, transform) in enumerate(tuned.items()):
                tune(transform, share_s, progress and _part_of(progress, name, position * share_s, budget_s))
            self._tuning.keep(tuned, self._shapes())
            self._kernels.clear()
            for transform in alive:
                transform.tuned, transform.refinement = tuned[transform.name].tuned, None
                transform.trials = tuned[transform.name].trials
                transform.configure(tuned[transform.name].settings)
            return {name: transform.tuned for name, transform in tuned.items()}

    @marked_call
    def balance(self, *arrays: DistArray) -> Balance:
        """Give every rank a share in proportion to its speed, if that pays (collective).

        The plan measures the speeds in its own computing. If shares in proportion to the speeds gain clearly, the
        plan is rebuilt in place with the speeds as weights: `real`, `spectrum` and the shapes of arrays change;
        `forward` and all other transforms stay the same objects with the same settings and as many messages. Set the
        advecting field of a `Bracket` again afterwards. A tuning file keeps the weights, for plans with
        ``weights="measure"``.

        Parameters
        ----------
        arrays : DistArray
            Arrays of the plan, of real space or of the spectrum, to be moved to the new shares.

        Returns
        -------
        Balance
            Speeds, weights, the gain, and the arrays.

        Raises
        ------
        InputError
            On all ranks, when an array is not one of the plan's.
        """
        self._check_in_use()
        with self.runtime.collective_section(f"balancing a plan, {self._known_as}"):
            sides = [
                next(
                    (
                        side
                        for side, spec in enumerate((self.real, self.spectrum))
                        if spec is not None
                        and isinstance(array, DistArray)
                        and array.global_shape == spec.global_shape
                        and array.axes == spec.axes
                    ),
                    None,
                )
                for array in arrays
            ]
            self.runtime.preflight(
                None
                if None not in sides
                else (
                    "expected arrays with the distribution of the plan's real or spectrum, received "
                    f"{arrays[sides.index(None)]!r:.80}"
                ),
                sides=sides,
            )
            balance = self._balanced()
            specs: Any = (self.real, self.spectrum)
            moved = tuple(
                array.redistribute(specs[side]) if balance.changed else array for array, side in zip(arrays, sides)
            )
            return replace(balance, arrays=moved)

    def _balanced(self) -> Balance:
        """Measure the speeds of all ranks, and use them as weights if that pays (collective)."""
        self._before_tuning_or_balancing()
        alive = self._alive()
        answers = self.runtime.coordinator.allgather((computing_s(alive), self._share()))
        members: Any = self.runtime.coordinator.ranks_of(self.comm)
        times_s, shares = zip(*(answers[rank] for rank in members))
        speeds, pays = speeds_of(times_s, shares)
        pays = self.comm.size > 1 and pays
        if not self.runtime.coordinator.maximum(int(pays)):
            return Balance(speeds, self._weights, False, 1.0)
        before, before_s = self._weights, whole_s(alive)
        self._reshare(weights_of(speeds) if pays else before, alive)
        after_s = whole_s(alive)
        if before_s < KEPT_GAIN * after_s:
            self._reshare(before, alive)
            return Balance(speeds, before, False, 1.0)
        self._tuning.keep_weights(self._weights)
        return Balance(speeds, self._weights, pays, before_s / after_s)

    def _reshare(self, weights: Weights, alive: list[Transform]) -> None:
        """Rebuild the plan in place with other weights (collective)."""
        self._weights = weights
        self._kernels.clear()
        self._place()
        for transform in list(self._transforms.values()):
            if transform in alive:
                transform.replace_by(self._makers[transform](self))
            else:  # another rank has dropped it
                transform.release()

    def _kernel(self, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """Return the kernels for a key; make them if no transform has them."""
        kernel = self._kernels.get(key)
        if kernel is None:
            with self._tuning.planning():
                kernel = self._kernels[key] = make()
        return kernel

    def _share(self) -> float:
        """Return this rank's share of the computing."""
        specs = [spec for spec in (self.real, self.spectrum) if spec is not None]
        return float(np.mean([np.prod(spec.shape) / max(1.0, float(np.prod(spec.global_shape))) for spec in specs]))

    def _alive(self) -> list[Transform]:
        """Return the transforms that no rank has dropped, in the order in which they were made (collective)."""
        held = dict(self._transforms)
        held_here = np.array([number in held for number in range(self._made)])
        everywhere = np.all(self.runtime.coordinator.allgather(held_here), axis=0)
        return [held[number] for number, all_hold in enumerate(everywhere) if all_hold]

    def _options(
        self,
        layout: ArrayLayout | dict[str, Any] | None,
        settings: Settings | dict[str, Any] | None,
        tuning: str | os.PathLike[str] | None,
    ) -> tuple[ArrayLayout, Settings, Any, str | None]:
        """Return the layout with checked weights, the settings, the tuning file's name, and a problem or None."""
        arrays, problem = record(ArrayLayout, layout, "layout")
        requested, settings_problem = record(Settings, settings, "settings")
        uneven, wrong = None, shares_problem(arrays)
        if wrong:
            arrays = replace(arrays, shares=None)
        if not _measured(arrays):
            weights, uneven = checked(arrays.weights, self.comm.size)
            arrays = replace(arrays, weights=weights)
        return arrays, requested, path_of(tuning), problem or uneven or wrong or settings_problem

    def _look_up(self, path: str | None, arrays: ArrayLayout, dtype: DTypeLike, /, **what: Any) -> dict[str, Any]:
        """Read the tuning file and weights; return the description of the plan, in values for a file (collective).

        If weights are to be measured and are not known yet, they are None and `_measures` is true.
        """
        measured = _measured(arrays)
        plan = {
            "kind": self._kind,
            "ranks": self.comm.size,
            "workers": self.runtime.workers,
            "weights": arrays.weights and str(arrays.weights),
            **({"shares": str(arrays.shares)} if arrays.shares else {}),
            **what,
        }
        self._tuning = Tuning(self.runtime, plan, dtype, path or None)
        requested: Any = arrays.weights
        self._weights = self._tuning.weights if measured else requested
        self._measures = measured and self._weights is None
        return plan

    @contextmanager
    def _adding(self, what: str) -> Iterator[None]:
        """Return a ``with`` block that adds a transform: if it fails on one rank, no rank keeps the transform."""
        made_before = self._made

        def undo() -> None:
            for number in range(made_before, self._made):
                transform = self._transforms.pop(number, None)
                if transform is not None:
                    transform.release()
            self._made = made_before  # the numbers stay equal on all ranks

        with self.runtime.collective_section(f"{what}, {self._known_as}", undo):
            yield

    def _keep(self, name: str, transform: Transform, make: Callable[[Any], Transform]) -> None:
        """Keep a new transform until it is dropped or the plan is closed; `make` makes another one like it."""
        transform.name = name
        transform.known_as = f"{name} of {self._known_as}, its transform {self._made}"
        self._makers[transform] = make
        self._transforms[self._made] = transform
        self._made += 1

    def _choose(self, name: str, transform: Transform) -> None:
        """Choose a transform's settings, those of the tuning file if it has an entry (collective)."""
        known = self._tuning.settings(name)
        if known is not None:
            transform.tuned = known[1]
            use_settings(transform, self._requested, known[0])
        else:
            choose(transform, self._requested, self._memory)
        transform.prepare()

    # ---- what a plan supplies ------------------------------------------------------------------

    def _notes(self) -> list[str]:
        """Return further lines for `describe`."""
        return [str(self._tuning)] if self._tuning.path else []

    def _place(self) -> None:
        """Set the distribution of the arrays with the plan's weights."""
        raise NotImplementedError

    def _before_tuning_or_balancing(self) -> None:
        """Make the transforms ready, if need be (collective)."""

    def _shapes(self) -> tuple[Any, ...]:
        """Return the values, besides the plan, on which this rank's FFTW plans depend."""
        return ()

    def _forget(self) -> None:
        """Drop the remaining references after the transforms have been released."""


def _part_of(progress: Progress, name: str, before_s: float, total_s: float) -> Progress:
    """Return a progress function for one transform, as a part of that of all."""
    return lambda what, done, _: progress(f"{name}: {what}", before_s + done, total_s)


def _measured(layout: ArrayLayout) -> bool:
    return isinstance(layout.weights, str) and layout.weights == MEASURE
