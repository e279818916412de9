"""The command `overlap`, and ``python -m overlap``."""

import sys


def main():
    """Run the command of this process's arguments; returns its exit status."""
    import mpi4py

    from .tools import launch
    if not launch.under_mpi():
        mpi4py.rc.initialize = False  # it starts ranks, or needs none: a login node may allow no MPI
    from .tools import cli
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
