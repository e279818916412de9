"""Names that have changed, and arguments that have gone: the old ones still work, with a `DeprecationWarning`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any
from warnings import warn


def old_names(module: str, **new_names: str) -> Callable[[str], Any]:
    """Make the ``__getattr__`` of a module that finds old names.

    Parameters
    ----------
    module : str
        The name of the module.
    **new_names : str
        The new name of each old one.
    """

    def find(name: str) -> Any:
        if name not in new_names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        new = new_names[name]
        warn(f"{module}.{name} is called {new} now", DeprecationWarning, stacklevel=2)
        return getattr(sys.modules[module], new)

    return find


def old_method(name: str, new: str) -> Any:
    """Make the property of a class that finds a method by its old name.

    Parameters
    ----------
    name, new : str
        The old name, and the new one.
    """

    def find(owner: object) -> Any:
        warn(f"{type(owner).__name__}.{name} is called {new} now", DeprecationWarning, stacklevel=2)
        return getattr(owner, new)

    return property(find, doc=f"Old name of `{new}`.")


def old_argument(call: str, name: str, advice: str) -> None:
    """Warn, where the caller of a function is, that the function was given an argument that it needs no more.

    Parameters
    ----------
    call, name : str
        The function, and the argument.
    advice : str
        What to do instead.
    """
    warn(f"{call} needs no {name} now: {advice}", DeprecationWarning, stacklevel=3)
