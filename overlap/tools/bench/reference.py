"""The C + OpenMP yardstick of `bench/reference` on a case's job: only in a checkout.

Not one of the interleaved columns, because it is a program of its own; it runs right after the
case, on the same kind of ranks and links.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from .cases import Case

SCAN = Path(__file__).resolve().parents[3] / "bench" / "reference" / "scan.py"


def reference(case: Case, ranks: int, link: str | None) -> dict[str, Any]:
    """Time the C program, its best of a few thread and chunk counts.

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
    if not SCAN.exists():
        return {"reference_skipped": f"it comes with a checkout of the sources, and {SCAN} "
                "is not there"}
    spec = importlib.util.spec_from_file_location("overlap_reference_scan", SCAN)
    assert spec and spec.loader     # the file is there
    scan = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(scan)
    try:
        found = scan.scan(link=link, ranks=ranks, workload=case.workload, slices=case.slices,
                          shape=case.shape, rounds=case.rounds)
    except (scan.CannotBuild, RuntimeError, ValueError) as error:
        return {"reference_skipped": str(error)}
    return {"reference_s": found["overlap_s"], "reference_off_s": found["off_s"],
            "reference_C_s": found["C_s"], "reference_T_s": found["T_s"],
            "reference_best": found["best"]}
