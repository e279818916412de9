"""The flux-tube solver of examples/gkv on 1 to 8 ranks."""

import json
import runpy
import sys

import gkv_example  # noqa: F401
import jobs
import numpy as np
import processes
import pytest
from fluxtube.config import CASES, ConfigError
from fluxtube.decomposition import AXES
from fluxtube.diagnostics import Diagnostics, growth
from fluxtube.solver import Solver
from marks import exhaustive, on_ranks
from mpi4py import MPI
from scipy.special import i0e, j0


def run_gkv(comm, arguments, missing=None):
    """Run the command as a user would."""
    if missing is not None:
        sys.modules[missing] = None
    sys.path.insert(0, str(RUN.parent))
    sys.argv = [str(RUN), *arguments]
    runpy.run_path(str(RUN), run_name="__main__")


def command(ranks, *arguments, **options):
    return jobs.run_job("test_gkv:run_gkv", ranks, args={"arguments": list(map(str, arguments))}, **options)


RUN = processes.REPOSITORY / "examples" / "gkv" / "run.py"
SHORT = """
[grid]
nx = 4
ny = 3
nz = 8
nv = 12
nmu = 5
[time]
end = {end}
sample_every = 2
checkpoint_every = 4
"""
SMALL = {"nx": 0, "ny": 1, "nz": 16, "nv": 12, "nmu": 4, "turns": 1, "ky_min": 0.3}
BOX = {"nx": 4, "ny": 3, "nz": 8, "nv": 12, "nmu": 8, "turns": 1, "ky_min": 0.2, "m_j": 1, "kx_min": 0.0}


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
    v, mu, _z = (solver.state.local(axis) for axis in ("v", "mu", "z"))
    maxwellian = (np.exp(-(v[:, None, None] ** 2) / 2) * np.exp(-mu[:, None]))[..., None, None]
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
    kperp2 = ky**2 * (1 + (p.shear * z) ** 2)
    b = kperp2 / B**2
    first = {-2: 1 / 12, -1: -8 / 12, 1: 8 / 12, 2: -1 / 12}
    second = {-2: -1 / 12, -1: 16 / 12, 0: -30 / 12, 1: 16 / 12, 2: -1 / 12}

    def index(i, m, j):
        return (i * nm + m) * nz + j

    F = np.array(
        [
            [
                [(2 * np.pi) ** -1.5 * np.exp(-(v[i] ** 2) / 2 - w[m] ** 2 / 2 * B[j]) for j in range(nz)]
                for m in range(nm)
            ]
            for i in range(nv)
        ]
    )
    J = np.array([[j0(w[m] * np.sqrt(B[j]) * np.sqrt(kperp2[j]) / B[j]) for j in range(nz)] for m in range(nm)])
    size = nv * nm * nz
    # phi_j = sum over (i, m) of solve[j, (i, m, j)] f
    solve = np.zeros((nz, size))
    for m in range(nm):
        weight = 2 * np.pi * w[m] * dw * dv
        weight *= {1: 1 + 1 / 12 + 22 / 720, 2: 1 - 11 / 720}.get(m, 1)
        for i in range(nv):
            for j in range(nz):
                solve[j, index(i, m, j)] = weight * B[j] * J[m, j] / (1 - i0e(b[j]) + p.tau)
    on_f = np.zeros((size, size), complex)
    on_phi = np.zeros((size, nz), complex)
    for i in range(nv):
        for m in range(nm):
            for j in range(nz):
                here = index(i, m, j)
                muB = w[m] ** 2 / 2 * B[j]
                # Streaming and dissipation; at open ends f is extrapolated where it flows out.
                for steps in range(-2, 3):
                    factor = (
                        -v[i] / p.q / dz * first.get(steps, 0)
                        - config.time.dissipation * {-2: 1, -1: -4, 0: 6, 1: -4, 2: 1}[steps]
                    )
                    there = j + steps
                    if 0 <= there < nz:
                        on_f[here, index(i, m, there)] += factor
                    elif (there < 0 and v[i] < 0) or (there >= nz and v[i] > 0):
                        end, inner = (0, 1) if there < 0 else (nz - 1, nz - 2)
                        if there in (-1, nz):
                            on_f[here, index(i, m, end)] += factor
                        else:
                            on_f[here, index(i, m, end)] += 2 * factor
                            on_f[here, index(i, m, inner)] -= factor
                    if 0 <= there < nz:
                        on_phi[here, there] -= v[i] / p.q / dz * first.get(steps, 0) * F[i, m, j] * J[m, there]
                for steps, factor in first.items():
                    if 0 <= i + steps < nv:
                        on_f[here, index(i + steps, m, j)] += w[m] ** 2 / 2 * p.eps * np.sin(z[j]) / p.q * factor / dv
                drift = -(v[i] ** 2 + muB) * ky * (np.cos(z[j]) + p.shear * z[j] * np.sin(z[j]))
                star = -ky * (p.R_Ln + (v[i] ** 2 / 2 + muB - 1.5) * p.R_LT)
                on_f[here, here] -= 1j * drift
                on_phi[here, j] += 1j * (star - drift) * F[i, m, j] * J[m, j]
                # Collisions on g = f + F J0 phi.
                stencil = {(i, m): 3 - b[j]}
                for steps in range(-2, 3):
                    rate = second[steps] / dv**2 + v[i] * first.get(steps, 0) / dv
                    stencil[i + steps, m] = stencil.get((i + steps, m), 0) + rate
                    root = np.sqrt(B[j])
                    rate = second[steps] / (dw * root) ** 2
                    if m == 0:
                        rate *= 2
                    else:
                        perpendicular = w[m] * root
                        rate += (1 / perpendicular + perpendicular) * first.get(steps, 0) / (dw * root)
                    there = i, abs(m + steps)
                    stencil[there] = stencil.get(there, 0) + rate
                for (k, n), rate in stencil.items():
                    if 0 <= k < nv and n < nm:
                        on_f[here, index(k, n, j)] += p.nu * rate
                        on_phi[here, j] += p.nu * rate * F[k, n, j] * J[n, j]
    return on_f + on_phi @ solve


def dense_config(**plasma):
    return configured("cyclone", grid=SMALL, plasma={"nu": 0.02, **plasma}, time={"dt_max": 0.1})


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


@on_ranks
@pytest.mark.parametrize(
    "comm, layout",
    [(1, {}), exhaustive(2, {"z": 2}), (2, {"v": 2}), exhaustive(4, {"v": 2, "z": 2}), (2, {"ky": 2}), (3, {"z": 3})],
)
def test_operator_against_a_matrix(comm, layout):
    operator(comm, ranks=layout)


@pytest.mark.exhaustive
@on_ranks(2)
def test_growth_against_a_dense_eigenvalue(comm):
    """Growth and frequency of a run against the matrix's fastest growing mode."""
    config = dense_config()
    with Solver(comm, config) as solver:
        diagnostics, times, phi = Diagnostics(solver), [], []
        while solver.state.time < 25:
            solver.step()
            if solver.state.step % 3 == 0:
                sample = diagnostics.sample()
                times.append(sample["time"])
                phi.append(sample["phi_middle"])
    omega, gamma, _ = growth(times, phi, 18.0)
    if comm.rank == 0:
        values = np.linalg.eigvals(dense(config, 0.3))
        fastest = values[np.argmax(values.real)]
        assert fastest.real > 0.1
        assert abs(gamma[1] + 1j * -omega[1] - fastest) <= 2e-4 * abs(fastest), (gamma[1], omega[1], fastest)


# ---- ranks ---------------------------------------------------------------------------------------


@on_ranks
@pytest.mark.parametrize(
    "comm, layouts",  # mu, v, z, ky, workers, depth, overlap
    [
        (2, [(1, 1, 1, 1, 1, 1, "off"), (1, 1, 1, 2, 2, 2, "poll"), (1, 2, 1, 1, 1, 4, "block")]),
        exhaustive(
            6,
            [
                (1, 1, 1, 1, 1, 1, "off"),
                (1, 1, 1, 2, 1, 2, "poll"),
                (1, 1, 1, 4, 2, 3, "block"),
                (1, 1, 3, 1, 1, 4, "poll"),
                (1, 2, 2, 1, 1, 2, "auto"),
                (3, 1, 1, 1, 1, 2, "poll"),
                (2, 1, 1, 2, 3, 4, "poll"),
                (1, 4, 1, 1, 1, 1, "off"),
                (1, 2, 1, 2, 1, 4, "block"),
                (1, 1, 2, 3, 1, 4, "poll"),
            ],
        ),
    ],
)
def test_any_ranks_workers_depth_and_mode(comm, layouts):
    """All ways to share the work: equal bits of the nonlinear term, all else within 1e-12."""
    results = []
    for layout in layouts:
        ranks = int(np.prod(layout[:4]))
        part = comm.Split(int(comm.rank < ranks))
        if comm.rank < ranks:
            parallel = dict(zip((*AXES, "workers", "depth", "wait"), layout))
            parallel["nonlinear"] = "planes"
            results.append(_both(part, configured(grid=BOX, plasma={"nu": 0.01}, parallel=parallel)))
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


@on_ranks(exhaustive(1), 2, exhaustive(3))
def test_slab_gives_the_same_bracket(comm):
    """Both forms of the nonlinear term, on the same points."""
    found = []
    for form in ("planes", "slab"):
        config = configured(grid=BOX, parallel={"nonlinear": form, "ky": comm.size})
        with Solver(comm, config) as solver:
            set_random(solver)
            solver.rhs(solver.state.f, solver.slope)
            found.append((solver.slope.copy(), solver.dt, comm.allreduce(solver.nonlinear.speed, MPI.MAX)))
    (planes, _, speed), (slabs, _, other_speed) = found
    assert abs(planes - slabs).max(initial=0) <= 1e-12 * comm.allreduce(abs(planes).max(initial=0), MPI.MAX)
    assert abs(speed - other_speed) <= 1e-12 * speed


@pytest.mark.exhaustive
@on_ranks(5, 7)
def test_bad_numbers_of_ranks(comm):
    """One error, on all ranks."""
    for parallel, words in (
        ({"v": 5}, "parallel.v: expected one of 1, 2, 3, 4, 6 ranks for this grid, received 5"),
        ({"ky": 9}, "parallel.ky: expected one of 1 to 4 ranks for this grid, received 9"),
        ({"ky": 1, "z": 1, "v": 1, "mu": 1}, f"received {comm.size}"),
    ):
        with pytest.raises(ConfigError) as caught:
            Solver(comm, configured(grid=BOX, parallel=parallel))
        assert words in str(caught.value)


def test_turbulence_command_and_its_restart(tmp_path):
    config, out = tmp_path / "short.toml", tmp_path / "run"
    config.write_text(SHORT.format(end=0.5))
    result = command(2, "turbulence", "--config", config, "--out", out)
    assert "mean heat flux" in result.out and "written:" in result.out
    assert (out / "turbulence.png").read_bytes().startswith(b"\x89PNG")
    first = json.loads((out / "figures.json").read_text())
    assert first["time"] == pytest.approx(0.5) and first["cost"]["ranks"] == 2
    assert len(list(out.glob("checkpoint-*.h5"))) == 2
    config.write_text(SHORT.format(end=1.0))
    command(2, "turbulence", "--config", config, "--out", out, "--restart")
    again = json.loads((out / "figures.json").read_text())
    assert again["time"] == pytest.approx(1.0)
    config.write_text(SHORT.format(end=1.01))  # one step more, which is less than sample_every
    command(2, "turbulence", "--config", config, "--out", out, "--restart")
    again = json.loads((out / "figures.json").read_text())
    assert again["time"] == pytest.approx(1.01) and again["cost"]["steps"] == 1
    xarray = pytest.importorskip("xarray")
    with xarray.open_dataset(out / "output.h5", engine="h5netcdf") as data:
        assert data.phi.dims == ("z", "ky", "kx") and data.phi.dtype == complex
        assert data.heat_flux.dims == ("time", "ky")
        assert data.time[0] == 0 and data.time[-1] == again["time"]
        assert (data.time.diff("time") > 0).all()


@pytest.mark.parametrize("case", [exhaustive("cyclone"), "zonal"])
def test_linear_commands(case, tmp_path):
    config = tmp_path / "short.toml"
    config.write_text("[grid]\nnz = 16\nnv = 12\nnmu = 4\n[time]\nend = 3.0\n")
    result = command(1, case, "--config", config, "--out", tmp_path)
    assert ("gamma at ky = 0.30" if case == "cyclone" else "GAM frequency") in result.out
    assert (tmp_path / f"{case}.png").exists()
    assert json.loads((tmp_path / "figures.json").read_text())["figures"]


@pytest.mark.parametrize(
    "text, words",
    [
        ("[grid]\nnxx = 3", "grid.nxx: expected one of nx, ny"),
        exhaustive("[parallel]\nky = 2", "parallel: expected a number of ranks that is a product of 2 (ky)"),
        exhaustive("[grid", "expected a TOML file"),
    ],
)
def test_bad_configurations_are_named(text, words, tmp_path):
    config = tmp_path / "bad.toml"
    config.write_text(text)
    result = command(1, "turbulence", "--config", config, "--out", tmp_path / "run", expect_failure=True)
    assert result.err.count("run.py: ") == 1
    assert words in result.err.splitlines()[0]


def test_a_missing_extra_is_said_once():
    result = jobs.run_job("test_gkv:run_gkv", 2, args={"arguments": ["zonal"], "missing": "h5py"}, expect_failure=True)
    assert result.err.count("expected h5py to be installed: pip install 'overlap-mpi[gkv]'") == 1, result


@pytest.mark.exhaustive
def test_a_missing_file_and_a_missing_checkpoint(tmp_path):
    result = command(2, "zonal", "--config", tmp_path / "none.toml", expect_failure=True)
    assert result.err.count("run.py: ") == 1 and "none.toml: expected a TOML file" in result.err
    result = command(2, "zonal", "--out", tmp_path, "--restart", expect_failure=True)
    assert result.err.count("run.py: expected a checkpoint in") == 1


# ---- whole runs ----------------------------------------------------------------------------------


@pytest.mark.physics
@pytest.mark.parametrize("case, count", [("cyclone", 12), ("zonal", 2)])
def test_published_figures(case, count, tmp_path):
    result = command(2, case, "--out", tmp_path, deadline_s=1800)
    print(result.out)
    figures = json.loads((tmp_path / "figures.json").read_text())["figures"]
    asked = [figure for figure in figures if "within" in figure]
    assert len(asked) == count
    assert all(figure["ok"] for figure in asked), asked
    for figure in figures:
        name, _, by_balance = figure["name"].partition(" from the balance")
        if by_balance and any(one["name"] == name for one in asked):
            fitted = next(one["measured"] for one in figures if one["name"] == name)
            assert abs(figure["measured"] / fitted - 1) <= 0.02, figure


@pytest.mark.physics
def test_turbulence_saturates_through_zonal_flows(tmp_path):
    config = tmp_path / "coarse.toml"
    config.write_text("[grid]\nnx = 12\nny = 8\nnz = 16\nnv = 16\nnmu = 5\n[time]\nend = 80.0\n")
    result = command(2, "turbulence", "--config", config, "--out", tmp_path, deadline_s=3000)
    print(result.out)
    figures = {one["name"]: one for one in json.loads((tmp_path / "figures.json").read_text())["figures"]}
    low, high = figures["chi_i L_n / (rho_i^2 v_ti)"]["published_range"]
    assert low / 3 < figures["chi_i L_n / (rho_i^2 v_ti)"]["measured"] < 3 * high
    assert figures["zonal share of <phi^2>"]["measured"] > 0.1
    assert figures["balance of entropy, median imbalance"]["measured"] < 0.01
