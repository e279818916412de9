"""A gyrokinetic flux tube: linear growth, zonal flows, turbulence.

    python examples/gkv/run.py cyclone
    mpiexec -n 2 python examples/gkv/run.py turbulence --config small.toml --out run1
    mpiexec -n 2 python examples/gkv/run.py turbulence --config small.toml --out run1 --restart
    mpiexec --with-ft ulfm -n 4 python examples/gkv/run.py turbulence --survive

cyclone     GKV's linear benchmark: growth rates and frequencies of the Cyclone base case
zonal       residual of a zonal flow, geodesic acoustic mode
turbulence  ion temperature gradient turbulence

The folder of a run holds output.h5 (xarray opens it), figures.json, a picture and the last two
checkpoints. A TOML file replaces keys of the case's configuration, by section:

    [grid]
    nx = 31
    [time]
    end = 60.0
    [parallel]
    ky = 2
    wait = "poll"

With `--survive` the run goes on when ranks are lost: kill any. `--show` prints all sections and keys. Needs the
extra "gkv" (numba, scipy, h5py, rich, matplotlib).
"""

import argparse
import json
import sys
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, sleep

import mpi4py
import numpy as np

mpi4py.rc.thread_level = "serialized"  # enough for overlap; the default, multiple, costs MPICH latency
from mpi4py import MPI

import overlap
from overlap.files import replacing, write

try:
    from fluxtube import cases, checkpoints, files, output
    from fluxtube.config import CASES, ConfigError, read
    from fluxtube.diagnostics import Diagnostics, growth
    from fluxtube.solver import Solver
    from fluxtube.survival import Copies, shortened
except ModuleNotFoundError as missing:
    if MPI.COMM_WORLD.rank == 0:
        sys.exit(f"run.py: expected {missing.name} to be installed: pip install 'overlap-mpi[gkv]'")
    sleep(1.0)  # an exit status ends the job: rank 0 speaks for all, because the package is missing on all ranks
    sys.exit(1)

SAVED_EVERY = 10  # steps between saves, with --survive


class Divergence(RuntimeError):
    """Raised if the state is no longer finite."""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--config", metavar="FILE.toml")
    parser.add_argument("--out", metavar="DIR", help="default: gkv-CASE")
    parser.add_argument("--restart", action="store_true", help="go on from the newest checkpoint in the folder")
    parser.add_argument("--survive", action="store_true", help="go on when ranks are lost (mpiexec --with-ft ulfm)")
    parser.add_argument("--show", action="store_true", help="print the configuration and end")
    options = parser.parse_args()
    comm = MPI.COMM_WORLD
    try:
        config = configured(comm, options)
        if options.show:
            if comm.rank == 0:
                print(toml(config))
            return
        run(comm, options.case, config, Path(options.out or f"gkv-{options.case}"), options.restart, options.survive)
    except (ConfigError, files.FileError, Divergence, overlap.InputError) as error:
        # Raised on all ranks.
        if comm.rank == 0:
            print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        comm.Barrier()
        sys.exit(2)


def configured(comm, options):
    """Return the configuration of the case with the values of the file, which rank 0 reads (collective)."""
    config = CASES[options.case]
    if options.config and comm.rank == 0:
        try:
            config = read(options.config, config)
        except ConfigError as error:
            config = error
    config = comm.bcast(config)
    if isinstance(config, ConfigError):
        raise config
    return config


def run(comm, case, config, folder, restart=False, survive=False):
    """Run a case from its start, or from a checkpoint, to its end (collective)."""
    files.make_folder(comm, folder)
    runtime = overlap.Runtime(comm, workers=config.parallel.workers, on_loss="raise") if survive else comm
    solver, copies = Solver(runtime, config), None
    try:
        while True:
            try:
                with solver.runtime.detecting_losses("the flux tube"):
                    if copies is None:
                        history = begin(case, solver, folder, restart)
                        first, started_s = solver.state.step, perf_counter()
                        copies = Copies(solver) if survive else None
                    advance(case, solver, history, folder, copies)
                    steps = solver.state.step - first
                    if steps:
                        checkpoints.write(folder, solver, history)
                    output.write(folder / "output.h5", solver, history)
                    with files.together(solver.comm, f"expected to write figures to {folder}"):
                        if solver.comm.rank == 0:
                            finish(case, config, solver, history, folder, steps, perf_counter() - started_s)
                return
            except overlap.RankLost as loss:
                if copies is None:  # a run that had not begun has saved nothing
                    raise
                solver.close()
                solver, copies = copies.restored(loss, config)
                history = shortened(history, solver.state.time)
                if solver.comm.rank == 0:
                    print(f"{loss}; going on from step {solver.state.step} on {solver.comm.size} rank(s)")
    finally:
        solver.close()


def begin(case, solver, folder, restart):
    """Print a description of the run; return the samples so far, from a checkpoint or of the start (collective)."""
    comm, config, state = solver.comm, solver.config, solver.state
    say = print if comm.rank == 0 else _nothing
    history, remarks = checkpoints.read(folder, solver) if restart else ({}, [])
    for remark in remarks:
        say(f"passed over {remark}")
    ranks = ", ".join(f"{count} along {axis}" for axis, count in solver.decomposition.ranks.items() if count > 1)
    say(
        f"{case}: {' x '.join(map(str, state.global_shape))} points (v, mu, z, ky, kx), "
        f"{comm.size} rank(s){': ' + ranks if ranks else ''}, "
        f"{config.parallel.workers} worker(s) each; memory of {solver.copies:.1f} copies of the "
        f"state; from t = {state.time:g} to {config.time.end:g}"
    )
    if not restart:
        sample(Diagnostics(solver), state, history)
    return comm.bcast(history)  # any rank that is left may have to write the history


def advance(case, solver, history, folder, copies):
    """Advance the state to the end, with samples and checkpoints (collective)."""
    comm, config, state, diagnostics = solver.comm, solver.config, solver.state, Diagnostics(solver)
    with progress(comm, case, config.time.end, state.time) as show:
        while state.time < config.time.end - 1e-9:
            solver.step(config.time.end - state.time)
            if state.step % config.time.sample_every == 0:
                sample(diagnostics, state, history)
            if state.step % config.time.checkpoint_every == 0:
                checkpoints.write(folder, solver, history)
            if copies is not None and state.step % SAVED_EVERY == 0:
                copies.save(state)
            show(state, solver.dt, _latest(case, config, history) if comm.rank == 0 else "")
    if history["time"][-1] != state.time:
        sample(diagnostics, state, history)


def sample(diagnostics, state, history):
    """Append the figures of the state (collective).

    Raises
    ------
    Divergence
        On all ranks.
    """
    for name, value in diagnostics.sample().items():
        history.setdefault(name, []).append(value)
    if not np.isfinite(history["S"][-1]).all():
        raise Divergence(
            f"expected a finite state at step {state.step}, t = {state.time:g}, "
            "received infinities: a smaller time.courant may help"
        )


def finish(case, config, solver, history, folder, steps, wall_s):
    """Print and write the figures, draw the picture (on rank 0)."""
    found = cases.figures(case, config, history)
    points = int(np.prod(solver.state.global_shape))
    cost = {
        "steps": steps,
        "wall_s": wall_s,
        "ranks": solver.comm.size,
        "ranks_along": solver.decomposition.ranks,
        "copies_of_state": solver.copies,
    }
    if steps:
        cost["core_ns"] = 1e9 * wall_s * solver.comm.size * config.parallel.workers / (4 * steps * points)
    print_table(case, found)
    if steps:
        print(
            f"{steps} steps in {wall_s:.1f} s: {cost['core_ns']:.1f} core-ns per point and "
            "right-hand side, diagnostics and files among them"
        )
    write(
        folder / "figures.json",
        json.dumps(
            {"case": case, "config": config.as_dict(), "time": solver.state.time, "cost": cost, "figures": found},
            indent=1,
        )
        + "\n",
    )
    written = ["output.h5", "figures.json"]
    try:
        from fluxtube.pictures import draw
    except ImportError as error:
        print(f"no picture: {error}")
    else:
        import h5py

        with h5py.File(folder / "output.h5") as file:
            phi = file["phi"][config.grid.nz // 2]
        with replacing(folder / f"{case}.png") as partial:
            draw(case, config, history, found, phi, partial)
        written.append(f"{case}.png")
    print(f"written: {', '.join(str(folder / name) for name in written)}")


def print_table(case, found):
    """Print the figures beside the published ones."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=case)
    for name in ("figure", "here", "published", "difference", "asked for"):
        table.add_column(name, justify="left" if name == "figure" else "right")
    for one in found:
        spread = f" +- {one['spread']:.2g}" if "spread" in one else ""
        known = "published" in one
        theirs = f"{one['published']:.4g}" if known else ""
        if "published_range" in one:
            theirs = "{} to {}".format(*one["published_range"])
        table.add_row(
            one["name"] + ("" if one.get("converged", True) else " (still changing)"),
            f"{one['measured']:.4g}{spread}",
            theirs,
            f"{100 * one['difference']:+.1f} %" if known else "",
            f"{100 * one['within']:.0f} %: {'met' if one['ok'] else 'MISSED'}" if "within" in one else "",
        )
    console = Console()
    (console if console.is_terminal else Console(width=100)).print(table)


@contextmanager
def progress(comm, case, end, begun):
    """Yield a function that shows the progress: a bar on the terminal of rank 0."""
    if comm.rank:
        yield _nothing
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    with Progress(
        TextColumn(case),
        BarColumn(),
        TextColumn("{task.fields[words]}"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task("", total=end, completed=begun, words="")

        def show(state, dt, latest):
            bar.update(
                task, completed=state.time, words=f"t = {state.time:.2f}, step {state.step}, dt = {dt:.4f}{latest}"
            )

        yield show


def _latest(case, config, history):
    """Return the figure of the case so far, in words."""
    if case == "turbulence":
        return f", heat flux {history['heat_flux'][-1].sum():.3g}"
    if case == "zonal":
        values = np.array(history["zonal"])[:, config.grid.nx + 1].real
        return f", <phi>/<phi>(0) = {values[-1] / values[0]:.4f}"
    if len(history["time"]) < 10:
        return ""
    _, gamma, _ = growth(history["time"][-9:], history["phi_middle"][-9:], 0.0)
    return f", largest growth rate {np.nanmax(gamma[1:], initial=-np.inf):.3f}"


def toml(config):
    """Return a configuration as the text of a TOML file."""
    lines = []
    for section, keys in config.as_dict().items():
        lines.append(f"[{section}]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
        lines.append("")
    return "\n".join(lines[:-1])


def _nothing(*_):
    pass


if __name__ == "__main__":
    main()
