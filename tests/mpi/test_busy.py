"""Objects that are closed while a call of them is under way."""

from __future__ import annotations

import jobs
import marks
import pytest
from generated_recipes import SUBJECTS

AREAS = tuple(SUBJECTS)
QUICK = ("collectives", "output")


@pytest.mark.parametrize("ranks", [1, 2])
def test_closing_is_refused_while_a_call_is_under_way(ranks: int, mpi: str) -> None:
    jobs.run_job("busy_cases:closed_inside,closed_beside,left_beside", ranks, mpi=mpi)


@pytest.mark.parametrize("area", [area if area in QUICK else marks.exhaustive(area) for area in AREAS])
def test_every_close_beside_every_call(area: str) -> None:
    jobs.run_job("busy_cases:busy", 1, args={"area": area}, deadline_s=600)


@pytest.mark.exhaustive
@pytest.mark.parametrize("area", AREAS)
def test_every_close_beside_many_lines_of_every_call(area: str, mpi: str) -> None:
    jobs.run_job("busy_cases:busy", 1, mpi=mpi, args={"area": area, "every": 12}, deadline_s=3600)
