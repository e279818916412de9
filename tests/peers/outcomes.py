"""pytest's plugin that writes what came of each test of another library, on each rank.

``OVERLAP_OUTCOMES`` names the folder; ``OVERLAP_REFUSED`` is a JSON object of regular expressions of tests that are
left out, each with the reason.
"""

import json
import os
import re
from pathlib import Path

from mpi4py import MPI

found = {}


def name_of(nodeid):
    """A test's name from its file on, wherever the file is."""
    return nodeid.rpartition("/")[2]


def pytest_collection_modifyitems(config, items):
    refused = json.loads(os.environ["OVERLAP_REFUSED"])
    kept = []
    for item in items:
        name = name_of(item.nodeid)
        reason = next((reason for pattern, reason in refused.items() if re.search(pattern, name)), None)
        if reason is None:
            kept.append(item)
        else:
            found[name] = f"refused: {reason}"
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        failed = report.skipped and hasattr(report, "wasxfail")
        found[name_of(report.nodeid)] = "failed as expected" if failed else report.outcome


def pytest_sessionfinish():
    Path(os.environ["OVERLAP_OUTCOMES"], f"{MPI.COMM_WORLD.rank}.json").write_text(json.dumps(found))
