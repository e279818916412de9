"""The command `overlap`, and ``python -m overlap``."""

from __future__ import annotations

import os
import sys


def main() -> int:
    """Run the command given by this process's arguments; return its exit status."""
    if sys.argv[1:2] == ["advise"]:  # the program chooses how MPI starts, and every rank prints
        from .tools.advise import commands

        return commands.main(sys.argv[2:])
    from .tools import launch, signals

    signals.send_dropped_again()
    os.environ.update(signals.UCX_SETTINGS)  # before anything loads an MPI library
    os.environ.setdefault(*launch.THREAD_LEVEL)
    import mpi4py

    if not launch.under_mpi():
        mpi4py.rc.initialize = False  # the command starts ranks or needs none, and a login node may not allow MPI
    from .tools import cli

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
