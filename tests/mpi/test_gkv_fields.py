"""Boundary, fields, entropy and memory of the flux-tube solver, against closed forms."""

import gkv_example  # noqa: F401
import numpy as np
import pytest
from fluxtube import cases
from fluxtube.diagnostics import Diagnostics, growth
from fluxtube.linear import Linear
from fluxtube.solver import Solver
from marks import exhaustive, on_ranks
from scipy.special import i0e, j0
from test_gkv import BOX, SMALL, configured, operator, set_random

# ---- boundary, fields, entropy -------------------------------------------------------------------


@on_ranks(1, exhaustive(2), 3)
def test_boundary_against_its_closed_form(comm):
    """phi beyond the ends is its continuation along the field line, or 0.

    A function of the radial wave number kx + s z ky alone, times one of ky, is its own continuation.
    """
    config = configured(grid=BOX, parallel={"z": comm.size, "nonlinear": "off"})
    with Solver(comm, config) as solver:
        geometry, fields = solver.geometry, solver.fields
        shear = config.plasma.shear
        part = solver.decomposition.parts["z"]
        z = geometry.z[0] + geometry.dz * np.arange(part.start - 2, part.stop + 2)

        def wave(z):
            radial = geometry.kx + shear * z[:, None, None] * geometry.ky[:, None]
            return np.exp(-(radial**2)) * (1 + 2j * geometry.ky[:, None])

        @solver.runtime.pipelined(wait="off")
        async def solve(_):
            await fields.solve()

        fields.zonal = False  # no average over the flux surface
        inverse = fields._inverse
        fields.density[...] = wave(z[2:-2]) / np.where(inverse == 0, np.inf, inverse)
        solve((0,))
        expected = wave(z)
        expected[:, 0, len(geometry.kx) // 2] = 0
        steps = np.rint(2 * np.pi * shear * geometry.ky / geometry.dkx).astype(int)
        assert steps[1] == 1
        number = np.arange(len(geometry.kx))
        for plane, at in enumerate(z):
            outside = -1 if at < geometry.z[0] - 1e-9 else (1 if at > geometry.z[-1] + 1e-9 else 0)
            for ky, step in enumerate(steps):
                source = number + outside * step
                open_end = (source < 0) | (source >= len(number))
                expected[plane, ky, open_end] = 0
        assert abs(fields.phi - expected).max() <= 1e-13 * abs(expected).max()


@pytest.mark.exhaustive
@on_ranks("openmpi-2")
def test_under_open_mpi(comm):
    operator(comm, ranks={"z": 2})
    test_nonlinear_term_conserves_entropy(comm)
    test_boundary_against_its_closed_form(comm)


@on_ranks(1, exhaustive(4))
def test_quasi_neutrality_against_its_closed_form(comm):
    """f = F J0 a(z), of which the density is Gamma0 a and, at ky > 0, phi Gamma0 a / (1 - Gamma0 + tau).

    The velocity integral is of fourth order at least in the step of v_perp.
    """
    errors = np.array([_quasi_neutrality(comm, nmu) for nmu in (15, 30)])
    assert (errors[1] < 3e-5).all() and (errors[0] > 16 * errors[1]).all(), errors


def _quasi_neutrality(comm, nmu):
    """Largest errors of density and phi; the zonal part is checked in passing."""
    grid = BOX | {"nz": 16, "nv": 32, "nmu": nmu, "vmax": 6.0, "ky_min": 0.05}
    config = configured(grid=grid, plasma={"tau": 0.7}, parallel={"nonlinear": "off"})
    with Solver(comm, config) as solver:
        geometry, state, fields = solver.geometry, solver.state, solver.fields
        v, mu, z, ky, kx = (state.local(axis) for axis in state.dims)
        B = (1 - config.plasma.eps * np.cos(z))[:, None, None]
        kperp2 = (kx + config.plasma.shear * z[:, None, None] * ky[:, None]) ** 2 + ky[:, None] ** 2
        J = j0(np.sqrt(2 * mu[:, None, None, None] * kperp2 / B))
        F = (2 * np.pi) ** -1.5 * np.exp(-(v[:, None, None, None, None] ** 2) / 2 - mu[:, None, None, None] * B)
        a = (1 + 0.5 * np.cos(z))[:, None, None]
        state.f[...] = F * J * a
        state.f[..., ky == 0, len(kx) // 2] = 0
        solver.solve_fields(state.f)
        gamma = i0e(kperp2 / B**2)
        density = gamma * a
        density[:, ky == 0, len(kx) // 2] = 0
        truth = density / (1 - gamma + 0.7)
        rows = ky > 0
        errors = [abs(fields.density - density).max(initial=0), abs(fields.inner - truth)[:, rows].max(initial=0)]
        # At ky = 0: the equation itself, with the average of the solution.
        whole = comm.gather((state.where[2], state.where[3], fields.inner, fields.density))
        if comm.rank == 0:
            phi, n = np.full((2, *state.global_shape[2:]), np.nan, complex)
            for along, rows, phi_part, n_part in whole:
                phi[along, rows], n[along, rows] = phi_part, n_part
            z = geometry.z
            B = 1 - config.plasma.eps * np.cos(z)
            average = (phi[:, 0] / B[:, None]).sum(0) / (1 / B).sum()
            gamma = i0e(geometry.kx**2 / B[:, None] ** 2)
            left = (1 - gamma + 0.7) * phi[:, 0] - 0.7 * average
            other = geometry.kx != 0
            assert abs(left - n[:, 0])[:, other].max() <= 1e-13 * abs(n[:, 0]).max()
            assert (phi[:, 0, ~other] == 0).all()
            assert abs(average).max() > 1
        return np.max(comm.allgather(errors), axis=0)


@on_ranks(1, 2, exhaustive(4))
def test_nonlinear_term_conserves_entropy(comm):
    """The nonlinear term alone produces no entropy."""
    config = configured(grid=BOX, parallel={"nonlinear": "planes"})
    with Solver(comm, config) as solver:
        set_random(solver)
        diagnostics = Diagnostics(solver)
        nothing = Linear(solver.geometry, solver.decomposition, 0.0, ())
        solver.solve_fields(solver.state.f, nothing)
        solver.nonlinear.advect(nothing.psi)
        change = solver.slope
        solver._advance(range(len(change)), solver.state.f, change, nothing, solver.nonlinear)
        by_ky = diagnostics.entropy_production(change)
        assert abs(by_ky).max() > 0.1
        assert abs(by_ky.sum()) <= 1e-12 * abs(by_ky).sum()


@pytest.mark.exhaustive
@on_ranks(2)
def test_entropy_linear(comm):
    """The balance of a single mode, and the growth rate that follows from it."""
    config = configured("cyclone", grid=SMALL, time={"dt_max": 0.1})
    history = _run(comm, config, 25.0, every=1)
    gamma = cases.balance_rates(config, history)[-1, 1]
    _, fitted, _ = growth(history["time"], history["phi_middle"], 20.0)
    assert fitted[1] > 0.1
    assert abs(gamma / fitted[1] - 1) <= 0.02, (gamma, fitted[1])
    late = history["time"] > 20
    late = {name: values[late] for name, values in history.items()}
    assert cases.imbalance(config, late).max() <= 0.01


@pytest.mark.exhaustive
@on_ranks(2)
def test_entropy_nonlinear(comm):
    """The balance of a short nonlinear run, step by step."""
    config = configured(grid=BOX, start={"amplitude": 20.0}, time={"dt_max": 0.01})
    history = _run(comm, config, 0.4, every=1)
    assert history["phi2"][-1, 0] > 0
    assert cases.imbalance(config, history).max() <= 0.01, cases.imbalance(config, history)


def _run(comm, config, end, every):
    history = {}
    with Solver(comm, config) as solver:
        diagnostics = Diagnostics(solver)
        while solver.state.time < end:
            if solver.state.step % every == 0:
                sample(diagnostics, history)
            solver.step()
    return {name: np.array(values) for name, values in history.items()}


def sample(diagnostics, history):
    for name, value in diagnostics.sample().items():
        history.setdefault(name, []).append(value)


@pytest.mark.exhaustive
@on_ranks(2)
def test_memory(comm):
    """A bracket's run keeps at most 8 copies of the state."""
    config = configured(grid={"nx": 15, "ny": 7, "nz": 16, "nv": 32, "nmu": 7})
    with Solver(comm, config) as solver:
        solver.step()
        assert 3 < solver.copies <= 8, solver.copies
