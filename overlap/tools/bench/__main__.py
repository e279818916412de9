"""One rank of a measurement: `python -m overlap.tools.bench SPEC`, under mpiexec; see `rank.run`."""

from __future__ import annotations

import json
import sys
import traceback

from ...errors import InputError
from .. import launch
from .rank import run


def main() -> None:
    """Run the spec of this process's argument."""
    try:
        run(json.loads(sys.argv[1]), launch.tell)
    except BaseException as error:
        # The other ranks may be waiting for this one. If one rank is aborted, mpiexec ends them all.
        from mpi4py import MPI

        if isinstance(error, InputError):
            print(f"overlap: error: {error}", file=sys.stderr)
        else:
            traceback.print_exc()
        sys.stderr.flush()
        MPI.COMM_WORLD.Abort(1)
        raise


if __name__ == "__main__":
    main()
