"""pytest's plugin that leaves out mpi4py's tests of arrays on GPUs, which need one."""

import sys
from pathlib import Path


def pytest_configure(config):
    sys.path.insert(0, str(Path(config.args[0]).parent))  # the suite's modules that are no tests
    import arrayimpl

    arrayimpl.ArrayBackends[:] = [one for one in arrayimpl.ArrayBackends if one.backend not in ("numba", "cupy")]
