"""`stand_in`: unchanged programs and libraries that import mpi4py_fft get the drop-in."""

import sys
from importlib import import_module
from pkgutil import walk_packages

from ...errors import InputError

NAME = "mpi4py_fft"


def stand_in() -> None:
    """Make ``import mpi4py_fft`` return the drop-in, with all submodules, from now on in this process.

    Call it before anything imports mpi4py-fft: for libraries that are built on mpi4py-fft, such as shenfun, and for
    programs that should stay unchanged.

    Raises
    ------
    InputError
        mpi4py-fft itself has been imported already.

    Examples
    --------
    >>> from overlap.compat.mpi4py_fft import stand_in
    >>> stand_in()  # doctest: +SKIP
    >>> import shenfun  # doctest: +SKIP
    """
    package = sys.modules[__package__]
    found = sys.modules.setdefault(NAME, package)
    if found is not package:
        raise InputError(
            f"expected a call before anything imports {NAME}, received one after the import of {found.__file__}"
        )
    for module in walk_packages(package.__path__, f"{package.__name__}."):
        sys.modules[NAME + module.name.removeprefix(package.__name__)] = import_module(module.name)
