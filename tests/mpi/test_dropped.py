"""Objects that nobody closes: what they hold is freed when all ranks have dropped them, whatever class they are of.

Made of the public names, as the tests of `test_generated`.
"""

from __future__ import annotations

import jobs
import pytest
from generated_recipes import SUBJECTS

AREAS = tuple(SUBJECTS)
MANY = 5000  # more than twice the communicators that MPICH has


@pytest.mark.parametrize("area", AREAS)
def test_what_is_dropped_is_freed(area: str) -> None:
    jobs.run_job("dropped_cases:dropped", 2, args={"area": area, "count": 4})


@pytest.mark.exhaustive
@pytest.mark.parametrize("area", AREAS)
@pytest.mark.parametrize("ranks", [1, 2])
def test_thousands_are_dropped(area: str, ranks: int, mpi: str) -> None:
    args = {"area": area, "count": MANY, "row_s": 600.0}
    jobs.run_job("dropped_cases:dropped", ranks, mpi=mpi, args=args, deadline_s=7200, fresh=True)
