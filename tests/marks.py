"""Marks that several test files give to tests, or to single values of a parameter."""

from __future__ import annotations

from typing import Any

import pytest

# ``@on_ranks(1, 2, "openmpi-2")``: the test runs on ranks, see `jobs`.
on_ranks = pytest.mark.on_ranks


def exhaustive(*values: Any, **options: Any) -> Any:
    """Make a parameter's values run with ``-m exhaustive`` only; `options` are those of `pytest.param`.

    In the default run are representative values: one rank and three, or one and two; Open MPI once a file; each mode
    somewhere. Exhaustive are what lies between, more ranks, every mode with every size, drawn cases beyond some tens.
    """
    return pytest.param(*values, marks=pytest.mark.exhaustive, **options)
