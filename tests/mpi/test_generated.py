"""Tests made of the public names: what is added later is in them by itself, or fails for want of a recipe.

After its end every object says so by name, whatever is asked of it. An argument that is bad on one rank is the same
error on all ranks, and the next call is right. By default one bad value stands for all of an argument's.
"""

from __future__ import annotations

import importlib

import jobs
import pytest
from generated_recipes import NOT_CALLED, SUBJECTS

AREAS = tuple(SUBJECTS)
PARTS = {"runtime": 4}  # jobs for all bad values: every slice that fails leaves a communicator behind, 500 at most
QUICK = ("collectives", "drop-in", "output")  # areas that compile little
MODULES = ("overlap", "overlap.fft", "overlap.sparse", "overlap.collectives", "overlap.compat.mpi4py_fft")


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_has_a_recipe(module: str) -> None:
    known = {
        name.split(".")[-1].split(" ")[0] for subjects in SUBJECTS.values() for one in subjects for name in one.names
    }
    known |= {call for subjects in SUBJECTS.values() for one in subjects for call in one.calls}
    names = importlib.import_module(module).__all__
    assert not sorted({name for name in names if name not in known and f"{module}.{name}" not in NOT_CALLED})


@pytest.mark.parametrize("area", AREAS)
def test_what_is_closed_says_so(area: str) -> None:
    jobs.run_job("generated_cases:closed", 2, args={"area": area})


@pytest.mark.exhaustive
@pytest.mark.parametrize("area", AREAS)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_what_is_closed_says_so_everywhere(area: str, ranks: int, mpi: str) -> None:
    jobs.run_job("generated_cases:closed", ranks, mpi=mpi, args={"area": area}, deadline_s=600)


@pytest.mark.parametrize("area", AREAS)
def test_what_is_printed_of_an_object_is_a_line_that_describes_it(area: str) -> None:
    jobs.run_job("generated_cases:represented", 2, args={"area": area})


@pytest.mark.parametrize("area", AREAS)
def test_a_bad_argument_of_one_rank_is_the_error_of_all(area: str) -> None:
    # Slices that fail leave communicators behind, by design.
    jobs.run_job("generated_cases:bad_arguments", 2, args={"area": area}, fresh=True)


HELD = ("output", "overlap.DistArray", "overlap.fft.SpectralOperators", "overlap.Halo")
SCALED = ("output", "overlap.DistArray", "overlap.fft.SpectralOperators")


@pytest.mark.parametrize("area", HELD)
def test_some_rank_holds_nothing(area: str) -> None:
    jobs.run_job("generated_cases:held_by_some", 3, args={"area": area})


@pytest.mark.exhaustive
@pytest.mark.parametrize("area", ["drop-in", "fft", "output", "sparse"])
@pytest.mark.parametrize("ranks", [3, 5])
def test_some_rank_holds_nothing_everywhere(area: str, ranks: int, mpi: str) -> None:
    jobs.run_job("generated_cases:held_by_some", ranks, mpi=mpi, args={"area": area}, deadline_s=1200, fresh=True)


@pytest.mark.parametrize("area", SCALED)
def test_results_grow_with_the_numbers(area: str) -> None:
    jobs.run_job("generated_cases:scaled", 2, args={"area": area})


@pytest.mark.exhaustive
@pytest.mark.parametrize("area", ["collectives", "drop-in", "fft", "output", "sparse"])
@pytest.mark.parametrize("ranks", [1, 3])
def test_results_grow_with_the_numbers_everywhere(area: str, ranks: int, mpi: str) -> None:
    jobs.run_job("generated_cases:scaled", ranks, mpi=mpi, args={"area": area}, deadline_s=1200, fresh=True)


@pytest.mark.parametrize(
    "area", [area if area in QUICK else pytest.param(area, marks=pytest.mark.exhaustive) for area in AREAS]
)
def test_an_interrupt_of_one_rank_leaves_all_of_them_together(area: str) -> None:
    jobs.run_job("interrupt_cases:interrupts", 2, args={"area": area, "seed": 0, "count": 12}, fresh=True)


@pytest.mark.exhaustive
@pytest.mark.parametrize("area", AREAS)
@pytest.mark.parametrize("ranks", [2, 3])
def test_every_bad_argument_of_one_rank_is_the_error_of_all(area: str, ranks: int, mpi: str) -> None:
    parts = PARTS.get(area, 1)
    for part in range(parts):
        args = {"area": area, "every": True, "part": part, "parts": parts}
        jobs.run_job("generated_cases:bad_arguments", ranks, mpi=mpi, args=args, deadline_s=1800, fresh=True)


def test_a_thread_that_was_interrupted_may_call_again():
    jobs.run_job("interrupt_cases:entered", 1)
