"""Candidates: the settings that are worth a trial for a transform, and the model of the time that they take.

The candidates depend on the kind of slices. `PlaneCandidates` serves the transforms of an `FFT2`, whose slices are
planes, `FieldCandidates` those of an `FFT3`, whose slices are units, parts of a field. Both are tried and compared in
the same way, see `tournament`.

The model is `overlap.timing.model` with the transform's own numbers. Before anything of a transform has run, they are
estimated (`estimated`): latency and bandwidth of an all-to-all are measured once per runtime (`link_of`), and the
time of computing is taken as proportional to the bytes of the arrays per worker, which is rough.
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ...ranks.coordinator import Coordinator
from ...runtime import Runtime
from ...timing.messages import LatencyBandwidth, fit_message_time
from ...timing.model import pipeline_s
from .settings import Settings

DEPTH = 16
SHALLOW = 4  # slots that stay in the cache: enough if an exchange is a copy
# Bytes of a message, if nothing is hidden, for which the cost of a call is negligible; longer ones leave the cache.
LONG_NBYTES = 512 * 1024
SLOTS_PER_WORKER = 2  # least number: some slices compute while others wait for their exchange
DEPTHS = (2, 4, 8, 16, 32)  # depths that tuning tries
LATE = (0.0, 0.3, 0.45, 0.6)  # late shares that tuning tries
COMPUTING_S_PER_BYTE = 2e-10  # of input and output, one worker; measured: 1.2e-10 (64^3) to 2.2e-10 (256^3)
PIECES = (2**10, 2**18)  # bytes from every rank to every rank, to measure latency and bandwidth
CACHE_COST = 1.05  # factor of times with several slots, if exchanges are copies by the cores: the slots leave the cache
OVERHEAD_S = 3e-6  # time per message for its requests in the compiled loop
CHALLENGERS, CLOSE = 6, 2.0  # most settings beside the best in calls; expected to take at most so many times its time
LATE_IN_FLIGHT = 3  # limit with late exchanges: exchanges in flight share the link, so each one takes longer


Tunable = Any
"""A `Transform`, whose module imports this one."""


class Candidates:
    """The candidates for one transform. Making them is collective."""

    # For the trials of computing and exchanging alone: entries of the batch, slices of a short and of a long message.
    parts: tuple[int, int, int]
    sizes: list[int]  # slices per message that are worth a trial, the most promising first
    hopeless: float  # candidates whose modelled time is more than this many times the best one are not measured
    slices_of_one = 1  # slices of one entry of trials: 1 if the entries are planes, the units of a field if fields

    def __init__(self, transform: Tunable, requested: Settings) -> None:
        self.transform = transform
        self.requested = requested  # fields that are given are tried with no other value
        self.coordinator = transform.runtime.coordinator
        self.slices = transform.slices  # of the whole batch
        # The largest number of bytes, on any rank, that are sent per slice, and of the inputs and outputs of a slice or
        # a field.
        self.nbytes, self.nbytes_of_arrays, *self._more = self._of_all_ranks(self._nbytes_here())
        self.hides = self.slices > 1 and self.nbytes > 0  # there is an exchange, and computing that can hide it
        # Slices per message if nothing is hidden, when short messages gain nothing.
        self.long = requested.chunk or max(1, min(self.slices, LONG_NBYTES // max(1, self.nbytes)))
        self.workers = transform.runtime.workers
        # Slots that hide most, and that stay in the cache.
        self.deep, self.shallow = (
            requested.depth or max(slots, SLOTS_PER_WORKER * self.workers) for slots in (DEPTH, SHALLOW)
        )

    def _of_all_ranks(self, values: list[int]) -> list[int]:
        """Return the maximum over all ranks of each value (collective)."""
        return self.coordinator.maximum(np.array(values, np.int64)).tolist()

    def _nbytes_here(self) -> list[int]:
        """Return this rank's bytes of which the maximum is needed: per slice, of arrays, and by kind of transform."""
        return [self.transform.nbytes_per_slice(), self.transform.nbytes_of_arrays()]

    def settings(self, wait: str, chunk: int, depth: int, late: float = 0.0) -> Settings:
        """Return complete settings for a way to wait, slices per message and depth, otherwise as requested."""
        depth = 1 if wait == "off" else self.requested.depth or min(depth, max(1, -(-self.slices // chunk)))
        return replace(
            self.requested,
            wait=wait,
            chunk=chunk,
            depth=depth,
            in_flight=min(self.requested.in_flight or (LATE_IN_FLIGHT if late else depth), depth),
            late=late,
        )

    def default(self) -> Settings:
        """Return settings by rules of thumb, if nothing is measured."""
        raise NotImplementedError

    def planned(self, compute_s: float, exchange_s: float) -> Iterable[Settings]:
        """Return the settings that planning tries, the simplest first, given C and T of the trial of the parts."""
        raise NotImplementedError

    def count(self, entrants: list[Settings], share: float, nbytes: int) -> int:
        """Return the entries of the batch for a trial of some settings (collective).

        They are enough to fill the pipelines and, if that is more, about `share` of the batch; within `nbytes` of
        memory.
        """
        raise NotImplementedError

    def grid(self) -> Iterator[Settings]:
        """Yield the settings that tuning tries first: all combinations of way to wait, slices per message and depth."""
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
        """Return variants of settings with other late shares, if these have an effect."""
        return []

    def in_flights(self, best: Settings) -> list[Settings]:
        """Return variants of settings with fewer exchanges in flight, if their number was not requested."""
        if best.wait != "poll" or self.requested.in_flight:
            return []
        depth = best.depth or 1
        counts = sorted({max(1, depth // 2), max(1, depth // 4), 2})
        return [replace(best, in_flight=count) for count in counts if count < (best.in_flight or depth)]

    def efforts(self) -> tuple[str, ...]:
        """Return the efforts of FFTW's planning that tuning may try instead."""
        return ()


class PlaneCandidates(Candidates):
    """The candidates for a transform of planes."""

    MESSAGE_NBYTES = 256 * 1024  # without measuring, smaller messages are joined to about this size
    FEWEST_MESSAGES = 4 * DEPTH  # least number of joined messages, to fill the pipeline,
    LEAST_NBYTES = 64 * 1024  # unless they are shorter than this, when the cost of a message is that of its bytes
    LOCAL_PER_WORKER = 8  # slices if nothing is exchanged: enough to share them evenly,
    LOCAL_NBYTES = 8 * 1024 * 1024  # largest size of the arrays of such a slice
    PARTS = 8  # slices of the trial of computing and exchanging alone

    hopeless = 2.0  # the model's error is smaller

    def __init__(self, transform: Tunable, requested: Settings) -> None:
        super().__init__(transform, requested)
        if self.nbytes:
            most = (self.MESSAGE_NBYTES * self.coordinator.size // self.nbytes, self.slices // self.FEWEST_MESSAGES)
        else:
            most = (
                self.LOCAL_NBYTES // transform.nbytes_of_arrays(),
                self.slices // (self.LOCAL_PER_WORKER * self.workers),
            )
        least = -(-self.LEAST_NBYTES // self.nbytes) if self.nbytes else 1
        self._size = requested.chunk or max(1, min(most), min(least, self.slices))
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
        if wait == "auto":  # nothing to hide, or nothing behind which to hide it
            alone = min(max(1, self.slices), self.workers) == 1
            wait = "off" if alone else "poll"
        return self.settings(wait, self.long if wait == "off" and self.nbytes else self._size, self.deep)

    def planned(self, compute_s: float, exchange_s: float) -> list[Settings]:
        deep, shallow = self.deep, self.shallow
        size, smaller, double, quadruple = map(self._times, (1, 0.5, 2, 4))
        return [
            self.settings(*choice)
            for choice in (
                ("off", self.long, 1),
                ("off", min(quadruple, self.long), 1),
                ("off", min(size, self.long), 1),
                ("block", size, deep),
                ("block", size, shallow),
                ("block", quadruple, shallow),
                *(("poll", chunk, deep) for chunk in (size, smaller, double, quadruple)),
                ("poll", size, shallow),
                ("poll", quadruple, shallow),
            )
        ]

    def _times(self, factor: float) -> int:
        """Return `factor` times the usual slices per message, unless their number was requested."""
        return self.requested.chunk or max(1, min(self.slices, int(factor * self._size)))

    def count(self, entrants: list[Settings], share: float, nbytes: int) -> int:
        filled = max(3 * (entrant.depth or 1) * (entrant.chunk or 1) for entrant in entrants)
        return self.coordinator.maximum(
            min(self.slices, max(filled, int(share * self.slices)), max(1, nbytes // self.transform.nbytes_of_arrays()))
        )

    def efforts(self) -> tuple[str, ...]:
        return () if self.requested.effort else ("patient",)


class FieldCandidates(Candidates):
    """The candidates for a transform of fields."""

    PIECE_NBYTES = (2**18, 2**19, 2**20, 2**21)  # tried sizes of the largest piece of a message
    FEWEST_MESSAGES = 8  # least number per stage,
    MESSAGES_PER_WORKER = 4  # and for each worker
    SLOTS_SHARE = 4  # slots take at most 1/SLOTS_SHARE of an input and an output, if `SHALLOW` slots fit
    RESERVE = 1.2  # early exchanges must keep the link busy for at least this many times C
    MUCH = 0.45  # largest late share: the first FFTs of the field are hidden behind early exchanges
    LITTLE = 0.1  # late shares below this are not worth the work memory of late exchanges

    hopeless = np.inf  # the model describes one stage, not the overlap of several

    def __init__(self, transform: Tunable, requested: Settings) -> None:
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
        if wait == "auto":  # nothing to hide, or nothing behind which to hide it
            wait = "off" if self.workers == 1 else "poll"
        return self._with_slots(wait, self.long if wait == "off" else self._middle, self.requested.late or 0.0)

    def planned(self, compute_s: float, exchange_s: float) -> list[Settings]:
        requested, sizes, middle = self.requested, self._sizes, self._middle
        shallow = self.shallow
        late = requested.late or 0.0
        if exchange_s > compute_s:  # idle time of the link costs more than idle time of workers
            alternatives = [("poll", sizes[0])]
        else:
            alternatives = [("block", size) for size in sizes if size != middle]
        listed = [
            self.settings("off", self.long, 1, late),
            self.settings("off", min(middle, self.long), 1, late),
            *(self.settings(wait, size, shallow, late) for wait, size in (("block", middle), *alternatives)),
            *(self._with_slots("poll", size, late) for size in sizes),
        ]
        share = min(self.MUCH, round(1.0 - self.RESERVE * compute_s / exchange_s, 2)) if exchange_s else 0.0
        if self.transform.can_be_late and requested.late is None and share > self.LITTLE:
            listed += [self._with_slots("poll", size, share) for size in sizes[:2]]
        return listed

    def _with_slots(self, wait: str, chunk: int, late: float) -> Settings:
        """Return settings with as many slots as memory allows, if no depth was requested (collective)."""
        if wait == "off":  # there is only one slot
            return self.settings(wait, chunk, 1, late)
        return self.settings(wait, chunk, self.requested.depth or self._slots[chunk], late)

    @cached_property
    def _slots(self) -> dict[int, int]:
        """Return slices per message -> slots (collective)."""
        chunks = sorted({*self._sizes, self.long})
        nbytes = self.transform.nbytes_of_arrays() // self.SLOTS_SHARE
        slots = [min(self.deep, max(self.shallow, nbytes // self.transform.slot_nbytes(chunk))) for chunk in chunks]
        return dict(zip(chunks, self._of_all_ranks(slots)))

    def count(self, entrants: list[Settings], share: float, nbytes: int) -> int:
        return self.parts[0]  # fills any pipeline

    def efforts(self) -> tuple[str, ...]:
        return () if self.requested.effort or not self.transform.replans else ("patient",)

    def late_shares(self, best: Settings) -> list[Settings]:
        if best.wait != "poll" or self.requested.late is not None or not self.transform.can_be_late:
            return []
        return [self.settings(best.wait, best.chunk or 1, best.depth or 1, late) for late in LATE if late != best.late]


# ---- the model -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Model:
    """The timing model with the numbers of one transform, the same on all ranks."""

    candidates: Candidates
    slice_s: float  # time of computing a slice, with all workers
    overhead_s: float  # time of a core per message
    link: LatencyBandwidth
    shares: tuple[float, float]  # C and T of a slice as far as they can be compared: with long messages
    # Additional time of a core per message that is passed between threads, or waited for beside computing.
    handover_s: float = 0.0
    # Ranks of one host exchange by copies, and there is no core but those that compute. Then polling hides no more than
    # blocking.
    takes_core: bool = False

    @property
    def slices(self) -> int:
        """Return the slices of the whole batch."""
        return self.candidates.slices

    def predicted_s(self, settings: Settings, speedup: float = 1.0, slices: int | None = None) -> float:
        """Return the model's time in seconds of some slices, by default all, if computing were `speedup` as fast."""
        candidates, slices, link = self.candidates, slices or self.slices, self.link
        wait, cost = settings.wait, 1.0
        if self.takes_core and wait != "off":
            wait, cost = "block", CACHE_COST
        elif wait == "poll":  # exchanges in flight at once hide each other's latency
            link = LatencyBandwidth(link.latency_s / min(settings.in_flight or 1, SHALLOW), link.bandwidth_Bps)
        return cost * pipeline_s(
            self.slice_s / speedup * slices,
            candidates.nbytes * slices,
            link,
            slices=slices,
            chunk=settings.chunk or 1,
            workers=candidates.workers,
            wait=wait,
            message_overhead_s=self.overhead_s + (0.0 if settings.wait == "off" else self.handover_s),
            depth=settings.depth,
        )

    def planned(self) -> list[Settings]:
        """Return the settings that planning would try, each once, the simplest first."""
        listed = dict.fromkeys(self.candidates.planned(*self.shares))
        # With one worker nobody computes while it blocks.
        return [settings for settings in listed if settings.wait != "block" or self.candidates.workers > 1]

    def promising(self) -> list[Settings]:
        """Return those of `planned` that are not hopeless."""
        planned = self.planned()
        limit_s = self.candidates.hopeless * min(map(self.predicted_s, planned))
        return [settings for settings in planned if self.predicted_s(settings) <= limit_s]

    def entrants(self) -> list[Settings]:
        """Return the best of `planned`, those that the model prefers first, and few that take much longer."""
        # Times that differ by less than the model knows do not: then the simpler settings come first.
        listed = sorted(self.planned(), key=lambda settings: float(f"{self.predicted_s(settings):.2g}"))
        listed = listed[: CHALLENGERS + 1]
        limit_s = CLOSE * self.predicted_s(listed[0])
        return [settings for settings in listed if self.predicted_s(settings) <= limit_s]


def estimated(candidates: Candidates) -> Model:
    """Make the model of a transform that has not run yet (collective)."""
    runtime = candidates.transform.runtime
    link = link_of(runtime)
    slice_s = COMPUTING_S_PER_BYTE * candidates.nbytes_of_arrays / candidates.slices_of_one / candidates.workers
    exchange_s = candidates.nbytes / link.bandwidth_Bps + link.latency_s
    takes_core = shared_cores(runtime) <= runtime.workers * runtime.coordinator.size
    return Model(candidates, slice_s, OVERHEAD_S, link, (slice_s, exchange_s), takes_core=takes_core)


def link_of(runtime: Runtime) -> LatencyBandwidth:
    """Return latency and bandwidth of an all-to-all among all ranks, measured once per runtime (collective)."""
    link = runtime.cache.get("latency and bandwidth")
    if link is None:
        with runtime.collective_section("measuring the all-to-all"):
            link = runtime.cache["latency and bandwidth"] = _measured(runtime.coordinator)
    return link


def _measured(coordinator: Coordinator) -> LatencyBandwidth:
    """Measure latency and bandwidth of an all-to-all; the same on all ranks."""
    if coordinator.size == 1:
        return LatencyBandwidth(0.0, 1.0)
    seconds = []
    for piece in PIECES:
        times_s = [coordinator.alltoall_s(piece) for _ in range(4)]
        seconds.append(min(times_s[1:]) / (coordinator.size - 1))
    link = fit_message_time(PIECES, coordinator.maximum(np.array(seconds)))
    return LatencyBandwidth(link.latency_s, min(link.bandwidth_Bps, 1e15))


def shared_cores(runtime: Runtime) -> float:
    """Return the cores of the host of all ranks; infinity if there are several hosts (collective)."""
    count = runtime.cache.get("shared cores")
    if count is None:
        hosts, cores = zip(*runtime.coordinator.allgather((platform.node(), os.sched_getaffinity(0))))
        count = runtime.cache["shared cores"] = len(set().union(*cores)) if len(set(hosts)) == 1 else math.inf
    return count
