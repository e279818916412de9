"""What all ranks do together, or fail to do together: constructors and planning."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ...errors import InputError
from ...interrupts import held_signals
from .control import Control


@contextmanager
def together(
    control: Control,
    what: str,
    undo: Callable[[], object] | None = None,
    problem: str | None = None,
    agreed: dict[str, Any] | None = None,
) -> Iterator[None]:
    """Do something on all ranks, or fail on all of them: a ``with`` block (collective).

    `Runtime.together` tells what it does; `control` is the one that the ranks meet at.
    """
    with held_signals(), control.exclusive.used(what):
        entry, control.nested = not control.nested, control.nested + 1
        try:
            control.meet(what, agreed, entry=entry, error=None if problem is None else InputError(problem))
            yield
            if entry:  # an outer block meets at its own end
                control.meet(f"the end of {what}")
        except BaseException as error:
            try:
                # An inner block may have ended the control, with the same error on all ranks.
                if not control.closed and control.left is None and not control.is_known(error):
                    control.meet(what, error=error)
                raise
            finally:
                if undo is not None:
                    undo()
        finally:
            control.nested -= 1
