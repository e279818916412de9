"""Objects of which one line is printed: what each is, its shape or its ranks, and whether it was closed."""

from __future__ import annotations


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
