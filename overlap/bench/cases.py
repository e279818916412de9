"""What is measured: a job, its data and the truth about its result.

`JOBS` is the table of named workloads, a class each. `Transforms` is the bare forward transform of
a batch. `Brackets` is the nonlinear term of a gyrokinetic or fluid code, a_x b_y - a_y b_x per
slice: four spectral fields to real space, the product, and back.

Every rank can make any slice's global data by itself, so that setting up communicates nothing and
rank 0 can compute the truth with numpy alone.
"""

from dataclasses import asdict, dataclass, fields

import numpy as np

from ..fft import FFT2

MODES = ("off", "block", "poll", "auto")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One line of a benchmark.

    Attributes
    ----------
    workload : str
        A name in `JOBS`.
    slices : int
    shape : tuple of int
        Global ``(ny, nx)`` of a slice in real space.
    dtype : str
        Of the real-space side; by default the first of the job's.
    threads : int
        Worker threads per rank.
    rounds : int
    modes : tuple of str
        What is timed, of `MODES`; "off", which the others are compared with, always is. C and T are
        those of the last mode's settings: "auto", where it is not left out.
    overlap, depth, chunk, in_flight
        Of `FFT2`, forced for what is called "auto" in the record; the last three also for the
        other overlapped plans.
    peer : bool
        Time mpi4py-fft too.
    link : str
        How the ranks are joined, for the record alone.
    trace : str or None
        File to write a Chrome trace of one run to.

    Raises
    ------
    ValueError
        A value is out of its range.
    """

    workload: str = "fft2"
    slices: int = 64
    shape: tuple = (512, 512)
    dtype: str | None = None
    threads: int = 1
    rounds: int = 7
    modes: tuple = MODES
    overlap: str = "auto"
    depth: int | None = None
    chunk: int | None = None
    in_flight: int | None = None
    peer: bool = False
    link: str = "shm"
    trace: str | None = None

    def __post_init__(self):
        object.__setattr__(self, "shape", tuple(self.shape))
        _one_of("workload", self.workload, JOBS)
        _one_of("overlap", self.overlap, MODES)
        for mode in self.modes:
            _one_of("modes", mode, MODES)
        object.__setattr__(
            self, "modes", tuple(mode for mode in MODES if mode in ("off", *self.modes)))
        job = JOBS[self.workload]
        if len(self.shape) != len(job.axes):
            raise ValueError(f"shape: expected ({', '.join(job.axes)}), got {self.shape}")
        for name in ("slices", "threads", "rounds", "depth", "chunk", "in_flight"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}: expected an integer >= 1, got {value!r}")
        if min(self.shape) < 1:
            raise ValueError(f"shape: expected integers >= 1, got {self.shape}")
        try:
            object.__setattr__(self, "dtype", np.dtype(self.dtype or job.dtypes[0]).str[1:])
        except TypeError:
            pass        # named below
        _one_of(f"dtype of {self.workload}", self.dtype, job.dtypes)
        if self.peer and self.workload != "fft2":
            raise ValueError("peer: expected workload fft2, which mpi4py-fft can do, "
                             f"got {self.workload}")

    @property
    def global_shape(self):
        """``(slices, ny, nx)``."""
        return (self.slices, *self.shape)

    def as_dict(self):
        """Plain values, from which `from_dict` makes the case again."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values):
        """Make a case of `as_dict`'s answer, whatever else it holds."""
        return cls(**{f.name: values[f.name] for f in fields(cls) if f.name in values})


def _one_of(name, value, allowed):
    if value not in allowed:
        raise ValueError(f"{name}: expected one of {', '.join(allowed)}, got {value!r}")


# --- the jobs -------------------------------------------------------------------------------------

class Transforms:
    """The forward transform of a batch of random slices.

    Attributes
    ----------
    title : str
        The job in words, in the plural.
    axes, dtypes : tuple of str
        Of a slice; the data types it can have, the usual one first.
    transforms : int
        Per slice.
    inputs : tuple of ndarray
        This rank's part of the input, `(slices, ny_local, nx)`.
    """

    title = "forward 2-D transforms"
    axes = ("ny", "nx")
    dtypes = ("c16", "c8", "f8", "f4")
    transforms = 1

    @staticmethod
    def plan(comm, case, **settings):
        """The plan that the job runs on, of the settings' overlap. Collective."""
        return FFT2(comm, case.global_shape, case.dtype, **settings)

    def __init__(self, case, plan):
        self._case = case
        field = plan.empty()
        rows = plan.local_slice()[-2]
        for z in range(case.slices):
            field[z] = _noise(case, z, 0)[rows]
        self.inputs = (field,)

    def transform(self, plan):
        """The job as `plan` runs it."""
        return plan.forward

    def truth(self, z):
        """Global spectrum of slice `z`, in double precision."""
        return _fft2(_noise(self._case, z, 0))


class Brackets(Transforms):
    """The bracket a_x b_y - a_y b_x of a batch of fields given as spectra; box 2 pi x 2 pi.

    Slice 0 is two plane waves, whose bracket is known in closed form; the others are noise.

    Attributes
    ----------
    inputs : tuple of ndarray
        This rank's part of the spectra of a_x, a_y, b_x, b_y, each `(slices, ny, nxh_local)`.
    """

    title = "spectral operations (4 transforms, product, 1 transform)"
    dtypes = ("f8", "f4")
    transforms = 5

    def __init__(self, case, plan):
        self._case = case
        rows = plan.local_slice()[-2]
        ky, kx = plan.wavenumbers()
        inputs = []
        field, spectrum = plan.empty(), plan.empty(True)
        for which in range(2):
            for z in range(case.slices):
                field[z] = self._field(z, which)[rows]
            plan.forward(field, out=spectrum)
            for wavenumber in (kx, ky):
                derivative = plan.empty(True)
                np.multiply(spectrum, (1j * wavenumber).astype(spectrum.dtype), out=derivative)
                inputs.append(derivative)
        self.inputs = tuple(inputs)

    def transform(self, plan):
        """The job as `plan` runs it."""
        @plan.pointwise(inputs=4, outputs=1)
        def bracket(ax, ay, bx, by, out):
            np.multiply(ax, by, out=out)
            out -= ay * bx
        return bracket

    def truth(self, z):
        """Global spectrum of the bracket in slice `z`, in double precision.

        Slice 0 from the closed form, the others by the same pseudo-spectral formula on one rank
        with numpy.
        """
        if self._waves(z):
            return _fft2(_plane_wave_bracket(self._case.shape))
        ny, nx = self._case.shape
        ky, kx = np.fft.fftfreq(ny, 1 / ny)[:, None], np.fft.rfftfreq(nx, 1 / nx)
        spectra = [_fft2(self._field(z, which)) for which in range(2)]
        ax, ay, bx, by = (np.fft.irfft2(1j * k * spectrum, self._case.shape)
                          for spectrum in spectra for k in (kx, ky))
        return _fft2(ax * by - ay * bx)

    def _waves(self, z):
        return z == 0 and min(self._case.shape) > 2 * max(map(abs, _P + _R))

    def _field(self, z, which):
        if self._waves(z):
            return np.sin(_phase(self._case.shape, (_P, _R)[which]))
        return _noise(self._case, z, which)


_P, _R = (1, 2), (3, -1)        # wave vectors (x, y) of the plane waves


def _phase(shape, wave):
    y, x = (2 * np.pi * np.arange(n) / n for n in shape)
    return wave[0] * x + wave[1] * y[:, None]


def _plane_wave_bracket(shape):
    """{sin p.x, sin r.x} = (p x r) (cos (p+r).x + cos (p-r).x)/2 (GKV collection, 6.1)."""
    cross = _P[0] * _R[1] - _P[1] * _R[0]
    p, r = _phase(shape, _P), _phase(shape, _R)
    return cross * (np.cos(p + r) + np.cos(p - r)) / 2


def _noise(case, z, which):
    random = np.random.default_rng([z, which])
    field = random.random(case.shape) - 0.5
    if case.dtype.startswith("c"):
        field = field + 1j * (random.random(case.shape) - 0.5)
    return field.astype(case.dtype)


def _fft2(field):
    """Spectrum in double precision; the half spectrum of a real field."""
    transform = np.fft.fft2 if np.iscomplexobj(field) else np.fft.rfft2
    return transform(field.astype("c16" if np.iscomplexobj(field) else "f8"))


JOBS = {"fft2": Transforms, "operation": Brackets}


def max_rel_error(comm, job, case, result):
    """Largest error of the first, middle and last slice, over the truth's largest value.

    Collective. `result` is this rank's `(slices, ny, nxh_local)`.

    Returns
    -------
    float
        The same on all ranks.
    """
    worst = 0.0
    for z in sorted({0, case.slices // 2, case.slices - 1}):
        parts = comm.gather(np.array(result[z]), root=0)
        if comm.rank == 0:
            truth = job.truth(z)
            error = np.abs(np.concatenate(parts, axis=-1) - truth).max()
            worst = max(worst, error / (np.abs(truth).max() or 1.0))
            if np.isnan(error):
                return comm.bcast(np.inf, root=0)
    return float(comm.bcast(worst, root=0))


def error_limit(case):
    """What `max_rel_error` must stay below: a wrong result is off by about 1.

    The derivatives amplify rounding errors by up to the largest wave number.
    """
    eps = np.finfo(np.dtype(case.dtype)).eps
    return float(50 * eps * (max(case.shape) if case.workload == "operation" else 1))
