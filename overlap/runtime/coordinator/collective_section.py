"""What all ranks do together, or fail to do together: constructors and planning."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ...errors import InputError
from ...interrupts import held_signals
from .coordinator import Coordinator


@contextmanager
def collective_section(
    coordinator: Coordinator,
    what: str,
    undo: Callable[[], object] | None = None,
    problem: str | None = None,
    agreed: dict[str, Any] | None = None,
) -> Iterator[None]:
    """Do something on all ranks, or fail on all of them: a ``with`` block (collective).

    `Runtime.collective_section` tells what it does; `coordinator` is the one that the ranks meet at.
    """
    with held_signals(), coordinator.exclusive.used(what):
        entry, coordinator.nested = not coordinator.nested, coordinator.nested + 1
        try:
            coordinator.synchronize(what, agreed, entry=entry, error=None if problem is None else InputError(problem))
            yield
            if entry:  # an outer block meets at its own end
                coordinator.synchronize(f"the end of {what}")
        except BaseException as error:
            try:
                # An inner block may have ended the coordinator, with the same error on all ranks.
                if not coordinator.closed and coordinator.left is None and not coordinator.is_known(error):
                    coordinator.synchronize(what, error=error)
                raise
            finally:
                if undo is not None:
                    undo()
        finally:
            coordinator.nested -= 1
