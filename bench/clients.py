"""What clients of this library gain: those of fluidfft and mpi4py-fft, and Dedalus, on ours and on their own.

    python bench/clients.py [--ranks 2] [--link 2gbit] [--rounds 9] [--clients NAME ...] [--quick] [--out FILE.md]

Those that are installed are measured: all of fluidfft's FFT classes, fluidsim's solver ns3d, FFT operators of
pylops-mpi, a problem of pySDC, and steps of Dedalus. All columns of a row are measured in one job, on the same fields.
Rounds alternate, after those in which our plans choose their settings; medians of them are printed, and ratios to ours.
"""

import contextlib
import io
import logging
import sys
from functools import partial
from importlib.util import find_spec

import numpy as np

from overlap.tools.bench import report
from overlap.tools.bench.pages import Page
from overlap.tools.bench.rounds import alike, medians, seconds_of
from overlap.tools.bench.table import markdown

FIELDS = ((64, 64, 64), (128, 128, 128), (1024, 1024), (2048, 2048))
SOLVERS = (64, 128)
CONVECTION, BOX = ((128, 64), (512, 128)), (32, 64)  # Dedalus'
SETTLING = 120, 20  # first rounds of transforms and of steps, in which our plans compare settings
OURS, THEIRS = "overlap", "mpi4py-fft"
CLIENTS = ("fluidfft", "fluidsim", "pylops_mpi", "pySDC", "dedalus")


def classes(dimensions, ranks):
    """Names of fluidfft's classes for so many ranks; ours is the first."""
    from fluidfft import get_methods

    ours = f"fft{dimensions}d.mpi_with_overlap"
    kinds = (f"fft{dimensions}d.mpi_",) if ranks > 1 else (f"fft{dimensions}d.mpi_", f"fft{dimensions}d.with_pyfftw")
    return {OURS: ours} | {name: name for name in sorted(get_methods()) if name.startswith(kinds) and name != ours}


def transforms(comm, shape):
    """Functions that transform a field forward and backward, after a look at what comes back."""
    from fluidfft import create_fft_object

    def made(name):
        plan = create_fft_object(name, *shape)
        field, spectrum = plan.create_arrayX(), plan.create_arrayK()
        field[...] = np.random.default_rng(comm.rank).random(field.shape)
        before = field.copy()

        def run():
            plan.fft_as_arg(field, spectrum)
            plan.ifft_as_arg(spectrum, field)

        run()
        assert np.abs(field - before).max() < 1e-13
        return run

    return {column: made(name) for column, name in classes(len(shape), comm.size).items()}


def steps(comm, points):
    """Functions that make a step of the same flow, and one that compares the energies."""
    from fluidsim.solvers.ns3d.solver import Simul as TheirSimul

    from overlap.compat.fluidsim import Simul

    def made(kind, type_fft):
        params = kind.create_default_params()
        params.oper.nx = params.oper.ny = params.oper.nz = points
        params.oper.type_fft, params.init_fields.type, params.output.HAS_TO_SAVE = type_fft, "in_script", False
        params.nu_2, params.time_stepping.deltat0 = 1e-3, 1e-3
        params.output.periods_print.print_stdout = 0
        with contextlib.redirect_stdout(io.StringIO()):
            sim = kind(params)
            x, y, z = sim.oper.get_XYZ_loc()
            sim.state.init_statephys_from(
                vx=np.sin(x) * np.cos(y) * np.cos(z), vy=-np.cos(x) * np.sin(y) * np.cos(z), vz=0 * x
            )
            sim.state.statespect_from_statephys()
            sim.time_stepping.prepare_main_loop()
        return sim

    sims = {OURS: made(Simul, "default")}
    for column, name in classes(3, comm.size).items():
        sims["overlap, field by field" if column == OURS else column] = made(TheirSimul, name)

    def compare():
        energies = [float(sim.output.compute_energy()) for sim in sims.values()]
        assert np.ptp(energies) <= 1e-12 * energies[0], energies

    return {column: sim.time_stepping.one_time_step for column, sim in sims.items()}, compare


def on_both(comm, package, make):
    """Make functions of a package that imports mpi4py-fft: on ours and on theirs, with the same results."""

    from overlap.compat.mpi4py_fft import stand_in

    made = {}
    for column in (THEIRS, OURS):
        for name in [one for one in sys.modules if one.partition(".")[0] in ("mpi4py_fft", package)]:
            del sys.modules[name]
        if column == OURS:
            stand_in()
        made[column] = make()
    alike(comm, {column: made[column]() for column in (THEIRS, OURS)}, 1e-12)
    return {column: made[column] for column in (OURS, THEIRS)}


def operators(comm, shape):
    """Functions that apply an FFT operator of pylops-mpi and its adjoint to a complex field."""

    def made():
        from pylops_mpi import DistributedArray
        from pylops_mpi.signalprocessing import MPIFFT2D, MPIFFTND

        kind = MPIFFT2D if len(shape) == 2 else MPIFFTND
        operator = kind(dims=shape, axes=tuple(range(len(shape))), base_comm=comm)
        field = DistributedArray(global_shape=operator.shape[1], dtype=complex, base_comm=comm)
        field[:] = np.random.default_rng(comm.rank).random(field.local_shape)
        return lambda: (operator.H @ (operator @ field)).local_array

    return on_both(comm, "pylops_mpi", made)


def problems(comm, shape):
    """Functions that make a step, of implicit and explicit Euler, of pySDC's nonlinear Schroedinger problem."""

    def made():
        from pySDC.implementations.problem_classes.NonlinearSchroedinger_MPIFFT import nonlinearschroedinger_imex

        problem = nonlinearschroedinger_imex(nvars=shape, comm=comm)
        field, step_s = problem.u_exact(0.0), 1e-3

        def step():
            explicit = problem.eval_f(field, 0.0).expl
            return problem.solve_system(field + step_s * explicit, step_s, field, 0.0)

        return step

    return on_both(comm, "pySDC", made)


def convection(d3, points):
    """Dedalus' solver of Rayleigh-Benard convection in two dimensions, and its fields."""
    coords = d3.CartesianCoordinates("x", "z")
    dist = d3.Distributor(coords, dtype=np.float64)
    xbasis = d3.RealFourier(coords["x"], size=points[0], bounds=(0, 4), dealias=1.5)
    zbasis = d3.ChebyshevT(coords["z"], size=points[1], bounds=(0, 1), dealias=1.5)
    p, b = (dist.Field(bases=(xbasis, zbasis)) for _ in range(2))
    u = dist.VectorField(coords, bases=(xbasis, zbasis))
    tau_p, tau_b1, tau_b2 = dist.Field(), dist.Field(bases=xbasis), dist.Field(bases=xbasis)
    tau_u1, tau_u2 = (dist.VectorField(coords, bases=xbasis) for _ in range(2))
    (x, z), (_, ez) = dist.local_grids(xbasis, zbasis), coords.unit_vector_fields(dist)

    def lift(tau):
        return d3.Lift(tau, zbasis.derivative_basis(1), -1)

    grad_u, grad_b = d3.grad(u) + ez * lift(tau_u1), d3.grad(b) + ez * lift(tau_b1)
    problem = d3.IVP([p, b, u, tau_p, tau_b1, tau_b2, tau_u1, tau_u2], namespace=locals())
    problem.add_equation("trace(grad_u) + tau_p = 0")
    problem.add_equation("dt(b) - 1e-3*div(grad_b) + lift(tau_b2) = - u@grad(b)")
    problem.add_equation("dt(u) - 1e-3*div(grad_u) + grad(p) - b*ez + lift(tau_u2) = - u@grad(u)")
    for condition in ("b(z=0) = 1", "u(z=0) = 0", "b(z=1) = 0", "u(z=1) = 0", "integ(p) = 0"):
        problem.add_equation(condition)
    b["g"] = 1 - z + 0.3 * np.sin(np.pi * z) * np.cos(np.pi * x)
    return problem.build_solver(d3.RK222), (u, b)


def box(d3, points):
    """Dedalus' solver of a flow in a periodic box, and its field."""
    coords = d3.CartesianCoordinates("x", "y", "z")
    dist = d3.Distributor(coords, dtype=np.float64)
    bases = [d3.RealFourier(coords[name], size=points, bounds=(0, 2 * np.pi), dealias=1.5) for name in "xyz"]
    p, tau_p = dist.Field(bases=bases), dist.Field()
    u = dist.VectorField(coords, bases=bases)
    x, y, z = dist.local_grids(*bases)
    problem = d3.IVP([u, p, tau_p], namespace=locals())
    problem.add_equation("dt(u) + grad(p) - 0.01*lap(u) = - u@grad(u)")
    problem.add_equation("div(u) + tau_p = 0")
    problem.add_equation("integ(p) = 0")
    u["g"][0], u["g"][1] = np.sin(x) * np.cos(y) * np.cos(z), -np.cos(x) * np.sin(y) * np.cos(z)
    return problem.build_solver(d3.RK222), (u,)


def of_dedalus(comm, make, points):
    """Functions that make a step of the same flow, and one that compares the fields."""
    import dedalus.public as d3

    from overlap.compat import dedalus as ours

    logging.disable(logging.INFO)
    made = {}
    for name, start in ((OURS, ours.use), ("Dedalus", ours.leave)):
        start()
        made[name] = make(d3, points)

    def compare():
        for found, expected in zip(*(fields for _, fields in made.values())):
            assert np.abs(found["c"] - expected["c"]).max(initial=0.0) < 1e-12

    return {name: partial(solver.step, 1e-4) for name, (solver, _) in made.items()}, compare


def measure(comm, given):
    """The records of everything that is asked for."""

    def record(case, runs, settling, compare=lambda: None):
        found = medians(seconds_of(comm, runs, given.rounds, warm=settling))
        compare()
        return {"case": case, "seconds": found}

    of_transforms, of_steps = (2, 2) if given.quick else SETTLING
    shorter = 8 if given.quick else 1
    of_fields = {
        "fluidfft": ("fft and ifft, {}", transforms, FIELDS),
        "pylops_mpi": ("FFT operator of pylops-mpi and its adjoint, {}", operators, FIELDS[:3]),
        "pySDC": ("step of pySDC's Schroedinger problem, {}", problems, FIELDS[:3]),
    }
    for client in given.clients:
        what, make, shapes = of_fields.get(client, ("", None, ()))
        for shape in shapes:
            shape = tuple(length // shorter for length in shape)
            yield record(what.format(" x ".join(map(str, shape))), make(comm, shape), of_transforms)
    flows = [(convection, points) for points in CONVECTION] + [(box, points) for points in BOX]
    for make, points in flows[:: 2 if given.quick else 1] if "dedalus" in given.clients else ():
        flow = f"box, {points}^3" if make is box else f"Rayleigh-Benard, {points[0]} x {points[1]}"
        runs, compare = of_dedalus(comm, make, points)
        yield record(f"step of Dedalus, {flow}", runs, of_steps, compare)
    for points in SOLVERS if "fluidsim" in given.clients else ():
        points //= 4 if given.quick else 1
        runs, compare = steps(comm, points)
        yield record(f"step of ns3d, {points}^3", runs, of_steps, compare)


def text(records, given):
    """The table."""

    def cell(times, name):
        if name not in times:
            return ""
        return f"{1e3 * times[name]:.1f} ms" + ("" if name == OURS else f": {times[name] / times[OURS]:.2f}x")

    columns = list(dict.fromkeys(name for record in records for name in record["seconds"]))
    rows = [(record["case"], *(cell(record["seconds"], name) for name in columns)) for record in records]
    link = records[0]["link"]
    where = f"{given.ranks} rank(s), {'no' if link == 'shm' else link} links, {report.machine()['cpu']}, commit"
    rounds = f"{report.commit()}; medians of {given.rounds} alternating rounds"
    return f"{where} {rounds}\n\n{markdown(('', *columns), rows)}"


PAGE = Page(__doc__, measure, text=text, rounds=9, quick={})
INSTALLED = [name for name in CLIENTS if find_spec(name)]
PAGE.add("--clients", nargs="+", choices=CLIENTS, default=INSTALLED, metavar="NAME")

if __name__ == "__main__":
    sys.exit(PAGE.run())
