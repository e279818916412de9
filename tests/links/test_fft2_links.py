"""`FFT2` over shaped links: real messages, every mode right and the same to the last bit."""

import sys
import time

import processes
import pytest
import rank
from marks import exhaustive

from overlap.tools import links


@pytest.mark.skipif(links.unavailable_reason() is not None, reason=str(links.unavailable_reason()))
@pytest.mark.parametrize("hosts", [2, exhaustive(3)])
def test_every_mode_on_links(hosts, tmp_path):
    command = [
        sys.executable,
        "-W",
        "error",
        rank.__file__,
        "run",
        "test_fft:on_links",
        "{}",
        str(time.monotonic() + 290),
    ]
    with open(tmp_path / "out", "w") as out:
        status = links.run(
            command,
            hosts=hosts,
            rate="1gbit",
            deadline_s=300,
            stdout=out,
            env={rank.FOLDER: str(tmp_path), "PYTHONPATH": str(processes.REPOSITORY / "tests" / "mpi")},
        )
    assert status == 0, (tmp_path / "out").read_text()
    assert {path.name for path in tmp_path.glob("rank*")} == {f"rank{i}" for i in range(hosts)}
