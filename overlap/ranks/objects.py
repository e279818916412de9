"""What all objects of the library share: no copies, one line that is printed, names that have changed.

An old name still works, and so does an argument that has gone, with a `DeprecationWarning`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NoReturn, SupportsIndex
from warnings import warn

from ..errors import InputError


class Uncopied:
    """Base class of objects with communicators, threads or shared memory, which a copy would free a second time."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        # Python calls this for `copy.copy`, `copy.deepcopy` and pickles.
        raise InputError(
            f"expected an object that can be copied or pickled, received a {type(self).__name__}, which belongs to its "
            "process and its ranks: make another one with the same arguments"
        )


class Described:
    """Base class of objects that `print` shows as one line."""

    def _title(self) -> str:
        """Return what the object is, and its shape or its ranks."""
        raise NotImplementedError

    def _has_ended(self) -> bool:
        """Return whether the object was closed, or an object on which it depends."""
        return False

    def __repr__(self) -> str:
        try:
            return f"<{self._title()}{', closed' if self._has_ended() else ''}>"
        except AttributeError:  # the constructor has not ended, as a traceback with local variables may show
            return f"<{type(self).__name__}, not made yet>"


def old_names(module: str, **new_names: str) -> Callable[[str], Any]:
    """Make the ``__getattr__`` of a module that finds old names, each given with the new one."""

    def find(name: str) -> Any:
        if name not in new_names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        new = new_names[name]
        warn(f"{module}.{name} is called {new} now", DeprecationWarning, stacklevel=2)
        return getattr(sys.modules[module], new)

    return find


def old_method(name: str, new: str) -> Any:
    """Make the property of a class that finds a method by its old name."""

    def find(owner: object) -> Any:
        warn(f"{type(owner).__name__}.{name} is called {new} now", DeprecationWarning, stacklevel=2)
        return getattr(owner, new)

    return property(find, doc=f"Old name of `{new}`.")


def old_argument(call: str, name: str, advice: str) -> None:
    """Warn, where the caller of `call` is, that it was given an argument that it needs no more, with an advice."""
    warn(f"{call} needs no {name} now: {advice}", DeprecationWarning, stacklevel=3)
