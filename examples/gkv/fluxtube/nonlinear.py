"""The nonlinear term {J0 phi, f}, in two forms on the same runtime.

`ByPlanes` redistributes whole planes, as GKV does: `overlap.Bracket`, part of each slice's program.
`BySlab` is `overlap.FFT2.pointwise` on the batch of all planes: rows and columns are exchanged between
the directions of the FFTs.
"""

import numpy as np

import overlap


class Off:
    """Stands for the nonlinear term in a linear run."""

    sign, speed, nbytes = 0, 0.0, 0

    def buffers(self):
        return None

    def advect(self, psi):
        """Set the advecting field, ``(mu, z, ky, kx)`` (collective)."""

    def whole(self, f, out):
        """Compute the brackets of a whole batch ``(v, mu, z, ky, kx)``, if this form does so (collective)."""

    async def of(self, f, out, slot):
        """Compute the bracket of one slice ``(mu, z, ky, kx)``, if this form does so."""

    def exchanges(self, f, out, slot):
        """Return the exchanges that `of` awaits."""
        return []

    def close(self):
        pass


class ByPlanes(Off):
    """Exchanges whole planes, slice by slice in v."""

    sign = -1

    def __init__(self, state, geometry, decomposition, runtime, config):
        vs, mus, zs, _, _ = state.f.shape
        self._bracket = overlap.Bracket(
            decomposition.ky,
            (vs, mus * zs, len(geometry.ky), len(geometry.kx)),
            (config.grid.ky_min, geometry.dkx),
            points=geometry.points,
            settings={"wait": config.parallel.wait, "depth": config.parallel.depth},
        )
        self.buffers = self._bracket.buffers

    @property
    def speed(self):
        return self._bracket.speed

    @property
    def nbytes(self):
        return self._bracket.nbytes

    def advect(self, psi):
        self._bracket.advect(_planes(psi))

    async def of(self, f, out, slot):
        await self._bracket.apply(_planes(f), _planes(out), slot)

    def exchanges(self, f, out, slot):
        return self._bracket.operations(_planes(f), _planes(out), slot)

    def close(self):
        self._bracket.close()


class BySlab(Off):
    """Exchanges rows and columns: one call of `overlap.FFT2.pointwise` for the whole batch.

    FFT2's half-spectrum is along its last axis, which is y here, with x first: in transposed order
    its spectra are ``(..., ky, kx)``, kx in FFTW's order. The gradients of J0 phi are transformed to real space once,
    by a function that keeps them.
    """

    sign = -1

    def __init__(self, state, geometry, decomposition, runtime, config):
        vs, mus, zs, _, _ = state.f.shape
        grid, parallel = config.grid, config.parallel
        self._runtime = overlap.Runtime(decomposition.ky.source, workers=parallel.workers)
        nx, ny = 2 * grid.nx + 1, 2 * grid.ny + 1
        fine = geometry.points[::-1]

        def plan(*batch):
            return overlap.FFT2(
                self._runtime,
                (*batch, nx, ny),
                "f8",
                norm="forward",
                layout={"order": "transposed"},
                settings={"wait": parallel.wait, "depth": parallel.depth},
            )

        self._plan, self._potential_plan = plan(vs, mus * zs), plan(mus * zs)
        self._ky = grid.ky_min * np.arange(grid.ny + 1)[decomposition.parts["ky"], None]
        self._kx = geometry.kx
        self._gradient = None
        self._inputs = [self._plan.spectrum.empty() for _ in range(2)]
        self._result = self._plan.spectrum.empty()
        self.speed = 0.0

        @self._potential_plan.pointwise(dealias=fine)
        def keep(psi_x, psi_y, index):
            if self._gradient is None:
                self._gradient = np.zeros((2, mus * zs, *psi_x.shape))
            self._gradient[:, index] = psi_x, psi_y
            return psi_x

        @self._plan.pointwise(dealias=fine)
        def bracket(f_x, f_y, out, index):
            psi_x, psi_y = self._gradient[:, index[1]]
            np.multiply(psi_x, f_y, out=out)
            out -= psi_y * f_x

        self._keep, self._bracket = keep, bracket
        self._psi_inputs = [self._potential_plan.spectrum.empty() for _ in range(2)]
        self._psi_result = self._potential_plan.spectrum.empty()

    @property
    def nbytes(self):
        arrays = (*self._inputs, self._result, *self._psi_inputs, self._psi_result)
        held = sum(array.nbytes for array in arrays) + self._bracket.nbytes_in_flight
        return held + (0 if self._gradient is None else self._gradient.nbytes)

    def advect(self, psi):
        self._derive(psi.reshape(self._psi_result.shape), self._psi_inputs)
        self._keep(*self._psi_inputs, out=self._psi_result)
        psi_x, psi_y = self._gradient
        self.speed = float(np.sqrt((psi_x**2 + psi_y**2).max(initial=0.0)))

    def whole(self, f, out):
        self._derive(f.reshape(self._result.shape), self._inputs)
        self._bracket(*self._inputs, out=self._result)
        out = out.reshape(self._result.shape)
        for mine, theirs in self._halves():
            out[..., mine] = self._result[..., theirs]

    def _derive(self, field, gradient):
        """Compute the gradients of a field, in FFTW's order of kx."""
        for mine, theirs in self._halves():
            np.multiply(1j * self._kx[mine], field[..., mine], out=gradient[0][..., theirs])
            np.multiply(1j * self._ky, field[..., mine], out=gradient[1][..., theirs])

    def _halves(self):
        """Return the places of kx < 0 and of kx >= 0, here and in FFTW's order."""
        most = len(self._kx) // 2
        return ((slice(0, most), slice(most + 1, None)), (slice(most, None), slice(0, most + 1)))

    def close(self):
        for plan in (self._plan, self._potential_plan):
            plan.close()
        self._runtime.close()


def _planes(field):
    """View ``(mu, z, ky, kx)`` as ``(planes, ky, kx)``."""
    return field.reshape(-1, *field.shape[2:])


FORMS = {"planes": ByPlanes, "slab": BySlab}
