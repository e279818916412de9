"""A record of the benchmark, as if it had been measured, a report of records, and a missing package."""

import builtins

from overlap.tools.bench import report
from overlap.tools.bench.jobs import Case
from overlap.tools.bench.record import case_record


def measured(**changes):
    """What `measure` returns for C = 60 ms, T = 100 ms, on links."""
    seconds = {
        "off": [0.161, 0.160, 0.170],
        "block": [0.159, 0.160, 0.161],
        "poll": [0.105, 0.104, 0.103],
        "auto": [0.102, 0.103, 0.104],
        "C": [0.060, 0.059, 0.061],
        "T": [0.100, 0.100, 0.101],
        "control": [0.158, 0.160, 0.159],
        "control_C": [0.060] * 3,
        "control_T": [0.100] * 3,
    }
    for name in changes.pop("without", ()):
        del seconds[name]
    seconds |= changes.pop("seconds", {})
    return {
        "seconds": seconds,
        "ranks": 2,
        "hosts": 2,
        "max_rel_error": 1e-15,
        "auto_choice": {"wait": "poll", "depth": 16, "chunk": 1, "in_flight": 8},
        "nbytes_in_flight": 1 << 20,
        "waiting": [0.4, 0.35],
        "bare_fft_s": 0.05,
        "binding": [{"host": f"h{rank}", "cores": [rank]} for rank in range(2)],
    } | changes


def record(case=None, **changes):
    return case_record(case or Case(rounds=3, link="2gbit"), measured(**changes))


def written(path, *records, complete=True, **changes):
    """A report of these records at a path, which is returned."""
    content = report.new_report(["overlap", "scale", "run"])
    content["cases"] += records
    report.write(content | changes, path, complete)
    return path


def without(monkeypatch, package):
    """A package cannot be imported, as if it were not installed."""
    real = builtins.__import__

    def refusing(name, *args, **kwargs):
        if name.partition(".")[0] == package:
            raise ImportError(f"No module named {name!r}")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refusing)
