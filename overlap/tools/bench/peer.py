"""mpi4py-fft on our job: forward transforms of a batch of planes, or of a field.

The peer runs with its best setting: `prepare` plans every candidate below, times a few transforms of each and keeps the
fastest. The peer does no more work than our plan: it transforms its own input array into its own output array
(`forward(u, uh)` would copy both), and does not scale (`normalize=False`). For planes its grid has to put all ranks on
the y axis, which makes the result `(nz, ny, nx_local)` in natural order, like ours; for a field it may split any axes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
from mpi4py import MPI

from .jobs import Case, Transforms, error_limit, max_rel_error
from .rounds import timed

# For each workload the settings that are tried; the peer's default is the first.
# Left out: FFTW_PATIENT, which plans for minutes on a batch of 64 x 512 x 512; FFTW_ESTIMATE,
# always slower; scipy, as fast as numpy and without real input.
_PLANES = {"axes": (1, 2), "grid": (1, -1, 1)}
_FIELD = {"backend": "fftw", "planner_effort": "FFTW_MEASURE"}
SETTINGS: dict[str, dict[str, Any]] = {
    "fft2": {
        "fftw, FFTW_MEASURE": _PLANES | {"backend": "fftw", "planner_effort": "FFTW_MEASURE"},
        "pyfftw, FFTW_MEASURE": _PLANES | {"backend": "pyfftw", "planner_effort": "FFTW_MEASURE"},
        "numpy": _PLANES | {"backend": "numpy"},
    },
    "fft3": {
        "as it comes": _FIELD,
        "slab": _FIELD | {"slab": True},
        "collapse": _FIELD | {"collapse": True},
        "slab, collapse": _FIELD | {"slab": True, "collapse": True},
        "grid over z": _FIELD | {"grid": (-1,)},
        "grid over y": _FIELD | {"grid": (1, -1)},
    },
}


def available() -> str | None:
    """Return why mpi4py-fft cannot be used here, or None if it can."""
    try:
        import_module("mpi4py_fft")
    except ImportError as error:
        return f"mpi4py-fft is not installed ({error}): pip install mpi4py-fft"
    return None


class Prepared:
    """A planned transform of mpi4py-fft on arrays of its own.

    Attributes
    ----------
    input, output : ndarray
        Local arrays with their batch; for real input the output has n // 2 + 1 points along x. A transform may destroy
        the input.
    local_slice : callable
        Returns the place of the input in the global array, or with the argument True that of the output.
    setting : str
        The candidate that is used.
    """

    def __init__(self, plan: Any, setting: str, field: bool) -> None:
        self._plan = plan
        self.setting = setting
        self.input = plan.forward.input_array
        self.output = plan.forward.output_array
        self.local_slice = plan.local_slice
        if field:
            self.input, self.output = self.input[None], self.output[None]
            self.local_slice = lambda output: (slice(0, 1), *plan.local_slice(output))

    def refill(self) -> None:
        """Put finite values into `input`, which the last transform may have destroyed."""
        self.input[...] = 0.5

    def forward(self) -> np.ndarray:
        """Transform `input` into `output`, unscaled. Collective."""
        self._plan.forward(normalize=False)
        return self.output

    def close(self) -> None:
        """Free the plan's datatypes and communicators. Collective."""
        self._plan.destroy()


def prepare(comm: MPI.Intracomm, case: Case, job: Transforms, settings: Sequence[str], *, trials: int = 3) -> Prepared:
    """Plan the peer's fastest transform. Collective.

    Parameters
    ----------
    comm : MPI.Comm
    case : Case
    job : Transforms
        Knows the result.
    settings : sequence of str
        The names in `SETTINGS` to choose from.
    trials : int
        Transforms timed per setting.

    Returns
    -------
    Prepared

    Raises
    ------
    RuntimeError
        No candidate can be planned, or the fastest one gives a wrong result.
    """
    best, best_s, refusals = None, np.inf, []
    for setting in settings:
        plan, refusal = _plan(comm, case, SETTINGS[case.workload][setting])
        if plan is None:
            refusals.append(f"{setting}: {refusal}")
            continue
        candidate = Prepared(plan, setting, case.workload == "fft3")
        wall_s = np.inf
        for number in range(trials + 1):
            candidate.refill()
            trial_s = timed(comm, candidate.forward)
            wall_s = min(wall_s, trial_s) if number else wall_s
        if wall_s < best_s:
            best, candidate, best_s = candidate, best, wall_s
        if candidate is not None:
            candidate.close()
    if best is None:
        raise RuntimeError("mpi4py-fft can plan no transform here:\n" + "\n".join(refusals))
    where = best.local_slice(False)
    for z in range(case.slices):  # no axis of slices is split
        best.input[z] = job.field(z)[where[1:]]
    error, limit = max_rel_error(comm, job, case, best.local_slice(True), best.forward()), error_limit(case)
    if not error <= limit:
        raise RuntimeError(
            f"mpi4py-fft ({best.setting}): expected a relative error of at most {limit:.1e}, received {error:.1e}"
        )
    return best


def _plan(comm: MPI.Intracomm, case: Case, options: Mapping[str, Any]) -> tuple[Any, str | None]:
    """Make a plan; if that fails, return None and the reason, the same on all ranks."""
    from mpi4py_fft import PFFT

    plan, reason = None, None
    try:
        shape = case.shape if case.workload == "fft3" else case.global_shape
        plan = PFFT(comm, shape, dtype=np.dtype(case.dtype), **options)
    except Exception as error:  # another backend may work, whatever this one raises
        reason = f"{type(error).__name__}: {error}"
    reasons = comm.allgather(reason)
    if any(reasons):
        return None, next(filter(None, reasons))
    return plan, None
