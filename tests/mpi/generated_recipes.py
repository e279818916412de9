"""The recipes: good arguments by name, what is legal everywhere, and the subjects of each area."""

from __future__ import annotations

from typing import Any

import generated_fft
import generated_others
import generated_runtime
import generated_sparse
from generated import Subject

import overlap

ARGUMENTS: dict[str, Any] = {"comm": lambda lab: lab.comm}
"""Good values by the name of an argument, or a function of the `Lab` that makes one."""

LEGAL: dict[str, str] = {"deadline_s=None": "no limit"}
"""Values that are allowed in every call, with the reason."""

SUBJECTS: dict[str, tuple[Subject, ...]] = {
    "fft": generated_fft.SUBJECTS,
    "runtime": generated_runtime.SUBJECTS,
    "sparse": generated_sparse.SUBJECTS,
    "collectives": generated_others.COLLECTIVES,
    "drop-in": generated_others.DROP_IN,
    "output": generated_others.OUTPUT,
}

DEGREES: dict[str, int | tuple[int, ...] | None] = {
    **dict.fromkeys(("wavenumbers", "grid", "from_function", "diagonal", "norm"), 0),
    **dict.fromkeys(("buffers", "operation", "operations", "planes", "compute", "communicate"), None),
    "overlap.DistArray.global_vdot": 2,
    "overlap.DistArray.load": 0,
    "overlap.Output.read": 0,
    "overlap.Protected.restore": 0,
    "overlap.collectives.Collectives.allreduce": 0,
    "overlap.compat.mpi4py_fft.DistArray.DistArray": 0,
    "overlap.compat.mpi4py_fft.DistArray.DistArray of the world": 0,
    "overlap.fft.SpectralOperators.energy": 2,
    "overlap.fft.SpectralOperators.energy_spectrum": (0, 2),
    "overlap.fft.SpectralOperators.product": 2,
    "overlap.fft.TimeStepper.run": (1, 0),
    "overlap.fft.Transform of FFT2.pointwise.__call__": (2, 2, 1),
    "overlap.fft.Transform of FFT2.pointwise.settle": (2, 1),
    "overlap.fft.Transform of FFT3.pointwise.__call__": (2, 2, 1),
    "overlap.fft.Transform of FFT3.pointwise.settle": (2, 1),
}
"""With which power of its arrays' numbers the numbers of a call's result grow, each or all alike, by the name of the
call in one subject or in all; 1 by default. None: its arrays are memory to work in.
"""

NOT_CALLED: dict[str, str] = {
    f"overlap.{name}": "an exception"
    for name in overlap.__all__
    if isinstance(kind := getattr(overlap, name), type) and issubclass(kind, Exception)
} | {
    "overlap.ArrayLayout": "a record: plans look at what is in it",
    "overlap.Settings": "a record: plans look at what is in it",
    "overlap.worker_index": "no arguments",
    "overlap.fft.ArrayLayout": "a record: plans look at what is in it",
    "overlap.fft.Balance": "a record of a plan's",
    "overlap.fft.Plan": "the base of the plans",
    "overlap.fft.Settings": "a record: plans look at what is in it",
    "overlap.fft.Trial": "a record of a plan's",
    "overlap.fft.Tuned": "a record of a plan's",
    "overlap.sparse.Preconditioner": "the base of the preconditioners",
    "overlap.collectives.Op": "numbers with names",
    "overlap.compat.mpi4py_fft.Function": "the old name of newDistArray",
    "overlap.compat.mpi4py_fft.NCFile": "as HDF5File, with a package that is an extra",
    "overlap.compat.mpi4py_fft.fftlib": "a dict",
    "overlap.compat.mpi4py_fft.fftw": "mpi4py-fft's module of serial transforms",
    "overlap.compat.mpi4py_fft.generate_xdmf": "of one rank, on a file",
    "overlap.compat.mpi4py_fft.stand_in": "no arguments",
}
"""Public names that are neither called with bad arguments nor closed, with the reason."""
