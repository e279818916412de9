"""`Solver`: the right-hand side as pipelines over slices in v, and the time step.

One right-hand side is

1. the density, a slice per pair of z: sums over v and mu on the workers, over ranks on the communicator,
   with the halos in v beside them;
2. phi and J0 phi;
3. a slice per v: halos in z and mu, the bracket's two all-to-alls, the linear terms. While one slice
   is exchanged, others are computed.
"""

import numpy as np
from mpi4py import MPI

import overlap
from overlap.arrays import block

from . import loops
from .decomposition import Decomposition, arrange
from .fields import Fields
from .geometry import Geometry
from .linear import Linear
from .nonlinear import FORMS, Off
from .state import State, start

STABLE = 2.8  # largest |lambda dt| on the imaginary axis for which a fourth-order Runge-Kutta step is stable
# a, b and c of `loops.gill`, by stage.
GILL = ((0.5, 0.0, 0.5), (1 - 0.5**0.5, 1.0, 1 - 0.5**0.5), (1 + 0.5**0.5, 1.0, 1 + 0.5**0.5), (1 / 6, 2.0, 0.5))
V_HALOS = "halos in v"


class Solver:
    """Advances the distribution function of one flux tube.

    Making, using and closing it is collective over `comm`.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm or overlap.Runtime
        A runtime is closed with the solver.
    config : Config

    Attributes
    ----------
    state : State
    fields : Fields
        phi of the last right-hand side.
    dt : float
        The last time step.

    Raises
    ------
    ConfigError
        On all ranks, if the sizes do not allow so many ranks.
    """

    def __init__(self, comm, config):
        runtime = comm if isinstance(comm, overlap.Runtime) else None
        self.comm, self.config = (comm if runtime is None else runtime.comm.source), config
        comm, parallel = self.comm, config.parallel
        arrange(comm.size, config)  # raises before anything is made
        self.runtime = runtime or overlap.Runtime(comm, workers=parallel.workers)
        self.geometry = Geometry(config.plasma, config.grid)
        self.decomposition = Decomposition(comm, self.runtime, config)
        self.state = State(self.geometry, self.decomposition.parts)
        self.slope, self._carry = self.state.zeros(), self.state.zeros()
        self.fields = Fields(self.geometry, self.decomposition)
        self.linear = Linear(self.geometry, self.decomposition, config.time.dissipation)
        self._fastest = comm.allreduce(self.linear.fastest, MPI.MAX)
        self.nonlinear = Off()
        if parallel.nonlinear != "off":
            self.nonlinear = FORMS[parallel.nonlinear](
                self.state, self.geometry, self.decomposition, self.runtime, config
            )
        self.dt = 0.0
        self._make_pipelines()
        start(self.state, self.geometry, config.start)

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()

    def close(self):
        """End the threads and free communicators (collective)."""
        self.nonlinear.close()
        self.runtime.close()

    def _make_pipelines(self):
        fields, pipelined = self.fields, self.runtime.pipelined
        wait, depth = self.config.parallel.wait, self.config.parallel.depth
        # As many on every rank, even if z is split unevenly; some may be empty.
        most = -(-self.config.grid.nz // 2 // self.decomposition.ranks["z"])
        self._z_parts = block(len(fields.density), most)
        local = "off" if self.runtime.workers == 1 else "poll"

        def gathering(part, f, linear):
            return linear.v_exchanges(f) if part == V_HALOS else fields.density_sums(part)

        async def gather(part, f, linear):
            if part != V_HALOS:
                fields.add_density(f, part)
            for operation in gathering(part, f, linear):
                await operation

        async def solve(_, linear):
            await fields.solve()
            mus = len(linear.psi)
            await overlap.parallel(lambda m: linear.gyroaverage(fields.phi, m), range(mus + 4))
            await overlap.parallel(linear.potential_terms, range(mus))

        async def advance(number, slot, f, out, linear, nonlinear):
            await overlap.stagger(number, depth)
            halos, exchange = slot
            await linear.halos(f, number, halos)
            await nonlinear.of(f[number], out[number], exchange)
            linear.add(f, number, halos, nonlinear.sign, out[number])

        def advancing(number, slot, f, out, linear, nonlinear):
            halos, exchange = slot
            others = nonlinear.exchanges(f[number], out[number], exchange)
            return [overlap.stagger(number, depth), *linear.exchanges(f, number, halos), *others]

        async def update(number, dt, stage):
            loops.gill(
                *(array[number].reshape(-1).view(float) for array in (self.state.f, self.slope, self._carry)),
                dt,
                *GILL[stage],
            )

        self._gather = pipelined(gather, skeleton=gathering, wait=wait, depth=depth)
        self._solve = pipelined(solve, wait=local, depth=1)
        self._advance = pipelined(
            advance,
            skeleton=advancing,
            wait=wait,
            depth=depth,
            buffers=lambda: (self.linear.buffers(), self.nonlinear.buffers()),
        )
        self._update = pipelined(update, wait=local, depth=2 * self.runtime.workers)

    # ---- the right-hand side ---------------------------------------------------------------------

    def solve_fields(self, f, linear=None):
        """Compute phi of a distribution into `fields`, and the terms of both that `linear` needs (collective)."""
        linear = linear or self.linear
        self._gather([V_HALOS, *self._z_parts], f, linear)
        self._solve((0,), linear)

    def rhs(self, f, out):
        """Compute df/dt of a distribution into `out` (collective).

        Parameters
        ----------
        f, out : ndarray of complex
            Local, ``(v, mu, z, ky, kx)``; `out` must be finite.
        """
        self.solve_fields(f)
        self.nonlinear.advect(self.linear.psi)
        self.nonlinear.whole(f, out)
        self._advance(range(len(f)), f, out, self.linear, self.nonlinear)

    def linear_terms(self, f, out, linear):
        """Compute some linear terms alone, after `solve_fields` with the same `linear` (collective)."""
        self._advance(range(len(f)), f, out, linear, _OFF)

    def step(self, most=np.inf):
        """Advance the state by one step, at most by `most` (collective)."""
        state = self.state
        self._carry[...] = 0
        for stage in range(len(GILL)):
            self.rhs(state.f, self.slope)
            if stage == 0:
                self.dt = min(self._step_size(), most)
            self._update(range(len(state.f)), self.dt, stage)
        state.time += self.dt
        state.step += 1

    def _step_size(self):
        """Return the largest stable step times the Courant number, in R / v_ti."""
        time, geometry = self.config.time, self.geometry
        k = np.hypot(geometry.kx.max(), geometry.ky.max())
        speed = self.comm.allreduce(self.nonlinear.speed, MPI.MAX)
        return min(time.dt_max, time.courant * STABLE / (self._fastest + speed * k))

    @property
    def copies(self):
        """Return this rank's memory, in multiples of its part of the state."""
        slots = [slot for both in self._advance.slots for slot in both if slot is not None]
        held = {}
        for thing in (self, self.state, self.fields, self.linear, *slots):
            for array in vars(thing).values():
                if isinstance(array, np.ndarray):
                    owner = array if array.base is None else array.base
                    held[id(owner)] = owner.nbytes
        return (sum(held.values()) + self.nonlinear.nbytes) / max(1, self.state.f.nbytes)


_OFF = Off()
