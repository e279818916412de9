"""Tests of `tests/mpi` on shaped links: real messages between hosts."""

import sys
import time

import processes
import pytest
import rank
from marks import exhaustive

from overlap.tools import links


@pytest.mark.skipif(links.unavailable_reason() is not None, reason=str(links.unavailable_reason()))
@pytest.mark.parametrize(
    "case, hosts, ranks",
    [("test_fft:on_links", 2, 2), exhaustive("test_fft:on_links", 3, 3), ("test_collectives_nodes:on_links", 2, 4)],
)
def test_on_links(case, hosts, ranks, tmp_path):
    command = [sys.executable, "-W", "error", rank.__file__, "run", case, "{}", str(time.monotonic() + 290)]
    env = {rank.FOLDER: str(tmp_path), "PYTHONPATH": str(processes.REPOSITORY / "tests" / "mpi")}
    options = {"hosts": hosts, "ranks": ranks, "rate": "1gbit", "deadline_s": 300}
    with open(tmp_path / "out", "w") as out:
        status = links.run(command, stdout=out, env=env | {"NODES_EXPECTED": str(hosts)}, **options)
    assert status == 0, (tmp_path / "out").read_text()
    assert {path.name for path in tmp_path.glob("rank*")} == {f"rank{i}" for i in range(ranks)}
