"""FT: a diffusion equation solved by three-dimensional FFTs, on `overlap.FFT3`.

The spectrum's factors are products of one factor per axis, so a step makes one pass over the spectrum, in place, and
needs no table of its size. The spectrum has the natural order of axes, from which the backward transform is faster than
from (ky, kx, kz).
"""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

import overlap
from overlap.compiled import njit

from .kernel import Advance, Check, Kernel, Waiting, Weights
from .random_numbers import fill, jumped

SEED = 314159265
ALPHA = 1e-6
GRIDS = {
    "S": (64, 64, 64),
    "W": (32, 128, 128),
    "A": (128, 256, 256),
    "B": (256, 256, 512),
    "C": (512, 512, 512),
}  # (z, y, x)
STEPS = {"S": 6, "W": 6, "A": 6, "B": 20, "C": 20}
SUMS = {
    "S": (
        554.6087004964 + 484.5363331978j,
        554.6385409189 + 486.5304269511j,
        554.6148406171 + 488.3910722336j,
        554.5423607415 + 490.1273169046j,
        554.4255039624 + 491.7475857993j,
        554.2683411902 + 493.2597244941j,
    ),
    "W": (
        567.3612178944 + 529.3246849175j,
        563.1436885271 + 528.2149986629j,
        559.4024089970 + 527.0996558037j,
        556.0698047020 + 526.0027904925j,
        553.0898991250 + 524.9400845633j,
        550.4159734538 + 523.9212247086j,
    ),
    "A": (
        504.6735008193 + 511.4047905510j,
        505.9412319734 + 509.8809666433j,
        506.9376896287 + 509.8144042213j,
        507.7892868474 + 510.1336130759j,
        508.5233095391 + 510.4914655194j,
        509.1487099959 + 510.7917842803j,
    ),
    "B": (
        517.7643571579 + 507.7803458597j,
        515.4521291263 + 508.8249431599j,
        514.6409228649 + 509.6208912659j,
        514.2378756213 + 510.1023387619j,
        513.9626667737 + 510.3976610617j,
        513.7423460082 + 510.5948019802j,
        513.5547056878 + 510.7404165783j,
        513.3910925466 + 510.8576573661j,
        513.2470705390 + 510.9577278523j,
        513.1197729984 + 511.0460304483j,
        513.0070319283 + 511.1252433800j,
        512.9070537032 + 511.1968077718j,
        512.8182883502 + 511.2616233064j,
        512.7393733383 + 511.3203605551j,
        512.6691062020 + 511.3735928093j,
        512.6064276004 + 511.4218460548j,
        512.5504076570 + 511.4656139760j,
        512.5002331720 + 511.5053595966j,
        512.4551951846 + 511.5415130407j,
        512.4146770029 + 511.5744692211j,
    ),
}


@njit
def evolve(u, along_z, along_y, along_x):
    """Multiply a spectrum by the factors of a step."""
    for z in range(u.shape[0]):
        for y in range(u.shape[1]):
            factor = along_z[z] * along_y[y]
            line = u[z, y]
            for x in range(len(line)):
                line[x] *= factor * along_x[x]


class FT(Kernel):
    """The kernel FT; see `Kernel`."""

    name, title, unit = "ft", "FT", "planes"

    def __init__(self, comm: MPI.Intracomm, letter: str, weights: Weights, advance: Advance, hide: bool = True) -> None:
        super().__init__(comm, letter, weights, advance, hide)
        self._shape = GRIDS[letter]
        self._plan = overlap.FFT3(
            comm,
            self._shape,
            complex,
            norm="forward",
            layout={"order": "natural", "grid": (1, comm.size), "weights": weights},
            # Messages of one size, because their number is compared with that of other shares.
            settings={"chunk": 8} | ({} if hide else {"wait": "off"}),
        )
        self._u, self._spectrum = self._plan.real.empty(), self._plan.spectrum.empty()
        self._planes = self._plan.real.local_slice[0]
        self.share = self._planes.stop - self._planes.start
        waves = [k.ravel() for k in self._plan.wavenumbers()]
        self._factors = [np.exp(-4 * ALPHA * np.pi**2 * k**2) for k in waves]
        number = np.arange(1, 1025)
        nz, ny, nx = self._shape
        z, y, x = 5 * number % nz, 3 * number % ny, number % nx
        mine = (self._planes.start <= z) & (z < self._planes.stop)
        self._places = z[mine] - self._planes.start, y[mine], x[mine]
        self._sums = np.zeros(self.iterations, complex)

    @property
    def size(self) -> str:
        return "x".join(map(str, self._shape[::-1]))

    @property
    def iterations(self) -> int:
        return STEPS[self.letter]

    @property
    def mop(self) -> float:
        points, steps = np.prod(self._shape), self.iterations
        return points * (14.8157 + 7.19641 * np.log(points) + (5.23518 + 7.21113 * np.log(points)) * steps) / 1e6

    def warm_up(self) -> None:
        for transform, arrays in (
            (self._plan.forward, (self._u, self._spectrum)),
            (self._plan.backward, (self._spectrum, self._u)),
        ):
            transform.settle(arrays[0], out=arrays[1])
        self.run()

    def run(self) -> None:
        self.waited_s, self.messages = 0.0, 0
        plane = 2 * self._shape[1] * self._shape[2]
        fill(jumped(SEED, self._planes.start * plane), np.asarray(self._u).reshape(-1).view(float))
        with Waiting(self, self._plan.runtime):
            self._plan.forward(self._u, out=self._spectrum)
        for step in range(self.iterations):
            evolve(np.asarray(self._spectrum), *self._factors)
            with Waiting(self, self._plan.runtime):
                self._plan.backward(self._spectrum, out=self._u)
            self._sums[step] = np.asarray(self._u)[self._places].sum()
            self.advance(step + 1, self.iterations)
        with Waiting(self):
            self.comm.Allreduce(MPI.IN_PLACE, self._sums)
        self.messages = self._plan.forward.message_count() + self.iterations * self._plan.backward.message_count()

    def checks(self) -> list[Check]:
        return [
            Check(f"checksum {step + 1}", complex(value), expected, 1e-12)
            for step, (value, expected) in enumerate(zip(self._sums, SUMS[self.letter]))
        ]

    def close(self) -> None:
        self._plan.close()
