"""What clients of this library gain: those of fluidfft and of mpi4py-fft, on ours and on their own.

    python bench/clients.py [--ranks 2] [--rounds 9] [--clients NAME ...] [--quick] [--out FILE.md]

Those that are installed are measured: all of fluidfft's FFT classes, fluidsim's solver ns3d, FFT operators of
pylops-mpi, and a problem of pySDC. All columns of a row are measured in one job, on the same fields. Rounds alternate,
after those in which our plans choose their settings; medians of them are printed, and ratios to ours.
"""

import argparse
import contextlib
import io
import sys
import time
from importlib.util import find_spec
from statistics import median

from overlap import files
from overlap.tools import launch
from overlap.tools.bench import report
from overlap.tools.bench.table import markdown

FIELDS = ((64, 64, 64), (128, 128, 128), (1024, 1024), (2048, 2048))
SOLVERS = (64, 128)
SETTLING = 20  # first rounds, in which our plans compare settings
OURS, THEIRS = "overlap", "mpi4py-fft"
CLIENTS = ("fluidfft", "fluidsim", "pylops_mpi", "pySDC")


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


def measure(rounds, quick, clients):
    """Time everything on this rank."""
    import mpi4py

    mpi4py.rc.thread_level = "serialized"
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    settling = 2 if quick else SETTLING
    of_fields = {
        "fluidfft": ("fft and ifft, {}", transforms, FIELDS),
        "pylops_mpi": ("FFT operator of pylops-mpi and its adjoint, {}", operators, FIELDS[:3]),
        "pySDC": ("step of pySDC's Schroedinger problem, {}", problems, FIELDS[:3]),
    }
    for client in clients:
        for shape in of_fields[client][2] if client in of_fields else ():
            shape = tuple(length // 8 for length in shape) if quick else shape
            what, runs, _ = of_fields[client]
            found = alternating(comm, runs(comm, shape), rounds, settling)
            if comm.rank == 0:
                launch.tell({what.format(" x ".join(map(str, shape))): found})
    for points in SOLVERS if "fluidsim" in clients else ():
        runs, compare = steps(comm, points // 4 if quick else points)
        found = alternating(comm, runs, rounds, settling)
        compare()
        if comm.rank == 0:
            launch.tell({f"step of ns3d, {points // 4 if quick else points}^3": found})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
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
    if launch.run_ranks(command, ranks=options.ranks, deadline_s=900, on_line=launch.listening(found.update)):
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
    where = f"{options.ranks} rank(s), {report.machine()['cpu']}, commit {report.commit()}"
    text = f"{where}; medians of {options.rounds} alternating rounds\n\n{markdown(('', *columns), rows)}\n"
    if options.out:
        files.write(options.out, text)
    print(text)


if __name__ == "__main__":
    main()
