"""Candidates: the settings that are worth a try for a transform.

What to try depends on what a slice is. `PlaneCandidates` serves the transforms of an `FFT2`, whose
slices are planes, `FieldCandidates` those of an `FFT3`, whose slices are units, parts of a field. How
they are tried and compared is the same for both, see `trials` and `search`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from ...runtime import POLLS_PER_EXCHANGE, Runtime
from .settings import Settings, Trial, Tuned

DEPTH = 16
SHALLOW = 4  # slots that stay in the cache: enough where an exchange is a copy
LONG_NBYTES = 2 * 1024 * 1024  # of a message behind which nothing is hidden: what a call costs counts no more
SLOTS_PER_WORKER = 2  # at least: some slices compute while others wait for their exchange
DEPTHS = (2, 4, 8, 16, 32)  # that tuning tries
LATE = (0.0, 0.25, 0.5, 0.75)  # shares that tuning tries


class Tunable(Protocol):
    """What planning and tuning need of a transform."""

    runtime: Runtime
    name: str
    slices: int  # of the whole batch
    planning: bool  # its arrays hold no data of the user's: call no function of the user's
    requested: Settings
    settings: Settings
    trials: tuple[Trial, ...]
    tuned: Tuned | None
    refinement: Any  # a `refining.Refinement` of what is left to be compared in the next calls

    def candidates(self, transform: Tunable, requested: Settings) -> Candidates:
        """Make candidates; a class attribute."""

    def configure(self, settings: Settings, count: int | None = None) -> None:
        """Be ready to run with complete settings, on so much of the batch."""

    def kernels_of(self, settings: Settings) -> object:
        """Make what is expensive for settings, and is kept by whoever holds it."""

    def trial_arrays(self, count: int) -> tuple[list, list]:
        """Make inputs and outputs of so much of the batch."""

    def run_planes(self, inputs: list, outputs: list, what: str = "whole") -> None:
        """Run, or "compute" or "exchange" alone."""

    def nbytes_per_slice(self) -> int:
        """Bytes that this rank sends per slice."""

    def nbytes_of_arrays(self) -> int:
        """Bytes of a slice's, or a field's, inputs and outputs on this rank."""


class TunableFields(Tunable, Protocol):
    """What they need besides of a transform of fields."""

    units: int  # of one field
    can_be_late: bool
    replans: bool

    def trial_fields(self) -> int:
        """Return how many fields a measured run has."""

    def message_nbytes(self, chunk: int) -> int:
        """Return the bytes of the largest piece that leaves this rank."""

    def slot_nbytes(self, chunk: int) -> int:
        """Return the bytes of one slot's buffers."""


class Candidates:
    """What is worth a try for one transform. Making them is collective.

    Parameters
    ----------
    transform : Transform
    requested : Settings
        What of it is given is tried with no other value.

    Attributes
    ----------
    slices : int
        Slices of the whole batch.
    slices_of_one : int
        Slices of what trials count: 1 where they count planes, the units of a field where they count
        fields.
    nbytes : int
        What a rank sends per slice, at most.
    nbytes_of_arrays : int
        Inputs and outputs of a slice, or a field, on a rank, at most.
    hides : bool
        There is something to hide, and something to hide it behind.
    parts : (int, int, int)
        For the trial of computing and exchanging alone: how much of the batch it takes, and slices
        per message of a short and of a long message.
    sizes : list of int
        Slices per message that are worth a try, first those that are likely to be good.
    long : int
        Slices per message where nothing is hidden, hence nothing is gained by cutting a batch into short ones.
    deep, shallow : int
        Slots that hide most, and that stay in the cache.
    hopeless : float
        What takes so many times the best's time by the model is not worth a measured run.
    near_tie : float
        A later candidate wins if its time is less than this share of an earlier one's.
    """

    parts: tuple[int, int, int]
    sizes: list[int]
    hopeless: float
    near_tie: float
    slices_of_one = 1

    def __init__(self, transform: Tunable, requested: Settings) -> None:
        self.transform, self.requested = transform, requested
        self.coordinator = transform.runtime.coordinator
        self.slices = transform.slices
        self.nbytes, self.nbytes_of_arrays, *self._more = self._of_all_ranks(self._nbytes_here())
        self.hides = self.slices > 1 and self.nbytes > 0
        self.long = requested.chunk or max(1, min(self.slices, LONG_NBYTES // max(1, self.nbytes)))
        self.workers = transform.runtime.workers
        self.deep, self.shallow = (
            requested.depth or max(slots, SLOTS_PER_WORKER * self.workers) for slots in (DEPTH, SHALLOW)
        )

    def _of_all_ranks(self, values: list[int]) -> list[int]:
        """Find the largest of all ranks' values, each for itself (collective)."""
        return self.coordinator.maximum(np.array(values, np.int64)).tolist()

    def _nbytes_here(self) -> list[int]:
        """Gather what must be known of all ranks, of this one: per slice, of arrays, and what a kind of transform
        adds.
        """
        return [self.transform.nbytes_per_slice(), self.transform.nbytes_of_arrays()]

    def settings(self, wait: str, chunk: int, depth: int, late: float = 0.0) -> Settings:
        """Complete settings of a mode, slices per message and depth, in all else as requested."""
        if wait == "off":
            depth = 1
        return replace(
            self.requested,
            wait=wait,
            chunk=chunk,
            depth=depth,
            in_flight=min(self.requested.in_flight or depth, depth),
            polls=self.requested.polls or POLLS_PER_EXCHANGE,
            late=late,
        )

    def default(self) -> Settings:
        """Choose settings by rules of thumb, where nothing is measured."""
        raise NotImplementedError

    def planned(self, compute_s: float, exchange_s: float) -> Iterable[Settings]:
        """Tell what planning tries, the simplest first, given C and T of the trial of the parts."""
        raise NotImplementedError

    def count(self, entrants: list[Settings], share: float, nbytes: int) -> int:
        """Tell how much of the batch a trial of some settings takes (collective).

        Enough to fill their pipelines and, if that is more, about that share of the batch; within so
        much memory.
        """
        raise NotImplementedError

    def grid(self) -> Iterator[Settings]:
        """Tell what tuning tries at first: all combinations of mode, slices per message and depth."""
        requested = self.requested
        for wait in ("off", "poll", "block") if requested.wait == "auto" else (requested.wait,):
            for chunk in self.sizes:
                messages = -(-self.slices // chunk)
                for depth in (
                    (1,)
                    if wait == "off"
                    else (requested.depth,)
                    if requested.depth
                    else (sorted({min(depth, messages) for depth in DEPTHS}))
                ):
                    yield self.settings(wait, chunk, depth, requested.late or 0.0)

    def late_shares(self, best: Settings) -> list[Settings]:
        """Variants of settings with other shares that are late, where that means anything."""
        return []

    def efforts(self) -> tuple[str, ...]:
        """Return the efforts of FFTW's planning that tuning may try instead."""
        return ()


class PlaneCandidates(Candidates):
    """What is worth a try for a transform of planes."""

    MESSAGE_NBYTES = 256 * 1024  # without measuring, chunk smaller messages to about this size
    FEWEST_MESSAGES = 4 * DEPTH  # of this size, to fill the pipeline
    LOCAL_PER_WORKER = 8  # slices where nothing is exchanged: enough to share them out evenly,
    LOCAL_NBYTES = 8 * 1024 * 1024  # and of arrays of this size, at most
    PARTS = 8  # slices

    hopeless = 2.0  # however wrong the model
    near_tie = 0.98

    def __init__(self, transform: Tunable, requested: Settings) -> None:
        super().__init__(transform, requested)
        if self.nbytes:
            most = (self.MESSAGE_NBYTES * self.coordinator.size // self.nbytes, self.slices // self.FEWEST_MESSAGES)
        else:
            most = (
                self.LOCAL_NBYTES // transform.nbytes_of_arrays(),
                self.slices // (self.LOCAL_PER_WORKER * self.workers),
            )
        self._size = requested.chunk or max(1, min(most))
        few = min(self.slices, self.PARTS)
        self.parts = few, 1, few
        self.sizes = (
            [requested.chunk]
            if requested.chunk
            else sorted(
                {self._times(2.0**power) for power in range(-2, 5)}, key=lambda chunk: abs(np.log(chunk / self._size))
            )
        )

    def default(self) -> Settings:
        wait = self.requested.wait
        if wait == "auto":  # nothing to hide, or nothing to hide it behind
            alone = min(max(1, self.slices), self.workers) == 1
            wait = "off" if alone else "poll"
        return self.settings(wait, self.long if wait == "off" and self.nbytes else self._size, self.deep)

    def planned(self, compute_s: float, exchange_s: float) -> list[Settings]:
        deep, shallow = self.deep, self.shallow
        size, smaller, double, quadruple = map(self._times, (1, 0.5, 2, 4))
        return [
            self.settings(*one)
            for one in (
                ("off", self.long, 1),
                ("off", quadruple, 1),
                ("off", size, 1),
                ("block", size, deep),
                ("block", size, shallow),
                ("block", quadruple, shallow),
                *(("poll", chunk, deep) for chunk in (size, smaller, double, quadruple)),
                ("poll", size, shallow),
                ("poll", quadruple, shallow),
            )
        ]

    def _times(self, factor: float) -> int:
        """Return so many times the usual slices per message, unless their number was requested."""
        return self.requested.chunk or max(1, min(self.slices, int(factor * self._size)))

    def count(self, entrants: list[Settings], share: float, nbytes: int) -> int:
        filled = max(3 * (entrant.depth or 1) * (entrant.chunk or 1) for entrant in entrants)
        return self.coordinator.maximum(
            min(self.slices, max(filled, int(share * self.slices)), max(1, nbytes // self.transform.nbytes_of_arrays()))
        )

    def efforts(self) -> tuple[str, ...]:
        return () if self.requested.effort else ("patient",)


class FieldCandidates(Candidates):
    """What is worth a try for a transform of fields."""

    PIECE_NBYTES = (2**18, 2**19, 2**20, 2**21)  # of the largest piece of a message
    FEWEST_MESSAGES = 8  # per stage,
    MESSAGES_PER_WORKER = 4  # and for each worker
    SLOTS_SHARE = 4  # of an input and an output: slots are to be smaller, where `SHALLOW` allows
    RESERVE = 1.2  # what goes early must keep the link busy for so many times C
    LITTLE = 0.1  # of a field: not worth the work memory that late exchanges take

    transform: TunableFields

    hopeless = np.inf  # the model knows one stage, not how several follow each other
    near_tie = 0.99

    def __init__(self, transform: TunableFields, requested: Settings) -> None:
        super().__init__(transform, requested)
        units = self.slices_of_one = max(1, transform.units)
        unit_nbytes = max(1, *self._more)
        fewest = max(self.FEWEST_MESSAGES, self.MESSAGES_PER_WORKER * self.workers)
        self._sizes = sorted(
            {requested.chunk or max(1, min(nbytes // unit_nbytes, units // fewest)) for nbytes in self.PIECE_NBYTES}
        )
        self._middle = self._sizes[len(self._sizes) // 2]
        self.hides = self.hides and units > 1
        long = min(self._middle, units)
        short, long = sorted((long, max(1, long // 4) if long > 1 else 2))
        self.parts = transform.trial_fields(), short, long
        self.sizes = sorted(self._sizes, key=lambda chunk: abs(np.log(chunk / self._middle)))

    def _nbytes_here(self) -> list[int]:
        return [*super()._nbytes_here(), self.transform.message_nbytes(1)]

    def default(self) -> Settings:
        wait = self.requested.wait
        if wait == "auto":  # nothing to hide, or nothing to hide it behind
            wait = "off" if self.workers == 1 else "poll"
        return self._with_slots(wait, self.long if wait == "off" else self._middle, self.requested.late or 0.0)

    def planned(self, compute_s: float, exchange_s: float) -> list[Settings]:
        requested, sizes, middle = self.requested, self._sizes, self._middle
        shallow = self.shallow
        late = requested.late or 0.0
        if exchange_s > compute_s:  # a pause between two exchanges costs more than one in computing
            others = [("poll", sizes[0])]
        else:
            others = [("block", size) for size in sizes if size != middle]
        found = [
            self.settings("off", self.long, 1, late),
            self.settings("off", middle, 1, late),
            *(self.settings(wait, size, shallow, late) for wait, size in (("block", middle), *others)),
            *(self._with_slots("poll", size, late) for size in sizes),
        ]
        share = round(1.0 - self.RESERVE * compute_s / exchange_s, 2) if exchange_s else 0.0
        if self.transform.can_be_late and requested.late is None and share > self.LITTLE:
            found += [self._with_slots("poll", size, share) for size in sizes[-2:]]
        return found

    def _with_slots(self, wait: str, chunk: int, late: float) -> Settings:
        """Give settings as many slots as their memory allows, if none were requested (collective)."""
        if wait == "off":  # has one
            return self.settings(wait, chunk, 1, late)
        return self.settings(wait, chunk, self.requested.depth or self._slots[chunk], late)

    @cached_property
    def _slots(self) -> dict[int, int]:
        """Slots by slices per message (collective)."""
        chunks = sorted({*self._sizes, self.long})
        nbytes = self.transform.nbytes_of_arrays() // self.SLOTS_SHARE
        slots = [min(self.deep, max(self.shallow, nbytes // self.transform.slot_nbytes(chunk))) for chunk in chunks]
        return dict(zip(chunks, self._of_all_ranks(slots)))

    def count(self, entrants: list[Settings], share: float, nbytes: int) -> int:
        return self.parts[0]  # they fill any pipeline

    def efforts(self) -> tuple[str, ...]:
        return () if self.requested.effort or not self.transform.replans else ("patient",)

    def late_shares(self, best: Settings) -> list[Settings]:
        if best.wait != "poll" or self.requested.late is not None or not self.transform.can_be_late:
            return []
        return [replace(best, late=late) for late in LATE if late != best.late]
