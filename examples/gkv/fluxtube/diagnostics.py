"""Diagnostics of a state: potential, heat flux, and the balance of entropy.

For each ky, summed over kx and both signs of ky:

    S = sum_k < integral of |f|^2 / (2F) d3v >
    W = sum_k (1/2) < (1 - Gamma0 + tau) |phi|^2 > - (tau/2) sum_kx |<phi>|^2
    Q = sum_k Re < -i ky phi conj( integral of (v^2/2 + mu B) J0 f d3v ) >
    D = sum_k Re < integral of conj(f + F J0 phi) C / F d3v >

    d(S + W)/dt = (R/LT) Q + D + losses     of every ky in a linear run, of their sum in any

Losses are what the discrete operator loses or
gains elsewhere: through open ends of the field line, by the dissipation in z, by differences that are
not exactly antisymmetric. They are measured with the same integral as D. The particle flux vanishes
with adiabatic electrons.
"""

import numpy as np
from mpi4py import MPI

from . import loops
from .linear import Linear

SERIES = {  # name of a sample -> axes, type, unit, meaning; the time is not listed
    "dt": ((), float, "R/v_ti", "time step"),
    "S": (("ky",), float, "", "entropy of the perturbation"),
    "W": (("ky",), float, "", "energy of the potential"),
    "heat_flux": (("ky",), float, "n T v_ti (rho/R)^2", "radial heat flux of the ions"),
    "D": (("ky",), float, "", "production of entropy by collisions"),
    "losses": (("ky",), float, "", "production of entropy by the discrete operator"),
    "phi2": (("ky",), float, "(T/e rho/R)^2", "<|phi|^2>, both signs of ky"),
    "phi_middle": (("ky",), complex, "T/e rho/R", "phi at z = 0 and kx = 0"),
    "zonal": (("kx",), complex, "T/e rho/R", "<phi> at ky = 0"),
}
LOSSES = ("streaming", "mirror", "drift", "dissipation")


class Diagnostics:
    """Measures the state of a solver; everything is collective.

    Parameters
    ----------
    solver : Solver
    """

    def __init__(self, solver):
        self._solver = solver
        geometry, parts = solver.geometry, solver.decomposition.parts
        fields, plasma = solver.fields, geometry.plasma
        v, w = geometry.v[parts["v"]], geometry.w[parts["mu"]]
        z, ky = geometry.z[parts["z"]], geometry.ky[parts["ky"]]
        B = geometry.field(z)
        self._plasma = plasma
        self._ky = ky[:, None]
        self._both_signs = np.where(ky > 0, 2.0, 1.0)
        volume = geometry.velocity_weights[parts["mu"], None] * B
        self._surface = fields.surface[:, None, None]
        self._over_F_v = 1 / geometry.maxwellian_v(v)
        self._over_F_mu = volume * fields.surface / geometry.maxwellian_mu(w, z)
        self._v_energy = v**2 / 2
        self._ones = np.ones(len(v))
        self._perpendicular = fields.weights * (w[:, None] ** 2 / 2 * B)[..., None]
        self._collisions, self._losses = (
            Linear(geometry, solver.decomposition, solver.config.time.dissipation, terms)
            for terms in (("collisions",), LOSSES)
        )
        # Fields are the same on all ranks that share z and ky.
        self._counts = solver.decomposition.velocity.rank == 0
        self._middle = np.flatnonzero(abs(z) < geometry.dz / 2)

    def sample(self):
        """Compute the figures of the state.

        Returns
        -------
        dict
            The same on all ranks: ``time``, and all of `SERIES`, in GKV's units.
        """
        solver = self._solver
        f = solver.state.f
        solver.solve_fields(f)
        figures = {"time": solver.state.time, "dt": solver.dt}
        figures |= self._of_fields(f)
        figures["S"] = self._by_ky(0.5 * self._entropy(f, f))
        for name, terms in (("D", self._collisions), ("losses", self._losses)):
            figures[name] = self._production(f, terms)
        return figures

    def _of_fields(self, f):
        solver, fields = self._solver, self._solver.fields
        phi, tau = fields.inner, self._plasma.tau
        squares = self._surface * abs(phi) ** 2
        phi2, middle = squares.sum((0, 2)), phi[self._middle, :, phi.shape[2] // 2].sum(0)
        W = 0.5 * ((fields.polarisation + tau) * squares).sum((0, 2))
        zonal = np.zeros(phi.shape[2], complex)
        if fields.zonal and solver.decomposition.ends("z")[0] and self._counts:
            zonal += fields.average
            W[0] -= tau / 2 * (abs(zonal) ** 2).sum()
        pressure = self._moment(f, self._v_energy, fields.weights)
        pressure += self._moment(f, self._ones, self._perpendicular)
        drive = (-1j * self._ky * phi * np.conj(pressure)).real
        flux = (self._surface * drive).sum((0, 2))
        return {
            "phi_middle": self._by_ky(middle * self._counts / self._both_signs),
            "zonal": self._solver.comm.allreduce(zonal, MPI.SUM),
            "phi2": self._by_ky(phi2 * self._counts),
            "W": self._by_ky(W * self._counts),
            "heat_flux": self._by_ky(flux),
        }

    def entropy_production(self, change):
        """Compute the sum of Re < integral of conj(f + F J0 phi) change / F d3v > for each ky (collective).

        It is that of the state's f; call `Solver.solve_fields` first.

        Parameters
        ----------
        change : ndarray of complex
            A part of df/dt on this rank.
        """
        fields = self._solver.fields
        moment = self._moment(change, self._ones, fields.weights)
        work = (self._surface * (np.conj(fields.inner) * moment).real).sum((0, 2))
        return self._by_ky(self._entropy(self._solver.state.f, change) + work)

    def _production(self, f, terms):
        solver = self._solver
        solver.solve_fields(f, terms)
        solver.linear_terms(f, solver.slope, terms)
        return self.entropy_production(solver.slope)

    def _entropy(self, a, b):
        sums = np.zeros(len(self._ky))
        loops.entropy_product(loops.real(a), loops.real(b), self._over_F_v, self._over_F_mu, sums)
        return sums

    def _moment(self, f, v_weights, weights):
        moment = np.zeros_like(self._solver.fields.density)
        loops.add_moment(loops.real(f), v_weights, weights, 0, len(moment), loops.real(moment))
        return moment

    def _by_ky(self, part):
        """Sum the parts of all ranks, for all ky; both signs of ky count."""
        solver = self._solver
        whole = np.zeros(len(solver.geometry.ky), part.dtype)
        whole[solver.decomposition.parts["ky"]] = part * self._both_signs
        return solver.comm.allreduce(whole, MPI.SUM)


def growth(times, phi, since):
    """Fit frequency and growth rate of modes ~ exp(-i omega t) from `since` to the end.

    Parameters
    ----------
    times : (samples,)
    phi : (samples, modes)

    Returns
    -------
    (omega, gamma, change) : ndarray
        By mode, in v_ti / R; `change` is the largest relative difference of either between the two
        halves of the time.
    """
    times, phi = np.asarray(times), np.asarray(phi)
    first = np.searchsorted(times, since)
    with np.errstate(divide="ignore", invalid="ignore"):
        logarithm = np.log(phi[first:])
    logarithm = logarithm.real + 1j * np.unwrap(logarithm.imag, axis=0)
    times = times[first:]

    def rate(part):
        return (logarithm[part][-1] - logarithm[part][0]) / (times[part][-1] - times[part][0])

    half = len(times) // 2
    with np.errstate(divide="ignore", invalid="ignore"):  # some modes are 0
        whole, early, late = rate(slice(None)), rate(slice(0, half + 1)), rate(slice(half, None))
        omega, gamma = -whole.imag, whole.real
        change = np.maximum(abs((late - early).imag / omega), abs((late - early).real / gamma))
    return omega, gamma, change
