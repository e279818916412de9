"""An ensemble of two-dimensional Navier-Stokes flows, one slice each, on any number of ranks.

    dw/dt + {psi, w} = nu lap w,    w = lap psi,    {a, b} = a_x b_y - a_y b_x,

for the vorticity w and the stream function psi in a periodic box of side 2 pi. The bracket is one
pipeline: while the spectra of one flow are exchanged between the ranks, others are transformed.
Time stepping is the classical Runge-Kutta scheme with the viscosity as an exact integrating factor.

The program checks itself, and draws the vorticity and the energy spectra:

1. Taylor-Green vortices decay as exp(-nu (a^2 + b^2) t), at rest and carried along by a wind;
2. without viscosity, energy and enstrophy drift only by the error of the time stepping;
3. turbulence loses energy at the rate 2 nu Z, where Z is the enstrophy;
4. the energy spectrum E(k), of shells of modes, adds up to the energy.

With --survive, the turbulence goes on when ranks are lost: kill any.

    python examples/navier_stokes_2d.py
    mpiexec -n 2 python examples/navier_stokes_2d.py --points 256 --steps 800
    mpiexec --with-ft ulfm -n 4 python examples/navier_stokes_2d.py --survive
"""

import argparse
from time import perf_counter

import mpi4py
import numpy as np

mpi4py.rc.thread_level = "serialized"  # enough for overlap; the default, multiple, costs MPICH latency
from mpi4py import MPI

import overlap

SAVED_EVERY = 10  # steps between saves, with --survive


class NavierStokes:
    """Vorticity equations of all members of an ensemble.

    Parameters
    ----------
    plan : overlap.FFT2
        A plan for real fields ``(members, points, points)``, with ``norm="forward"``: Fourier series.
    viscosity : float
    wind : (float, float)
        Uniform velocity in x and y that carries the vorticity along.
    """

    def __init__(self, plan, viscosity, wind=(0.0, 0.0)):
        self.viscosity, self.wind, self.comm, self.runtime = viscosity, wind, plan.comm, plan.runtime
        self.ky, self.kx = plan.wavenumbers()
        self.k2 = self.kx**2 + self.ky**2
        self.inverse_k2 = np.divide(1.0, self.k2, where=self.k2 > 0, out=np.zeros_like(self.k2))
        # Half of the spectrum is held: a column stands for kx and -kx unless these are the same.
        alone = (self.kx == 0) | (2 * self.kx == plan.real.global_shape[-1])
        self.weight = np.where(alone, 1.0, 2.0)

        @plan.pointwise(dealias="3/2")
        def bracket(psi_x, psi_y, w_x, w_y):
            return psi_x * w_y - psi_y * w_x

        self.bracket = bracket

    def nonlinear(self, w):
        """Return minus the bracket of stream function and vorticity, both spectra."""
        psi = -self.inverse_k2 * w
        psi_x, psi_y = 1j * self.kx * psi, 1j * self.ky * psi
        mean = self.k2 == 0  # the mean mode, on the rank that holds it
        psi_x[:, mean] += self.wind[1]
        psi_y[:, mean] -= self.wind[0]
        return -self.bracket(psi_x, psi_y, 1j * self.kx * w, 1j * self.ky * w)

    def step(self, w, dt):
        """Return the vorticity's spectrum one time step later."""
        half = np.exp(-self.viscosity * self.k2 * dt / 2)
        n1 = self.nonlinear(w)
        n2 = self.nonlinear(half * (w + dt / 2 * n1))
        n3 = self.nonlinear(half * w + dt / 2 * n2)
        n4 = self.nonlinear(half**2 * w + dt * half * n3)
        return half**2 * w + dt / 6 * (half**2 * n1 + 2 * half * (n2 + n3) + n4)

    def invariants(self, w):
        """Compute the energy, mean |grad psi|^2 / 2, and the enstrophy, mean w^2 / 2, by Parseval's theorem, ``(2,
        members)``."""
        density = self.weight * np.abs(np.asarray(w)) ** 2 / 2
        sums = [(self.inverse_k2 * density).sum(axis=(1, 2)), density.sum(axis=(1, 2))]
        with self.runtime.detecting_losses("the sums of energy and enstrophy"):
            return self.comm.allreduce(np.array(sums), MPI.SUM)

    def energy_spectrum(self, w):
        """Compute the energy in the shells k - 1/2 <= |k| < k + 1/2, k = 0, 1, ...: ``(members, shells)``."""
        points = w.global_shape[-2]
        shell = np.rint(np.sqrt(self.k2)).astype(int)
        density = self.weight * self.inverse_k2 * np.abs(np.asarray(w)) ** 2 / 2
        found = [np.bincount(shell.ravel(), plane.ravel(), minlength=points) for plane in density]
        with self.runtime.detecting_losses("the sums of energy spectra"):
            return self.comm.allreduce(np.array(found), MPI.SUM)


def random_vorticity(flow, plan, peaks):
    """Make spectra of random vortices about the wavenumbers `peaks`, the same on any number of ranks.

    The root mean square of each member's vorticity is 1.
    """
    _, points, _ = plan.real.global_shape
    noise = plan.real.empty()
    for member, plane in enumerate(noise):
        generator = np.random.default_rng(member)
        plane[...] = generator.standard_normal((points, points))[plan.real.local_slice[1]]
    k = np.sqrt(flow.k2) / np.array(peaks)[:, None, None]
    resolved = np.maximum(abs(flow.kx), abs(flow.ky)) < points / 2  # the modes that the bracket keeps
    w = resolved * k**2 * np.exp(-(k**2)) * plan.forward(noise)
    return w / np.sqrt(2 * flow.invariants(w)[1])[:, None, None]


def taylor_green(plan, waves, wind, t):
    """Return the vorticity cos(a x) cos(b y) of each member, carried along by the wind for a time t."""
    _, points, _ = plan.real.global_shape
    grid = 2 * np.pi / points * np.arange(points)
    x, y = grid - wind[0] * t, grid[plan.real.local_slice[1], None] - wind[1] * t
    a, b = waves.T[:, :, None, None]
    return np.cos(a * x) * np.cos(b * y)


def check_decay(plan, viscosity, wind, dt, steps):
    """Compare decaying Taylor-Green vortices with the exact solution.

    Only the wind acts through the bracket. A mode of frequency f = a |u| + b |v| is multiplied by
    a Taylor polynomial of exp(i f dt): its error is at most (f dt)^5 / 120 per step.
    """
    members, points, _ = plan.real.global_shape
    flow = NavierStokes(plan, viscosity, wind)
    most = min(3, (points - 1) // 2)
    waves = 1 + np.array([divmod(member % most**2, most) for member in range(members)])
    w = plan.real.empty()
    w[...] = taylor_green(plan, waves, wind, 0)
    w = plan.forward(w)
    for _ in shown(steps, "Taylor-Green", plan.comm):
        w = flow.step(w, dt)
    decay = np.exp(-viscosity * (waves**2).sum(1) * steps * dt)[:, None, None]
    exact = decay * taylor_green(plan, waves, wind, steps * dt)
    error = plan.comm.allreduce((abs(plan.backward(w) - exact) / decay).max(initial=0), MPI.MAX)
    bound = steps * ((waves @ np.abs(wind)).max() * dt) ** 5 / 120 + 1e-12
    assert error <= bound, f"Taylor-Green: expected an error of at most {bound}, found {error}"
    return error, bound


def check_conservation(plan, peaks, dt, steps):
    """Measure how energy and enstrophy drift without viscosity, with two step sizes.

    In space the bracket conserves both exactly. The error in time, per unit of time, has terms of
    dt^4 and dt^5 of either sign; so that they do not cancel by chance, the program takes the root mean square over all
    members and steps.
    """
    flow = NavierStokes(plan, 0.0)
    start = random_vorticity(flow, plan, peaks)
    drifts = []
    for count in (steps, 2 * steps):
        w, values = start, [flow.invariants(start)]
        for _ in shown(count, "without viscosity", plan.comm):
            w = flow.step(w, dt * steps / count)
            values.append(flow.invariants(w))
        rates = np.diff(values, axis=0) / values[0] / (dt * steps / count)
        drifts.append(np.sqrt((rates**2).mean(axis=(0, 2))))
    orders = np.log2(drifts[0] / drifts[1])
    assert np.max(drifts) < 1e-5, f"expected energy and enstrophy conserved, found {drifts}"
    assert np.all((orders > 3.7) & (orders < 5.7)), f"expected order 4 to 5, found {orders}"
    return drifts, orders


def recovered(loss, plan, protected):
    """Go on without the lost ranks, even if more are lost meanwhile.

    Returns
    -------
    plan, protected, step, fields
        The plan, copies, step and fields on the ranks that are left.
    """
    while True:
        try:
            runtime = loss.survivors()
            plan = plan.on(runtime)
            step, fields = protected.restore(runtime, like=[plan.spectrum] * 2)
            again = overlap.Protected(fields, copies=min(1, runtime.comm.size - 1))
            again.save(step)
            return plan, again, step, fields
        except overlap.RankLost as another:
            loss = another


def turbulence(plan, viscosity, peaks, dt, steps, survive=False):
    """Let random vortices merge and decay; compare the energy lost with 2 nu times enstrophy.

    Return the first and the last vorticity, their energy spectra, and the shares of energy and enstrophy that are left;
    and the plan, which is a new one after a loss.
    """
    flow = NavierStokes(plan, viscosity)
    w = random_vorticity(flow, plan, peaks)
    start, values = w.copy(), [flow.invariants(w)]
    protected = overlap.Protected([w, start]) if survive else None
    if survive:
        protected.save(0)
    bar, step = iter(shown(steps, "turbulence", plan.comm)), 0
    while step < steps:
        try:
            if survive and step % SAVED_EVERY == 0:
                protected.start(step)
            w[...] = flow.step(w, dt)
            values.append(flow.invariants(w))
            step += 1
            next(bar, None)
        except overlap.RankLost as loss:
            plan, protected, step, (w, start) = recovered(loss, plan, protected)
            flow, values = NavierStokes(plan, viscosity), values[: step + 1]
    if survive:
        protected.close()
    energy, enstrophy = np.array(values).swapaxes(0, 1)  # each (steps + 1, members)
    lost = energy[0] - energy[-1]
    dissipated = 2 * viscosity * np.trapezoid(enstrophy, dx=dt, axis=0)
    assert np.allclose(lost, dissipated, rtol=1e-3), (
        f"expected the energy lost, {lost}, to be that dissipated, {dissipated}: more --steps?"
    )
    spectra = [flow.energy_spectrum(some) for some in (start, w)]
    assert np.allclose([spectrum.sum(axis=1) for spectrum in spectra], energy[[0, -1]], rtol=1e-12), (
        f"expected spectra that add up to the energies {energy[[0, -1]]}"
    )
    return plan.backward(start), plan.backward(w), spectra, values[-1] / values[0], plan


def draw(path, before, after, spectra, end, peaks):
    """Draw the first and the last vorticity and energy spectra of a few members; return a sentence about the
    picture."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return "no picture: matplotlib is not installed"
    count = min(4, len(after))
    figure = Figure(figsize=(2.7 * count + 0.8, 8.6), layout="constrained")
    rows = figure.subplots(3, count, squeeze=False)
    for axes, fields, t in zip(rows, (before, after), (0, end)):
        limit = np.percentile(abs(fields[:count]), 99.5)
        for ax, field in zip(axes, fields):
            image = ax.imshow(field, origin="lower", interpolation="bicubic", cmap="RdBu_r", vmin=-limit, vmax=limit)
            ax.set(xticks=(), yticks=())
        axes[0].set_ylabel(f"t = {t:g}", fontsize=12)
        figure.colorbar(image, ax=axes, label="vorticity", aspect=25, pad=0.015)
    k = np.arange(1, spectra[0].shape[1] // 2)
    for ax, first, last in zip(rows[2], *spectra):
        for spectrum, words in ((first, "t = 0"), (last, f"t = {end:g}")):
            ax.loglog(k, spectrum[1 : len(k) + 1], label=words)
        ax.loglog(k, last[1 : len(k) + 1].max() * (k / 4.0) ** -3, "k--", linewidth=0.8, label="$k^{-3}$")
        ax.set(xlabel="k", ylim=last.max() * np.array([1e-9, 3]))
    rows[2, 0].set_ylabel("E(k)", fontsize=12)
    rows[2, 0].legend(fontsize=8)
    for ax, peak in zip(rows[0], peaks):
        ax.set_title(f"first vortices at k = {peak:.2g}", fontsize=11)
    figure.savefig(path, dpi=110)
    return f"picture: {path}"


def shown(steps, title, comm):
    """Count steps, with a bar on rank 0 if rich is installed (mpiexec: set TTY_COMPATIBLE=1)."""
    try:
        from rich.console import Console
        from rich.progress import track
    except ImportError:
        return range(steps)
    console = Console(stderr=True)
    return track(range(steps), title, console=console, transient=True, disable=comm.rank > 0 or not console.is_terminal)


def main():
    """Run the checks and the turbulence, print the results, draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=128, help="grid points per direction")
    parser.add_argument("--members", type=int, default=4, help="flows, one slice each")
    parser.add_argument("--steps", type=int, default=240, help="time steps of the turbulence")
    parser.add_argument("--time", type=float, default=15.0, help="duration of the turbulence")
    parser.add_argument("--viscosity", type=float, default=2e-4)
    parser.add_argument("--wait", choices=("auto", "off", "block", "poll"), default="auto")
    parser.add_argument("--workers", type=int, default=1, help="worker threads per rank")
    parser.add_argument("--survive", action="store_true", help="go on when ranks are lost (mpiexec --with-ft ulfm)")
    parser.add_argument("--picture", default="navier_stokes_2d.png", help="file, or '' for none")
    options = parser.parse_args()
    comm = MPI.COMM_WORLD
    peaks = np.linspace(4, 10, options.members)

    def say(*words):
        if comm.rank == 0:
            print(*words, flush=True)

    def make_plan(runtime, points):
        return overlap.FFT2(
            runtime, (options.members, points, points), dtype="f8", norm="forward", settings={"wait": options.wait}
        )

    on_loss = "raise" if options.survive else None
    with overlap.Runtime(comm, workers=options.workers, on_loss=on_loss) as runtime:
        with make_plan(runtime, min(options.points, 64)) as plan:
            for wind in ((0.0, 0.0), (1.0, 0.5)):
                error, bound = check_decay(plan, 0.02, wind, 0.02, 50)
                say(f"Taylor-Green, wind {wind}: error {error:.1e}, expected at most {bound:.1e}")
            drifts, orders = check_conservation(plan, peaks, 0.1, 10)
            for name, first, second, order in zip(("energy", "enstrophy"), *drifts, orders):
                say(f"without viscosity, drift of {name}: {first:.1e}; half the step: {second:.1e}, order {order:.1f}")
        with make_plan(runtime, options.points) as plan:
            started = perf_counter()
            before, after, spectra, kept, last = turbulence(
                plan, options.viscosity, peaks, options.time / options.steps, options.steps, options.survive
            )
            step_ms = 1e3 * (perf_counter() - started) / options.steps
            before, after, comm = before.gather(), after.gather(), last.comm
            if last is not plan:
                say(f"lost {runtime.comm.size - comm.size} of {runtime.comm.size} rank(s)")
    say(f"turbulence: {step_ms:.1f} ms per step on {comm.size} rank(s)")
    for name, parts in zip(("energy", "enstrophy"), kept):
        say(f"turbulence: {name} kept by each member:", *(f"{part:.3f}" for part in parts))
    if comm.rank == 0 and options.picture:
        say(draw(options.picture, before, after, spectra, options.time, peaks))


if __name__ == "__main__":
    main()
