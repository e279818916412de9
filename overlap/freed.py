"""What is freed at the end of a `with` block, by all ranks together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from .errors import ClosedError


class Freed(ABC):
    """A context manager that frees itself.

    Attributes
    ----------
    freed : bool
        Set by `free`; what is called from then on raises a `ClosedError`.
    """

    freed = False

    @abstractmethod
    def free(self) -> None:
        """Free what MPI and the operating system keep for it (collective)."""

    def check_open(self) -> None:
        """Raise a `ClosedError` that names the object if it was freed."""
        if self.freed:
            raise ClosedError(f"expected an open {type(self).__name__}, received one that was freed")

    def _raised_by_all(self, error: BaseException) -> bool:
        """Whether the other ranks leave the block, too: they would wait for a rank that does not come to free it."""
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None or self._raised_by_all(error):
            self.free()
