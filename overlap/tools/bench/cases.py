"""Cases that are measured: one of the `JOBS`, its size, and how it is run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from importlib.util import find_spec
from typing import Any

import numpy as np

from ...arrays.exchange import exchange_problem
from ...fft.arguments import ORDERS, kinds_of, kinds_problem
from .jobs import JOBS

MODES = ("off", "block", "poll", "auto")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One line of a benchmark.

    Attributes
    ----------
    workload : str
        A name in `JOBS`, which has the defaults for all attributes that are None.
    slices : int
    shape : tuple of int
        The global shape of a slice: ``(ny, nx)`` or ``(nz, ny, nx)`` in real space; of the nonlinear term
        ``(planes, nky, nkx)``, modes.
    dtype : str
        The data type in real space; by default the first of the job's.
    order : {"natural", "transposed"}
        The order of the spectrum's axes.
    grid : (int, int) or None
        The grid of ranks, for `FFT3`.
    exchange : {None, "f4"}
        The precision in which numbers are sent.
    kinds : tuple of str or None
        The kind of transform along every axis, for `FFT2` and `FFT3`; by default Fourier transforms.
    workers : int
        Worker threads per rank.
    rounds : int
    calls : int
        How many calls are timed in a row; the report has their mean.
    modes : tuple of str
        The modes that are timed, of `MODES`. "off", with which the others are compared, is always timed. C and T are
        measured with the settings of the last mode, which is "auto" unless it is left out.
    wait, depth, chunk, in_flight
        Settings that replace the plan's choice in the column "auto" of the record; the last three also in the columns
        of the other overlapped plans.
    peer : bool
        Time mpi4py-fft too.
    choosing_s : float
        Seconds, at most, in which the plan of the column "auto" compares settings.
    link : str
        The link between the ranks; used in the record only.
    trace : str or None
        File to write a Chrome trace of one run to.

    Raises
    ------
    ValueError
        A value is out of its range.
    """

    workload: str = "fft2"
    slices: Any = None  # None: the job's default, which replaces it below
    shape: Any = None
    dtype: Any = None
    order: str = "natural"
    grid: tuple[int, ...] | None = None
    exchange: str | None = None
    kinds: tuple[str, ...] | None = None
    workers: int = 1
    rounds: Any = None
    calls: Any = None
    modes: tuple[str, ...] = MODES
    wait: str = "auto"
    depth: int | None = None
    chunk: int | None = None
    in_flight: int | None = None
    peer: bool = False
    choosing_s: float = 1e9
    link: str = "shm"
    trace: str | None = None

    def __post_init__(self) -> None:
        _one_of("workload", self.workload, JOBS)
        job = JOBS[self.workload]
        for name in ("slices", "rounds", "calls"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, getattr(job, name))
        object.__setattr__(self, "shape", tuple(self.shape or job.shapes[-1]))
        if self.grid is not None:
            if self.workload != "fft3":
                raise ValueError(f"grid: expected workload fft3, received {self.workload}")
            object.__setattr__(self, "grid", tuple(self.grid))
        _one_of("wait", self.wait, MODES)
        _one_of("order", self.order, ORDERS)
        for mode in self.modes:
            _one_of("modes", mode, MODES)
        object.__setattr__(self, "modes", tuple(mode for mode in MODES if mode in ("off", *self.modes)))
        if len(self.shape) != len(job.axes):
            raise ValueError(f"shape: expected ({', '.join(job.axes)}), received {self.shape}")
        for name in ("slices", "workers", "rounds", "calls", "depth", "chunk", "in_flight"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}: expected an integer >= 1, received {value!r}")
        if min(self.shape) < 1:
            raise ValueError(f"shape: expected integers >= 1, received {self.shape}")
        if self.workload == "nonlinear":
            if self.shape[2] % 2 == 0:
                raise ValueError(f"shape: expected an odd nkx, received {self.shape}")
            if self.chunk is not None or self.in_flight is not None:
                raise ValueError(
                    f"chunk, in_flight: expected none with workload nonlinear, received {self.chunk}, {self.in_flight}"
                )
        with suppress(TypeError):  # the check below reports it
            object.__setattr__(self, "dtype", np.dtype(self.dtype or job.dtypes[0]).str[1:])
        _one_of(f"dtype of {self.workload}", self.dtype, job.dtypes)
        if problem := exchange_problem(self.exchange, self.dtype):
            raise ValueError(f"exchange: {problem}")
        if self.kinds is not None:
            if self.workload not in ("fft2", "fft3") or self.peer:
                raise ValueError(f"kinds: expected workload fft2 or fft3 and no peer, received {self.workload}")
            object.__setattr__(self, "kinds", kinds_of(list(self.kinds), self.dtype, len(self.shape)))
            if problem := kinds_problem(self.kinds, self.shape, self.dtype, job.axes):
                raise ValueError(f"kinds: {problem}")
            if not _has_scipy():
                raise ValueError(
                    "kinds: expected scipy, with which results are checked, received an installation without it"
                )
        able = self.workload == "fft2" or (self.workload == "fft3" and self.slices == 1)
        if self.peer and not (able and self.order == "natural"):
            raise ValueError(
                "peer: expected workload fft2, or fft3 of one field, in natural "
                f"order, which mpi4py-fft can do, received {self.slices} of {self.workload} in "
                f"{self.order} order"
            )

    @property
    def global_shape(self) -> tuple[int, ...]:
        """Return the global shape, ``(slices, ny, nx)`` or ``(slices, nz, ny, nx)``."""
        return (self.slices, *self.shape)

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes as plain values, from which `from_dict` makes the case again."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Case:
        """Make a case from the values of `as_dict`; other keys are ignored."""
        return cls(**{f.name: values[f.name] for f in fields(cls) if f.name in values})


def _one_of(name: str, value: object, allowed: Collection[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{name}: expected one of {', '.join(allowed)}, received {value!r}")


def _has_scipy() -> bool:
    try:
        return find_spec("scipy") is not None
    except ValueError:  # the package cannot be imported
        return False
