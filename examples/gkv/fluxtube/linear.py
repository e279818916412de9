"""Linear terms of the gyrokinetic equation, slice by slice in v.

    df/dt = -(v/q) df/dz + (mu eps sin z / q) df/dv - i w_D (f + F J0 phi) + i w_* F J0 phi
            - F (v/q) d(J0 phi)/dz + C(f + F J0 phi) - dissipation

    w_* = -ky (R/Ln + (v^2/2 + mu B - 3/2) R/LT)

with fourth-order central differences and Lenard-Bernstein collisions

    C(g) = nu [ d2g/dv2 + d2g/dv_perp2 + v dg/dv + (1/v_perp + v_perp) dg/dv_perp + 3 g - b g ].

At v_perp = 0 g is even, and (1/v_perp) d/dv_perp is d2/dv_perp2. g vanishes beyond the grid in v and mu.
What acts on J0 phi depends on v only by a factor each, so it is put together once for all v: the slices
add F_v (Q0 + v Q1 + v^2 Q2) + (C_v F_v) Q3.
"""

import numpy as np

from . import loops
from .decomposition import HALO
from .geometry import FIRST, FOURTH, SECOND, STEEPEST

TERMS = ("streaming", "mirror", "drift", "drive", "collisions", "dissipation")
NEAR = np.arange(-2, 3)


class Slot:
    """Holds the halos of one slice in flight."""

    def __init__(self, shape):
        mus, zs, *plane = shape
        self.low, self.high, self.z_below, self.z_above = np.zeros((4, mus, HALO, *plane), complex)
        self.mu_below, self.mu_above = np.zeros((2, HALO, zs, *plane), complex)


class Linear:
    """Computes the linear terms on this rank.

    Parameters
    ----------
    geometry : Geometry
    decomposition : Decomposition
    dissipation : float
        Coefficient of the fourth difference in z.
    terms : sequence of str
        The terms of `TERMS` that are computed.

    Attributes
    ----------
    psi : ndarray of complex
        J0 phi, ``(mu, z, ky, kx)``.
    fastest : float
        Bound of the terms' rates on this rank, v_ti / R; it limits the time step.
    """

    def __init__(self, geometry, decomposition, dissipation, terms=TERMS):
        plasma, parts = geometry.plasma, decomposition.parts
        on = {term: float(term in terms) for term in TERMS}
        nu = on["collisions"] * plasma.nu
        self._decomposition = decomposition
        self._shift = geometry.shift[parts["ky"]]
        self._v = v = geometry.v[parts["v"]]
        self._ky = ky = geometry.ky[parts["ky"]]
        z, w = geometry.z[parts["z"]], geometry.w[parts["mu"]]
        B = geometry.field(z)
        self._shape = len(w), len(z), len(ky), len(geometry.kx)
        # Stencils: at each v, mu or z the factors of the values 2 below ... 2 above.
        self._z_taps = (
            -on["streaming"] * v[:, None] / plasma.q / geometry.dz * FIRST - on["dissipation"] * dissipation * FOURTH
        )
        self._v_taps = np.zeros((len(v), 2, 5))
        self._v_taps[:, 0] = FIRST / geometry.dv
        self._v_taps[:, 1] = nu * (SECOND / geometry.dv**2 + v[:, None] * FIRST / geometry.dv + 3 * (NEAR == 0))
        self._mirror = on["mirror"] * w[:, None] ** 2 / 2 * plasma.eps * np.sin(z) / plasma.q
        self._mu_taps = nu * _perpendicular(w, geometry.dw, B) if nu else np.zeros((0, 0, 0))
        self._drift = on["drift"] * geometry.drift(z, ky)
        self._damping = nu * geometry.larmor(z, ky)
        self._muB = w[:, None] ** 2 / 2 * B
        F_v = geometry.maxwellian_v(v)
        F_v_near = geometry.maxwellian_v(v[:, None] + geometry.dv * NEAR)
        self._weights = np.stack([F_v, F_v * v, F_v * v**2, (self._v_taps[:, 1] * F_v_near).sum(1)], axis=1)
        # J0 phi, with neighbours in mu and z.
        w_near = geometry.dw * np.arange(parts["mu"].start - 2, parts["mu"].stop + 2)
        z_near = geometry.z[0] + geometry.dz * np.arange(parts["z"].start - HALO, parts["z"].stop + HALO)
        self._gyroaverage = geometry.gyroaverage(w_near, z_near, ky)
        self._F_mu = geometry.maxwellian_mu(w_near, z)[..., None, None]
        self._psi_near = np.zeros(self._gyroaverage.shape, complex)
        self.psi = np.zeros(self._shape, complex)
        self._potential = np.zeros((4, *self._shape), complex)
        self._z_slope = on["streaming"] / plasma.q * FIRST / geometry.dz
        self._drive = on["drive"] * plasma.R_LT, on["drive"] * plasma.R_Ln
        self._v_halos = np.zeros((2, HALO, *self._shape), complex)
        self._reflects = bool(nu) and decomposition.ends("mu")[0]
        self._exchanges_mu = bool(nu) and decomposition.mu.size > 1
        rates = (((v**2).max(initial=0) + self._muB)[..., None, None] * abs(self._drift)).max(initial=0)
        self.fastest = rates + STEEPEST * (
            abs(v).max(initial=0) / plasma.q / geometry.dz + abs(self._mirror).max(initial=0) / geometry.dv
        )

    # ---- the potential's terms -------------------------------------------------------------------

    def gyroaverage(self, phi, m):
        """Compute J0 phi at one mu, neighbours in mu included: m from 0 to mus + 3."""
        np.multiply(self._gyroaverage[m], phi, out=self._psi_near[m])
        if 0 <= m - 2 < len(self.psi):
            self.psi[m - 2] = self._psi_near[m, HALO:-HALO]

    def potential_terms(self, m):
        """Compute Q0 ... Q3 at one mu, after `gyroaverage` for all."""
        q0, q1, q2, q3 = self._potential[:, m]
        psi, F = self.psi[m], self._F_mu[m + 2]
        R_LT, R_Ln = self._drive
        muB = self._muB[m, :, None, None]
        drift, ky = self._drift, self._ky[:, None]
        np.multiply(F, psi, out=q3)
        np.multiply(1j * (muB * drift - ky * (R_Ln + (muB - 1.5) * R_LT)) - self._damping, q3, out=q0)
        np.multiply(1j * (drift - ky * R_LT / 2), q3, out=q2)
        zs = self._shape[1]
        q1[...] = 0
        for k, factor in zip(NEAR, self._z_slope):
            if factor:
                q1 -= factor * self._psi_near[m + 2, HALO + k : HALO + k + zs]
        q1 *= F
        if len(self._mu_taps):
            for k, taps in zip(NEAR, self._mu_taps[m].T):
                near = m + 2 + k
                q0 += taps[:, None, None] * self._F_mu[near] * self._psi_near[near, HALO:-HALO]

    # ---- slices ----------------------------------------------------------------------------------

    def buffers(self):
        """Make the buffers of one slice in flight."""
        return Slot(self._shape)

    def v_exchanges(self, f):
        """Make the exchanges of halos in v, once for all slices."""
        return self._sendrecvs("v", (f[-HALO:], f[:HALO]), self._v_halos, 0)

    async def halos(self, f, number, slot):
        """Exchange the halos in z and mu of one slice ``f[number]``."""
        here = f[number]
        slot.low[...], slot.high[...] = here[:, :HALO], here[:, -HALO:]
        if self._decomposition.z.size == 1:
            slot.z_below[...], slot.z_above[...] = slot.high, slot.low
        for exchange in self.exchanges(f, number, slot):
            await exchange
        self._complete(here, self._v[number], slot)

    def exchanges(self, f, number, slot):
        """Return the exchanges that `halos` awaits."""
        ends, here = (slot.high, slot.low), f[number]
        found = self._sendrecvs("z", ends, (slot.z_below, slot.z_above), 0)
        if self._exchanges_mu:
            found += self._sendrecvs("mu", (here[-HALO:], here[:HALO]), (slot.mu_below, slot.mu_above), 2)
        return found

    def _sendrecvs(self, axis, sent, received, tag):
        """Make the exchange of the upper end with the lower end of the rank above, if there are other ranks."""
        line = getattr(self._decomposition, axis)
        if line.size == 1:
            return []
        down, up = self._decomposition.neighbours(axis)
        return [
            line.Sendrecv(sent[0], up, tag, received[0], down, tag),
            line.Sendrecv(sent[1], down, tag + 1, received[1], up, tag + 1),
        ]

    def _complete(self, here, v, slot):
        """Fill the halos at the ends of the field line and at the axis v_perp = 0."""
        first, last = self._decomposition.ends("z")
        if first:
            loops.continue_field_line(slot.z_below.copy(), self._shift, slot.low, v < 0, True, slot.z_below)
        if last:
            loops.continue_field_line(slot.z_above.copy(), self._shift, slot.high, v > 0, False, slot.z_above)
        if self._reflects:
            slot.mu_below[0], slot.mu_below[1] = here[2], here[1]

    def add(self, f, number, slot, sign, out):
        """Compute ``out = sign * out + linear terms`` of slice ``f[number]``, whose halos are in `slot`."""
        below, above = self._v_halos
        near = [f[j] if 0 <= j < len(f) else below[j] if j < 0 else above[j - len(f)] for j in number + NEAR]
        v = self._v[number]
        drift, damping = (factor.reshape(len(factor), -1) for factor in (self._drift, self._damping))
        loops.add_linear(
            loops.real(out),
            float(sign),
            *map(loops.real, near),
            loops.real(slot.z_below),
            loops.real(slot.z_above),
            loops.real(slot.mu_below),
            loops.real(slot.mu_above),
            loops.real(self._potential),
            drift,
            damping,
            self._z_taps[number],
            self._v_taps[number],
            self._mirror,
            self._mu_taps,
            v**2 + self._muB,
            self._weights[number],
        )


def _perpendicular(w, dw, B):
    """Return the stencil of d2g/dv_perp2 + (1/v_perp + v_perp) dg/dv_perp, ``(w, z, 5)``.

    v_perp = w sqrt(B), so derivatives with respect to it are those to w over sqrt(B).
    """
    w, B = w[:, None, None], B[:, None]
    slope_over_w = np.where(w == 0, SECOND / dw**2, FIRST / dw / np.where(w == 0, 1, w))
    return (SECOND / dw**2 + slope_over_w) / B + w * FIRST / dw
