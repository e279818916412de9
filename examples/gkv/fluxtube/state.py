"""The state of a run: the distribution function with its axes, and the time."""

import numpy as np

DIMS = ("v", "mu", "z", "ky", "kx")


class State:
    """The perturbed distribution of ions on this rank.

    Attributes
    ----------
    f : ndarray of complex
        ``(v, mu, z, ky, kx)``, this rank's part, in (n / v_ti^3) (rho / R). Only ky >= 0 is held:
        f(-k) = conj f(k).
    dims : tuple of str
        Names of the axes.
    coords : dict
        Global coordinates by axis.
    where : tuple of slice
        This rank's part of the global array.
    time : float
        R / v_ti.
    step : int
    """

    dims = DIMS

    def __init__(self, geometry, parts):
        self.coords = {"v": geometry.v, "mu": geometry.mu, "z": geometry.z, "ky": geometry.ky, "kx": geometry.kx}
        self.global_shape = tuple(len(self.coords[axis]) for axis in DIMS)
        self.where = tuple(parts.get(axis, slice(0, len(self.coords[axis]))) for axis in DIMS)
        self.f = self.zeros()
        self.time, self.step = 0.0, 0

    def zeros(self):
        """Make another array like `f`."""
        return np.zeros([part.stop - part.start for part in self.where], complex)

    def local(self, axis):
        """Return this rank's coordinates along an axis."""
        return self.coords[axis][self.where[DIMS.index(axis)]]


def start(state, geometry, form):
    """Set `state` to the initial distribution; the same on any number of ranks."""
    v, mu, z, ky, kx = (state.local(axis) for axis in DIMS)
    maxwellian = (geometry.maxwellian_v(v)[:, None, None] * geometry.maxwellian_mu(np.sqrt(2 * mu), z))[..., None, None]
    state.f[...] = form.amplitude * maxwellian * _shape(form, geometry, v, z, ky, kx)
    zero = np.flatnonzero(kx == 0)[0]
    if len(ky) and ky[0] == 0:
        state.f[..., 0, zero] = 0
    state.time, state.step = 0.0, 0


def _shape(form, geometry, v, z, ky, kx):
    """Return f / (amplitude F), which broadcasts to ``(v, mu, z, ky, kx)``."""
    if form.form == "zonal":
        return np.where((abs(abs(kx) - geometry.dkx) < geometry.dkx / 2) & (ky[:, None] == 0), 1.0, 0.0)
    along = ((1 + v[:, None] + z) ** 2 * np.exp(-(z**2) / (0.2 * np.pi) ** 2))[:, None, :, None, None]
    if form.form == "ballooning":
        return along * ((kx == 0) & (ky[:, None] > 0))
    phases = np.random.default_rng(form.seed).random((len(geometry.ky), len(geometry.kx)))
    factors = np.exp(2j * np.pi * phases)
    factors[0] = 0  # zonal flows must grow by themselves
    factors /= 1 + (geometry.kx**2 + geometry.ky[:, None] ** 2) / 0.1
    rows = np.isin(geometry.ky, ky)
    return along * factors[rows]
