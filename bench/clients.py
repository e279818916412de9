"""What clients of this library gain: those of fluidfft and mpi4py-fft, and Dedalus, on ours and on their own.

    python bench/clients.py [--ranks 2] [--link 2gbit] [--rounds 9] [--clients NAME ...] [--quick] [--out FILE.md]

Those that are installed are measured: all of fluidfft's FFT classes, fluidsim's solver ns3d, FFT operators of
pylops-mpi, a problem of pySDC, and steps of Dedalus. All columns of a row are measured in one job, on the same fields.
Rounds alternate, after those in which our plans choose their settings; medians of them are printed, and ratios to ours.
"""

import argparse
import contextlib
import io
import logging
import sys
import time
from functools import partial
from importlib.util import find_spec
from statistics import median

from overlap import files
from overlap.tools import launch
from overlap.tools.bench import report
from overlap.tools.bench.table import markdown

FIELDS = ((64, 64, 64), (128, 128, 128), (1024, 1024), (2048, 2048))
SOLVERS = (64, 128)
CONVECTION, BOX = ((128, 64), (512, 128)), (32, 64)  # Dedalus'
SETTLING = 120, 20  # first rounds of transforms and of steps, in which our plans compare settings
OURS, THEIRS = "overlap", "mpi4py-fft"
CLIENTS = ("fluidfft", "fluidsim", "pylops_mpi", "pySDC", "dedalus")


def alternating(comm, runs, rounds, settling):
    """Median times of functions that take turns, of the slowest rank."""
    from mpi4py import MPI

    seconds = {name: [] for name in runs}
    for _ in range(settling + rounds):
        for name, run in runs.items():
            comm.Barrier()
            started = time.perf_counter()
            run()
            seconds[name].append(comm.allreduce(time.perf_counter() - started, MPI.MAX))
    return {name: median(values[settling:]) for name, values in seconds.items()}


def classes(dimensions, ranks):
    """Names of fluidfft's classes for so many ranks; ours is the first."""
    from fluidfft import get_methods

    ours = f"fft{dimensions}d.mpi_with_overlap"
    kinds = (f"fft{dimensions}d.mpi_",) if ranks > 1 else (f"fft{dimensions}d.mpi_", f"fft{dimensions}d.with_pyfftw")
    return {OURS: ours} | {name: name for name in sorted(get_methods()) if name.startswith(kinds) and name != ours}


def transforms(comm, shape):
    """Functions that transform a field forward and backward, after a look at what comes back."""
    import numpy as np
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
    import numpy as np
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


def on_both(package, make):
    """Make functions of a package that imports mpi4py-fft: on ours and on theirs, with the same results."""
    import numpy as np

    from overlap.compat.mpi4py_fft import stand_in

    made = {}
    for column in (THEIRS, OURS):
        for name in [one for one in sys.modules if one.partition(".")[0] in ("mpi4py_fft", package)]:
            del sys.modules[name]
        if column == OURS:
            stand_in()
        made[column] = make()
    ours, theirs = (np.asarray(made[column]()) for column in (OURS, THEIRS))
    assert np.abs(ours - theirs).max() <= 1e-12 * np.abs(theirs).max()
    return {column: made[column] for column in (OURS, THEIRS)}


def operators(comm, shape):
    """Functions that apply an FFT operator of pylops-mpi and its adjoint to a complex field."""

    def made():
        import numpy as np
        from pylops_mpi import DistributedArray
        from pylops_mpi.signalprocessing import MPIFFT2D, MPIFFTND

        kind = MPIFFT2D if len(shape) == 2 else MPIFFTND
        operator = kind(dims=shape, axes=tuple(range(len(shape))), base_comm=comm)
        field = DistributedArray(global_shape=operator.shape[1], dtype=complex, base_comm=comm)
        field[:] = np.random.default_rng(comm.rank).random(field.local_shape)
        return lambda: (operator.H @ (operator @ field)).local_array

    return on_both("pylops_mpi", made)


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

    return on_both("pySDC", made)


def convection(d3, np, points):
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


def box(d3, np, points):
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
    import numpy as np

    from overlap.compat import dedalus as ours

    logging.disable(logging.INFO)
    made = {}
    for name, start in ((OURS, ours.use), ("Dedalus", ours.leave)):
        start()
        made[name] = make(d3, np, points)

    def compare():
        for found, expected in zip(*(fields for _, fields in made.values())):
            assert np.abs(found["c"] - expected["c"]).max(initial=0.0) < 1e-12

    return {name: partial(solver.step, 1e-4) for name, (solver, _) in made.items()}, compare


def measure(rounds, quick, clients):
    """Time everything on this rank."""
    import mpi4py

    mpi4py.rc.thread_level = "serialized"
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    of_transforms, of_steps = (2, 2) if quick else SETTLING
    of_fields = {
        "fluidfft": ("fft and ifft, {}", transforms, FIELDS),
        "pylops_mpi": ("FFT operator of pylops-mpi and its adjoint, {}", operators, FIELDS[:3]),
        "pySDC": ("step of pySDC's Schroedinger problem, {}", problems, FIELDS[:3]),
    }
    for client in clients:
        for shape in of_fields[client][2] if client in of_fields else ():
            shape = tuple(length // 8 for length in shape) if quick else shape
            what, runs, _ = of_fields[client]
            found = alternating(comm, runs(comm, shape), rounds, of_transforms)
            if comm.rank == 0:
                launch.tell({what.format(" x ".join(map(str, shape))): found})
    flows = [(convection, points) for points in CONVECTION] + [(box, points) for points in BOX]
    for make, points in flows[:: 2 if quick else 1] if "dedalus" in clients else ():
        runs, compare = of_dedalus(comm, make, points)
        found = alternating(comm, runs, rounds, of_steps)
        compare()
        if comm.rank == 0:
            flow = f"box, {points}^3" if make is box else f"Rayleigh-Benard, {points[0]} x {points[1]}"
            launch.tell({f"step of Dedalus, {flow}": found})
    for points in SOLVERS if "fluidsim" in clients else ():
        runs, compare = steps(comm, points // 4 if quick else points)
        found = alternating(comm, runs, rounds, of_steps)
        compare()
        if comm.rank == 0:
            launch.tell({f"step of ns3d, {points // 4 if quick else points}^3": found})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--link", metavar="RATE", help="of shaped links between the ranks; default: shared memory")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--clients", nargs="+", choices=CLIENTS, default=[name for name in CLIENTS if find_spec(name)], metavar="NAME"
    )
    parser.add_argument("--quick", action="store_true", help="small: only to see it work")
    parser.add_argument("--out", metavar="FILE.md", help="default: print it")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        measure(options.rounds, options.quick, options.clients)
        return
    found = {}
    command = [sys.executable, __file__, "--rank", "--rounds", str(options.rounds), "--clients", *options.clients]
    command += ["--quick"] * options.quick
    job = {"ranks": options.ranks, "link": options.link, "deadline_s": 900}
    if launch.run_ranks(command, **job, on_line=launch.listening(found.update)):
        raise SystemExit("the ranks failed")
    columns = list(dict.fromkeys(name for times in found.values() for name in times))
    rows = [
        (
            what,
            *(
                ""
                if name not in times
                else f"{1e3 * times[name]:.1f} ms"
                if name == OURS
                else f"{1e3 * times[name]:.1f} ms: {times[name] / times[OURS]:.2f}x"
                for name in columns
            ),
        )
        for what, times in found.items()
    ]
    where = (
        f"{options.ranks} rank(s), {options.link or 'no'} links, {report.machine()['cpu']}, commit {report.commit()}"
    )
    text = f"{where}; medians of {options.rounds} alternating rounds\n\n{markdown(('', *columns), rows)}\n"
    if options.out:
        files.write(options.out, text)
    print(text)


if __name__ == "__main__":
    main()
