"""Cases of the flux-tube solver in examples/gkv, against independent truth."""

import json
import os
import resource
import sys
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
import pytest
from mpi4py import MPI
from scipy.special import i0e, j0

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "gkv"))

from fluxtube import cases, checkpoints, files, output  # noqa: E402
from fluxtube.config import CASES, ConfigError  # noqa: E402
from fluxtube.decomposition import AXES  # noqa: E402
from fluxtube.diagnostics import Diagnostics, growth  # noqa: E402
from fluxtube.linear import Linear  # noqa: E402
from fluxtube.solver import Solver  # noqa: E402

SMALL = {"nx": 0, "ny": 1, "nz": 16, "nv": 12, "nmu": 4, "turns": 1, "ky_min": 0.3}
BOX = {"nx": 4, "ny": 3, "nz": 8, "nv": 12, "nmu": 8, "turns": 1, "ky_min": 0.2, "m_j": 1,
       "kx_min": 0.0}


def configured(case="turbulence", **sections):
    return CASES[case].with_values(sections)


def random_modes(shape, seed):
    """Global random f ``(..., ky, kx)`` of a real field without its mean."""
    random = np.random.default_rng(seed)
    f = random.standard_normal(shape) + 1j * random.standard_normal(shape)
    f[..., 0, :] += np.conj(f[..., 0, ::-1])
    f[..., 0, shape[-1] // 2] = 0
    return f


def set_random(solver, seed=1):
    """A rough f, of the size of F: the same on any ranks."""
    v, mu, z = (solver.state.local(axis) for axis in ("v", "mu", "z"))
    maxwellian = (np.exp(-v[:, None, None]**2 / 2) * np.exp(-mu[:, None]))[..., None, None]
    f = random_modes(solver.state.global_shape, seed)
    solver.state.f[...] = maxwellian * f[solver.state.where]


def gathered(solver, part):
    """The global array of which every rank has a part; None off rank 0."""
    parts = solver.comm.gather((solver.state.where, part))
    if solver.comm.rank:
        return None
    whole = np.full(solver.state.global_shape, np.nan, complex)
    for where, values in parts:
        whole[where] = values
    return whole


# ---- the discrete operator, written anew ---------------------------------------------------------

def dense(config, ky):
    """The linear operator of one ky at kx = 0 as a matrix on ``(v, mu, z)``, loop by loop.

    Nothing continues the field line for ky > 0. What phi depends on is eliminated.
    """
    p, g = config.plasma, config.grid
    nv, nm, nz = g.nv, g.nmu + 1, g.nz
    dz, dv, dw = 2 * np.pi * g.turns / nz, 2 * g.vmax / (nv - 1), g.vmax / g.nmu
    z, v, w = -np.pi * g.turns + dz * np.arange(nz), -g.vmax + dv * np.arange(nv), dw * np.arange(nm)
    B = 1 - p.eps * np.cos(z)
    kperp2 = ky**2 * (1 + (p.shear * z)**2)
    b = kperp2 / B**2
    first = {-2: 1 / 12, -1: -8 / 12, 1: 8 / 12, 2: -1 / 12}
    second = {-2: -1 / 12, -1: 16 / 12, 0: -30 / 12, 1: 16 / 12, 2: -1 / 12}

    def index(i, m, j):
        return (i * nm + m) * nz + j

    F = np.array([[[(2 * np.pi)**-1.5 * np.exp(-v[i]**2 / 2 - w[m]**2 / 2 * B[j])
                    for j in range(nz)] for m in range(nm)] for i in range(nv)])
    J = np.array([[j0(w[m] * np.sqrt(B[j]) * np.sqrt(kperp2[j]) / B[j]) for j in range(nz)]
                  for m in range(nm)])
    size = nv * nm * nz
    # phi_j = sum over (i, m) of solve[j, (i, m, j)] f
    solve = np.zeros((nz, size))
    for m in range(nm):
        weight = 2 * np.pi * w[m] * dw * dv
        weight *= {1: 1 + 1 / 12 + 22 / 720, 2: 1 - 11 / 720}.get(m, 1)
        for i in range(nv):
            for j in range(nz):
                solve[j, index(i, m, j)] = (weight * B[j] * J[m, j]
                                            / (1 - i0e(b[j]) + p.tau))
    on_f = np.zeros((size, size), complex)
    on_phi = np.zeros((size, nz), complex)
    for i in range(nv):
        for m in range(nm):
            for j in range(nz):
                here = index(i, m, j)
                muB = w[m]**2 / 2 * B[j]
                # Streaming and dissipation; at open ends f is extrapolated where it flows out.
                for steps in range(-2, 3):
                    factor = -v[i] / p.q / dz * first.get(steps, 0) - config.time.dissipation * {
                        -2: 1, -1: -4, 0: 6, 1: -4, 2: 1}[steps]
                    there = j + steps
                    if 0 <= there < nz:
                        on_f[here, index(i, m, there)] += factor
                    elif there < 0 and v[i] < 0 or there >= nz and v[i] > 0:
                        end, inner = (0, 1) if there < 0 else (nz - 1, nz - 2)
                        if there in (-1, nz):
                            on_f[here, index(i, m, end)] += factor
                        else:
                            on_f[here, index(i, m, end)] += 2 * factor
                            on_f[here, index(i, m, inner)] -= factor
                    if 0 <= there < nz:
                        on_phi[here, there] -= (v[i] / p.q / dz * first.get(steps, 0)
                                                * F[i, m, j] * J[m, there])
                for steps, factor in first.items():
                    if 0 <= i + steps < nv:
                        on_f[here, index(i + steps, m, j)] += (
                            w[m]**2 / 2 * p.eps * np.sin(z[j]) / p.q * factor / dv)
                drift = -(v[i]**2 + muB) * ky * (np.cos(z[j]) + p.shear * z[j] * np.sin(z[j]))
                star = -ky * (p.R_Ln + (v[i]**2 / 2 + muB - 1.5) * p.R_LT)
                on_f[here, here] -= 1j * drift
                on_phi[here, j] += 1j * (star - drift) * F[i, m, j] * J[m, j]
                # Collisions on g = f + F J0 phi.
                stencil = {(i, m): 3 - b[j]}
                for steps in range(-2, 3):
                    rate = second[steps] / dv**2 + v[i] * first.get(steps, 0) / dv
                    stencil[i + steps, m] = stencil.get((i + steps, m), 0) + rate
                    root = np.sqrt(B[j])
                    rate = second[steps] / (dw * root)**2
                    if m == 0:
                        rate *= 2
                    else:
                        perpendicular = w[m] * root
                        rate += ((1 / perpendicular + perpendicular)
                                 * first.get(steps, 0) / (dw * root))
                    there = i, abs(m + steps)
                    stencil[there] = stencil.get(there, 0) + rate
                for (k, n), rate in stencil.items():
                    if 0 <= k < nv and n < nm:
                        on_f[here, index(k, n, j)] += p.nu * rate
                        on_phi[here, j] += p.nu * rate * F[k, n, j] * J[n, j]
    return on_f + on_phi @ solve


def dense_config(**plasma):
    return configured("cyclone", grid=SMALL, plasma={"nu": 0.02, **plasma},
                      time={"dt_max": 0.025})


def operator(comm, ranks):
    """The right-hand side of a rough f against the matrix."""
    config = dense_config().with_values({"parallel": ranks})
    with Solver(comm, config) as solver:
        set_random(solver)
        solver.rhs(solver.state.f, solver.slope)
        f, found = gathered(solver, solver.state.f), gathered(solver, solver.slope)
    if comm.rank == 0:
        truth = dense(config, 0.3) @ f[..., 1, 0].reshape(-1)
        found = found[..., 1, 0].reshape(-1)
        assert abs(found - truth).max() <= 1e-12 * abs(truth).max()


def eigenvalue(comm):
    """Growth and frequency of a run against the matrix's fastest growing mode."""
    config = dense_config()
    with Solver(comm, config) as solver:
        diagnostics, times, phi = Diagnostics(solver), [], []
        while solver.state.time < 25:
            solver.step()
            if solver.state.step % 10 == 0:
                sample = diagnostics.sample()
                times.append(sample["time"])
                phi.append(sample["phi_middle"])
    omega, gamma, _ = growth(times, phi, 18.0)
    if comm.rank == 0:
        values = np.linalg.eigvals(dense(config, 0.3))
        fastest = values[np.argmax(values.real)]
        assert fastest.real > 0.1
        assert abs(gamma[1] + 1j * -omega[1] - fastest) <= 2e-4 * abs(fastest), (
            gamma[1], omega[1], fastest)


# ---- ranks ---------------------------------------------------------------------------------------

def any_ranks(comm, layouts):
    """All ways to share the work: equal bits of the nonlinear term, all else within 1e-12."""
    results = []
    for layout in layouts:
        ranks = int(np.prod(layout[:4]))
        part = comm.Split(int(comm.rank < ranks))
        if comm.rank < ranks:
            parallel = dict(zip((*AXES, "workers", "depth", "wait"), layout))
            results.append(_both(part, configured(
                grid=BOX, plasma={"nu": 0.01}, parallel=parallel | {"nonlinear": "planes"})))
        part.Free()
    if comm.rank == 0:
        bracket, state, sample = results[0]
        assert np.isfinite(state).all() and np.isfinite(bracket).all()
        for layout, (other_bracket, other_state, other_sample) in zip(layouts, results):
            assert np.array_equal(other_bracket, bracket), layout
            error = abs(other_state - state).max() / abs(state).max()
            assert error <= 1e-12, (layout, error)
            for name, value in sample.items():
                error = np.max(abs(other_sample[name] - value)) / np.max(abs(value))
                assert error <= 1e-12, (layout, name, error)


def _both(comm, config):
    """The bracket of two rough fields; state and diagnostics after linear steps from a rough start."""
    with Solver(comm, config) as solver:
        set_random(solver)
        psi = random_modes(solver.state.global_shape[1:], 2)[solver.state.where[1:]].copy()
        solver.nonlinear.advect(psi)
        bracket = solver.nonlinear._bracket
        shape = bracket.spectrum.shape
        found = bracket(solver.state.f.reshape(shape)).reshape(solver.state.f.shape)
        found = gathered(solver, found)
    with Solver(comm, config.with_values({"parallel": {"nonlinear": "off"}})) as solver:
        set_random(solver)
        for _ in range(3):
            solver.step(0.01)
        return found, gathered(solver, solver.state.f), Diagnostics(solver).sample()


def slab(comm):
    """Both forms of the nonlinear term, on the same points."""
    found = []
    for form in ("planes", "slab"):
        config = configured(grid=BOX, parallel={"nonlinear": form, "ky": comm.size})
        with Solver(comm, config) as solver:
            set_random(solver)
            solver.rhs(solver.state.f, solver.slope)
            found.append((solver.slope.copy(), solver.dt,
                          comm.allreduce(solver.nonlinear.speed, MPI.MAX)))
    (planes, _, speed), (slabs, _, other_speed) = found
    assert abs(planes - slabs).max(initial=0) <= 1e-12 * comm.allreduce(
        abs(planes).max(initial=0), MPI.MAX)
    assert abs(speed - other_speed) <= 1e-12 * speed


def bad_ranks(comm):
    """One error, on all ranks."""
    for parallel, words in (
            ({"v": 5}, "parallel.v: expected one of 1, 2, 3, 4, 6 ranks for this grid, received 5"),
            ({"ky": 9}, "parallel.ky: expected one of 1 to 4 ranks for this grid, received 9"),
            ({"ky": 1, "z": 1, "v": 1, "mu": 1}, f"received {comm.size}")):
        with pytest.raises(ConfigError) as caught:
            Solver(comm, configured(grid=BOX, parallel=parallel))
        assert words in str(caught.value)


# ---- boundary, fields, entropy -------------------------------------------------------------------

def boundary(comm):
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
            return np.exp(-radial**2) * (1 + 2j * geometry.ky[:, None])

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
            outside = -1 if at < geometry.z[0] - 1e-9 else (
                1 if at > geometry.z[-1] + 1e-9 else 0)
            for ky, step in enumerate(steps):
                source = number + outside * step
                open_end = (source < 0) | (source >= len(number))
                expected[plane, ky, open_end] = 0
        assert abs(fields.phi - expected).max() <= 1e-13 * abs(expected).max()


def quasi_neutrality(comm):
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
        kperp2 = (kx + config.plasma.shear * z[:, None, None] * ky[:, None])**2 + ky[:, None]**2
        J = j0(np.sqrt(2 * mu[:, None, None, None] * kperp2 / B))
        F = (2 * np.pi)**-1.5 * np.exp(
            -v[:, None, None, None, None]**2 / 2 - mu[:, None, None, None] * B)
        a = (1 + 0.5 * np.cos(z))[:, None, None]
        state.f[...] = F * J * a
        state.f[..., ky == 0, len(kx) // 2] = 0
        solver.solve_fields(state.f)
        gamma = i0e(kperp2 / B**2)
        density = gamma * a
        density[:, ky == 0, len(kx) // 2] = 0
        truth = density / (1 - gamma + 0.7)
        rows = ky > 0
        errors = [abs(fields.density - density).max(initial=0),
                  abs(fields.inner - truth)[:, rows].max(initial=0)]
        # At ky = 0: the equation itself, with the average of the solution.
        whole = comm.gather((state.where[2], state.where[3], fields.inner, fields.density))
        if comm.rank == 0:
            phi, n = np.full((2, *state.global_shape[2:]), np.nan, complex)
            for along, rows, phi_part, n_part in whole:
                phi[along, rows], n[along, rows] = phi_part, n_part
            z = geometry.z
            B = 1 - config.plasma.eps * np.cos(z)
            average = (phi[:, 0] / B[:, None]).sum(0) / (1 / B).sum()
            gamma = i0e(geometry.kx**2 / B[:, None]**2)
            left = (1 - gamma + 0.7) * phi[:, 0] - 0.7 * average
            other = geometry.kx != 0
            assert abs(left - n[:, 0])[:, other].max() <= 1e-13 * abs(n[:, 0]).max()
            assert (phi[:, 0, ~other] == 0).all()
            assert abs(average).max() > 1
        return np.max(comm.allgather(errors), axis=0)


def nonlinear_conserves(comm):
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


def entropy_linear(comm):
    """The balance of a single mode, and the growth rate that follows from it."""
    config = configured("cyclone", grid=SMALL | {"nz": 32, "nv": 24, "nmu": 8},
                        time={"dt_max": 0.02})
    history = _run(comm, config, 25.0, every=5)
    gamma = cases.balance_rates(config, history)[-1, 1]
    _, fitted, _ = growth(history["time"], history["phi_middle"], 20.0)
    assert fitted[1] > 0.1
    assert abs(gamma / fitted[1] - 1) <= 0.02, (gamma, fitted[1])
    late = history["time"] > 20
    late = {name: values[late] for name, values in history.items()}
    assert cases.imbalance(config, late).max() <= 0.01


def entropy_nonlinear(comm):
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


# ---- files ---------------------------------------------------------------------------------------

def write_two(comm, config, folder):
    """Checkpoints of steps 1 to 3, of which two are kept; f and the time after step 4."""
    with Solver(comm, config) as solver:
        diagnostics, history = Diagnostics(solver), {}
        for step in range(4):
            sample(diagnostics, history)
            if step:
                checkpoints.write(folder, solver, history)
            solver.step()
        straight, time = solver.state.f.copy(), solver.state.time
    assert [path.name[-4:-3] for path in checkpoints.paths(folder)] == ["3", "2"]
    return straight, time


def restart(comm, folder, parallel):
    """Going on from a checkpoint gives the bits of going straight on; spoilt ones are passed over."""
    config = configured(grid=BOX, parallel=parallel)
    straight, time = write_two(comm, config, folder)
    paths = checkpoints.paths(folder)
    for spoil in (None, "flip", "cut", "empty"):
        if comm.rank == 0 and spoil:
            data = paths[0].read_bytes()
            paths[0].write_bytes({"flip": data[:1000] + bytes([data[1000] ^ 1]) + data[1001:],
                                  "cut": data[:len(data) // 2], "empty": b""}[spoil])
        comm.Barrier()
        with Solver(comm, config) as solver:
            kept, remarks = checkpoints.read(folder, solver)
            assert solver.state.step == (2 if spoil else 3)
            assert [paths[0].name in remark for remark in remarks] == [True] * bool(spoil)
            if comm.rank == 0:
                assert len(kept["time"]) == solver.state.step + 1
            while solver.state.step < 4:
                solver.step()
            assert np.array_equal(solver.state.f, straight) and solver.state.time == time
    if comm.rank == 0:
        paths[1].write_bytes(b"x" * 3000)
    comm.Barrier()
    with Solver(comm, config) as solver, pytest.raises(files.FileError) as caught:
        checkpoints.read(folder, solver)
    assert all(path.name in str(caught.value) for path in paths)


def _put(name, value):
    """Something that replaces a dataset of a file."""
    def change(file):
        new = value(file[name][()])
        del file[name]
        if new is not None:
            file[name] = new
    return change


def _set(name, value):
    return lambda file: file.attrs.__setitem__(name, value)


NONSENSE = {  # what was changed under a right digest, and what is to be said about it
    "a plane less": (_put("f", lambda f: f[1:]), "expected f of shape"),
    "real": (_put("f", lambda f: f.real), "expected f of shape"),
    "no f": (_put("f", lambda f: None), "expected an array f, received None"),
    "NaN in f": (_put("f", lambda f: np.where(f == f[-1, 0, 0, 1, 1], np.nan, f)), "expected f to be finite"),
    "step -3": (_set("step", -3), "expected a step of at least 0, received -3"),
    "step 2.5": (_set("step", 2.5), "expected a step of at least 0"),
    "steps": (_set("step", [3, 3]), "expected a step of at least 0"),
    "time NaN": (_set("time", np.nan), "expected a time of at least 0, received nan"),
    "time in words": (_set("time", "now"), "expected a time of at least 0, received now"),
    "no time": (lambda file: file.attrs.pop("time"), "time"),
    "version 7": (_set("version", 7), "expected version 1, received 7"),
    "no JSON": (_set("config", "grid"), "JSONDecodeError"),
    "list": (_set("config", "[1]"), "TypeError"),
    "no section": (_set("config", "{}"), "KeyError: 'plasma'"),
    "no history": (lambda file: file.pop("history"), "expected an array history/time, received None"),
    "no heat flux": (lambda file: file.pop("history/heat_flux"), "expected an array history/heat_flux"),
    "a sample less": (_put("history/S", lambda S: S[1:]), "expected history/S of shape (4, 4)"),
    "a mode more": (_put("history/S", lambda S: np.hstack([S, S])), "expected history/S of shape (4, 4)"),
    "real history": (_put("history/zonal", lambda phi: phi.real), "expected history/zonal of shape (4, 9)"),
    "NaN in history": (_put("history/D", lambda D: D * np.nan), "expected history/D to be finite"),
    "a number": (_put("history/time", lambda time: time[0]), "expected history/time of shape"),
    "group": (lambda file: (file.pop("f"), file.create_group("f")), "expected an array f, received <HDF5 group"),
}
NO_FILES = {
    "FIFO": (os.mkfifo, "expected a file"),
    "folder": (os.mkdir, "directory"),
    "link": (lambda path: os.symlink("nowhere", path), "No such file"),
    "itself": (lambda path: os.symlink(path, path), "Too many levels"),
}


def nonsense(comm, folder):
    """A checkpoint that no run can have written is passed over, whatever its digest says."""
    config = configured(grid=BOX)
    write_two(comm, config, folder)
    newest = checkpoints.paths(folder)[0]
    good = newest.read_bytes()
    comm.Barrier()
    with Solver(comm, config) as solver:
        for name, (change, words) in (NONSENSE | NO_FILES).items():
            if comm.rank == 0:
                newest.unlink()
                if name in NO_FILES:
                    change(newest)
                else:
                    newest.write_bytes(good)
                    with h5py.File(newest, "r+") as file:
                        change(file)
                    checkpoints._seal(newest)
            comm.Barrier()
            _, remarks = checkpoints.read(folder, solver)
            assert solver.state.step == 2, name
            assert len(remarks) == 1 and remarks[0].startswith(newest.name), (name, remarks)
            assert words in remarks[0], (name, remarks)
            comm.Barrier()
            if comm.rank == 0:
                newest.rmdir() if name == "folder" else newest.unlink()
                newest.write_bytes(good)
        comm.Barrier()
        assert checkpoints.read(folder, solver)[1] == [] and solver.state.step == 3


def other_run(comm, folder):
    """A checkpoint of another configuration is refused by name; one that ends later goes on."""
    config = configured(grid=BOX)
    write_two(comm, config, folder)
    with Solver(comm, configured(grid=BOX, plasma={"q": 2.0})) as solver, \
            pytest.raises(ConfigError, match="plasma.q: expected 1.4 as of the checkpoint"):
        checkpoints.read(folder, solver)
    with Solver(comm, configured(grid=BOX, time={"end": 999.0})) as solver:
        checkpoints.read(folder, solver)
        assert solver.state.step == 3


def cannot_write(comm):
    """A checkpoint that cannot be written is one error on all ranks; the run can go on."""
    with Solver(comm, configured(grid=BOX)) as solver:
        with pytest.raises(files.FileError, match="expected to write /nowhere/checkpoint-"):
            checkpoints.write("/nowhere", solver, {})
        solver.step()


def full_disk(comm, folder):
    """Wherever the disk is full: one error on all ranks, the checkpoint before as it was, nothing else left."""
    config = configured(grid=BOX)
    write_two(comm, config, folder)
    before = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
    size = len(before["checkpoint-000000003.h5"])
    comm.Barrier()
    with Solver(comm, config) as solver:
        history, _ = checkpoints.read(folder, solver)
        solver.step()
        for most in (0, 100, 600, 2000, 10_000, size // 2, size - 100):
            with at_most(most if comm.rank == 0 else None):
                with pytest.raises(files.FileError, match="expected to write .*000000004.h5: .*File too large"):
                    checkpoints.write(folder, solver, history)
                if most < 10_000:
                    with pytest.raises(files.FileError, match="output.h5: .*File too large"):
                        output.write(Path(folder, "output.h5"), solver, history)
            assert {path.name: path.read_bytes() for path in Path(folder).iterdir()} == before
            comm.Barrier()
        checkpoints.write(folder, solver, history)
        assert len(checkpoints.paths(folder)) == checkpoints.KEPT


@contextmanager
def at_most(size):
    """Files of this process cannot grow beyond `size` bytes: a full disk, as far as writing goes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft if size is None else size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def killed_while_writing(comm, folder):
    """Write checkpoints until the job is killed, in the middle of one (see the test)."""
    with Solver(comm, configured(grid=BOX)) as solver:
        diagnostics, history = Diagnostics(solver), {}
        solver.step()
        sample(diagnostics, history)
        checkpoints.write(folder, solver, history)
        seal = checkpoints._seal

        def die(path):
            assert path.stat().st_size > 10_000
            os.kill(os.getpid(), 9)

        checkpoints._seal = die if comm.rank == 0 else seal
        solver.step()
        checkpoints.write(folder, solver, history)


def after_kill(comm, folder):
    """What the killed job left: the checkpoint before, whole; the next one clears the rest away."""
    with Solver(comm, configured(grid=BOX)) as solver:
        history, remarks = checkpoints.read(folder, solver)
        assert solver.state.step == 1 and not remarks
        if comm.rank == 0:
            assert history["time"] == [solver.state.time]
        solver.step()
        checkpoints.write(folder, solver, history)
        comm.Barrier()
        assert sorted(path.suffix for path in Path(folder).iterdir()) == [".h5", ".h5"]


def memory(comm):
    """A bracket's run keeps at most 8 copies of the state."""
    config = configured(grid={"nx": 15, "ny": 7, "nz": 16, "nv": 32, "nmu": 7})
    with Solver(comm, config) as solver:
        solver.step()
        assert 3 < solver.copies <= 8, solver.copies


def figures(folder):
    """figures.json of a run."""
    return json.loads(Path(folder, "figures.json").read_text())
