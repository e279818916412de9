"""Configurations of the flux-tube solver: what is wrong with one is named."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "gkv"))

from fluxtube.config import CASES, ConfigError, read


@pytest.mark.parametrize(
    "text, words",
    [
        ("[grid]\nnxx = 3", "grid.nxx: expected one of nx, ny"),
        ("[grids]\nnx = 3", "grids: expected one of the sections plasma, grid"),
        ("nx = 3", "nx: expected one of the sections"),
        ("grid = 3", "grid: expected a section [grid], received 3"),
        ("[grid]\nnz = 9", "grid.nz: expected an even number, received 9"),
        ("[grid]\nnv = 2", "grid.nv: expected an integer of at least 8, received 2"),
        ("[grid]\nnx = 2.5", "grid.nx: expected an integer of at least 0, received 2.5"),
        ("[plasma]\neps = 1.5", "plasma.eps: expected a number from 0 to 0.9, received 1.5"),
        ("[plasma]\nq = 0.0", "plasma.q: expected a number larger than 0, received 0.0"),
        ("[plasma]\nq = nan", "plasma.q: expected a number larger than 0, received nan"),
        ("[time]\nend = true", "time.end: expected a number larger than 0, received True"),
        ("[parallel]\nwait = 'maybe'", "parallel.wait: expected one of auto, off, block, poll"),
        ("[grid]\npoints = [5, 5]", "grid.points: expected two integers, at least [31, 61]"),
        ("[grid", "expected a TOML file"),
    ],
)
def test_a_bad_configuration_is_one_clear_error(text, words, tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read(path, CASES["turbulence"])
    assert str(caught.value).startswith(f"{path}: ") and words in str(caught.value)


@pytest.mark.parametrize("case", CASES)
def test_a_configuration_survives_its_plain_values(case):
    assert CASES["cyclone"].with_values(CASES[case].as_dict()) == CASES[case]


def test_values_replace_those_of_the_case(tmp_path):
    path = tmp_path / "good.toml"
    path.write_text("[grid]\nnx = 31\npoints = [48, 96]\n[time]\nend = 3\n")
    config = read(path, CASES["turbulence"])
    assert (config.grid.nx, config.grid.points, config.time.end) == (31, (48, 96), 3)
    assert config.plasma == CASES["turbulence"].plasma
