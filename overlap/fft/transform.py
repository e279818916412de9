"""`Transform`: the base class of a plan's callables: arguments, settings, schedules, calls.

A slice of a call is the data of one message. For each slice every transform lists

    pack; exchange; unpack

or several of these, one after the other, as steps (`Transform.steps`). They are recorded as a `Schedule`, which the
compiled loop runs (`overlap.runtime.loop`): as a whole, its computing alone, or its exchanges alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from math import inf
from time import perf_counter
from typing import Any, NoReturn

import numpy as np

from ..arrays import DistArray, placed_as
from ..checks import number_problem
from ..errors import ClosedError, InputError
from ..ranks.interrupts import held_signals
from ..ranks.objects import Described, Uncopied
from ..ranks.resource import marked_call
from ..runtime import AsyncComm, Load, Runtime
from ..runtime.plan_call import CallKind
from .array_spec import ArraySpec
from .call import Call, Configuration, ResultMemory, key_of, natural_parts
from .engine.fftw import address_of, zeros
from .engine.program import ArrayReference, on_lines
from .engine.schedule import Schedule
from .engine.staged import StagedTransform
from .engine.steps import AnyStep, staggered
from .planning.candidates import Candidates, FieldCandidates, PlaneCandidates
from .planning.settings import Settings, Trial, Tuned
from .planning.tournament import Comparison, budget_problem, tune

Progress = Callable[[str, float, float], None]
"""``progress(what, done, total)``: called on rank 0 with the progress of tuning in seconds."""
TRIAL_FIELDS = 3


class Transform(Uncopied, Described):
    """Base of all transforms, which plans make: arguments, settings, calls.

    Its *kernels* describe what is done on this rank: a `StagedTransform`, a `PlaneComposition` or a `FieldComposition`.

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
    shares = False  # there is something to do `before` a call
    requested: Settings

    def __init__(
        self,
        runtime: Runtime,
        comms: Sequence[AsyncComm],  # one per dimension of the grid
        kernels: Any,  # see above
        make: Callable[[str | None], Any],  # makes the kernels with another effort of FFTW's planning
        inputs: tuple[ArraySpec, ...],
        outputs: tuple[ArraySpec, ...],
        entries: int,  # of the batch that are transformed one by one
    ) -> None:
        self.runtime, self._comms, self._make = runtime, comms, make
        self._calls = runtime.coordinator._calls
        self.inputs, self.outputs = inputs, outputs
        self.configuration = Configuration(Settings(), kernels)
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
        self._results: list[ResultMemory] = []

    @property
    def settings(self) -> Settings:
        """Return the settings of the next call."""
        return self.configuration.settings

    @property
    def nbytes_in_flight(self) -> int:
        """Return the memory of all slots on this rank, in bytes."""
        return self.configuration.nbytes_in_flight

    @property
    def _kernels(self) -> Any:
        return self.configuration.kernels

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

    def _steps_of(self, task: Any, slot: Any, arrays: Any) -> Iterable[AnyStep]:
        """Return the steps of one slice."""
        steps: Iterable[AnyStep] = self._kernels.steps(task, slot, arrays, self._comms, self.planning)
        return steps

    # ---- what planning and tuning need ---------------------------------------------------------

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
        chunk, kernels = settings.chunk or 1, self._make(settings.effort)
        parts = kernels.tasks(chunk, self._entries if count is None else count, settings.late or 0.0)
        depth = max(1, min(settings.depth or 1, len(parts)))
        made = Configuration(settings, kernels, parts)
        self._allocate(made, depth, kernels.buffer_lengths(chunk))
        limit = min(settings.in_flight or depth, depth)

        def kind(only: str, wait: str, computes: bool = True, exchanges: bool = True) -> CallKind:
            agreed = {"slices": len(parts), "depth": depth, "wait": wait, "in_flight": limit}
            name = only + self.known_as  # the ranks compare it
            return CallKind(self.runtime.threads, name, agreed, wait, limit, computes, exchanges)

        made.kinds = {
            "whole": kind("", settings.wait),
            "compute": kind("only the computing of ", "poll", exchanges=False),
            "exchange": kind("only the exchanges of ", "off", computes=False),
        }
        self.configuration = made

    def steps(self, inputs: Sequence[ArrayReference], outputs: Sequence[ArrayReference]) -> Iterator[Iterable[AnyStep]]:
        """Yield the steps (see `engine.steps`) of every slice of a call, for located arrays."""
        kernels, slots = self._kernels, self.configuration.slots
        arrays = kernels.arrays(natural_parts(inputs, self.inputs), natural_parts(outputs, self.outputs))
        for number, task in enumerate(self.configuration.parts):
            late = staggered(number, len(slots)) if kernels.staggers else ()
            yield chain(late, self._steps_of(task, slots[number % len(slots)], arrays))

    def forget(self) -> None:
        """Forget all calls that were prepared."""
        self.configuration.forget()
        if self.refinement is not None:
            self.refinement.forget()  # prepared calls of the other settings, too

    def scratch(self) -> list[int]:
        """Return the addresses of every worker's scratch memory."""
        addresses: list[int] = self._kernels.scratch
        return addresses

    @property
    @marked_call
    def schedule(self) -> Schedule:
        """Return the steps of every slice, for arrays that this transform makes; print it to read them."""
        self.check_in_use()
        return self.recorded([spec.planes(spec.empty()) for spec in (*self.inputs, *self.outputs)])

    def prepare(self) -> None:
        """Prepare calls with arrays that this transform makes."""
        self.schedule.call(self.configuration.kinds["whole"])

    def recorded(self, planes: Sequence[np.ndarray]) -> Schedule:
        """Return the schedule of calls with inputs and outputs like these."""
        return self.configuration.schedules.of(self._record, planes, self.planning)

    def _record(self, located: Sequence[ArrayReference]) -> Schedule:
        count, made = len(self.inputs), self.configuration
        return Schedule(made.parts, self.steps(located[:count], located[count:]), self.scratch(), len(made.slots))

    def _allocate(self, made: Configuration, depth: int, lengths: Sequence[int]) -> None:
        """Allocate buffers of some lengths for every slot of a configuration, all in one block of memory."""
        dtype, memory = self.exchange_dtype, self.configuration.memory
        lengths = on_lines(lengths, dtype)
        each = sum(lengths)
        held = -1 if memory is None else memory.size
        # Settings are compared on the same memory if it is large enough, because a call can take 10 % longer on other
        # pages: caches hold them by their physical addresses.
        comparing = self.planning or self.refinement is not None
        if held < depth * each or (held > depth * each and not comparing):
            memory = zeros((depth * each,), dtype)
        assert memory is not None
        starts = [sum(lengths[:i]) for i in range(len(lengths))]
        made.memory, made.nbytes_in_flight = memory, depth * each * dtype.itemsize
        buffers = [
            [memory[slot * each + start : slot * each + start + length] for start, length in zip(starts, lengths)]
            for slot in range(depth)
        ]
        made.slots = [made.kernels.slot(*of_slot) for of_slot in buffers]

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
        kinds = self.configuration.kinds
        return kinds["whole"].load if kinds else Load()

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
            raise ClosedError(f"expected a plan in use, received one that was closed: {self.known_as}")

    def compute(self, *arrays: np.ndarray, out: Any = None) -> Any:
        """Do all local work of the call and none of its communication; the result is meaningless."""
        return self._called("compute", arrays, out)

    def communicate(self, *arrays: np.ndarray, out: Any = None) -> Any:
        """Make the call's exchanges, one after another, and nothing else; there is no result."""
        return self._called("exchange", arrays, out)

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
        return self._called("whole", arrays, out)

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

        Examples
        --------
        >>> plan = overlap.FFT2(comm, (8, 16, 16))
        >>> u = plan.real.from_function(lambda y, x: np.sin(x))
        >>> plan.forward.settle(u, budget_s=10)
        >>> spectrum = plan.forward(u)  # from here on with settings that stay
        >>> plan.close()
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
        Call(self, what, inputs, outputs).run()

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
        """Replace this transform's state in place by that of another one (collective).

        The other one is of the same kind, for other shares, and must not be used afterwards. The settings stay; if they
        are being compared, the fastest ones so far.
        """
        if self.refinement is not None:  # what it has made and measured is for the shares before
            self.refinement.end()
        kept = {
            name: getattr(self, name)
            for name in ("name", "known_as", "requested", "trials", "tuned")
            if hasattr(self, name)
        }
        settings, configured = self.settings, bool(self.configuration.kinds)
        vars(self).clear()
        vars(self).update(vars(other) | kept)
        if configured:
            self.configure(settings)

    def release(self) -> None:
        """Drop buffers and plans, which are in a reference cycle that Python would collect late."""
        self._released, self.refinement = True, None
        self.forget()
        self.configuration = Configuration(self.settings, None, nbytes_in_flight=self.nbytes_in_flight)
        self._results = []
        del self._make  # it refers to the plan

    def _compares(self, what: str) -> bool:
        """Return whether it is the turn of settings that are compared; then no known call is made."""
        return self.refinement is not None and what == "whole" and not self.refinement.pauses()

    @marked_call
    def repeated(self, arrays: tuple[Any, ...], out: Any) -> bool:
        """Make a call if one with such arrays is known, and return whether it is (collective then)."""
        known = None if self._compares("whole") else self.configuration.known.get(key_of("whole", arrays, out))
        if known is not None:
            known[0].make(known[1])
        return known is not None

    @marked_call
    def _called(self, what: str, arrays: tuple[Any, ...], out: Any) -> Any:
        known = self.configuration.known.get(key_of(what, arrays, out))
        if known is None or (self.refinement is not None and self._compares(what)):
            return self._call(what, arrays, out)
        call, addresses, _ = known
        if out is None:
            results = self.made_results()
            addresses = addresses[:]  # another thread's call may have its own ones under way
            for place, result in enumerate(results, len(arrays)):
                addresses[place] = address_of(result)
            out = results if len(results) > 1 else results[0]
        call.make(addresses)
        return out

    def _call(self, what: str, arrays: tuple[Any, ...], out: Any) -> Any:
        """Make a call with arrays that are not known."""
        self.check_in_use()
        # This may consist of several collective actions, especially in one of the first calls, whose settings are
        # compared. An exception that a signal handler raises between two of them is held back, and reported with the
        # next header. A known call is a single action.
        with held_signals():
            call = Call.checked(self, what, arrays, out)
            if self.refinement is not None and self._compares(what):
                self.refinement.run(call.run)
            else:
                call.run()
                call.keep(arrays, out)
        return call.returned

    def made_results(self) -> tuple[DistArray, ...]:
        """Make arrays for the results."""
        if not self._results:
            self._results = [ResultMemory(spec.shape, spec.dtype) for spec in self.outputs]
        return tuple(
            placed_as(DistArray, memory.empty(), spec.comm, spec.distribution)
            for spec, memory in zip(self.outputs, self._results)
        )

    def refuse(self, problem: str | Exception, what: str = "whole") -> NoReturn:
        """Raise an error on all ranks instead of a call, an `InputError` if it is a text (collective)."""
        self.configuration.kinds[what].refuse(problem if isinstance(problem, Exception) else InputError(problem))


class FieldTransform(Transform):
    """A transform of planes or fields in one direction, from real space to the spectrum or back.

    The slices of a call are the tasks of the staged transform, see there.
    """

    def __init__(
        self,
        runtime: Runtime,
        comms: Sequence[AsyncComm],
        staged: StagedTransform,
        source: ArraySpec,
        target: ArraySpec,
        scale: float,
        make: Callable[[str | None], StagedTransform] | None = None,
    ) -> None:
        entries = staged.units if staged.by_index else staged.fields
        super().__init__(runtime, comms, staged, make or (lambda effort: staged), (source,), (target,), entries)
        self.can_be_late, self.replans = staged.can_be_late, make is not None
        self._scale = scale

    @property
    def scale(self) -> float:
        """Return the factor of the source."""
        return self._scale

    @scale.setter
    def scale(self, scale: float) -> None:
        if scale != self._scale:
            self._scale = scale
            self.forget()  # calls that were recorded with the old factor

    def _steps_of(self, task: Any, slot: Any, arrays: Any) -> Iterable[AnyStep]:
        comms = None if self._kernels.in_any_order else self._comms
        steps: Iterable[AnyStep] = self._kernels.steps(task, slot, arrays, comms, self.scale)
        return steps
