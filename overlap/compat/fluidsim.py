"""`Simul`: fluidsim's solver ns3d with a nonlinear term that is one pipeline.

Use it instead of ``fluidsim.solvers.ns3d.solver.Simul``::

    from overlap.compat.fluidsim import Simul

    params = Simul.create_default_params()

Everything else is fluidsim's own. Three things differ inside:

* the transforms of velocity and vorticity to real space, their product and its transforms back are one
  `FFT3.pointwise`, whose exchanges are hidden behind other fields' FFTs;
* the three components of a state are transformed by one call;
* arrays of Fourier space have no modes beyond the largest wavenumbers along x, y and z that fluidsim's truncation
  keeps. fluidsim truncates the initial state only after the first step; here these modes are dropped when the state is
  transformed.

Set ``mpi4py.rc.thread_level = "serialized"`` before any import of fluidsim, because MPI is faster at this level.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from fluidfft.fft3d.operators import OperatorsPseudoSpectral3D as _OperatorsOfFluidfft
from fluidfft.fft3d.operators import vector_product
from fluidsim.operators.operators3d import OperatorsPseudoSpectral3D
from fluidsim.solvers.ns3d import solver, state

from ..errors import InputError, repr_of
from .fluidfft.fft3d import FFT3DMPIWithOverlap

TYPES_FFT = ("default", "fft3d.mpi_with_overlap")
EDGE = 1 + 1e-12  # fluidsim's truncation may round a wavenumber at its edge to either side


class _OnTruncatedSpectrum(_OperatorsOfFluidfft):
    """fluidfft's operators on an FFT class without the modes beyond those that the truncation keeps."""

    _cubic = True  # the truncation has a limit for each of x, y and z; else one in all directions, that along x

    def __init__(self, *points_and_lengths: Any, fft: Any = None, coef_dealiasing: float = 1.0) -> None:
        points, lengths = points_and_lengths[:3], points_and_lengths[3:]
        if fft in TYPES_FFT:
            limits = points if self._cubic else [points[0] * length / lengths[0] for length in lengths]
            largest = [int(coef_dealiasing * limit / 2 * EDGE) for limit in limits] if coef_dealiasing else points
            nx, ny, nz = points
            fft = FFT3DMPIWithOverlap(nz, ny, nx, largest[::-1])
        super().__init__(*points_and_lengths, fft=fft, coef_dealiasing=coef_dealiasing)


class Operators(OperatorsPseudoSpectral3D, _OnTruncatedSpectrum):
    """fluidsim's operators, with transforms of vectors and the product of velocity and vorticity.

    If ``oper.type_fft`` of the parameters names another FFT class, as on the coarse grid of a forcing, the operators
    are fluidsim's own.
    """

    def __init__(self, params: Any) -> None:
        self._cubic = params.oper.truncation_shape == "cubic"
        super().__init__(params)
        self.vectors: Any = None  # the plan for the three fields of a vector, if the operators are not fluidsim's own
        if not isinstance(self.oper_fft, FFT3DMPIWithOverlap):
            return
        plan = self.oper_fft.plan
        self.vectors = self.oper_fft.plan_of(3)
        self._velocity: Sequence[np.ndarray] = ()
        # The products overwrite factors, which is possible because no other field is in flight while they are computed.
        self._product = plan.pointwise(lambda *factors: vector_product(*factors), inputs=6, outputs=3)
        self._product_with_known = plan.pointwise(
            lambda *vorticity: vector_product(*self._velocity, *vorticity), inputs=3, outputs=3
        )

    def lamb_fft(
        self,
        velocity: Sequence[np.ndarray] | None,
        velocity_fft: Sequence[np.ndarray],
        vorticity_fft: Sequence[np.ndarray],
        out: Sequence[np.ndarray],
    ) -> None:
        """Compute velocity x vorticity in Fourier space (collective).

        `velocity` is that in real space, if it is known on all ranks; `out` may be the arrays of `velocity_fft`.
        """
        if velocity is None:
            if any(map(np.may_share_memory, velocity_fft, out)):
                velocity_fft = [field.copy() for field in velocity_fft]
            self._product(*velocity_fft, *vorticity_fft, out=tuple(out))
        else:
            self._velocity = velocity
            self._product_with_known(*vorticity_fft, out=tuple(out))

    def compute_1dspectra(self, energy_fft: np.ndarray) -> tuple[np.ndarray, ...]:
        """Compute spectra along x, y and z (collective), with zeros beyond the modes that arrays have."""
        if self.vectors is None:
            found: tuple[np.ndarray, ...] = super().compute_1dspectra(energy_fft)
            return found
        energy = self._compute_spectrum3d_loc(energy_fft)  # sums over both halves of the spectrum
        spectra = []
        for axis, wavenumbers in enumerate(self.oper_fft.get_k_adim_loc()):
            along = energy.sum(axis=tuple({0, 1, 2} - {axis}))
            own = np.bincount(abs(wavenumbers), along, self.shapeX_seq[axis] // 2 + 1) / self.deltaks[axis]
            spectra.append(sum(self.vectors.runtime.coordinator.allgather(own)))
        return tuple(spectra[::-1])

    def _kadim_from_ikxyzseq(self, ikx: int, iky: int, ikz: int) -> tuple[int, ...]:
        """Return wavenumbers, in units of the smallest ones, from their global places."""
        return ikx, *(k if k <= n // 2 else k - n for k, n in zip((iky, ikz), self._modes_along_y_and_z))

    def _ikxyzseq_from_kadim(self, kx_adim: int, ky_adim: int, kz_adim: int) -> tuple[int, ...]:
        """Return the global places of wavenumbers, given in units of the smallest ones."""
        return kx_adim, *(k if k >= 0 else k + n for k, n in zip((ky_adim, kz_adim), self._modes_along_y_and_z))

    @property
    def _modes_along_y_and_z(self) -> tuple[int, int]:
        return (self.ny, self.nz) if self.vectors is None else (self.shapeK_seq[1], self.shapeK_seq[0])


class State(state.StateNS3D):
    """fluidsim's state, whose fields are transformed together."""

    def statephys_from_statespect(self) -> None:
        """Transform the state to real space (collective)."""
        if self.oper.vectors is None:
            super().statephys_from_statespect()
        else:
            self.oper.vectors.backward(self.state_spect, out=self.state_phys)

    def statespect_from_statephys(self) -> None:
        """Transform the state from real space (collective)."""
        if self.oper.vectors is None:
            super().statespect_from_statephys()
        else:
            self.oper.vectors.forward(self.state_phys, out=self.state_spect)


class InfoSolver(solver.InfoSolverNS3D):
    """Register the classes of this solver with fluidsim."""

    def _init_root(self) -> None:
        super()._init_root()
        self.module_name, self.class_name = __name__, "Simul"
        for part in (self.classes.Operators, self.classes.State):
            part.module_name = __name__
        self.classes.Operators.class_name, self.classes.State.class_name = "Operators", "State"


class Simul(solver.Simul):
    """fluidsim's solver of the Navier-Stokes equations in three dimensions, its nonlinear term as one pipeline.

    Parameters
    ----------
    params : fluidsim's parameters
        Made by ``Simul.create_default_params()``. ``params.oper.type_fft`` must stay ``"default"``.

    Raises
    ------
    InputError
        ``params.oper.type_fft`` names another FFT class.
    """

    InfoSolver = InfoSolver

    def __init__(self, params: Any) -> None:
        kind = params.oper.type_fft
        if kind not in TYPES_FFT:
            raise InputError(f"expected params.oper.type_fft to be {' or '.join(TYPES_FFT)}, received {repr_of(kind)}")
        super().__init__(params)

    def _set_tendencies_nonlin_phaseshift(
        self, state_spect: Any, vx_fft: Any, vy_fft: Any, vz_fft: Any, tendencies_fft: Any
    ) -> None:
        velocity_fft, vorticity_fft = (vx_fft, vy_fft, vz_fft), self.state.fields_spect_tmp
        self.oper.rotfft_from_vecfft_outin(*velocity_fft, *vorticity_fft)
        if self.params.f is not None:
            self._modif_omegafft_with_f(*vorticity_fft)
        velocity = self.state.state_phys if state_spect is None else None
        self.oper.lamb_fft(velocity, velocity_fft, vorticity_fft, tendencies_fft)
