"""Tuning files, which keep the settings that tuning or planning has found for later runs. No MPI here.

A tuning file is JSON text::

    {"format": "overlap-tuning", "version": 3, "digest": "...", "entries": [...]}

Each entry has the settings found for one plan on one machine:

    plan        the plan that was tuned: kind, shape, dtype, order, ranks, workers, ...
    machine     processor, cores, hosts, link, MPI library, FFTW
    transforms  for each transform, by name: the fields of `Settings`, and those of `Tuned`
    wisdom      FFTW's, as text

and, if there are any, the plan's measured weights and the chosen process grid.

An entry serves a plan whose `plan` and `machine` are equal to the entry's in every item; items of `plan` that are None
or False count as missing. The digest is the SHA-256 of the whole text with an empty digest: if any byte of a file has
changed, the file is rejected. A file that was edited by hand may have a right digest, so every value is checked, too.

A file is written whole or not at all: a new file is written beside the old one and replaces it. This is done under a
lock of the folder, after the current entries of the file have been read, so that two jobs that write at once lose
nothing.

A user's cache is a folder of such files with one entry each. If there are more than `KEPT`, those that have not been
used for the longest time are removed; the time of a file is that of its last use. They are counted and removed under
the folder's lock.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields
from pathlib import Path

from ... import files
from ...arrays import checked
from ...checks import integer_problem, number_problem
from ...errors import InputError
from ...files import user_folder
from .settings import Choice, Settings, Tuned, settings_problem

FORMAT, VERSION = "overlap-tuning", 3
KEPT = 1000  # files of a cache, of some 10 KiB each
LIMIT_NBYTES = 2**26  # an entry has some 10 KiB
MOST = 2**31 - 1  # largest integer in an entry
_PARTS = {"plan": dict, "machine": dict, "transforms": dict, "wisdom": str}
_COMPARED = ("second", "seconds", "processes")  # fields of a `Choice`
_SCALARS = (str, int, float, bool, type(None))


def read(path: str) -> list[dict]:
    """Return the entries of a tuning file; none if there is no file yet.

    If the file cannot be read, was cut off or changed, has another version or is no tuning file, an `InputError` names
    it.
    """
    try:
        data = files.read(path, LIMIT_NBYTES)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InputError(f"expected a readable tuning file, received {path!r}: {error}") from None
    try:
        content = json.loads(data.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"expected a whole tuning file, received {path!r}, which was cut off or is no tuning file: {error}"
        ) from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InputError(f"expected a tuning file of format {FORMAT!r}, received {path!r}, which is no tuning file")
    if content.get("version") != VERSION:
        raise InputError(
            f"expected a tuning file of version {VERSION}, received {path!r} of "
            f"version {_short(content.get('version'))}; tune anew, to another file"
        )
    entries, digest = content.get("entries"), content.get("digest")
    if not isinstance(entries, list):
        raise InputError(f"expected a list of entries in {path!r}, received none")
    if not files.is_sealed(data, digest):
        raise InputError(
            f"expected a tuning file as it was written, received {path!r}, whose content does not match its digest"
        )
    for entry in entries:
        if problem := _problem(entry):
            raise InputError(f"expected a valid tuning file, received {path!r} with {problem}")
        entry["plan"] = stated(entry["plan"])
    return entries


def write(path: str, entry: dict) -> None:
    """Add an entry to a file; its other entries stay.

    If there is an entry for the same plan and machine, those of its transforms that the new entry does not have stay.
    An existing file that is no usable tuning file is an `InputError`, and stays as it is.
    """
    if problem := files.unwritable(path):
        raise OSError(problem)
    with locked(os.path.dirname(os.path.realpath(path))):
        entries = read(path)
        for old in entries:
            if _key(old) == _key(entry):
                entry = entry | {"transforms": old["transforms"] | entry["transforms"]}
        entries = [old for old in entries if _key(old) != _key(entry)] + [entry]
        files.write(path, text_of(entries))


def text_of(entries: list[dict]) -> str:
    """Return the whole text of a tuning file."""
    content = {"format": FORMAT, "version": VERSION, "digest": "", "entries": entries}
    return files.sealed(json.dumps(content, indent=1, allow_nan=False) + "\n")


def unwritable(path: str) -> str | None:
    """Return why a tuning file cannot be written, or None."""
    if problem := files.unwritable(path):
        return f"expected a tuning file in a folder that can be written to, received {path!r}: {problem}"
    return None


def find(entries: list[dict], plan: dict, machine: dict) -> tuple[dict | None, str | None]:
    """Return the entry for a plan on a machine: (entry, None), or (None, reason) if there is none."""
    alike = [entry for entry in entries if entry["plan"] == plan]
    for entry in alike:
        if entry["machine"] == machine:
            return entry, None
    if not alike:
        return None, "it has no entry for this plan"
    entry_machine = alike[-1]["machine"]
    return None, "its entry for this plan is of another machine: " + "; ".join(
        f"{name} expected {machine.get(name)!r}, received {entry_machine.get(name)!r}"
        for name in dict.fromkeys((*machine, *entry_machine))
        if machine.get(name) != entry_machine.get(name)
    )


def record(settings: Settings, tuned: Tuned, choice: Choice | None = None) -> dict:
    """Return one transform's part of an entry; in a cache with the comparison of its settings."""
    compared = {} if choice is None else {name: asdict(choice)[name] for name in _COMPARED}
    return asdict(settings) | asdict(tuned) | compared


def settings_of(values: dict) -> tuple[Settings, Tuned]:
    """Return settings and result of tuning from one transform's part of an entry."""
    return (
        Settings(**{field.name: values[field.name] for field in fields(Settings)}),
        Tuned(**{field.name: values[field.name] for field in fields(Tuned)}),
    )


def choice_of(values: dict) -> Choice | None:
    """Return the comparison from one transform's part of an entry, or None if it has none."""
    if "second" not in values:
        return None
    second = values["second"] and Settings(**values["second"])
    return Choice(settings_of(values)[0], second, values["seconds"], values["processes"])


def _key(entry: dict) -> tuple[dict, dict]:
    return entry["plan"], entry["machine"]


def stated(plan: dict) -> dict:
    """Return a plan without the items that count as missing."""
    return {name: value for name, value in plan.items() if value is not None and value is not False}


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number")


def _problem(entry: object) -> str | None:
    """Return what is wrong with an entry, or None."""
    if (
        not isinstance(entry, dict)
        or set(entry) - {"weights", "grid"} != set(_PARTS)
        or any(not isinstance(entry[name], kind) for name, kind in _PARTS.items())
    ):
        return f"an entry that does not consist of {', '.join(_PARTS)}"
    weights = entry.get("weights")
    if weights is not None and (not isinstance(weights, list) or checked(weights, len(weights))[1]):
        return f"weights that are no list of positive numbers, {_short(weights)}"
    grid = entry.get("grid")
    if grid is not None and (
        not isinstance(grid, list) or len(grid) != 2 or any(integer_problem("grid", size, 1, MOST) for size in grid)
    ):
        return f"a grid that is no list of two positive integers, {_short(grid)}"
    for part in ("plan", "machine"):
        for name, value in entry[part].items():
            if not all(isinstance(one, _SCALARS) for one in (value if isinstance(value, list) else [value])):
                return f"a {part} whose {name!r} is neither a value nor a list of values"
    for name, values in entry["transforms"].items():
        known = {field.name for kind in (Settings, Tuned) for field in fields(kind)}
        if not isinstance(values, dict) or set(values) not in (known, known | set(_COMPARED)):
            return f"settings of {name!r} with missing or unknown fields"
        settings, tuned = settings_of(values)
        problem = settings_problem(settings, complete=True) or _gain_problem(tuned) or _choice_problem(values)
        if problem is not None:
            return f"settings of {name!r} that make no sense: {problem}"
    return None


def _choice_problem(values: dict) -> str | None:
    if "second" not in values:
        return None
    second, seconds, processes = (values[name] for name in _COMPARED)
    if second is not None and not (isinstance(second, dict) and set(second) == {one.name for one in fields(Settings)}):
        return f"expected second to be settings or nothing, received {_short(second)}"
    problem = number_problem("seconds", seconds, positive=True) or integer_problem("processes", processes, 1, MOST)
    return problem or (None if second is None else settings_problem(Settings(**second), complete=True))


def _gain_problem(tuned: Tuned) -> str | None:
    if not isinstance(tuned.default, str):
        return f"expected default to be text, received {_short(tuned.default)}"
    gain, tried = tuned.gain, tuned.tried
    return number_problem("gain", gain, positive=True) or integer_problem("tried", tried, 0, MOST)


def _short(value: object) -> str:
    """Return a value from a file as text that fits into a message."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


@contextmanager
def locked(folder: str) -> Iterator[None]:
    """Return a ``with`` block that other processes' writes to a folder wait for, if its file system has locks."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


# ---- a user's cache ----------------------------------------------------------------------------


def cached() -> list[tuple[Path, dict | None]]:
    """List all files of the cache with their entries; the entry of a damaged file is None."""
    entries: list[tuple[Path, dict | None]] = []
    place = user_folder()
    for path in sorted(place.glob("*.plan.json")) if place else ():
        try:
            entries.append((path, read(str(path))[0]))
        except (InputError, IndexError):
            entries.append((path, None))
    return entries


def clear() -> int:
    """Remove all files of the cache, also those of `overlap.collectives`; return their number."""
    place = user_folder()
    paths = [
        path for pattern in ("*.plan.json", "*.collectives.json") for path in (place.glob(pattern) if place else ())
    ]
    for path in [*paths, *(_unfinished(place) if place else ())]:
        path.unlink(missing_ok=True)
    return len(paths)


def _unfinished(place: Path) -> Iterator[Path]:
    """Yield files that are being written, or that a killed writer has left."""
    return place.glob(".*.plan.js*.partial")


def write_cached(path: Path, entry: dict) -> None:
    """Write a file of the cache; raise `OSError` or `InputError` if that fails."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = not path.exists()
    try:
        write(str(path), entry)
    except InputError:  # damaged: it is replaced
        path.unlink(missing_ok=True)
        write(str(path), entry)
    if new:
        _drop_oldest(path.parent)


def _drop_oldest(place: Path) -> None:
    """Remove the files that have not been used for the longest time, and those that killed writers have left."""
    with locked(str(place)):  # no process writes meanwhile
        ages = []
        for path in place.glob("*.plan.json"):
            with suppress(OSError):  # `clear` takes no lock
                ages.append((path.stat().st_mtime_ns, path))
        for path in [*(path for _, path in sorted(ages)[:-KEPT]), *_unfinished(place)]:
            path.unlink(missing_ok=True)
