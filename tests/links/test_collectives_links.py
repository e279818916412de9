"""Collectives between hosts on shaped links: right, and with fewer messages on the links than MPI's own."""

import sys
import time

import processes
import pytest
import rank

from overlap.tools import links


@pytest.mark.skipif(links.unavailable_reason() is not None, reason=str(links.unavailable_reason()))
def test_two_hosts_with_two_ranks_each(tmp_path):
    command = [
        sys.executable,
        "-W",
        "error",
        rank.__file__,
        "run",
        "test_collectives_nodes:on_links",
        "{}",
        str(time.monotonic() + 290),
    ]
    with open(tmp_path / "out", "w") as out:
        status = links.run(
            command,
            hosts=2,
            ranks=4,
            rate="1gbit",
            deadline_s=300,
            stdout=out,
            env={
                rank.FOLDER: str(tmp_path),
                "NODES_EXPECTED": "2",
                "PYTHONPATH": str(processes.REPOSITORY / "tests" / "mpi"),
            },
        )
    assert status == 0, (tmp_path / "out").read_text()
    assert {path.name for path in tmp_path.glob("rank*")} == {f"rank{i}" for i in range(4)}
