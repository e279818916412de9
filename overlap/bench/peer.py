"""mpi4py-fft on our job: forward 2-D transforms of a batch, rows distributed in, columns out.

The peer gets its best setting: `prepare` plans every candidate below, times a few transforms of
each and keeps the fastest. It also gets nothing to do that our plan does not do: it transforms its
own input array into its own output array (`forward(u, uh)` would copy both), and it does not scale
(`normalize=False`). Its grid has to put all ranks on the y axis, which makes the result
`(nz, ny, nx_local)` in natural order, like ours.
"""

import numpy as np
from mpi4py import MPI

# Not here: FFTW_PATIENT, which plans for minutes on a batch of 64 x 512 x 512; FFTW_ESTIMATE,
# always slower; scipy, as fast as numpy and without real input.
CANDIDATES = {
    "fftw, FFTW_MEASURE": {"backend": "fftw", "planner_effort": "FFTW_MEASURE"},    # its default
    "pyfftw, FFTW_MEASURE": {"backend": "pyfftw", "planner_effort": "FFTW_MEASURE"},
    "numpy": {"backend": "numpy"},
}
DEFAULT = "fftw, FFTW_MEASURE"


def available():
    """Say why mpi4py-fft cannot be used here.

    Returns
    -------
    str or None
        The reason, or None where it can.
    """
    try:
        import mpi4py_fft    # noqa: F401
    except ImportError as error:
        return f"mpi4py-fft is not installed ({error}): pip install mpi4py-fft"
    return None


class Prepared:
    """A planned transform of mpi4py-fft on arrays of its own.

    Attributes
    ----------
    input, output : ndarray
        Local arrays, `(nz, ny_local, nx)` and `(nz, ny, nx_local)`, with half as many plus one
        columns for real input. A transform may destroy the input.
    setting : str
        The candidate kept.
    """

    def __init__(self, plan, setting):
        self._plan = plan
        self.setting = setting
        self.input = plan.forward.input_array
        self.output = plan.forward.output_array

    def refill(self):
        """Put finite values into `input`, which the last transform may have destroyed."""
        self.input[...] = 0.5

    def forward(self):
        """Transform `input` into `output`, unscaled. Collective."""
        self._plan.forward(normalize=False)
        return self.output

    def destroy(self):
        """Free the plan's datatypes and communicators. Collective."""
        self._plan.destroy()


def prepare(comm, shape, dtype, *, settings=tuple(CANDIDATES), trials=3):
    """Plan the peer's fastest transform. Collective.

    Parameters
    ----------
    comm : MPI.Comm
    shape : tuple of int
        Global shape ``(nz, ny, nx)`` of the input.
    dtype : dtype
        Of the input; real input means a half spectrum in x.
    settings : sequence of str
        The names in `CANDIDATES` to choose from.
    trials : int
        Transforms timed per candidate.

    Returns
    -------
    Prepared

    Raises
    ------
    RuntimeError
        If no candidate can be planned, or if the kept one gives a wrong result.
    """
    best, best_s, refusals = None, np.inf, []
    for setting in settings:
        plan, refusal = _plan(comm, shape, dtype, CANDIDATES[setting])
        if plan is None:
            refusals.append(f"{setting}: {refusal}")
            continue
        candidate = Prepared(plan, setting)
        wall_s = min(_rounds(comm, candidate, trials + 1)[1:])
        if wall_s < best_s:
            best, candidate, best_s = candidate, best, wall_s
        if candidate is not None:
            candidate.destroy()
    if best is None:
        raise RuntimeError("mpi4py-fft plans nothing here:\n" + "\n".join(refusals))
    _check(comm, best, shape)
    return best


def _plan(comm, shape, dtype, options):
    """A plan, or None and the reason, alike on all ranks."""
    from mpi4py_fft import PFFT
    plan, reason = None, None
    try:
        plan = PFFT(comm, shape, axes=(1, 2), dtype=np.dtype(dtype), grid=(1, -1, 1), **options)
    except Exception as error:    # whatever a backend raises, the others may work
        reason = f"{type(error).__name__}: {error}"
    reasons = comm.allgather(reason)
    if any(reasons):
        return None, next(filter(None, reasons))
    return plan, None


def _rounds(comm, prepared, rounds):
    wall_s = []
    for _ in range(rounds):
        prepared.refill()
        comm.Barrier()
        start = MPI.Wtime()
        prepared.forward()
        wall_s.append(comm.allreduce(MPI.Wtime() - start, MPI.MAX))
    return wall_s


def _check(comm, prepared, shape):
    """Every slice a plane wave of its own: one mode in its place, nothing elsewhere."""
    nz, ny, nx = shape
    here, there = prepared.input, prepared.output
    y0 = comm.exscan(here.shape[1]) or 0
    x0 = comm.exscan(there.shape[2]) or 0
    z = np.arange(nz)
    mode_y, mode_x = (1 + z) % max(1, ny // 3), (2 + z // 2) % max(1, nx // 3)
    y, x = y0 + np.arange(here.shape[1]), np.arange(nx)
    real = here.dtype.kind == "f"
    for i in range(nz):
        wave = np.exp(2j * np.pi * (mode_y[i] * y[:, None] / ny + mode_x[i] * x / nx))
        here[i] = wave.real if real else wave
    prepared.forward()
    worst = 0.0
    for i in range(nz):
        expected = np.zeros(there.shape[1:], there.dtype)
        modes = [(mode_y[i], mode_x[i])]
        if real:
            modes.append((-mode_y[i] % ny, -mode_x[i] % nx))
        for my, mx in modes:
            if x0 <= mx < x0 + expected.shape[1]:
                expected[my, mx - x0] += ny * nx / len(modes)
        if expected.size:
            worst = max(worst, np.abs(there[i] - expected).max() / (ny * nx))
    worst = comm.allreduce(worst, MPI.MAX)
    limit = 100 * np.finfo(there.dtype).eps
    if not worst < limit:
        raise RuntimeError(f"mpi4py-fft ({prepared.setting}): expected a relative error below "
                           f"{limit:.1e}, got {worst:.1e}")
