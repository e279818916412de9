"""Memory: what this user's earlier plans have found, kept in small files by machine, library and plan.

A plan that was made before, on this machine and with these libraries, gets its settings and FFTW's wisdom at once. The
files lie in the folder OVERLAP_CACHE (empty: nothing is kept), by default in ``overlap`` in the user's cache folder.
Each is a tuning file (`tuning_file`) with one entry, under a name that is a digest of plan and machine: written whole
or not at all, and checked when it is read. One that was damaged counts as missing. Rank 0 alone touches files; what
cannot be read or written is done without. Of more than `KEPT` files those that were not used for the longest time go:
a file's time is that of its last use. They are counted and removed under the lock under which files are written.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from numpy.typing import DTypeLike

from ...errors import InputError
from ...files import user_folder
from ...runtime import Runtime
from ..engine import fftw as local
from ..engine.wisdom import joined, without
from . import tuning_file as store
from .settings import Settings, Tuned
from .tuning import machine

KEPT = 1000  # files, of some 10 KiB
HELD = 200  # entries, by a runtime


def entries() -> list[tuple[Path, dict | None]]:
    """All files of the cache with their entries; None of one that was damaged."""
    found: list[tuple[Path, dict | None]] = []
    place = user_folder()
    for path in sorted(place.glob("*.plan.json")) if place else ():
        try:
            found.append((path, store.read(str(path))[0]))
        except (InputError, IndexError):
            found.append((path, None))
    return found


def settings_of(values: dict[str, Any]) -> Settings:
    """Return the settings of one transform's part of an entry."""
    return store.settings_of(values)[0]


def clear() -> int:
    """Remove all files of the cache, those of `overlap.collectives` as well; returns how many."""
    place = user_folder()
    paths = [
        path for pattern in ("*.plan.json", "*.collectives.json") for path in (place.glob(pattern) if place else ())
    ]
    for path in [*paths, *(_unfinished(place) if place else ())]:
        path.unlink(missing_ok=True)
    return len(paths)


def _unfinished(place: Path) -> Iterator[Path]:
    """Files that are being written, or that a writer left which was killed."""
    return place.glob(".*.plan.js*.partial")


def _write(path: Path, entry: dict[str, Any]) -> None:
    """Write a file of the cache; an `OSError` or `InputError` if that fails."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = not path.exists()
    try:
        store.write(str(path), entry)
    except InputError:  # damaged: it makes room
        path.unlink(missing_ok=True)
        store.write(str(path), entry)
    if new:
        _drop_oldest(path.parent)


def _drop_oldest(place: Path) -> None:
    """Remove what has not been used for the longest time, and what killed writers have left."""
    with store.locked(str(place)):  # nobody writes meanwhile
        ages = []
        for path in place.glob("*.plan.json"):
            with suppress(OSError):  # `clear` takes no lock
                ages.append((path.stat().st_mtime_ns, path))
        for path in [*(path for _, path in sorted(ages)[:-KEPT]), *_unfinished(place)]:
            path.unlink(missing_ok=True)


class Memory:
    """What is remembered of plans like this one. Making one is collective.

    Its wisdom is known to FFTW from then on; what this process has learned before goes before it, so that no two plans
    of one process differ.

    Parameters
    ----------
    runtime : Runtime
    plan : dict
        What is planned, in values that a file can hold; the same on all ranks.
    dtype : dtype
        The wisdom has its precision.
    """

    def __init__(self, runtime: Runtime, plan: dict[str, Any], dtype: DTypeLike) -> None:
        self._runtime, self._plan, self._dtype = runtime, plan, dtype
        self._key = json.dumps(plan, sort_keys=True)
        known = runtime.cache.setdefault("memory", {})
        if self._key not in known:
            if "machine" not in runtime.cache:
                runtime.cache["machine"] = machine(runtime.control)
            control = runtime.control
            entry = control.bcast(self._read() if control.rank == 0 else None)
            if len(known) == HELD:
                del known[next(iter(known))]  # the same on all ranks, as the order is
            known[self._key] = entry or {
                "plan": plan,
                "machine": runtime.cache["machine"],
                "transforms": {},
                "wisdom": "",
            }
            if entry:
                local.absorb(dtype, entry["wisdom"])
        self._entry: dict[str, Any] = known[self._key]
        self._before = local.wisdom(dtype)

    def settings(self, name: str) -> Settings | None:
        """Find the fastest settings of a transform, where they are known."""
        values = self._entry["transforms"].get(name)
        return None if values is None else settings_of(values)

    def keep(self, name: str, settings: Settings, tried: int) -> None:
        """Remember the fastest settings of a transform (collective)."""
        self._entry["transforms"][name] = store.record(settings, Tuned("", 1.0, tried))
        self._write()

    def keep_wisdom(self) -> None:
        """Remember what FFTW has learned since the memory was made, on any rank (collective).

        No more than that: a process that makes many plans would write all that it knows with each of them.
        """
        control, known = self._runtime.control, local.wisdom(self._dtype)
        new = without(known, self._before)
        if not control.maximum(len(new)):
            return
        texts = control.gather(new)
        if texts is not None:
            self._entry["wisdom"] = joined([*texts, self._entry["wisdom"]])
        self._before = known
        self._write()

    def _path(self) -> Path | None:
        place = user_folder()
        text = self._key + json.dumps(self._runtime.cache["machine"], sort_keys=True)
        return place and place / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.plan.json"

    def _read(self) -> dict[str, Any] | None:
        path = self._path()
        if path is None:
            return None
        try:
            entry = store.find(store.read(str(path)), self._plan, self._runtime.cache["machine"])[0]
        except InputError:
            return None
        if entry is not None:
            with suppress(OSError):
                os.utime(path)
        return entry

    def _write(self) -> None:
        path = self._path() if self._runtime.control.rank == 0 else None
        if path is None:
            return
        with suppress(OSError, InputError):
            _write(path, self._entry)
