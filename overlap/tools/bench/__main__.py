"""One rank of a measurement: `python -m overlap.tools.bench SPEC`, under mpiexec; see `rank.run`."""

from __future__ import annotations

import json
import sys

from .. import launch
from .rank import run

if __name__ == "__main__":
    with launch.aborting():
        run(json.loads(sys.argv[1]), launch.tell)
