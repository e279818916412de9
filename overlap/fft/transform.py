"""`Transform`: the base class of a plan's callables: arguments, settings, schedules, calls.

A slice of a call is the data of one message. For each slice every transform lists

    pack; exchange; unpack

or several of these, one after the other, as steps (`Transform.steps`). They are recorded as a `Schedule`, which the
compiled loop runs (`overlap.runtime.loop`): as a whole, its computing alone, or its exchanges alone.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from math import inf
from time import perf_counter
from typing import Any, NoReturn

import numpy as np

from ..arrays import DistArray
from ..checks import number_problem
from ..errors import ClosedError, InputError
from ..ranks.interrupts import held_signals
from ..ranks.objects import Described, Uncopied
from ..ranks.resource import marked_call
from ..runtime import AsyncComm, Load, Runtime
from ..runtime.plan_call import CallKind, PlanCall
from .array_spec import ArraySpec
from .bound import BoundArrays, BoundCall, unowned
from .engine.buffers import ArrayReference, on_lines
from .engine.fftw import REQUIRED_ALIGNMENT, address_of, empty, zeros
from .engine.schedule import Schedule, Schedules, addresses_of
from .engine.steps import AnyStep, staggered
from .planning.candidates import Candidates, FieldCandidates, PlaneCandidates
from .planning.settings import Settings, Trial, Tuned
from .planning.tournament import Comparison, budget_problem, tune
from .result_memory import ResultMemory

Progress = Callable[[str, float, float], None]
"""``progress(what, done, total)``: called on rank 0 with the progress of tuning in seconds."""
TRIAL_FIELDS = 3
CONFIGURED = [
    "settings",
    "nbytes_in_flight",
    "_kernels",
    "_memory",
    "_parts",
    "_slots",
    "_kinds",
    "_schedules",
    "_bound",
]


@dataclass(frozen=True)
class Configuration:
    """What a transform has made for certain settings.

    Attributes
    ----------
    attributes : dict
        The transform's attributes that depend on the settings.
    share : Configuration or None
        The configuration of another transform, which has the same settings.
    """

    attributes: dict[str, Any]
    share: Configuration | None = None

    def forget(self) -> None:
        """Forget all calls that were prepared."""
        self.attributes["_bound"].forget()
        self.attributes["_schedules"].forget()


class Transform(Uncopied, Described):
    """Base of all transforms: arguments, settings, calls.

    Its *kernels* describe what is done on this rank: a `StagedTransform`, a `PlaneComposition` or a `FieldComposition`.

    Parameters
    ----------
    runtime : Runtime
    comms : sequence of AsyncComm
        One per dimension of the grid.
    kernels : StagedTransform, PlaneComposition or FieldComposition
    make : callable
        ``make(effort)`` makes the kernels with another effort of FFTW's planning.
    inputs, outputs : tuple of ArraySpec
        The input and output arrays.
    entries : int
        Entries of the batch that are transformed one by one.

    Attributes
    ----------
    name : str
    inputs, outputs : tuple of ArraySpec
    settings : Settings
    trials : tuple of Trial
        Measurements of planning or tuning, fastest first; empty if all settings were given.
    tuned : Tuned or None
        The result of `tune`, in this run or in the run whose file was read.
    nbytes_in_flight : int
        Memory of all slots on this rank, in bytes.

    Examples
    --------
    >>> with overlap.FFT2(comm, (4, 16, 16)) as plan:
    ...     u, spectrum = plan.real.empty(), plan.spectrum.empty()
    ...     u[...] = 1.0
    ...     result = plan.forward(u, out=spectrum)
    ...     print(plan.forward.settings.wait in ("off", "block", "poll"))
    True
    """

    can_be_late = False  # `Settings.late` has an effect
    replans = True  # `Settings.effort` has an effect after the transform has been made
    requested: Settings
    settings: Settings
    nbytes_in_flight: int
    # Attributes that `release` clears.
    _held: tuple[str, ...] = ("_kinds", "_kernels", "_make", "_memory", "_result_memory")

    def __init__(
        self,
        runtime: Runtime,
        comms: Sequence[AsyncComm],
        kernels: Any,
        make: Callable[[str | None], Any],
        inputs: tuple[ArraySpec, ...],
        outputs: tuple[ArraySpec, ...],
        entries: int,
    ) -> None:
        self.runtime, self._comms, self._make = runtime, comms, make
        self._calls = runtime.coordinator.calls
        self.inputs, self.outputs = inputs, outputs
        self._kernels = kernels  # made for `settings`
        self.units = 1 if kernels.by_index else kernels.units  # slices of an entry
        self.slices, self._entries = entries * self.units, entries
        self.candidates: type[Candidates] = PlaneCandidates if kernels.by_index else FieldCandidates
        self.exchange_dtype: np.dtype = kernels.wire.dtype  # type of the numbers in messages
        self.name = type(self).__name__.lower()
        self.known_as = self.name  # compared between ranks: a call of another transform is an error
        self.trials: tuple[Trial, ...] = ()
        self.tuned: Tuned | None = None
        self.planning = False  # true while arrays hold no user data
        self.refinement: Comparison | None = None  # compares, in the next calls, settings that a model has chosen
        self._released = False
        self._kinds: Any = None  # kinds of calls: "whole", "compute", "exchange"; made for `settings`
        self._memory: Any = None  # memory of all slots
        self._result_memory: list[ResultMemory] | None = None  # memory of results of calls without `out`
        self._bound, self._schedules = BoundArrays(), Schedules()

    def _title(self) -> str:
        sides = (
            ", ".join(f"{spec.global_shape} {spec.dtype}" for spec in specs) for specs in (self.inputs, self.outputs)
        )
        return f"Transform {self.name}: {' to '.join(sides)}"

    def _has_ended(self) -> bool:
        return self._released

    # ---- what a transform may do besides -------------------------------------------------------

    def before(self, inputs: list[np.ndarray]) -> None:
        """Do the work that precedes a call (collective)."""

    def can_bind(self, outputs: list[np.ndarray]) -> bool:
        """Return whether a prepared call for these outputs needs nothing but their addresses."""
        return not self._kernels.returned and targets_fit(outputs, self.outputs)

    def _steps_of(self, task: Any, slot: Any, arrays: Any) -> Iterable[AnyStep]:
        """Return the steps of one slice."""
        steps: Iterable[AnyStep] = self._kernels.steps(task, slot, arrays, self._comms, self.planning)
        return steps

    # ---- what planning and tuning need ---------------------------------------------------------

    def kernels_of(self, settings: Settings) -> Any:
        """Return the kernels for `settings`, for all workers."""
        return self._make(settings.effort)

    def trial_fields(self) -> int:
        """Return the number of fields of a measured run, enough to include the overlap of successive fields."""
        return min(self._entries, TRIAL_FIELDS)

    def nbytes_per_slice(self) -> int:
        """Return the bytes that this rank sends per plane, or per unit on average."""
        messages = self._kernels.messages(1)
        nbytes = sum(message.nbytes_sent for message in messages)
        return nbytes if self._kernels.by_index else -(-nbytes // max(1, len(messages)))

    def message_count(self) -> int:
        """Return the number of messages that this rank sends in a call of one entry of the batch, with `settings`."""
        return sum(
            int(np.count_nonzero(message.counts_sent)) for message in self._kernels.messages(self.settings.chunk)
        )

    def message_nbytes(self, chunk: int) -> int:
        """Return the bytes of the largest piece that this rank sends."""
        messages = self._kernels.messages(chunk)
        return max(max(message.counts_sent) * message.wire.dtype.itemsize for message in messages)

    def slot_nbytes(self, chunk: int) -> int:
        """Return the bytes of one slot's buffers, at least 1."""
        return max(1, sum(self._kernels.buffer_lengths(chunk)) * self.exchange_dtype.itemsize)

    # ---- settings and schedules ----------------------------------------------------------------

    def configure(self, settings: Settings, count: int | None = None) -> None:
        """Allocate slots and prepare calls for `settings`; by default for the whole batch."""
        self.settings, chunk = settings, settings.chunk or 1
        kernels = self._kernels = self.kernels_of(settings)
        tasks = kernels.tasks(chunk, self._entries if count is None else count, settings.late or 0.0)
        depth = max(1, min(settings.depth or 1, len(tasks)))
        slots = self._allocate(depth, kernels.buffer_lengths(chunk))
        self._make_kinds(tasks, [kernels.slot(*buffers) for buffers in slots])

    def steps(self, inputs: Sequence[ArrayReference], outputs: Sequence[ArrayReference]) -> Iterator[Iterable[AnyStep]]:
        """Yield the steps (see `engine.steps`) of every slice of a call, for located arrays."""
        kernels = self._kernels
        arrays = kernels.arrays(natural_parts(inputs, self.inputs), natural_parts(outputs, self.outputs))
        for number, task in enumerate(self._parts):
            late = staggered(number, len(self._slots)) if kernels.staggers else ()
            slot = self._slots[number % len(self._slots)]
            yield chain(late, self._steps_of(task, slot, arrays))

    @property
    def configuration(self) -> Configuration:
        """Return what `configure` has made, to return to it later by setting it."""
        return Configuration({name: getattr(self, name) for name in CONFIGURED})

    @configuration.setter
    def configuration(self, made: Configuration) -> None:
        vars(self).update(made.attributes)

    def forget(self) -> None:
        """Forget all calls that were prepared."""
        self._bound.forget()
        self._schedules.forget()
        if self.refinement is not None:
            self.refinement.forget()  # prepared calls of the other settings, too

    def scratch(self) -> list[int]:
        """Return the addresses of every worker's scratch memory."""
        addresses: list[int] = self._kernels.scratch
        return addresses

    def _make_kinds(self, parts: Sequence[Any], slots: list[Any]) -> None:
        """Make the kinds of calls of the slices `parts`, on some slots."""
        self._bound, self._schedules = BoundArrays(), Schedules()
        self._parts, self._slots = parts, slots
        settings, depth = self.settings, len(slots)
        limit = min(settings.in_flight or depth, depth)

        def kind(only: str, wait: str, computes: bool = True, exchanges: bool = True) -> CallKind:
            agreed = {"slices": len(parts), "depth": depth, "wait": wait, "in_flight": limit}
            name = only + self.known_as  # the ranks compare it
            return CallKind(self.runtime.threads, name, agreed, wait, limit, computes, exchanges)

        self._kinds = {
            "whole": kind("", settings.wait),
            "compute": kind("only the computing of ", "poll", exchanges=False),
            "exchange": kind("only the exchanges of ", "off", computes=False),
        }

    @property
    @marked_call
    def schedule(self) -> Schedule:
        """Return the steps of every slice, for arrays that this transform makes; print it to read them."""
        self.check_in_use()
        arrays = [spec.planes(spec.empty()) for spec in (*self.inputs, *self.outputs)]
        return self._schedules.of(self._record, arrays, self.planning)

    def _record(self, located: Sequence[ArrayReference]) -> Schedule:
        count = len(self.inputs)
        return Schedule(self._parts, self.steps(located[:count], located[count:]), self.scratch(), len(self._slots))

    def _allocate(self, depth: int, lengths: Sequence[int]) -> list[list[np.ndarray]]:
        """Allocate buffers of some lengths for every slot, all in one block of memory."""
        dtype = self.exchange_dtype
        lengths = on_lines(lengths, dtype)
        each = sum(lengths)
        self.nbytes_in_flight = depth * each * dtype.itemsize
        held = -1 if self._memory is None else self._memory.size
        # Settings are compared on the same memory if it is large enough, because a call can take 10 % longer on other
        # pages: caches hold them by their physical addresses.
        comparing = self.planning or self.refinement is not None
        if held < depth * each or (held > depth * each and not comparing):
            self._memory = None  # freed before new memory is allocated
            self._memory = zeros((depth * each,), dtype)
        starts = [sum(lengths[:i]) for i in range(len(lengths))]
        return [
            [self._memory[slot * each + start : slot * each + start + length] for start, length in zip(starts, lengths)]
            for slot in range(depth)
        ]

    @marked_call
    def describe(self) -> str:
        """Return the settings and the memory that they take, as text."""
        self.check_in_use()
        tuned = f"; {self.tuned}" if self.tuned is not None else ""
        if self.refinement is not None:
            tuned = "; compared with others in the next calls"
        load = self.load
        if load.calls:
            tuned += f"; rank {self.runtime.coordinator.rank} {load.waits()}"
        in_flight = f"{self.nbytes_in_flight / 2**20:.1f} MiB in flight"
        return f"{self.name}: {self.settings}; {in_flight}{tuned}{self._kernels.describe()}"

    @property
    def load(self) -> Load:
        """Return how long this rank has computed and waited in the calls since the settings were chosen."""
        self.check_in_use()
        load: Load = self._kinds["whole"].load if self._kinds else Load()
        return load

    @marked_call
    def tune(self, budget_s: float = 30.0, progress: Progress | None = None) -> Tuned:
        """Search for the fastest settings and use them (collective).

        The search covers the way to wait, depth, slices per message, exchanges in flight and FFTW's effort,
        except for settings that were requested; the number of threads is fixed by the runtime. The gain is in
        `tuned`, the measurements are in `trials`. To store the result in a file, use the plan's `tune`. If another
        effort wins, results may differ in the last bits from earlier ones, but not from ``wait="off"`` with the same
        effort.

        Parameters
        ----------
        budget_s : float
            Approximate number of seconds for the search.
        progress : callable, optional
            ``progress(what, done, total)``, called on rank 0 now and then; `done` and `total` are
            seconds.

        Returns
        -------
        Tuned

        Raises
        ------
        InputError
            On all ranks, if the budget is no positive number or differs between ranks.
        """
        self.check_in_use()
        with self.runtime.collective_section(f"tuning {self.known_as}"):
            self.runtime.preflight(budget_problem(budget_s, progress), budget_s=budget_s)
            tune(self, budget_s, progress)
        assert self.tuned is not None
        return self.tuned

    def check_in_use(self) -> None:
        """Raise `ClosedError` if the plan has been closed."""
        if self._released:
            raise ClosedError(f"expected a plan in use, received one that was closed: {self!r}")

    def compute(self, *arrays: np.ndarray, out: Any = None) -> Any:
        """Do all local work of the call and none of its communication; the result is meaningless."""
        return self._call("compute", arrays, out)

    def communicate(self, *arrays: np.ndarray, out: Any = None) -> Any:
        """Make the call's exchanges, one after another, and nothing else; there is no result."""
        return self._call("exchange", arrays, out)

    def __call__(self, *arrays: np.ndarray, out: Any = None) -> Any:
        """Transform (collective).

        Parameters
        ----------
        arrays : ndarray
            This rank's part of each input, of any strides; unchanged.
        out : ndarray or tuple of ndarray, optional
            Where to put this rank's part of the result. Without it, the memory of a result that
            nobody holds any more is used again.

        Returns
        -------
        DistArray or tuple of DistArray
            The result, or `out`.

        Raises
        ------
        InputError
            On all ranks, when any argument of any rank does not fit; nothing was done.
        SliceError
            On all ranks, when a step failed on one; `out` is undefined, the plan usable.
        """
        return self._call("whole", arrays, out)

    def settle(self, *arrays: np.ndarray, out: Any = None, budget_s: float = inf) -> None:
        """Make calls until no settings are compared any more, for programs that time calls (collective).

        Else a transform compares settings now and then, while it takes little of the time of all calls.

        Parameters
        ----------
        arrays, out
            The arguments of a call.
        budget_s : float
            Seconds, after which the fastest settings so far are kept.

        Raises
        ------
        InputError, SliceError
            On all ranks: see `__call__`.
        """
        started = perf_counter()
        self.check_in_use()
        if budget_s != inf and (problem := number_problem("budget_s", budget_s)):
            self.refuse(problem)
        self(*arrays, out=out)
        while self.refinement is not None:
            self.refinement.share = inf
            self(*arrays, out=out)
            # What is agreed on is the largest excess, so ranks with different budgets end alike.
            excess_s = self.runtime.coordinator.maximum(perf_counter() - started - budget_s)
            if self.refinement is not None and excess_s > 0:
                self.refinement.end()

    def run_planes(self, inputs: list[np.ndarray], outputs: list[np.ndarray], what: str = "whole") -> None:
        """Run on lists of planes that are known to fit (collective)."""
        with contiguous_targets(outputs, self.outputs) as targets:
            self.before(inputs)
            call, addresses = self.prepared(inputs, targets, what)
            call.make(addresses)

    def prepared(self, inputs: list[np.ndarray], outputs: list[np.ndarray], what: str) -> tuple[PlanCall, array[int]]:
        """Return a call, and the addresses of its arrays; a failure is raised on all ranks (collective then)."""
        try:
            return self.prepare(inputs, outputs, what)
        except Exception as error:
            return self.refuse(error, what)

    def prepare(self, inputs: list[np.ndarray], outputs: list[np.ndarray], what: str) -> tuple[PlanCall, array[int]]:
        """Return a call, and the addresses of its arrays."""
        addresses = addresses_of((*inputs, *outputs))
        addresses.extend([0] * self._kernels.returned)  # addresses of the arrays that the user's function returns
        schedule = self._schedules.of(self._record, (*inputs, *outputs), self.planning)
        return schedule.call(self._kinds[what]), addresses

    def trial_arrays(self, entries: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Make inputs (zero) and outputs of `entries` planes or fields, for `run_planes`."""

        def trial(spec: ArraySpec) -> np.ndarray:
            count = entries if spec.slices == self._entries else spec.slices
            return zeros((count, *spec.shape[-spec.dimensions :]), spec.dtype)

        return [trial(spec) for spec in self.inputs], [trial(spec) for spec in self.outputs]

    def nbytes_of_arrays(self) -> int:
        """Return the bytes of one slice's inputs and outputs on this rank."""
        return (
            sum(
                int(np.prod(spec.shape[-spec.dimensions :])) * spec.dtype.itemsize
                for spec in (*self.inputs, *self.outputs)
            )
            or 1
        )

    def replace_by(self, other: Transform) -> None:
        """Replace this transform's state in place (collective).

        Parameters
        ----------
        other : Transform
            A transform of the same kind for other shares; it must not be used afterwards. The settings stay.
        """
        kept = {
            name: getattr(self, name)
            for name in ("name", "known_as", "requested", "trials", "tuned", "refinement")
            if hasattr(self, name)
        }
        settings, configured = self.settings, self._kinds is not None
        vars(self).clear()
        vars(self).update(vars(other) | kept)
        if configured:
            self.configure(settings)

    def release(self) -> None:
        """Drop buffers and plans, which are in a reference cycle that Python would collect late."""
        self._released, self.refinement = True, None
        self.forget()
        for name in self._held:
            setattr(self, name, None)

    @marked_call
    def repeated(self, arrays: tuple[Any, ...], out: Any) -> bool:
        """Make a call if a call for such arrays is prepared, and return whether it was (collective then)."""
        self.check_in_use()
        bound = None if self._compares("whole") else self._bound.prepared(arrays, out)
        if bound is not None:
            self._run("whole", bound)
        return bound is not None

    def _compares(self, what: str) -> bool:
        """Return whether it is the turn of settings that are compared; then no call is prepared."""
        return self.refinement is not None and what == "whole" and not self.refinement.pauses()

    @marked_call
    def _call(self, what: str, arrays: tuple[Any, ...], out: Any) -> Any:
        self.check_in_use()
        made_arrays = self._made_results() if out is None else ()
        results = made_arrays or (out if isinstance(out, tuple) else (out,) * len(self.outputs))
        returned = out if out is not None else results if len(results) > 1 else results[0]
        compares = self.refinement is not None and self._compares(what)
        bound = None if compares else self._bound.prepared(arrays, out, made_arrays)
        if bound is not None:
            self._run(what, bound)
            return returned
        # A call may consist of several collective actions, especially one of the first calls, whose settings are
        # compared. An exception that a signal handler raises between two of them is held back, and reported with the
        # next header. A prepared call is a single action.
        with held_signals():
            self._call_anew(what, arrays, out, made_arrays, results)
        return returned

    def _call_anew(
        self, what: str, arrays: tuple[Any, ...], out: Any, made: tuple[Any, ...], results: tuple[Any, ...]
    ) -> None:
        """Check the arrays of a call and make it; keep the prepared call for arrays that may be used again."""
        problem = self._problem(arrays, out, results)
        if problem is not None:
            self.refuse(problem, what)
        inputs = [spec.planes(array) for spec, array in zip(self.inputs, arrays)]
        outputs = [spec.planes(array) for spec, array in zip(self.outputs, results)]
        comparing = self._compares(what)
        if (
            not comparing
            and self.can_bind(outputs)
            and all(map(np.may_share_memory, (*arrays, *results), (*inputs, *outputs)))
            and (out is not None or self._bound.comes_again(arrays, made))
        ):
            unbound = [[unowned(array) for array in some] for some in (inputs, outputs)]
            bound = BoundCall(unbound)
            self._bound.keep(arrays, out, bound, made)
            self._run(what, bound)
            return
        if not comparing:
            self.run_planes(inputs, outputs, what)
        else:
            assert self.refinement is not None
            self.refinement.run(lambda: self.run_planes(inputs, outputs))
        for result, planes in zip(results, outputs):
            if not np.may_share_memory(result, planes):
                result[...] = planes.reshape(result.shape)

    def _made_results(self) -> tuple[DistArray, ...]:
        """Make arrays for the results."""
        if self._result_memory is None:
            self._result_memory = [ResultMemory(spec.shape, spec.dtype) for spec in self.outputs]
        return tuple(spec.wrap(memory.empty()) for spec, memory in zip(self.outputs, self._result_memory))

    def _run(self, what: str, bound: BoundCall) -> None:
        """Make a call with arrays that fit."""
        prepared = bound.calls.get(what)
        if prepared is None:
            inputs, outputs = bound.planes
            prepared = bound.calls[what] = self.prepared(inputs, outputs, what)
        call, addresses = prepared
        call.make(addresses)

    def refuse(self, problem: str | Exception, what: str = "whole") -> NoReturn:
        """Raise an error on all ranks instead of a call, an `InputError` if it is a text (collective)."""
        kind: CallKind = self._kinds[what]
        kind.refuse(problem if isinstance(problem, Exception) else InputError(problem))

    def _problem(self, arrays: tuple[Any, ...], out: Any, results: tuple[Any, ...]) -> str | None:
        """Return what is wrong with the arguments, or None."""
        if len(arrays) != len(self.inputs):
            return f"expected {len(self.inputs)} input array(s), received {len(arrays)}"
        for spec, argument in zip(self.inputs, arrays):
            if problem := spec.problem(argument, "an input"):
                return problem
        if out is None:
            return None
        if len(results) != len(self.outputs) or isinstance(out, tuple) != (len(results) > 1):
            return (
                f"expected out to be {len(self.outputs)} array(s), a tuple if more than one, "
                f"received {type(out).__name__} of {len(results)}"
            )
        for position, (spec, argument) in enumerate(zip(self.outputs, results)):
            if problem := spec.target_problem(argument, "out"):
                return problem
            if any(np.may_share_memory(argument, reference) for reference in (*arrays, *results[:position])):
                return "expected out to share no memory with an input or another output, received arrays that do"
        return None


def natural_parts(located: Sequence[ArrayReference], specs: Sequence[ArraySpec]) -> list[ArrayReference]:
    """Return located arrays with the order of axes of the transforms."""
    return [reference.part(spec.as_transformed(reference.array)) for reference, spec in zip(located, specs)]


def targets_fit(outputs: Sequence[np.ndarray], specs: Sequence[ArraySpec]) -> bool:
    """Return whether FFTW can work directly in some outputs."""
    return all(not spec.natural or fits(out) for out, spec in zip(outputs, specs))


@contextmanager
def contiguous_targets(outputs: list[np.ndarray], specs: Sequence[ArraySpec]) -> Iterator[list[np.ndarray]]:
    """Return a ``with`` block with arrays in which FFTW can work, which are copied to the outputs at the end."""
    targets = [
        out if targets_fit((out,), (spec,)) else empty(out.shape, out.dtype) for out, spec in zip(outputs, specs)
    ]
    yield targets
    for out, target in zip(outputs, targets):
        if target is not out:
            out[...] = target


def fits(array: np.ndarray) -> bool:
    """Return whether plans for contiguous, aligned arrays can work on this one."""
    return array.flags.c_contiguous and address_of(array) % REQUIRED_ALIGNMENT == 0
