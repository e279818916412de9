"""Settings known from earlier plans of the same kind, in a tuning file that `tune` has written or in the user's cache.

They are the same on all ranks: rank 0 alone reads and writes files and sends the content to the others. A plan made
from an entry of a tuning file uses its settings and makes its FFTW plans with the entry's wisdom and no other, so that
they are those of the tuning run, whatever else this process has planned.

If a plan was made before on this machine and with these libraries, it gets settings and FFTW's wisdom at once from a
file in the folder OVERLAP_CACHE (empty: nothing is kept), by default ``overlap`` in the user's cache folder. The file's
name is a digest of plan and machine. A damaged file counts as missing; if a file cannot be read or written, plans work
without it.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from mpi4py import MPI
from numpy.typing import DTypeLike

from ...arrays import Weights, checked
from ...errors import InputError, note
from ...files import user_folder
from ...ranks.coordinator import Coordinator
from ...runtime import Runtime
from ...timing.thread_scaling import cpu_model
from ..engine import fftw as local
from ..engine.fftw import joined, without
from . import tuning_file as store
from .candidates import Tunable
from .settings import PROCESSES, Choice, Settings, Tuned

VARIABLE = "OVERLAP_TUNING"
HELD = 200  # entries of the cache that a runtime keeps in memory


class Known:
    """An entry of a tuning file for plans of one kind, the same on all ranks. Making one is collective."""

    _entry: dict[str, Any] | None = None

    def __init__(
        self,
        runtime: Runtime,
        plan: dict[str, Any],  # the description of the plan, in values for a file; the same on all ranks
        dtype: DTypeLike,  # whose precision the wisdom has
        filed: bool,  # whether there is a file
    ) -> None:
        self._runtime, self._plan, self._dtype = runtime, store.stated(plan), dtype
        if filed and "machine" not in runtime.cache:
            runtime.cache["machine"] = machine(runtime.coordinator)
        self._machine: Any = runtime.cache.get("machine")

    def settings(self, name: str) -> tuple[Settings, Tuned] | None:
        """Return the settings of a transform and what tuning gained, or None."""
        values = None if self._entry is None else self._entry["transforms"].get(name)
        return None if values is None else store.settings_of(values)

    def _find(self, path: str) -> tuple[dict[str, Any] | None, str | None]:
        """Return the entry in a file, or None and the reason."""
        return store.find(store.read(path), self._plan, self._machine)

    def _made(self, wisdom: str = "", **transforms: dict[str, Any]) -> dict[str, Any]:
        """Make an entry from some transforms' records."""
        return {"plan": self._plan, "machine": self._machine, "transforms": transforms, "wisdom": wisdom}


class Tuning(Known):
    """A plan's tuning file, if `path` names one. Making one is collective; a bad file raises on all ranks."""

    def __init__(self, runtime: Runtime, plan: dict[str, Any], dtype: DTypeLike, path: str | None) -> None:
        super().__init__(runtime, plan, dtype, path is not None)
        self.path = path
        self._reason: str | None = None
        self.weights: Weights = None  # that `keep_weights` has stored for this plan
        self.grid: tuple[int, int] | None = None  # of the entry, or of the plan, for an entry that `keep` will make
        self._known: list[str] = []  # wisdom of the earlier entry, for transforms that are not tuned anew
        if path is None:
            return
        coordinator = runtime.coordinator
        with runtime.collective_section("reading a tuning file"):
            self._entry, self._reason = coordinator.bcast(None if coordinator.rank > 0 else self._find(path))
            if coordinator.rank == 0 and not os.path.exists(path):
                note(f"no tuning file {path!r} yet, so the plan is not tuned: its method tune() makes one")
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
        """Return the grid of an entry, which must have the plan's number of ranks."""
        grid = entry.get("grid")
        if grid is not None and grid[0] * grid[1] != self._plan["ranks"]:
            raise InputError(f"expected a grid of {self._plan['ranks']} ranks, received {grid} in {self.path!r}")
        return grid and tuple(grid)

    def __str__(self) -> str:
        if self._entry is not None:
            return f"tuning: from {self.path}"
        return f"tuning: {self.path} is not used: {self._reason}"

    def planning(self) -> AbstractContextManager[bool | None]:
        """Return a ``with`` block for making kernels, in which FFTW has the wisdom of the entry, if any, alone."""
        if self._entry is None:
            return nullcontext()
        return local.only_wisdom(self._dtype, self._entry["wisdom"])

    def forget(self) -> None:
        """Ignore the entry until `keep` makes a new one."""
        if self._entry is not None:
            self._known = [self._entry["wisdom"]]
        self._entry, self._reason = None, "it has no entry for this plan"

    def problem(self) -> str | None:
        """Return why the file cannot be written, or None; only rank 0 checks."""
        if self.path is None or self._runtime.coordinator.rank > 0:
            return None
        return store.unwritable(self.path)

    def keep_weights(self, weights: Weights) -> None:
        """Store measured weights in the file, if there is one, for plans with ``weights="measure"`` (collective)."""
        with self._runtime.collective_section("keeping weights"):
            self.weights, self._plan = weights, self._plan | {"weights": "measure"}
            if self._runtime.coordinator.rank > 0:
                return
            known = self._entry is not None and self._entry["plan"] == self._plan
            entry: Any = self._entry if known else self._made()
            self._write(entry | {"weights": list(weights or (1,) * self._runtime.coordinator.size)})

    def keep(self, transforms: dict[str, Tunable], shapes: tuple) -> None:
        """Make the entry from tuned transforms, and write it to the file if there is one (collective).

        This rank's FFTW plans depend on the values in `shapes`: ranks with equal ones make equal plans.
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
    """The user's cache of plans of one kind. Making one is collective; the parameters are those of `Known`.

    FFTW gets the cache's wisdom. Wisdom that this process has learned before takes precedence, so that equal plans of
    one process do not differ.
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
                del known[next(iter(known))]  # the same on all ranks, because the order is
            known[self._key] = entry or self._made()
            if entry:
                local.absorb(dtype, entry["wisdom"])
        self._entry = known[self._key]
        self._before = local.wisdom(dtype)

    def keep(self, name: str, settings: Settings, tried: int, choice: Choice | None = None) -> None:
        """Store the fastest settings of a transform, and the comparison made in its calls (collective)."""
        self._entry["transforms"][name] = store.record(settings, Tuned("", 1.0, tried), choice)
        self._compared.add((self._key, name))
        self._write()

    def choice(self, name: str) -> Choice | None:
        """Return the comparison made in earlier calls of a transform, or None."""
        kept = store.choice_of(self._entry["transforms"][name])
        if kept is not None and (self._key, name) in self._compared:
            return replace(kept, processes=PROCESSES)  # this process does not repeat its own comparison
        return kept

    def keep_wisdom(self) -> None:
        """Store the wisdom that FFTW has learned on any rank since this object was made (collective).

        Older wisdom is not stored, because a process with many plans would write all of it with each plan.
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
    """Return the description of the machine, on which a tuned plan depends (collective; the same on all ranks).

    ``link`` is the environment variable OVERLAP_LINK, which names the link between hosts if their names do not
    determine it. `overlap links` and the commands set it to the rate.
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
