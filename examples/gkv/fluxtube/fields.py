"""The electrostatic potential from quasi-neutrality, with adiabatic electrons.

    (1 - Gamma0 + tau) phi - tau <phi> delta(ky, 0) = n,    n = integral of J0 f d3v,
    <phi> = <n / (1 - Gamma0 + tau)> / <(1 - Gamma0) / (1 - Gamma0 + tau)>    at ky = 0, kx /= 0,

< > being the average over the flux surface, with weight 1/B.
"""

import numpy as np
from mpi4py import MPI

from . import loops
from .decomposition import HALO


class Fields:
    """Solves for phi on this rank's z and ky.

    Attributes
    ----------
    density : ndarray of complex
        n, ``(z, ky, kx)``.
    phi : ndarray of complex
        ``(z + 4, ky, kx)``: with two planes beyond each end, continued along the field line; 0
        where nothing continues it.
    inner : ndarray
        Its part on this rank's z.
    average : ndarray of complex
        <phi> at ky = 0, ``(kx,)``; 0 on ranks without ky = 0.
    """

    def __init__(self, geometry, decomposition):
        parts = decomposition.parts
        z, ky, w = geometry.z[parts["z"]], geometry.ky[parts["ky"]], geometry.w[parts["mu"]]
        self._decomposition = decomposition
        self._shift = geometry.shift[parts["ky"]]
        tau = geometry.plasma.tau
        self.density = np.zeros((len(z), len(ky), len(geometry.kx)), complex)
        self.phi = np.zeros((len(z) + 2 * HALO, *self.density.shape[1:]), complex)
        self.inner = self.phi[HALO:-HALO]
        self.average = np.zeros(len(geometry.kx), complex)
        gyroaverage = geometry.gyroaverage(w, z, ky)
        volume = (geometry.velocity_weights[parts["mu"], None] * geometry.field(z))[..., None, None]
        self.weights = (volume * gyroaverage).reshape(len(w), len(z), -1)
        self._ones = np.ones(geometry.v[parts["v"]].shape)
        self.polarisation = 1 - geometry.gamma0(z, ky)  # 1 - Gamma0
        self._inverse = 1 / np.where(self.polarisation + tau > 0, self.polarisation + tau, np.inf)
        self.surface = geometry.surface_weights[parts["z"]]
        self._tau = tau
        self.zonal = len(ky) > 0 and ky[0] == 0
        if self.zonal:
            # The same on all ranks along z, because it is of the whole field line.
            row = geometry.gamma0(geometry.z, ky[:1])[:, 0]
            response = geometry.surface_weights @ ((1 - row) / np.where(1 - row + tau > 0, 1 - row + tau, np.inf))
            self._response = np.where(geometry.kx == 0, np.inf, response)
            self._inverse[:, 0, geometry.kx == 0] = 0

    def add_density(self, f, part):
        """Add this rank's share of n at some z."""
        self.density[part] = 0
        loops.add_moment(loops.real(f), self._ones, self.weights, part.start, part.stop, loops.real(self.density))

    def density_sums(self, part):
        """Make the operation that sums all ranks' shares of n at some z."""
        velocity = self._decomposition.velocity
        return [velocity.Allreduce(MPI.IN_PLACE, self.density[part])] if velocity.size > 1 else []

    async def solve(self):
        """Compute phi and its ghost planes from n."""
        line = self._decomposition.z
        self.average[...] = 0
        if self.zonal:
            self.average += self.surface @ (self.density[:, 0] * self._inverse[:, 0])
        if line.size > 1:
            await line.Allreduce(MPI.IN_PLACE, self.average)
        np.multiply(self.density, self._inverse, out=self.inner)
        if self.zonal:
            self.average /= self._response
            self.inner[:, 0] += self._tau * self.average * self._inverse[:, 0]
        phi = self.phi
        below, above = phi[:HALO], phi[-HALO:]
        low, high = self.inner[:HALO], self.inner[-HALO:]
        if line.size > 1:
            down, up = self._decomposition.neighbours("z")
            await line.Sendrecv(high, up, 0, below, down, 0)
            await line.Sendrecv(low, down, 1, above, up, 1)
        else:
            below[...], above[...] = high, low
        for ghosts, end, at_end in zip((below, above), (True, False), self._decomposition.ends("z")):
            if at_end:
                incoming = ghosts.copy()[None]
                loops.continue_field_line(incoming, self._shift, incoming, False, end, ghosts[None])
