"""`overlap scale run` on shaped links: one host per rank, whatever their number."""

import json

import pytest
from commands import overlap

from overlap.tools import links

pytestmark = pytest.mark.skipif(links.unavailable_reason() is not None, reason=str(links.unavailable_reason()))


def test_each_rank_has_a_host_of_its_own(tmp_path):
    path = tmp_path / "scale.json"
    status, _, err = overlap(
        "scale",
        "run",
        "fft2",
        "--slices",
        6,
        "--shape",
        128,
        128,
        "--rounds",
        2,
        "--modes",
        "auto",
        "--link",
        "2gbit",
        "--ranks",
        1,
        2,
        "--json",
        path,
    )
    assert status == 0, err
    alone, both = json.loads(path.read_text())["cases"]
    assert (alone["hosts"], alone["control_hidden"]) == (1, None)
    assert both["hosts"] == 2 and isinstance(both["control_hidden"], float)
    assert [place["host"] for place in both["binding"]] == ["h0", "h1"]
    nbytes = 6 * 64 * 64 * 16  # leave each rank
    # No less than the link allows, whatever else the machine does; one rank alone sends nothing, but may be held up.
    assert both["T_s"] > 0.5 * 8 * nbytes / 2e9
