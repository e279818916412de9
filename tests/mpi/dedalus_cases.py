"""Dedalus on pipelines: its fields against formulas and against Dedalus alone, and steps of solvers against its own."""

import itertools
import logging
import warnings

import numpy as np

warnings.simplefilter("ignore")  # Dedalus'
import dedalus.public as d3

from overlap.compat import dedalus as ours
from overlap.compat.dedalus.hooks import Climb, climbs_of

logging.disable(logging.INFO)
SIZES = (12, 8, 10)
DEALIAS = (1, 1.5, 0.5)


def _bases(coords, dtype, dealias, last):
    """Fourier bases, of odd numbers of modes too, and one of some kind along the last axis."""
    names = coords.names
    bases = []
    for axis, name in enumerate(names):
        size, where = SIZES[axis], {"bounds": (0, 1 + axis), "dealias": dealias}
        if axis == len(names) - 1 and last != "fourier":
            basis = getattr(d3, "Legendre" if last == "legendre" else "ChebyshevT")(coords[name], size=size, **where)
            bases.append(basis.derivative_basis(2) if last == "ultraspherical" else basis)
        elif dtype == np.float64:
            bases.append(d3.RealFourier(coords[name], size=size, **where))
        else:
            bases.append(d3.ComplexFourier(coords[name], size=size + (axis == 0), **where))
    return bases


def _both(make):
    """What a function returns on pipelines, and by Dedalus alone."""
    found = []
    for start in (ours.use, ours.leave):
        start()
        found.append(make())
    ours.use()
    return zip(*found)


def _compare(pairs, tolerance=1e-12):
    for found, expected in pairs:
        scale = max(1.0, np.abs(expected).max(initial=0.0))
        np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * scale)


def _there_and_back(fields):
    """Coefficients of random fields, their values on the finer grid, and what comes back from there."""
    found = []
    for seed, field in enumerate(fields):
        field.fill_random("g", seed=seed)
        found.append(field["c"].copy())
        field.change_scales(field.domain.dealias)
        found.append(field["g"].copy())
        field.change_scales(1)
        found.append(field["c"].copy())
    return found


def same_fields(comm, meshes=(None,)):
    """Vectors, scalars and fields that are constant along some axes are what they are in Dedalus."""
    lasts = "fourier", "chebyshev", "ultraspherical", "legendre"
    for dimensions, dtype, dealias, last, mesh in itertools.product(
        (2, 3), (np.float64, np.complex128), DEALIAS, lasts, meshes
    ):
        if mesh is not None and dimensions == 2:
            continue

        def made():
            coords = d3.CartesianCoordinates(*"xyz"[:dimensions])
            dist = d3.Distributor(coords, dtype=dtype, mesh=mesh)
            bases = _bases(coords, dtype, dealias, last)
            parts = bases, bases[0], bases[-1], bases[:1] + bases[-1:], ()
            return _there_and_back([dist.VectorField(coords, bases=bases), *(dist.Field(bases=part) for part in parts)])

        _compare(_both(made))


def values_by_formula(comm):
    """Values on the grid are those of the series, as NumPy sums them."""
    coords = d3.CartesianCoordinates("x", "y", "z")
    dist = d3.Distributor(coords, dtype=np.float64)
    bases = _bases(coords, np.float64, 1.5, "chebyshev")
    field = dist.Field(bases=bases)
    modes = np.random.default_rng(1).standard_normal(SIZES)
    modes[1] = modes[:, 1] = 0  # there is no sine of wavenumber 0
    field["c"] = modes[field.layout.slices(field.domain, 1)]
    field.change_scales(1.5)
    values = field["g"]
    nx, ny, nz = (int(1.5 * size) for size in SIZES)
    waves = []
    for size, points in zip(SIZES[:2], (nx, ny)):
        phase = 2 * np.pi / points * np.outer(np.arange(points), np.arange(size // 2))
        waves.append(np.stack([np.cos(phase), -np.sin(phase)], axis=-1).reshape(points, size))
    angle = np.pi * (np.arange(nz)[::-1] + 0.5) / nz
    polynomials = np.cos(np.outer(angle, np.arange(SIZES[2]))) * np.sqrt(2 / np.pi)
    polynomials[:, 0] = 1 / np.sqrt(np.pi)
    expected = np.einsum("ai,bj,ck,ijk->abc", *waves, polynomials, modes)
    _compare([(values, expected[field.layout.slices(field.domain, (1.5,) * 3)])])
    _compare([(field["c"], modes[field.layout.slices(field.domain, (1.5,) * 3)])])


def curvilinear_fields(comm):
    """Fields whose bases only Dedalus transforms come through pipelines unchanged."""

    def made():
        found = []
        disk = d3.PolarCoordinates("phi", "r")
        basis = d3.DiskBasis(disk, shape=(12, 8), radius=1, dtype=np.float64, dealias=1.5)
        dist = d3.Distributor(disk, dtype=np.float64)
        found += _there_and_back([dist.VectorField(disk, bases=basis), dist.Field(bases=basis)])
        ball = d3.SphericalCoordinates("phi", "theta", "r")
        basis = d3.BallBasis(ball, shape=(8, 6, 5), radius=1, dtype=np.float64, dealias=1.5)
        dist = d3.Distributor(ball, dtype=np.float64)
        return found + _there_and_back([dist.VectorField(ball, bases=basis), dist.Field(bases=basis)])

    _compare(_both(made))


def _convection(points):
    """Rayleigh-Benard convection, from a flow that is not small."""
    coords = d3.CartesianCoordinates("x", "z")
    dist = d3.Distributor(coords, dtype=np.float64)
    xbasis = d3.RealFourier(coords["x"], size=points[0], bounds=(0, 4), dealias=1.5)
    zbasis = d3.ChebyshevT(coords["z"], size=points[1], bounds=(0, 1), dealias=1.5)
    p, b = (dist.Field(name=name, bases=(xbasis, zbasis)) for name in "pb")
    u = dist.VectorField(coords, name="u", bases=(xbasis, zbasis))
    tau_p, tau_b1, tau_b2 = dist.Field(name="tau_p"), dist.Field(bases=xbasis), dist.Field(bases=xbasis)
    tau_u1, tau_u2 = (dist.VectorField(coords, bases=xbasis) for _ in range(2))
    (x, z), (_, ez) = dist.local_grids(xbasis, zbasis), coords.unit_vector_fields(dist)

    def lift(tau):
        return d3.Lift(tau, zbasis.derivative_basis(1), -1)

    grad_u, grad_b = d3.grad(u) + ez * lift(tau_u1), d3.grad(b) + ez * lift(tau_b1)
    problem = d3.IVP([p, b, u, tau_p, tau_b1, tau_b2, tau_u1, tau_u2], namespace=locals())
    for equation in (
        "trace(grad_u) + tau_p = 0",
        "dt(b) - 1e-3*div(grad_b) + lift(tau_b2) = - u@grad(b)",
        "dt(u) - 1e-3*div(grad_u) + grad(p) - b*ez + lift(tau_u2) = - u@grad(u)",
        "b(z=0) = 1",
        "u(z=0) = 0",
        "b(z=1) = 0",
        "u(z=1) = 0",
        "integ(p) = 0",
    ):
        problem.add_equation(equation)
    b["g"] = 1 - z + 0.3 * np.sin(np.pi * z) * np.cos(np.pi * x)
    u["g"][0] = np.sin(np.pi * z) ** 2 * np.sin(np.pi * x / 2)
    return problem.build_solver(d3.RK222), (u, b)


def _box(points):
    """A flow in a periodic box."""
    coords = d3.CartesianCoordinates("x", "y", "z")
    dist = d3.Distributor(coords, dtype=np.float64)
    bases = [d3.RealFourier(coords[name], size=n, bounds=(0, 2 * np.pi), dealias=1.5) for name, n in zip("xyz", points)]
    p, tau_p = dist.Field(name="p", bases=bases), dist.Field(name="tau_p")
    u = dist.VectorField(coords, name="u", bases=bases)
    x, y, z = dist.local_grids(*bases)
    problem = d3.IVP([u, p, tau_p], namespace=locals())
    problem.add_equation("dt(u) + grad(p) - 0.01*lap(u) = - u@grad(u)")
    problem.add_equation("div(u) + tau_p = 0")
    problem.add_equation("integ(p) = 0")
    u["g"][0], u["g"][1] = np.sin(x) * np.cos(y) * np.cos(z), -np.cos(x) * np.sin(y) * np.cos(z)
    u["g"][2] = 0.3 * np.sin(x + y)
    return problem.build_solver(d3.RK222), (u,)


def same_flows(comm):
    """Steps of solvers, with their output and a time step of the flow's, are those of Dedalus."""
    for make, points in ((_convection, (16, 12)), (_box, (12, 8, 10))):

        def made():
            solver, fields = make(points)
            flow = d3.GlobalFlowProperty(solver, cadence=1)
            flow.add_property(d3.dot(fields[0], fields[0]), name="energy")
            cfl = d3.CFL(solver, initial_dt=0.01, cadence=2, safety=0.4, max_dt=0.02)
            cfl.add_velocity(fields[0])
            found = []
            for _ in range(5):
                solver.step(cfl.compute_timestep())
                found.append(flow.grid_average("energy"))
            return [np.array(found), *(field["c"].copy() for field in fields), *(field["g"].copy() for field in fields)]

        _compare(_both(made))


def one_climb_up_one_down(comm):
    """An evaluation of the right-hand side is one pipeline up, of all fields, and one down."""
    solver, _ = _box((12, 8, 10))
    solver.step(0.01)
    seen, run = [], Climb.run
    Climb.run = lambda climb, buffers: seen.append((climb._up, len(climb._order))) or run(climb, buffers)
    try:
        solver.step(0.01)
    finally:
        Climb.run = run
    assert seen == [(True, 12), (False, 3)] * 2, seen


def after_a_failure(comm):
    """An operator that raises leaves fields where they were, and what comes next works."""
    coords = d3.CartesianCoordinates("x", "y")
    dist = d3.Distributor(coords, dtype=np.float64)
    field = dist.Field(bases=_bases(coords, np.float64, 1, "fourier"))
    field.fill_random("g", seed=3)
    before = field["c"].copy()
    climbs = climbs_of(dist)
    try:
        with climbs.batched():
            field.towards_grid_space()
            raise ValueError
    except ValueError:
        pass
    assert field.layout is dist.coeff_layout
    assert not climbs.pending
    np.testing.assert_array_equal(field["c"], before)
    field["g"]
    _compare([(field["c"], before)])
