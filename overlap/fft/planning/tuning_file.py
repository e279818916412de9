"""Tuning files: what tuning found, kept for later runs. Pure file work, no MPI.

A file is JSON text, ``{"format": "overlap-tuning", "version": 1, "entries": [...]}``; an entry is

    plan        what was tuned: kind, shape, dtype, order, ranks, workers
    machine     where: processor, cores, hosts, link, MPI library, FFTW
    transforms  by name: the fields of `Settings`, and of `Tuned`
    wisdom      FFTW's, as text

An entry is used where `plan` and `machine` are equal to the last item. The file appears whole or
not at all: it is written beside itself and renamed, under a lock of its folder, after the entries
that it holds by then have been read.
"""

import fcntl
import json
import os
from contextlib import contextmanager
from dataclasses import asdict, fields

from ...errors import InputError
from .settings import Settings, Tuned

FORMAT, VERSION = "overlap-tuning", 1
_PARTS = {"plan": dict, "machine": dict, "transforms": dict, "wisdom": str}
_WAITS = ("off", "block", "poll")
_EFFORTS = (None, "estimate", "measure", "patient")


def read(path):
    """The entries of a tuning file; none where there is no file yet.

    Raises
    ------
    InputError
        It cannot be read, was cut off, is of another version or no tuning file.
    """
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"expected a readable tuning file, received {path!r}: {error}") from None
    try:
        content = json.loads(text)
    except ValueError as error:
        raise InputError(f"expected a whole tuning file, received {path!r}, which was cut off or "
                         f"is none: {error}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InputError(f"expected a tuning file of format {FORMAT!r}, received {path!r}, which "
                         "is none")
    if content.get("version") != VERSION:
        raise InputError(f"expected a tuning file of version {VERSION}, received {path!r} of "
                         f"version {content.get('version')!r}")
    entries = content.get("entries")
    if not isinstance(entries, list):
        raise InputError(f"expected a list of entries, received {path!r}, which has none")
    for entry in entries:
        if problem := _problem(entry):
            raise InputError(f"expected a valid tuning file, received {path!r} with {problem}")
    return entries


def write(path, entry):
    """Add an entry to a file; whatever else it holds stays.

    Of an entry for the same plan and machine, the transforms that the new one does not name stay.

    Raises
    ------
    InputError
        What is there is no tuning file; it stays as it is.
    OSError
    """
    path = os.path.realpath(path)  # a link stays a link
    with _locked(os.path.dirname(path)):
        entries = read(path)
        for old in entries:
            if _key(old) == _key(entry):
                entry = entry | {"transforms": old["transforms"] | entry["transforms"]}
        entries = [old for old in entries if _key(old) != _key(entry)] + [entry]
        partial = f"{path}.{os.getpid()}.part"
        try:
            with open(partial, "w", encoding="utf-8") as file:
                json.dump({"format": FORMAT, "version": VERSION, "entries": entries}, file,
                          indent=1)
                file.write("\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        finally:
            if os.path.exists(partial):
                os.remove(partial)


def unwritable(path):
    """Why a tuning file cannot be written, or None."""
    folder = os.path.dirname(os.path.realpath(path))
    if not os.access(folder, os.W_OK | os.X_OK) or os.path.isdir(path):
        return f"expected a tuning file in a folder that can be written to, received {path!r}"
    return None


def find(entries, plan, machine):
    """The entry for a plan on a machine, and why there is none: (entry, None) or (None, reason)."""
    alike = [entry for entry in entries if entry["plan"] == plan]
    for entry in alike:
        if entry["machine"] == machine:
            return entry, None
    if not alike:
        return None, "it has no entry for this plan"
    other = alike[-1]["machine"]
    return None, "its entry for this plan is of another machine: " + "; ".join(
        f"{name} expected {machine.get(name)!r}, received {other.get(name)!r}"
        for name in dict.fromkeys((*machine, *other)) if machine.get(name) != other.get(name))


def record(settings, tuned):
    """One transform's part of an entry."""
    return asdict(settings) | asdict(tuned)


def settings_of(values):
    """The `Settings` and `Tuned` of one transform's part of an entry."""
    return tuple(kind(**{field.name: values[field.name] for field in fields(kind)})
                 for kind in (Settings, Tuned))


def _key(entry):
    return entry["plan"], entry["machine"]


def _problem(entry):
    """What is wrong with an entry, or None."""
    if not isinstance(entry, dict) or any(
            not isinstance(entry.get(name), kind) for name, kind in _PARTS.items()):
        return f"an entry without {', '.join(_PARTS)}"
    for name, values in entry["transforms"].items():
        try:
            settings, tuned = settings_of(values)
        except (KeyError, TypeError):
            return f"settings of {name!r} that lack something"
        counts = [settings.depth, settings.chunk, settings.in_flight, settings.polls, tuned.tried]
        counts += [] if settings.rows is None else [settings.rows]
        if (settings.wait not in _WAITS or settings.effort not in _EFFORTS
                or any(type(count) is not int or count < 0 for count in counts)
                or min(counts[:4]) < 1 or settings.rows == 0
                or not isinstance(tuned.default, str) or type(tuned.gain) not in (int, float)):
            return f"settings of {name!r} that make no sense: {values}"
    return None


@contextmanager
def _locked(folder):
    """Keep other processes that write here waiting, where the file system can do that."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:
            pass
        yield
    finally:
        os.close(handle)
