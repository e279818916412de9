"""The flux-tube solver of examples/gkv on 1 to 8 ranks; see `gkv_cases`."""

import json

import jobs
import processes
import pytest
from marks import exhaustive

RUN = processes.REPOSITORY / "examples" / "gkv" / "run.py"


def run_gkv(comm, arguments, missing=None):
    """Run the command as a user would (a case: this module is imported on the ranks too)."""
    import runpy
    import sys

    if missing is not None:
        sys.modules[missing] = None
    sys.path.insert(0, str(RUN.parent))
    sys.argv = [str(RUN), *arguments]
    runpy.run_path(str(RUN), run_name="__main__")


def command(ranks, *arguments, **options):
    return jobs.run_job("test_gkv:run_gkv", ranks, args={"arguments": list(map(str, arguments))}, **options)


@pytest.mark.parametrize(
    "ranks, layout",
    [
        (1, {}),
        exhaustive(2, {"z": 2}),
        (2, {"v": 2}),
        exhaustive(4, {"v": 2, "z": 2}),
        (2, {"ky": 2}),
        (3, {"z": 3}),
    ],
)
def test_operator_against_a_matrix(ranks, layout):
    jobs.run_job("gkv_cases:operator", ranks, args={"ranks": layout})


@pytest.mark.exhaustive
def test_growth_against_a_dense_eigenvalue():
    jobs.run_job("gkv_cases:eigenvalue", 2)


def test_two_ranks_workers_depth_and_mode():
    layouts = [(1, 1, 1, 1, 1, 1, "off"), (1, 1, 1, 2, 2, 2, "poll"), (1, 2, 1, 1, 1, 4, "block")]
    jobs.run_job("gkv_cases:any_ranks", 2, args={"layouts": layouts})


@pytest.mark.exhaustive
def test_any_ranks_workers_depth_and_mode():
    # mu, v, z, ky, workers, depth, overlap
    layouts = [
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
    ]
    jobs.run_job("gkv_cases:any_ranks", 6, args={"layouts": layouts})


@pytest.mark.parametrize("ranks", [exhaustive(1), 2, exhaustive(3)])
def test_slab_gives_the_same_bracket(ranks):
    jobs.run_job("gkv_cases:slab", ranks)


@pytest.mark.parametrize("ranks", [exhaustive(5), exhaustive(7)])
def test_bad_numbers_of_ranks(ranks):
    jobs.run_job("gkv_cases:bad_ranks", ranks)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_boundary_against_its_closed_form(ranks):
    jobs.run_job("gkv_field_cases:boundary", ranks)


@pytest.mark.parametrize("ranks", [1, exhaustive(4)])
def test_quasi_neutrality_against_its_closed_form(ranks):
    jobs.run_job("gkv_field_cases:quasi_neutrality", ranks)


@pytest.mark.parametrize("ranks", [1, 2, exhaustive(4)])
def test_nonlinear_term_conserves_entropy(ranks):
    jobs.run_job("gkv_field_cases:nonlinear_conserves", ranks)


@pytest.mark.exhaustive
def test_balance_of_entropy():
    jobs.run_job("gkv_field_cases:entropy_linear,entropy_nonlinear,memory", 2)


@pytest.mark.parametrize("ranks, parallel", [(1, {}), (2, {"v": 2}), exhaustive(4, {"ky": 2, "z": 2})])
def test_restart_bit_for_bit(ranks, parallel, tmp_path):
    jobs.run_job("gkv_file_cases:restart", ranks, args={"folder": str(tmp_path), "parallel": parallel})


@pytest.mark.parametrize("ranks", [exhaustive(1), 2])
def test_checkpoints_that_do_not_fit(ranks, tmp_path):
    jobs.run_job("gkv_file_cases:other_run", ranks, args={"folder": str(tmp_path)})
    jobs.run_job("gkv_file_cases:cannot_write", ranks)


@pytest.mark.parametrize("ranks", [1, exhaustive(2)])
def test_checkpoints_full_of_nonsense(ranks, tmp_path):
    jobs.run_job("gkv_file_cases:nonsense", ranks, args={"folder": str(tmp_path)})


@pytest.mark.parametrize("ranks", [exhaustive(1), 2])
def test_a_full_disk(ranks, tmp_path):
    jobs.run_job("gkv_file_cases:full_disk", ranks, args={"folder": str(tmp_path)})


@pytest.mark.parametrize("ranks", [1, exhaustive(2)])
def test_kill_while_a_checkpoint_is_written(ranks, tmp_path):
    jobs.run_job("gkv_file_cases:killed_while_writing", ranks, args={"folder": str(tmp_path)}, expect_failure=True)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".h5", ".partial"]
    jobs.run_job("gkv_file_cases:after_kill", ranks, args={"folder": str(tmp_path)})


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


@pytest.mark.exhaustive
def test_under_open_mpi(openmpi):
    jobs.run_job("gkv_cases:operator", 2, mpi="openmpi", args={"ranks": {"z": 2}})
    jobs.run_job("gkv_field_cases:nonlinear_conserves,boundary", 2, mpi="openmpi")


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
