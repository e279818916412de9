"""The Taylor-Green vortex in three dimensions, on any number of ranks.

    du/dt = u x w - grad p + nu lap u,    w = curl u,    div u = 0,

for the velocity u in a periodic box of side 2 pi, from u = (sin x cos y cos z, -cos x sin y cos z,
0) on. Here p is the pressure plus |u|^2 / 2. It removes the part that has a divergence, so in Fourier space

    du_k/dt = n_k - k (k . n_k) / k^2 - nu k^2 u_k,    n = u x w.

The three components are one batch: while one of them is exchanged between the ranks, others are
transformed. The 2/3 rule removes aliases; time stepping is the classical Runge-Kutta scheme.

The program checks itself, and draws the vorticity:

1. the energy lost is that dissipated, at the rate 2 nu Z, where Z is the enstrophy;
2. at first the enstrophy follows the series in t that Taylor and Green computed by hand in 1937;
3. the default run ends with the published kinetic energy, 0.124953117517.

With --restart FILE it goes on where FILE ends, to the same bits on as many ranks.

    python examples/taylor_green_3d.py
    mpiexec -n 2 python examples/taylor_green_3d.py --steps 800 --restart taylor_green.restart
"""

import argparse
import hashlib
import io
import os
from math import inf
from time import perf_counter

import mpi4py
import numpy as np

mpi4py.rc.thread_level = "serialized"  # enough for overlap; the default, multiple, costs MPICH latency
from mpi4py import MPI

import overlap

PUBLISHED = dict(points=64, steps=10, dt=0.01, viscosity=0.000625)
PUBLISHED_ENERGY = 0.124953117517  # after these steps; from mpi4py-fft's examples/spectral_dns_solver.py


EARLY = 0.1  # until this time the next term of the series is below 1e-6


def early_enstrophy(t, viscosity):
    """Return the enstrophy at small t, to the fourth order: Taylor and Green, Proc. R. Soc. A 158 (1937), 499."""
    nu2 = viscosity**2
    terms = (
        1,
        -6 * viscosity,
        5 / 48 + 18 * nu2,
        -viscosity * (5 / 3 + 36 * nu2),
        50 / (99 * 64) + 1835 / (9 * 16) * nu2 + 54 * nu2**2,
    )
    return 3 / 8 * np.polynomial.polynomial.polyval(t, terms)


class NavierStokes:
    """Equations for the velocity's Fourier series, an array ``(3, nz, ny, nx // 2 + 1)``.

    Parameters
    ----------
    plan : overlap.FFT3
        A plan for real vectors ``(3, points, points, points)``, with ``norm="forward"``.
    viscosity : float
    """

    def __init__(self, plan, viscosity):
        self.plan, self.viscosity = plan, viscosity
        kz, ky, kx = plan.wavenumbers()
        self.k = kx, ky, kz  # in the order of the components
        self.k2 = kx**2 + ky**2 + kz**2
        self.inverse_k2 = np.divide(1.0, self.k2, where=self.k2 > 0, out=np.zeros_like(self.k2))
        largest = np.maximum(np.maximum(abs(kz), abs(ky)), abs(kx))
        self.kept = 3 * largest < plan.real.global_shape[-1]  # the 2/3 rule
        self.weight = np.where(kx == 0, 1.0, 2.0)  # half of the spectrum is held: kx also stands for -kx

    def curl(self, u):
        """Return the curl of a velocity: the vorticity."""
        (kx, ky, kz), (ux, uy, uz) = self.k, u
        return 1j * np.stack((ky * uz - kz * uy, kz * ux - kx * uz, kx * uy - ky * ux))

    def derivative(self, u):
        """Return du/dt."""
        velocity, vorticity = self.plan.backward(u), self.plan.backward(self.curl(u))
        n = self.plan.forward(np.cross(velocity, vorticity, axis=0))
        pressure = self.inverse_k2 * sum(k * part for k, part in zip(self.k, n))
        for k, part in zip(self.k, n):
            part -= k * pressure
        return self.kept * n - self.viscosity * self.k2 * u

    def step(self, u, dt):
        """Return the velocity one time step later."""
        d1 = self.derivative(u)
        d2 = self.derivative(u + dt / 2 * d1)
        d3 = self.derivative(u + dt / 2 * d2)
        d4 = self.derivative(u + dt * d3)
        return u + dt / 6 * (d1 + 2 * (d2 + d3) + d4)

    def invariants(self, u):
        """Compute the energy, mean u^2 / 2, and the enstrophy, mean w^2 / 2, by Parseval's theorem."""
        density = self.weight * (np.abs(np.asarray(u)) ** 2).sum(axis=0) / 2
        sums = [density.sum(), (self.k2 * density).sum()]
        return self.plan.comm.allreduce(np.array(sums), MPI.SUM)


def taylor_green(plan):
    """Return the initial velocity."""
    points = plan.real.global_shape[-1]
    grid = 2 * np.pi / points * np.arange(points)
    z, y, x = np.meshgrid(*[grid[part] for part in plan.real.local_slice[1:]], indexing="ij")
    return plan.forward(
        np.stack((np.sin(x) * np.cos(y) * np.cos(z), -np.cos(x) * np.sin(y) * np.cos(z), np.zeros_like(x)))
    )


def save(path, u, **values):
    """Write a restart file (collective): a digest of all that follows, then the arrays.

    When the file is complete and on the disk, it replaces an earlier one.
    """
    whole = u.gather()

    def write():
        body = io.BytesIO()
        np.savez(body, velocity=whole, **values)
        with open(f"{path}.new", "wb") as file:
            file.write(hashlib.sha256(body.getbuffer()).digest())
            file.write(body.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{path}.new", path)

    on_first_rank(u.comm, write)


def load(path, plan, **values):
    """Return this rank's part of the velocity in a restart file, and its step (collective)."""

    def read():
        with open(path, "rb") as file:
            digest, body = file.read(32), file.read()
        if hashlib.sha256(body).digest() != digest:
            raise ValueError(f"expected {path} as this program wrote it, received a damaged one")
        found = np.load(io.BytesIO(body))
        for name, value in values.items():
            if found[name] != value:
                raise ValueError(f"expected --{name} {found[name]}, as of {path}, received {value}")
        return found["velocity"], int(found["step"])

    whole, step = on_first_rank(plan.comm, read)
    u = plan.spectrum.empty()
    u[...] = whole[plan.spectrum.local_slice]
    return u, step


def on_first_rank(comm, action):
    """Return the result of `action` on rank 0 on all ranks; if it fails, print the error once and exit."""
    result = stop = None
    if comm.rank == 0:
        try:
            result = action()
        except SystemExit as exit:  # argparse has printed the error
            stop = exit.code
        except (OSError, ValueError) as error:
            stop = f"{os.path.basename(__file__)}: error: {error}"
    result, stop = comm.bcast((result, stop))
    if stop is not None:
        raise SystemExit(1 if comm.rank > 0 and isinstance(stop, str) else stop)
    return result


def draw(path, planes, end):
    """Draw vorticity in three planes; return a sentence about the picture."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return "no picture: matplotlib is not installed"
    figure = Figure(figsize=(11, 3.9), layout="constrained")
    row, limit = figure.subplots(1, 3), max(abs(plane).max() for plane in planes)
    for ax, plane, normal, (across, up) in zip(row, planes, "xyz", ("yz", "xz", "xy")):
        image = ax.imshow(
            plane, origin="lower", interpolation="bicubic", cmap="RdBu_r", vmin=-limit, vmax=limit, extent=(0, 2, 0, 2)
        )
        ax.set(title=f"{normal} = 0", xlabel=f"{across} / $\\pi$", ylabel=f"{up} / $\\pi$")
    figure.suptitle(f"Taylor-Green vortex at t = {end:g}")
    figure.colorbar(image, ax=row, label="vorticity along the normal", aspect=25, pad=0.015)
    figure.savefig(path, dpi=110)
    return f"picture: {path}"


def shown(steps, title, comm):
    """Go through steps; rank 0 shows a bar if rich is installed (mpiexec: TTY_COMPATIBLE=1)."""
    try:
        from rich.console import Console
        from rich.progress import track
    except ImportError:
        return steps
    console = Console(stderr=True)
    return track(steps, title, console=console, transient=True, disable=comm.rank > 0 or not console.is_terminal)


def arguments():
    """Make the parser of the command line's options."""

    def number(kind, least):
        def read(text):
            if not least <= kind(text) < inf:
                raise argparse.ArgumentTypeError(f"expected a number >= {least}, received {text}")
            return kind(text)

        read.__name__ = kind.__name__  # argparse uses this name in its error
        return read

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.set_defaults(**PUBLISHED)
    parser.add_argument("--points", type=number(int, 4), help="grid points per direction")
    parser.add_argument("--steps", type=number(int, 1), help="time steps, from the very start on")
    parser.add_argument("--dt", type=number(float, 1e-9))
    parser.add_argument("--viscosity", type=number(float, 0.0))
    parser.add_argument(
        "--restart", default="", metavar="FILE", help="continue from this file if it is there; write it"
    )
    parser.add_argument("--every", type=number(int, 1), default=100, help="steps between writes")
    parser.add_argument("--wait", choices=("auto", "off", "block", "poll"), default="auto")
    parser.add_argument("--workers", type=number(int, 1), default=1, help="worker threads per rank")
    parser.add_argument("--picture", default="taylor_green_3d.png", help="file, or '' for none")
    options = parser.parse_args()
    for name in ("restart", "picture"):
        if not os.path.isdir(os.path.dirname(getattr(options, name)) or "."):
            parser.error(
                f"argument --{name}: expected a file in a folder that is there, received {getattr(options, name)}"
            )
    options.found = os.path.exists(options.restart)
    return options


def main():
    """Run the flow, check it, print the results, draw."""
    comm = MPI.COMM_WORLD
    options = on_first_rank(comm, arguments)
    setting = dict(points=options.points, dt=options.dt, viscosity=options.viscosity)

    def say(*words):
        if comm.rank == 0:
            print(*words, flush=True)

    # For the same bits in every run, fix the grid of ranks, and let no measurement choose the FFTs.
    with (
        overlap.Runtime(comm, workers=options.workers) as rt,
        overlap.FFT3(
            rt,
            (3, *[options.points] * 3),
            dtype="f8",
            norm="forward",
            layout={"grid": MPI.Compute_dims(comm.size, 2)},
            settings={"effort": "estimate", "wait": options.wait},
        ) as plan,
    ):
        flow = NavierStokes(plan, options.viscosity)
        u, first = taylor_green(plan), 0
        if options.found:
            u, first = load(options.restart, plan, **setting)
            say(f"continued from {options.restart}, step {first}")
        values = [flow.invariants(u)]
        started = perf_counter()
        for step in shown(range(first + 1, options.steps + 1), "Taylor-Green", comm):
            u = flow.step(u, options.dt)
            values.append(flow.invariants(u))
            if options.restart and (step % options.every == 0 or step == options.steps):
                save(options.restart, u, step=step, **setting)
        seconds = perf_counter() - started
        # The flow is symmetric about the planes through the origin, so the vorticity is normal to them.
        w = plan.backward(flow.curl(u)).gather()
    energy, enstrophy = np.transpose(values)
    last = first + len(values) - 1
    say(f"{last - first} steps in {seconds:.2f} s on {comm.size} rank(s)")
    say(f"t = {last * options.dt:g}: energy {energy[-1]:.12f}, enstrophy {enstrophy[-1]:.12f}")
    lost = energy[0] - energy[-1]
    dissipated = 2 * options.viscosity * np.trapezoid(enstrophy, dx=options.dt)
    assert np.isclose(lost, dissipated, rtol=1e-3, atol=1e-12), (
        f"expected the energy lost, {lost}, to be that dissipated, {dissipated}: smaller --dt?"
    )
    t = options.dt * np.arange(first, last + 1)
    early = t <= EARLY
    if options.points >= 12 and early.any():  # fewer points do not resolve the modes of the series
        error = abs(enstrophy / early_enstrophy(t, options.viscosity) - 1)[early].max()
        say(f"until t = {t[early][-1]:g} the enstrophy differs from Taylor and Green's series by {error:.0e} of itself")
        assert error < 1e-6 * (1 + 100 * options.viscosity), f"expected Taylor and Green's series, found {enstrophy}"
    if dict(setting, steps=last) == PUBLISHED:
        say(f"the published energy is {PUBLISHED_ENERGY}")
        assert abs(energy[-1] - PUBLISHED_ENERGY) < 1e-7, f"expected it, found {energy[-1]}"
    if comm.rank == 0 and options.picture:
        say(draw(options.picture, (w[0, :, :, 0], w[1, :, 0], w[2, 0]), last * options.dt))


if __name__ == "__main__":
    main()
