"""Makes the record of a case from its measured times. Uses no MPI.

A record is a plain dictionary, one entry of ``cases`` in a report. Times are medians in seconds,
named ``..._s``; those of the rounds are in ``seconds``, their spread in ``spread``. Entries without a value are None.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ...timing import model
from .jobs import JOBS, MODES, Case

CONTROL_LIMIT = 0.1  # largest share that may seem hidden in the control, which overlaps nothing
UNEVEN = 0.15  # difference of waiting shares between ranks above which a warning is given
BUSY_SPREAD = 0.3  # spread of the times of computing alone, over their median, that shows other programs

# What a record says of its case.
DESCRIBED = "link", "workload", "slices", "shape", "dtype", "order", "exchange", "kinds", "calls", "workers", "modes"

Record = dict[str, Any]


def case_record(case: Case, measured: Mapping[str, Any]) -> Record:
    """Make the record of one case.

    Parameters
    ----------
    case : Case
    measured : dict
        The result of `measure.measure`, and the host and cores of each rank as ``binding``.

    Returns
    -------
    dict
        ``link, ranks, workers, slices, shape, dtype, workload``; ``C_s``, ``T_s``, ``T_over_C``; ``off_s``,
        ``block_s``, ``poll_s``, ``auto_s`` with ``auto_choice``; ``model_block_s`` and ``model_poll_s``
        (`overlap.timing.model`, without fill and drain); ``core_s``, the core time of exchanging per call of the last
        mode, and ``model_cores_s``, the model's time with this core time; ``hidden`` of auto; ``gain`` = off/auto, with
        its bounds ``gain_bound`` = (C + T)/max(C, T) and ``gain_bound_block`` = 2 - 1/N; ``gflops`` of auto, by 5 N
        log2 N; ``max_rel_error``; ``control_hidden`` and ``control_ok``, None on shared memory; ``took_s``, seconds of
        every step of the measurement; the peer's times, if it ran. If auto is not among the modes, ``auto_choice``,
        ``hidden`` and ``gain`` are those of the last mode.
    """
    seconds = measured["seconds"]
    median = {name: statistics.median(values) for name, values in seconds.items()}
    C, T, best = median["C"], median["T"], median[case.modes[-1]]
    core_s = measured.get("core_s")
    described = {name: list(value) if isinstance(value, tuple) else value for name, value in case.as_dict().items()}
    record = {
        **{name: described[name] for name in DESCRIBED},
        "grid": None,
        "core_s": None,  # an older report has none
        "waiting": None,
        "took_s": None,
        **measured,
        "rounds": len(seconds["off"]),
        "C_s": C,
        "T_s": T,
        "T_over_C": _finite(T / C if C else math.inf),
        **{f"{mode}_s": median.get(mode) for mode in MODES},
        "model_block_s": model.block_s(C, T, case.workers),
        "model_poll_s": model.poll_s(C, T),
        "model_cores_s": None if core_s is None else model.poll_s(C, T, workers=case.workers, core_s=core_s),
        "gflops": 1e-9 * JOBS[case.workload].flops(case) / best,
        "gain": _finite(median["off"] / best),
        "gain_bound": _finite((C + T) / max(C, T)),
        "gain_bound_block": model.best_speedup(case.workers),
        "hidden": _finite(model.hidden(C, T, best)),
        "control_s": median.get("control"),
        "control_hidden": None,
        "control_ok": None,
        "spread": {name: [min(values), max(values)] for name, values in seconds.items()},
    }
    if "control" in median:
        hidden = model.hidden(median["control_C"], median["control_T"], median["control"])
        record["control_hidden"] = _finite(hidden)
        record["control_ok"] = not hidden > CONTROL_LIMIT
    if case.peer:
        record |= {
            "peer_mpi4py_fft_s": median.get("peer_mpi4py_fft"),
            "peer_mpi4py_fft_default_s": median.get("peer_mpi4py_fft_default"),
        }
    return record


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def pooled(records: Sequence[Record]) -> Record:
    """Make one record of several of the same case, as if all their rounds had been measured at once.

    Entries that are not times (``auto_choice``, ``binding``) come from the last record.
    """
    *_, last = records
    seconds = {
        name: [value for record in records for value in record["seconds"][name]]
        for name in last["seconds"]
        if all(name in record["seconds"] for record in records)
    }
    case = Case.from_dict(last | {"peer": "peer_skipped" in last})
    worst = max(record["max_rel_error"] for record in records)
    return case_record(case, last | {"seconds": seconds, "max_rel_error": worst})


def busy(record: Record) -> bool:
    """Return whether times of computing alone differ so much that other programs must have used the cores."""
    low, high = record["spread"]["C"]
    return disturbed((high - low) / record["C_s"])


def disturbed(spread: float | None) -> bool:
    """Return whether times of the same work differ so much, over their median, that other programs must have run."""
    return spread is not None and spread > BUSY_SPREAD


def doubt(where: str, what: str, verdict: str) -> str:
    """Make the warning that times of `what` varied much, and that therefore `verdict` holds."""
    return f"warning: {where}: {what}: other programs ran on these cores, and {verdict}"


def crowded(record: Record) -> list[str]:
    """Find the hosts on which the ranks have more workers than cores."""
    cores: dict[str, set[int]] = {}
    workers: dict[str, int] = {}
    for place in record["binding"]:
        cores.setdefault(place["host"], set()).update(place["cores"])
        workers[place["host"]] = workers.get(place["host"], 0) + record["workers"]
    return [host for host in cores if workers[host] > len(cores[host])]


def imbalance(record: Record) -> str | None:
    """Name the ranks that wait for slower ones, if some ranks wait clearly longer than others."""
    waiting = record.get("waiting") or [0.0]  # an older report has none
    least = min(range(len(waiting)), key=waiting.__getitem__)
    if max(waiting) - waiting[least] < UNEVEN:
        return None
    long = [
        f"rank {rank} waits {100 * share:.0f} % of the time"
        for rank, share in enumerate(waiting)
        if share - waiting[least] >= UNEVEN
    ]
    return (
        f"{', '.join(long)}, rank {least} {100 * waiting[least]:.0f} %: the ranks are not equally fast, and `balance` "
        "can give each its share"
    )


def warnings(record: Record) -> list[str]:
    """Return the warnings that a reader of the record needs, as lines of text."""
    lines = []
    if hosts := crowded(record):
        lines.append(
            f"warning: {record['link']}: more workers than cores on {', '.join(hosts)}: "
            "workers take turns, and compute no faster than the cores allow"
        )
    if record["control_ok"] is False:
        lines.append(
            f"warning: {record['link']}: slice by slice without overlap, "
            f"{record['control_hidden']:.2f} of min(C, T) seems to be hidden, expected at most "
            f"{CONTROL_LIMIT}: the links do not hold their rate (a burst too large?), or the "
            "machine is busy; disregard its 'hidden'"
        )
    if busy(record):
        low, high = record["spread"]["C"]
        took = f"computing alone took {1e3 * low:.0f} to {1e3 * high:.0f} ms"
        lines.append(doubt(record["link"], took, "the times mean little"))
    if text := imbalance(record):
        lines.append(f"{record['link']}: {text}")
    if record.get("peer_skipped"):
        lines.append(f"mpi4py-fft was not timed: {record['peer_skipped']}")
    if record.get("reference_skipped"):
        lines.append(f"the C reference was not timed: {record['reference_skipped']}")
    return lines
