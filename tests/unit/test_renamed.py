"""Names that have changed."""

from importlib import import_module

import pytest
from mpi4py import MPI

import overlap


@pytest.mark.parametrize(
    "module, old, new",
    [
        ("overlap.arrays", "Message", "MessageBoxes"),
        ("overlap.arrays", "Stage", "StageAxes"),
        ("overlap.halo", "Pending", "PendingHalo"),
        ("overlap.timing.simulate", "Transfer", "SimulatedTransfer"),
    ],
)
def test_old_names_are_found_with_a_warning(module, old, new):
    package = import_module(module)
    with pytest.warns(DeprecationWarning, match=f"{module}.{old} is called {new} now") as warnings:
        assert getattr(package, old) is getattr(package, new)
    assert warnings[0].filename == __file__
    assert old not in package.__all__
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        package.Nothing  # noqa: B018


def test_old_method_is_found_with_a_warning():
    with overlap.Runtime(MPI.COMM_SELF) as rt:
        with pytest.warns(DeprecationWarning, match="Runtime.together is called collective_section now") as warnings:
            assert rt.together == rt.collective_section
        assert warnings[0].filename == __file__
