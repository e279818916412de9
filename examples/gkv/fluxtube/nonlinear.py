"""The nonlinear term {J0 phi, f}, in two forms on the same runtime.

`ByPlanes` redistributes whole planes, as GKV does: `overlap.Bracket`, part of each slice's program.
`BySlab` is `overlap.FFT2.pointwise` on the batch of all planes: rows and columns are exchanged between
the directions of the FFTs.
"""

import numpy as np

import overlap


class Off:
    """A linear run."""

    sign, speed, nbytes = 0, 0.0, 0

    def lane(self):
        return None

    def advect(self, psi):
        """Set the advecting field, ``(mu, z, ky, kx)`` (collective)."""

    def whole(self, f, out):
        """Brackets of a whole batch ``(v, mu, z, ky, kx)``, where that is the way (collective)."""

    async def of(self, f, out, lane, compute=True):
        """Bracket of one slice ``(mu, z, ky, kx)``, where that is the way."""

    def destroy(self):
        pass


class ByPlanes(Off):
    """Exchange of whole planes, slice by slice in v."""

    sign = -1

    def __init__(self, state, geometry, decomposition, runtime, config):
        vs, mus, zs, _, _ = state.f.shape
        self._bracket = overlap.Bracket(
            decomposition.ky, (vs, mus * zs, len(geometry.ky), len(geometry.kx)),
            (config.grid.ky_min, geometry.dkx), points=config.grid.points or None,
            overlap=config.parallel.overlap, depth=config.parallel.depth, runtime=runtime)
        self.lane = self._bracket.lane

    @property
    def speed(self):
        return self._bracket.speed

    @property
    def nbytes(self):
        return self._bracket.nbytes

    def advect(self, psi):
        self._bracket.advect(_planes(psi))

    async def of(self, f, out, lane, compute=True):
        await self._bracket.of(_planes(f), _planes(out), lane, compute)

    def destroy(self):
        self._bracket.destroy()


def _planes(field):
    """``(mu, z, ky, kx)`` as ``(planes, ky, kx)``."""
    return field.reshape(-1, *field.shape[2:])


FORMS = {"planes": ByPlanes}
