"""`FFT2` over shaped links: real messages, every mode right and the same to the last bit."""

import sys

import jobs
import pytest

from overlap.tools import links


@pytest.mark.skipif(links.unavailable_reason() is not None, reason=str(links.unavailable_reason()))
@pytest.mark.parametrize("hosts", [2, 3])
def test_every_mode_on_links(hosts, tmp_path):
    command = [sys.executable, "-W", "error", jobs.__file__, "fft2_cases:on_links", "{}", "60"]
    with open(tmp_path / "out", "w") as out:
        status = links.run(command, hosts=hosts, rate="1gbit", deadline_s=70, stdout=out, env={
            jobs.FOLDER: str(tmp_path), "PYTHONPATH": str(jobs.REPOSITORY / "tests" / "mpi")})
    assert status == 0, (tmp_path / "out").read_text()
    assert {path.name for path in tmp_path.glob("rank*")} == {f"rank{i}" for i in range(hosts)}
