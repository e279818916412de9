"""What is known of plans like one: from a tuning file that `tune` has written, and from the user's cache.

It is the same on all ranks: rank 0 alone touches files and hands what it read to the others. A plan made from an entry
of a tuning file uses its settings and makes its FFTW plans with the entry's wisdom and no other, so that they are those
of the run that tuned it, whatever else this process has planned.

A plan that was made before, on this machine and with these libraries, gets its settings and FFTW's wisdom at once, from
a file in the folder OVERLAP_CACHE (empty: nothing is kept), by default in ``overlap`` in the user's cache folder, under
a name that is a digest of plan and machine. One that was damaged counts as missing; what cannot be read or written is
done without.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from mpi4py import MPI
from numpy.typing import DTypeLike

from ...arrays import Weights, checked
from ...errors import InputError
from ...files import user_folder
from ...runtime import Runtime
from ...runtime.coordinator.coordinator import Coordinator
from ...timing.processor import cpu_model
from ..engine import fftw as local
from ..engine.wisdom import joined, without
from . import tuning_file as store
from .candidates import Tunable
from .refining import PROCESSES, Choice
from .settings import Settings, Tuned

VARIABLE = "OVERLAP_TUNING"
HELD = 200  # entries of the cache, by a runtime


class Known:
    """What is known of plans like one: an entry of a tuning file, alike on all ranks. Making one is collective.

    Parameters
    ----------
    runtime : Runtime
    plan : dict
        What is planned, in values that a file can hold; the same on all ranks.
    dtype : dtype
        The wisdom has its precision.
    filed : bool
        There is a file.
    """

    _entry: dict[str, Any] | None = None

    def __init__(self, runtime: Runtime, plan: dict[str, Any], dtype: DTypeLike, filed: bool) -> None:
        self._runtime, self._plan, self._dtype = runtime, store.stated(plan), dtype
        if filed and "machine" not in runtime.cache:
            runtime.cache["machine"] = machine(runtime.coordinator)
        self._machine: Any = runtime.cache.get("machine")

    def settings(self, name: str) -> tuple[Settings, Tuned] | None:
        """Return the settings of a transform and what tuning gained, or None."""
        values = None if self._entry is None else self._entry["transforms"].get(name)
        return None if values is None else store.settings_of(values)

    def _find(self, path: str) -> tuple[dict[str, Any] | None, str | None]:
        """Return the entry in a file, and why there is none."""
        return store.find(store.read(path), self._plan, self._machine)

    def _made(self, wisdom: str = "", **transforms: dict[str, Any]) -> dict[str, Any]:
        """Make an entry of some transforms' records."""
        return {"plan": self._plan, "machine": self._machine, "transforms": transforms, "wisdom": wisdom}


class Tuning(Known):
    """A plan's tuning file. Making one is collective.

    Parameters
    ----------
    runtime, plan, dtype
        As of `Known`.
    path : str or None
        None: no file.

    Attributes
    ----------
    weights : tuple of numbers or None
        What `keep_weights` has kept for this plan.
    grid : tuple of int or None
        The process grid of the entry, or of the plan for one that `keep` is to make.

    Raises
    ------
    InputError
        On all ranks, when the file cannot be used.
    """

    def __init__(self, runtime: Runtime, plan: dict[str, Any], dtype: DTypeLike, path: str | None) -> None:
        super().__init__(runtime, plan, dtype, path is not None)
        self.path = path
        self._reason: str | None = None
        self.weights: Weights = None
        self.grid: tuple[int, int] | None = None
        self._known: list[str] = []  # wisdom of an earlier entry, for transforms that are not tuned anew
        if path is None:
            return
        coordinator = runtime.coordinator
        with runtime.collective_section("reading a tuning file"):
            self._entry, self._reason = coordinator.bcast(None if coordinator.rank > 0 else self._find(path))
            if coordinator.rank == 0 and not os.path.exists(path):
                print(
                    f"overlap: no tuning file {path!r} yet, so the plan is not tuned: its method tune() makes one",
                    file=sys.stderr,
                )
            self.weights = checked((self._entry or {}).get("weights"), coordinator.size)[0]
            if self._entry is not None and not self._entry["transforms"]:
                self._entry, self._reason = None, "its entry for this plan has weights alone"
            if self._entry is not None:
                with self.planning() as accepted:
                    if not accepted:
                        raise InputError(
                            f"expected wisdom that FFTW {local.fftw_version()} accepts, "
                            f"received other wisdom in {path!r}"
                        )
                self.grid = self._grid_of(self._entry)

    def _grid_of(self, entry: dict[str, Any]) -> tuple[int, int] | None:
        """Return the grid of an entry, whose ranks are this plan's."""
        grid = entry.get("grid")
        if grid is not None and grid[0] * grid[1] != self._plan["ranks"]:
            raise InputError(f"expected a grid of {self._plan['ranks']} ranks, received {grid} in {self.path!r}")
        return grid and tuple(grid)

    def __str__(self) -> str:
        if self._entry is not None:
            return f"tuning: from {self.path}"
        return f"tuning: {self.path} is not used: {self._reason}"

    def planning(self) -> AbstractContextManager[bool | None]:
        """While kernels are made: FFTW plans as the tuning run did, if an entry is used."""
        if self._entry is None:
            return nullcontext()
        return local.only_wisdom(self._dtype, self._entry["wisdom"])

    def forget(self) -> None:
        """Plan as if there were no entry, until `keep` makes one."""
        if self._entry is not None:
            self._known = [self._entry["wisdom"]]
        self._entry, self._reason = None, "it has no entry for this plan"

    def problem(self) -> str | None:
        """Why the file cannot be written, or None; only rank 0 looks."""
        if self.path is None or self._runtime.coordinator.rank > 0:
            return None
        return store.unwritable(self.path)

    def keep_weights(self, weights: Weights) -> None:
        """Keep weights that were measured in the file, if there is one, for plans that ask for such (collective)."""
        with self._runtime.collective_section("keeping weights"):
            self.weights, self._plan = weights, self._plan | {"weights": "measure"}
            if self._runtime.coordinator.rank > 0:
                return
            known = self._entry is not None and self._entry["plan"] == self._plan
            found: Any = self._entry if known else self._made()
            self._write(found | {"weights": list(weights or (1,) * self._runtime.coordinator.size)})

    def keep(self, transforms: dict[str, Tunable], shapes: tuple) -> None:
        """Keep what was found as the entry, and in the file if there is one (collective).

        Parameters
        ----------
        transforms : dict
            Name to tuned `Transform`.
        shapes : tuple
            What this rank's FFTW plans depend on: ranks with the same make the same plans.
        """
        coordinator = self._runtime.coordinator
        everybodys = coordinator.allgather(shapes)
        first = everybodys.index(everybodys[coordinator.rank]) == coordinator.rank
        texts = coordinator.gather(local.wisdom(self._dtype) if first else None)
        with self._runtime.collective_section("keeping what tuning found"):
            if coordinator.rank == 0:
                self._entry = self._made(
                    joined([*filter(None, texts or ()), *self._known]),
                    **{
                        name: store.record(transform.settings, transform.tuned)
                        for name, transform in transforms.items()
                        if transform.tuned is not None
                    },
                )
                if self.weights is not None:
                    self._entry["weights"] = list(self.weights)
                if self.grid is not None:
                    self._entry["grid"] = list(self.grid)
            self._entry = coordinator.bcast(self._entry)
            if coordinator.rank == 0:
                self._write(self._entry)

    def _write(self, entry: dict[str, Any]) -> None:
        """Add an entry to the file, if there is one."""
        try:
            if self.path is not None:
                store.write(self.path, entry)
        except (InputError, OSError) as error:
            raise InputError(f"expected to write a tuning file, received {self.path!r}: {error}") from None


class PlanCache(Known):
    """What is remembered of plans like this one. Making one is collective; its parameters are those of `Known`.

    Its wisdom is known to FFTW from then on; what this process has learned before goes before it, so that no two plans
    of one process differ.
    """

    _entry: dict[str, Any]

    def __init__(self, runtime: Runtime, plan: dict[str, Any], dtype: DTypeLike) -> None:
        super().__init__(runtime, plan, dtype, True)
        self._key = json.dumps(self._plan, sort_keys=True)
        known = runtime.cache.setdefault("memory", {})
        self._compared = runtime.cache.setdefault("compared", set())
        if self._key not in known:
            coordinator = runtime.coordinator
            entry = coordinator.bcast(self._read() if coordinator.rank == 0 else None)
            if len(known) == HELD:
                del known[next(iter(known))]  # the same on all ranks, as the order is
            known[self._key] = entry or self._made()
            if entry:
                local.absorb(dtype, entry["wisdom"])
        self._entry = known[self._key]
        self._before = local.wisdom(dtype)

    def keep(self, name: str, settings: Settings, tried: int, choice: Choice | None = None) -> None:
        """Remember the fastest settings of a transform, and what they were compared with in its calls (collective)."""
        self._entry["transforms"][name] = store.record(settings, Tuned("", 1.0, tried), choice)
        self._compared.add((self._key, name))
        self._write()

    def choice(self, name: str) -> Choice | None:
        """Return what earlier calls of a transform have compared; None: they have not."""
        found = store.choice_of(self._entry["transforms"][name])
        if found is not None and (self._key, name) in self._compared:
            return replace(found, processes=PROCESSES)  # this process compares no choice of its own again
        return found

    def keep_wisdom(self) -> None:
        """Remember what FFTW has learned since the memory was made, on any rank (collective).

        No more than that: a process that makes many plans would write all that it knows with each of them.
        """
        coordinator, known = self._runtime.coordinator, local.wisdom(self._dtype)
        new = without(known, self._before)
        if not coordinator.maximum(len(new)):
            return
        texts = coordinator.gather(new)
        if texts is not None:
            self._entry["wisdom"] = joined([*texts, self._entry["wisdom"]])
        self._before = known
        self._write()

    def _path(self) -> Path | None:
        place = user_folder()
        text = self._key + json.dumps(self._machine, sort_keys=True)
        return place and place / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.plan.json"

    def _read(self) -> dict[str, Any] | None:
        path = self._path()
        if path is None:
            return None
        try:
            entry = self._find(str(path))[0]
        except InputError:
            return None
        if entry is not None:
            with suppress(OSError):
                os.utime(path)
        return entry

    def _write(self) -> None:
        path = self._path() if self._runtime.coordinator.rank == 0 else None
        if path is None:
            return
        with suppress(OSError, InputError):
            store.write_cached(path, self._entry)


def path_of(tuning: object) -> object:
    """Return the tuning file requested, by name or through the environment; None or "" for none."""
    path = os.environ.get(VARIABLE) or None if tuning is None else tuning
    return os.fspath(path) if isinstance(path, os.PathLike) else path


def machine(coordinator: Coordinator) -> dict:
    """Tell what else a tuned plan depends on (collective; the same on all ranks).

    ``link`` is the environment's OVERLAP_LINK: what joins the hosts, where their names do not tell.
    `overlap links` and the commands set it to the rate.
    """
    hosts = coordinator.allgather(MPI.Get_processor_name())
    names = list(dict.fromkeys(hosts))
    library = MPI.Get_library_version().split("\n")[0].strip("\0")
    return coordinator.bcast(
        {
            "cpu": cpu_model(),
            "cores": os.cpu_count(),
            "cores_of_rank": coordinator.minimum(len(os.sched_getaffinity(0))),
            "hosts": len(names),
            "ranks_per_host": max(map(hosts.count, names)),
            "neighbours_share_host": hosts == sorted(hosts, key=names.index),
            "link": os.environ.get("OVERLAP_LINK", ""),
            "mpi": " ".join(library.split()),
            "fftw": local.fftw_version(),
        }
    )
