"""The programs of the tutorials in docs/ run, and what they assert holds."""

import importlib.util

import jobs
import processes

TUTORIALS = sorted((processes.REPOSITORY / "docs" / "tutorials").glob("*.py"))


def run_tutorials(comm):
    """All of them, one after the other (a case: this module is imported on the ranks too)."""
    for path in TUTORIALS:
        specification = importlib.util.spec_from_file_location("__main__", path)
        specification.loader.exec_module(importlib.util.module_from_spec(specification))


def test_tutorials():
    assert len(TUTORIALS) >= 4
    jobs.run_job("test_tutorials:run_tutorials", 2)
