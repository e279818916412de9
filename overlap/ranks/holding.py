"""What all ranks of an object have made together and free together: communicators, and what goes with them.

An object that is closed frees it at once. Freeing is collective, so an object that a rank drops without closing it
cannot free it: no rank knows whether the others have dropped the object, too. What it holds stays in `_dropped` until
ranks make another object together. Then they tell each other what they have dropped, and free what all its ranks have
dropped.
"""

from __future__ import annotations

import gc
import itertools
import os
import resource
import threading
import warnings
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

from mpi4py import MPI

from ..errors import InputError

MANY, MOST = 500, 1500  # numbers of communicators of open objects; MPI has about 2,000
FULL = 0.5  # share of the descriptors of a process, above which it looks for objects that are not in use any more
BETWEEN = 20  # objects that are made between two such looks, each of which takes as long as making many objects

_open = 0
_open_lock = threading.Lock()
_numbers = itertools.count()
_collected = -BETWEEN  # number of the object before which this process looked last
_dropped: dict[tuple[str, int, int], Holding] = {}  # dropped here, but perhaps not on all ranks; by their names


class DropWarning:
    """The warning that an object with this name was dropped, given once for all that the object holds."""

    def __init__(self, name: str) -> None:
        self._name, self.wanted = name, True

    def give(self) -> None:
        """Warn, the first time."""
        if self.wanted:
            self.wanted = False
            warnings.warn(
                f"{self._name} was dropped without being closed or freed; its communicators are freed when all ranks "
                "have dropped it and make another object together",
                ResourceWarning,
                stacklevel=3,
            )


class Holding:
    """What an object of `size` ranks holds until all of them free it; the warning is given when it is dropped.

    It must not refer to the object, which could not be dropped then. A part of another one has no warning.
    """

    def __init__(self, size: int, warning: DropWarning | None) -> None:
        self._size, self.warning = size, warning
        self._name: tuple[str, int, int] | None = None  # the same on all ranks, once they have agreed on it
        self._frees = ExitStack()
        self._communicators = 0
        self._finalizers: list[weakref.finalize[..., Any]] = []

    @property
    def identity(self) -> str:
        """Return what names it on all ranks, once they have agreed on it, and nothing else."""
        return "-".join(map(str, self._name or ()))

    def add(self, free: Callable[[], object], communicators: int = 0) -> None:
        """Hold something more, that `free` frees together with the other ranks, before what was added earlier."""
        self._frees.callback(free)
        self._communicators += communicators
        _count(communicators)

    def drop_with(self, *owners: object, end: Callable[[], object] | None = None) -> None:
        """Drop it when `owners`, the object or all its parts, are collected, and call `end`."""
        self._finalizers = [weakref.finalize(owner, self._owner_dropped, end) for owner in owners]
        for finalizer in self._finalizers:
            finalizer.atexit = False

    def _owner_dropped(self, end: Callable[[], object] | None) -> None:
        if any(finalizer.alive for finalizer in self._finalizers):
            return
        if end is not None:
            end()
        self.drop()
        if self.warning is not None:
            self.warning.give()

    def forget(self) -> None:
        """Leave it to the end of the process: it cannot be freed (local)."""
        self._name = self.warning = None

    def drop(self) -> None:
        """Keep it until all ranks have dropped it (local)."""
        self.detach()
        if self._name is not None:
            _dropped[self._name] = self

    def free(self) -> None:
        """Free it, what was added last first (collective)."""
        self.detach()
        if not MPI.Is_finalized():
            _count(-self._communicators)
            self._communicators = 0
            self._frees.close()  # all of it, even if something raises

    def detach(self) -> None:
        """Do nothing any more when the object is collected (local)."""
        for finalizer in self._finalizers:
            finalizer.detach()


def free_dropped(
    allgather: Callable[[Any], list[Any]],
    holding: Holding,
    watching: Callable[[str], AbstractContextManager[Any]] = nullcontext,
) -> bool:
    """Free what all its ranks have dropped, and agree on a name of what a new object is going to hold (collective).

    `allgather` gathers a value of each rank of the new object; `watching` makes a ``with`` block for what it is given.
    Returns whether some rank had so many communicators open that none should be kept for later use.

    Raises
    ------
    InputError
        On all ranks, if too many communicators are open even after that.
    """
    global _collected
    number = next(_numbers)
    own_name = MPI.Get_processor_name(), os.getpid(), number
    while True:
        crowded = _is_crowded()
        due = crowded and number - _collected >= (1 if _open > MOST else BETWEEN)  # once for each object
        dropped = dict(_dropped)
        sizes = {name: held._size for name, held in dropped.items()}
        answers = allgather((crowded, due, sizes, own_name))
        holding._name = holding._name or answers[0][-1]
        for name, size in sorted({item for *_, sizes, _ in answers for item in sizes.items()}):
            if sum(name in sizes for *_, sizes, _ in answers) == size and name in dropped:
                with watching("freeing what all ranks have dropped"):
                    _dropped.pop(name).free()
        some_crowded = any(rank_crowded for rank_crowded, *_ in answers)
        if not any(rank_due for _, rank_due, *_ in answers):
            break
        gc.collect()  # some ranks may not have collected a dropped object yet
        _collected = number
    most = max(allgather(_open)) if some_crowded else 0
    if most > MOST:
        raise InputError(
            f"expected at most {MOST} communicators of open runtimes, plans and other objects, "
            f"received {most}: close() those that are no longer in use"
        )
    return some_crowded


def _is_crowded() -> bool:
    """Return whether this process has so many communicators or descriptors that objects should be collected."""
    if _open > MANY:
        return True
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return len(os.listdir("/proc/self/fd")) > FULL * limit


def _count(change: int) -> None:
    """Add `change` to the count of this process's open communicators."""
    global _open
    with _open_lock:
        _open += change


os.register_at_fork(after_in_child=_dropped.clear)
