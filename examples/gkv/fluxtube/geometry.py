"""Coordinates and geometry of the flux tube: s-alpha, concentric circles, alpha = 0.

x = r - r0, y = (r0/q0)(q theta - zeta), z = theta. With eps only in B (GKV's "analytic" type):

    B = 1 - eps cos z        Jacobian ~ 1/B          k_perp^2 = (kx + s z ky)^2 + ky^2
    F = (2 pi)^(-3/2) exp(-v^2/2 - mu B)             b = k_perp^2 / B^2
    w_D = -(v^2 + mu B) (kx sin z + ky (cos z + s z sin z))

All arrays here are global along z, v and mu, which are short; modes are given by the caller.
"""

import numpy as np
from scipy.fft import next_fast_len
from scipy.special import i0e, j0

# Fourth-order central differences at -2 ... 2 steps, per step and per step squared.
FIRST = np.array([1.0, -8.0, 0.0, 8.0, -1.0]) / 12
SECOND = np.array([-1.0, 16.0, -30.0, 16.0, -1.0]) / 12
FOURTH = np.array([1.0, -4.0, 6.0, -4.0, 1.0])  # the fourth difference itself
STEEPEST = 1.3722  # the largest |sum of FIRST exp(i k)|, which limits the time step


class Geometry:
    """Holds the coordinates, and computes the functions of them that the equations need.

    Attributes
    ----------
    z, v, mu : ndarray
        Points. z = -pi Nt + j dz; v = -vmax + j dv, symmetric; mu = w^2 / 2, w = m dw.
    w : ndarray
        Perpendicular velocity over sqrt(B), m dw.
    kx, ky : ndarray
        Modes: kx ascending from -nx dkx, ky from 0.
    dz, dv, dw, dkx : float
    points : (int, int)
        Points of the nonlinear term's real-space grid, in y and x.
    shift : ndarray of int
        By ky: steps in kx from one end of the field line to its continuation at the other.
    """

    def __init__(self, plasma, grid):
        self.plasma, self.grid = plasma, grid
        length = 2 * np.pi * grid.turns
        self.dz = length / grid.nz
        self.z = -length / 2 + self.dz * np.arange(grid.nz)
        self.dv = 2 * grid.vmax / (grid.nv - 1)
        self.v = -grid.vmax + self.dv * np.arange(grid.nv)
        self.dw = grid.vmax / grid.nmu
        self.w = self.dw * np.arange(grid.nmu + 1)
        self.mu = self.w**2 / 2
        self.dkx = grid.kx_min or 2 * np.pi * plasma.shear * grid.ky_min / grid.m_j
        self.kx = self.dkx * np.arange(-grid.nx, grid.nx + 1)
        self.ky = grid.ky_min * np.arange(grid.ny + 1)
        self.points = tuple(grid.points) or tuple(next_fast_len(3 * most + 1) for most in (grid.ny, grid.nx))
        self.shift = grid.m_j * grid.turns * np.arange(grid.ny + 1)

    def field(self, z):
        """Return B at points z."""
        return 1 - self.plasma.eps * np.cos(z)

    @property
    def surface_weights(self):
        """Return the weights of the flux-surface average over all z; their sum is 1."""
        return 1 / self.field(self.z) / (1 / self.field(self.z)).sum()

    def k_perp2(self, z, ky):
        """Return k_perp^2, ``(z, ky, kx)``."""
        z, ky = z[:, None, None], ky[:, None]
        return (self.kx + self.plasma.shear * z * ky) ** 2 + ky**2

    def larmor(self, z, ky):
        """Return b = k_perp^2 rho^2, ``(z, ky, kx)``."""
        return self.k_perp2(z, ky) / self.field(z)[:, None, None] ** 2

    def gamma0(self, z, ky):
        """Return Gamma0 = I0(b) exp(-b), ``(z, ky, kx)``."""
        return i0e(self.larmor(z, ky))

    def gyroaverage(self, w, z, ky):
        """Return J0(k_perp v_perp / B), ``(w, z, ky, kx)``; v_perp = w sqrt(B)."""
        k_perp = np.sqrt(self.k_perp2(z, ky) / self.field(z)[:, None, None])
        return j0(abs(w)[:, None, None, None] * k_perp)

    def drift(self, z, ky):
        """Return -w_D / (v^2 + mu B), ``(z, ky, kx)``."""
        z, ky = z[:, None, None], ky[:, None]
        return self.kx * np.sin(z) + ky * (np.cos(z) + self.plasma.shear * z * np.sin(z))

    def maxwellian_v(self, v):
        """Return the factor of F that depends on v; 0 outside the grid, where g is assumed to vanish."""
        return np.where(abs(v) < self.grid.vmax + self.dv / 2, np.exp(-(v**2) / 2), 0.0)

    def maxwellian_mu(self, w, z):
        """Return the factor of F that depends on mu, constants included, ``(w, z)``; 0 outside the grid."""
        factor = (2 * np.pi) ** -1.5 * np.exp(-(w[:, None] ** 2) / 2 * self.field(z))
        return np.where(abs(w[:, None]) < self.grid.vmax + self.dw / 2, factor, 0.0)

    @property
    def velocity_weights(self):
        """Return the weights of d3v = 2 pi v_perp dv_perp dv over B for each mu.

        The trapezoid rule is corrected at the axis as in GKV.
        """
        weights = 2 * np.pi * self.w * self.dw * self.dv
        weights[1] *= 1 + 1 / 12 + 22 / 720
        weights[2] *= 1 - 11 / 720
        return weights
