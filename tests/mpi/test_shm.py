"""Shared memory that is short, as in a container whose /dev/shm has 64 MiB: one error on all ranks, no SIGBUS.

Made of the public names, as the tests of `test_generated`.
"""

from __future__ import annotations

import jobs
import pytest
from generated_recipes import SUBJECTS
from shm_cases import SHORT

AREAS = (*SUBJECTS, "large")
ROOMS = [0, 2**12, 2**14, 2**16, 2**18, SHORT]


def test_more_than_there_is_room_for() -> None:
    jobs.run_job("shm_cases:short", 2, args={"area": "large", "rooms": [SHORT]}, small_shm=True)


@pytest.mark.exhaustive
@pytest.mark.parametrize("area", AREAS)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_room(area: str, ranks: int, mpi: str) -> None:
    args = {"area": area, "rooms": ROOMS}
    jobs.run_job("shm_cases:short", ranks, mpi=mpi, args=args, deadline_s=3600, small_shm=True)
