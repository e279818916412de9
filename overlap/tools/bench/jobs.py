"""The jobs that are measured, and the cases of them: their plans, their data and the expected results.

`JOBS` is the table of named workloads, one class for each. `Transforms` is the forward transform of a
batch of planes, `Volumes` that of three-dimensional fields. `Brackets` is the nonlinear term of a
gyrokinetic or fluid code, a_x b_y - a_y b_x per slice: four spectral fields to real space, the
product, and back. `NonlinearTerm` is the same with whole planes exchanged, as modes.

Every rank can make the global data of any slice by itself. So setting up needs no communication, and rank 0 can compute
the expected result with numpy alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import DTypeLike

from ...arrays.exchange import exchange_problem
from ...fft import FFT2, FFT3, Bracket
from ...fft.arguments import ORDERS, kinds_of, kinds_problem
from ...fft.engine.fftw import COLUMNS, complex_of, empty
from ...timing import in_turns, seconds_of


class Transforms:
    """The forward transform of a batch of random slices.

    Attributes
    ----------
    title, detail : str
        The job in words, in the singular.
    axes, dtypes : tuple of str
        The axes of a slice, and the data types it can have, the usual one first.
    slices, rounds, calls : int
        Default values of the case.
    shapes : tuple of tuple of int
        Default shapes of a slice.
    transforms : int
        Per slice.
    control_chunk : int or None
        Units per message of the control; None if the plan chooses.
    inputs : tuple of ndarray
        This rank's part of the input, `(slices, ny_local, nx)`.
    """

    title, detail = "forward 2-D transform", ""
    axes: tuple[str, ...] = ("ny", "nx")
    dtypes: tuple[str, ...] = ("c16", "c8", "f8", "f4")
    slices, rounds, calls = 64, 9, 1
    shapes: tuple[tuple[int, ...], ...] = ((512, 512),)
    transforms = 1
    control_chunk: int | None = 1

    @staticmethod
    def plan(comm: Any, case: Case, **settings: Any) -> Any:
        """Make the plan that the job runs on, with these settings. Collective."""
        return FFT2(
            comm,
            case.global_shape,
            case.dtype,
            kinds=case.kinds,
            layout={"order": case.order},
            settings=settings,
            exchange=case.exchange,
        )

    def __init__(self, case: Case, plan: Any) -> None:
        self._case = case
        field = plan.real.empty()
        own_part = plan.real.local_slice[1:]
        for z in range(case.slices):
            field[z] = self.field(z)[own_part]
        self.inputs = (field,)

    def transform(self, plan: Any) -> Any:
        """Return the job as `plan` runs it, a function of the inputs."""
        return plan.forward

    def truth(self, z: int) -> np.ndarray:
        """Compute the global spectrum of slice `z` in natural order, in double precision."""
        return _spectrum(self.field(z), self._case.kinds)

    def field(self, z: int, which: int = 0) -> np.ndarray:
        """Make the global field of slice `z`, the first or another one."""
        return _noise(self._case, z, which)

    @classmethod
    def flops(cls, case: Case) -> float:
        """Count operations by the usual convention: 5 N log2 N per transform, half of this for real data."""
        return case.slices * cls.transforms * _flops(case.shape, case.dtype)

    @classmethod
    def bare_fft_s(cls, case: Case, plan: Any) -> float:
        """Time nothing but this rank's FFTs, at their fastest, in seconds."""
        ny, nx = case.shape
        rows = plan.real.shape[-2]
        columns = plan.spectrum.shape[-1 if case.order == "natural" else -2]
        spectral = plan.spectrum.dtype
        return cls.transforms * (
            bare_fft_seconds(case.slices * rows, nx, case.dtype) + bare_fft_seconds(case.slices * columns, ny, spectral)
        )


class Volumes(Transforms):
    """The forward transform of random three-dimensional fields, Takahashi's benchmark.

    His protocol: cubes of 32 to 256 points a side, ten calls one after the other.
    """

    title = "forward 3-D transform"
    axes = ("nz", "ny", "nx")
    slices, rounds, calls = 1, 3, 10
    shapes = tuple((n, n, n) for n in (32, 64, 128, 256))
    control_chunk = None

    @staticmethod
    def plan(comm: Any, case: Case, **settings: Any) -> Any:
        """Make the plan that the job runs on, with these settings. Collective."""
        return FFT3(
            comm,
            case.global_shape,
            case.dtype,
            kinds=case.kinds,
            layout={"grid": case.grid, "order": case.order},
            settings=settings,
            exchange=case.exchange,
        )

    @classmethod
    def bare_fft_s(cls, case: Case, plan: Any) -> float:
        """Time nothing but this rank's FFTs, at their fastest, in seconds."""
        first, last = plan.real.shape[1:], plan.spectrum.shape[1:]
        if case.order == "transposed":
            last = (last[-1], *last[:-1])
        spectral = plan.spectrum.dtype
        if plan.grid[0] == 1:  # y is whole before the exchange
            parts: Any = (first, (1, 2), case.dtype), (last, (0,), spectral)
        else:
            between = (first[0], case.shape[1], last[2])
            parts = ((first, (2,), case.dtype), (between, (1,), spectral), (last, (0,), spectral))
        return case.slices * sum(sweep_seconds(*part) for part in parts)


class Brackets(Transforms):
    """The bracket a_x b_y - a_y b_x of a batch of random fields given as spectra; box 2 pi x 2 pi.

    Attributes
    ----------
    inputs : tuple of ndarray
        This rank's part of the spectra of a_x, a_y, b_x, b_y, each `(slices, ny, nxh_local)`.
    """

    title, detail = "spectral operation", " (4 transforms, product, 1 transform)"
    dtypes = ("f8", "f4")
    transforms = 5

    def __init__(self, case: Case, plan: Any) -> None:
        self._case = case
        rows = plan.real.local_slice[-2]
        ky, kx = plan.wavenumbers()
        inputs = []
        field, spectrum = plan.real.empty(), plan.spectrum.empty()
        for which in range(2):
            for z in range(case.slices):
                field[z] = self.field(z, which)[rows]
            plan.forward(field, out=spectrum)
            for wavenumber in (kx, ky):
                derivative = plan.spectrum.empty()
                np.multiply(spectrum, (1j * wavenumber).astype(spectrum.dtype), out=derivative)
                inputs.append(derivative)
        self.inputs = tuple(inputs)

    def transform(self, plan: Any) -> Any:
        """Return the job as `plan` runs it, a function of the inputs."""

        @plan.pointwise(inputs=4, outputs=1)
        def bracket(ax: Any, ay: Any, bx: Any, by: Any, out: Any) -> None:
            np.multiply(ax, by, out=out)
            out -= ay * bx

        return bracket

    def truth(self, z: int) -> np.ndarray:
        """Compute the global spectrum of the bracket in slice `z`, by numpy in double precision."""
        ny, nx = self._case.shape
        ky, kx = np.fft.fftfreq(ny, 1 / ny)[:, None], np.fft.rfftfreq(nx, 1 / nx)
        spectra = [_spectrum(self.field(z, which)) for which in range(2)]
        ax, ay, bx, by = (np.fft.irfft2(1j * k * spectrum, self._case.shape) for spectrum in spectra for k in (kx, ky))
        return _spectrum(ax * by - ay * bx)


class NonlinearTerm(Transforms):
    """The nonlinear term of a gyrokinetic code as GKV computes it: `Bracket` of {J0 phi, f}.

    A slice is one point in the parallel velocity; its planes are the points in z and mu. The default size is the grid B
    on which GKV was measured (GKV collection, section 7). Modes are noise.

    Attributes
    ----------
    inputs : tuple of ndarray
        This rank's modes, `(slices, planes, nky_local, nkx)`, all slices equal up to a factor.
    """

    title, detail = "nonlinear term", " (redistribution of whole planes, bracket, and back)"
    axes = ("planes", "nky", "nkx")
    dtypes = ("f8",)
    slices, rounds, calls = 32, 7, 1
    shapes = ((256, 16, 63),)
    transforms = 3

    @staticmethod
    def plan(comm: Any, case: Case, **settings: Any) -> Any:
        """Make the plan that the job runs on, with those of these settings that a `Bracket` has. Collective."""
        return Bracket(
            comm,
            case.global_shape,
            settings={"wait": settings["wait"], "depth": settings.get("depth"), "effort": "patient"},
            exchange=case.exchange,
        )

    def __init__(self, case: Case, plan: Any) -> None:
        self._case = case
        self._advecting, self._advected = (_modes(case.shape, seed) for seed in range(2))
        field = plan.spectrum.empty()
        own_part = plan.spectrum.local_slice[1:]
        for z in range(case.slices):
            field[z] = (1 + z) * self._advected[own_part]
        self.inputs = (field,)

    def transform(self, plan: Any) -> Any:
        """Return the job as `plan` runs it, a function of the inputs."""
        plan.advect(np.ascontiguousarray(self._advecting[plan.spectrum.local_slice[1:]]))
        return plan.transform

    def truth(self, z: int) -> np.ndarray:
        """Compute the global modes of slice `z`, by numpy from both fields' gradients on the same grid."""
        _, nky, nkx = self._case.shape
        most = nkx // 2
        ky, kx = np.arange(nky)[:, None], np.arange(-most, most + 1)
        grid = 3 * nky, 3 * most + 3

        def real(modes: np.ndarray) -> np.ndarray:
            spectra = np.zeros((len(modes), grid[0] // 2 + 1, grid[1]), complex)
            spectra[:, :nky, kx] = modes
            return np.fft.irfft(np.fft.ifft(spectra, axis=2, norm="forward"), n=grid[0], axis=1, norm="forward")

        a, f = self._advecting, (1 + z) * self._advected
        product = real(1j * kx * a) * real(1j * ky * f) - real(1j * ky * a) * real(1j * kx * f)
        spectra = np.fft.fft(np.fft.rfft(product, axis=1, norm="forward"), axis=2, norm="forward")
        return spectra[:, :nky, kx]

    @classmethod
    def flops(cls, case: Case) -> float:
        """Count the operations of two gradients and a bracket per plane, on the smallest real grid
        that the 2/3 rule allows."""
        planes, nky, nkx = case.shape
        points = 3 * nky - 2, 3 * (nkx // 2) + 1
        return case.slices * planes * cls.transforms * _flops(points, case.dtype)

    @classmethod
    def bare_fft_s(cls, case: Case, plan: Any) -> float:
        """Time nothing but this rank's FFTs, at their fastest: complex planes, three per pair."""
        ny, nx = plan.points
        planes = 1.5 * case.shape[0] / plan.comm.size
        lines = max(1, round(planes * (2 * case.shape[1] - 1))), max(1, round(planes * nx))
        return case.slices * sum(bare_fft_seconds(count, length, "c16") for count, length in zip(lines, (nx, ny)))


def _flops(shape: Sequence[int], dtype: str) -> float:
    points = math.prod(shape)
    return (5.0 if dtype.startswith("c") else 2.5) * points * math.log2(max(points, 2))


def _modes(shape: Sequence[int], seed: int) -> np.ndarray:
    """Make random modes of real fields."""
    random = np.random.default_rng(seed)
    modes = random.random(shape) - 0.5 + 1j * (random.random(shape) - 0.5)
    modes[:, 0] += np.conj(modes[:, 0, ::-1])
    return modes


def _noise(case: Case, z: int, which: int) -> np.ndarray:
    random = np.random.default_rng([z, which])
    field = random.random(case.shape) - 0.5
    if case.dtype.startswith("c"):
        field = field + 1j * (random.random(case.shape) - 0.5)
    return field.astype(case.dtype)


def _spectrum(field: np.ndarray, kinds: Sequence[str] | None = None) -> np.ndarray:
    """Spectrum in double precision, by default the half spectrum of a real field."""
    spectrum = field.astype("c16" if np.iscomplexobj(field) else "f8")
    for axis, kind in reversed([*enumerate(kinds_of(kinds and list(kinds), spectrum.dtype, spectrum.ndim))]):
        if kind in ("c2c", "r2c"):
            spectrum = (np.fft.fft if kind == "c2c" else np.fft.rfft)(spectrum, axis=axis)
        else:
            from scipy import fft  # not installed by the extra `demo`

            spectrum = getattr(fft, kind[:3])(spectrum, type=int(kind[3:]), axis=axis)
    return spectrum


JOBS = {"fft2": Transforms, "operation": Brackets, "fft3": Volumes, "nonlinear": NonlinearTerm}

MODES = ("off", "block", "poll", "auto")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A job, its size, and how it is run: one line of a benchmark.

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


def max_rel_error(comm: MPI.Intracomm, job: Transforms, case: Case, place: tuple[slice, ...], result: Any) -> float:
    """Find the largest error in the first, middle and last slice, relative to the largest expected value.

    Collective. `result` is this rank's part of the spectra, at this place in the global array.

    Returns
    -------
    float
        The same on all ranks.
    """
    worst = 0.0
    places = comm.gather(place[1:], root=0)
    for z in sorted({0, case.slices // 2, case.slices - 1}):
        parts = comm.gather(np.array(result[z]), root=0)
        if comm.rank == 0:
            truth = job.truth(z)
            if case.order == "transposed":
                truth = np.moveaxis(truth, 0, -1)
            largest = np.abs(truth).max() or 1.0
            errors = [
                np.abs(part - truth[place]).max(initial=0.0) / largest for part, place in zip(parts or (), places or ())
            ]
            worst = np.inf if np.isnan(errors).any() else max(worst, *errors)
    return float(comm.bcast(worst, root=0))


def error_limit(case: Case) -> float:
    """Return the limit for `max_rel_error`; a wrong result has an error of about 1.

    The derivatives amplify rounding errors by up to the largest wave number.
    """
    eps = np.finfo(np.dtype(case.exchange or case.dtype)).eps
    derived = {"operation": max(case.shape), "nonlinear": max(case.shape[1:])}
    return float(50 * eps * derived.get(case.workload, 1))


# ---- the speed of FFTW's transforms alone, called one by one from pyfftw -----------------------------


def _plan(source: np.ndarray, target: np.ndarray, axes: tuple[int, ...], effort: str) -> Any:
    import pyfftw  # takes a third of a second, which other commands need not spend

    return pyfftw.FFTW(source, target, axes=axes, flags=(f"FFTW_{effort.upper()}", "FFTW_DESTROY_INPUT"))


def bare_fft_seconds(lines: int, length: int, dtype: DTypeLike, rounds: int = 5) -> float:
    """Measure the median time of contiguous 1-D FFTs alone, in place (r2c: out of place).

    Parameters
    ----------
    lines, length : int
        `lines` transforms of `length` points each, one FFTW call for all.
    dtype : dtype
        Type of the input.
    rounds : int
    """
    dtype = np.dtype(dtype)
    source = empty((lines, length), dtype)
    target = source if dtype.kind == "c" else empty((lines, length // 2 + 1), complex_of(dtype))
    plan = _plan(source, target, (1,), "measure")
    source[...] = 0
    return _fastest_seconds([plan.execute], rounds)


def sweep_seconds(shape: tuple[int, ...], axes: tuple[int, ...], dtype: DTypeLike, rounds: int = 5) -> float:
    """Measure the median time of the FFTs along some axes of an array alone, in the fastest way.

    The ways are FFTW's own plan for the whole array, and plans for blocks that stay in the cache: planes of the other
    axes, or columns of a strided axis. All are in place; r2c in padded arrays.

    Parameters
    ----------
    shape : tuple of int
    axes : tuple of int
    dtype : dtype
        Type of the input; if real, the last axis is among `axes`.
    rounds : int
    """
    dtype = np.dtype(dtype)
    if 0 in shape:
        return 0.0
    width = shape[-1] if dtype.kind == "c" else shape[-1] // 2 + 1
    spectrum = empty((*shape[:-1], width), complex_of(dtype))
    source = spectrum if dtype.kind == "c" else (spectrum.view(dtype)[..., : shape[-1]])

    def planned(*where: Any) -> Any:
        effort = "measure" if axes[-1] == len(shape) - 1 else "patient"
        return _plan(
            source[where], spectrum[where], tuple(axis - (source.ndim - source[where].ndim) for axis in axes), effort
        )

    wheres: list[Any]
    if 0 in axes:
        wheres = [(Ellipsis, slice(start, min(start + COLUMNS, width))) for start in range(0, width, COLUMNS)]
    else:
        wheres = [(index,) for index in range(shape[0])]
    ways = [planned(Ellipsis)], [planned(*where) for where in wheres]
    spectrum[...] = 0

    def run(plans: Sequence[Any]) -> None:
        for plan in plans:
            plan.execute()

    return _fastest_seconds([partial(run, plans) for plans in ways], rounds)


def _fastest_seconds(ways: Sequence[Callable[[], object]], rounds: int) -> float:
    """Return the median time of the fastest way, after a first round that touches new memory."""
    times_s = in_turns([partial(seconds_of, way) for way in ways], range(rounds + 1))
    return float(np.min(np.median(times_s[:, 1:], axis=1)))
