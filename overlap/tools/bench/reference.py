"""Runs the C + OpenMP program of `bench/reference` on a case's job; this needs a checkout.

The C program is a separate process, so it cannot take turns with the other columns: it runs right after the case, on
the same kind of ranks and links.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from .cases import Case

PROGRAM = Path("bench", "reference", "scan.py")  # below the root of a checkout


def find_program() -> Path | None:
    """Find the program in the checkout that this file is in or, where the package is installed, that one is in."""
    tops = Path(__file__).resolve().parents[3], Path.cwd()
    return next((top / PROGRAM for top in tops if (top / PROGRAM).is_file()), None)


def reference(case: Case, ranks: int, link: str | None) -> dict[str, Any]:
    """Time the C program with a few numbers of threads and chunks; report the fastest.

    Parameters
    ----------
    case : Case
    ranks : int
    link : str or None
        Rate of shaped links; shared memory without.

    Returns
    -------
    dict
        Entries for the case's record: ``reference_s``, ``reference_C_s``, ``reference_T_s`` and
        ``reference_best``, or ``reference_skipped``, the reason.
    """
    expected = {"fft2": "c16", "operation": "f8"}.get(case.workload)
    if case.dtype != expected:
        return {"reference_skipped": f"it cannot do {case.workload} of dtype {case.dtype}"}
    program = find_program()
    if program is None:
        return {
            "reference_skipped": f"it comes with a checkout of the sources, and there is no {PROGRAM} beside "
            "this package or in the current folder"
        }
    spec = importlib.util.spec_from_file_location("overlap_reference_scan", program)
    assert spec and spec.loader  # the file is there
    scan = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(scan)
    try:
        times = scan.scan(
            link=link, ranks=ranks, workload=case.workload, slices=case.slices, shape=case.shape, rounds=case.rounds
        )
    except (scan.CannotBuild, RuntimeError, ValueError) as error:
        return {"reference_skipped": str(error)}
    return {
        "reference_s": times["overlap_s"],
        "reference_off_s": times["off_s"],
        "reference_C_s": times["C_s"],
        "reference_T_s": times["T_s"],
        "reference_best": times["best"],
    }
