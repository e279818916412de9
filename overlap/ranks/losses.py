"""Lost ranks: how all survivors learn of them at once, and how they go on.

MPI reports a lost rank if it was started with fault tolerance (ULFM: Bland et al., "Post-failure recovery of MPI
communication capability", IJHPCA 27, 2013). Calls on a communicator of which a rank is lost end with an error. They
need not do so on all ranks: a rank that waits for a survivor which has seen the error and left its call would wait for
ever. So every communicator that the library makes for a runtime is *guarded*: the first survivor that sees the loss
revokes all of them, and every rank that waits on any of them, now or later, gets an error too. A rank that waits in
shared memory polls MPI now and then (`Guard.poll`).

A guard is an attribute of its communicators, and is passed on to all communicators made from them. The user's
communicator is not guarded, only duplicates of it are.
"""

from __future__ import annotations

import atexit
import ctypes
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import perf_counter, sleep
from typing import Any, TypeVar

from mpi4py import MPI

from ..errors import ClosedError, RankLost

KNOWN_S = 0.5  # time for MPI to report which rank is lost, after it has reported a loss
OTHER_S = 0.1  # the same, if MPI has only reported that a call has failed
_POLL_S = 0.001
_CLASSES = MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_REVOKED
Any_comm = TypeVar("Any_comm", bound=MPI.Comm)
_key: int | None = None
_guards: weakref.WeakSet[Guard] = weakref.WeakSet()


class Guard:
    """Guards the communicators of a runtime, so that all survivors learn of a lost rank.

    By the ranks of `comm` it finds the lost and the surviving ones, of whose communicator `remake` makes a runtime.
    """

    def __init__(self, comm: MPI.Intracomm, remake: Callable[[MPI.Intracomm], Any], on_one_node: bool = False) -> None:
        self.comm = comm
        self.on_one_node = on_one_node  # all ranks of the communicator are known to share memory
        self._settled = False  # whether the library has a communicator of its own
        self._owned = False  # whether a runtime frees it
        self.lost: RankLost | None = None  # the exception raised on this rank
        self._remake = remake
        self._comms: list[MPI.Comm] = []
        self._listeners: weakref.WeakSet[Any] = weakref.WeakSet()
        self._own = comm
        self._next: Guard | None = None  # the guard of the survivors
        _guards.add(self)

    def add(self, comm: MPI.Comm) -> None:
        """Guard a communicator that belongs to the library."""
        comm.Set_errhandler(MPI.ERRORS_RETURN)
        comm.Set_attr(_attribute(), self)
        self._comms = [one for one in self._comms if one != MPI.COMM_NULL]
        self._comms.append(comm)

    def register(self, listener: Any) -> None:
        """Notify `listener` of a loss, by its ``lose(lost)``, as long as the listener exists."""
        self._listeners.add(listener)

    def source(self, comm: MPI.Intracomm, guarded_comm: MPI.Intracomm) -> MPI.Intracomm | Callable[[], MPI.Intracomm]:
        """Return `comm`, or a function that makes a communicator which the runtime frees, as source of a runtime.

        `guarded_comm` has the same ranks, and is duplicated.
        """
        if self._owned:
            return comm
        self._owned = True

        def duplicate() -> MPI.Intracomm:
            self._own = guarded_comm.Dup()
            return self._own

        return (lambda: comm) if self._settled else duplicate

    @contextmanager
    def settling(self, what: str) -> Iterator[None]:
        """Return a ``with`` block in which a runtime is made (collective).

        The first runtime is made from the user's communicator, on which calls may fail on some ranks only. At the end
        of the block all survivors agree once: either all of them have a duplicate from then on, or all of them use the
        user's communicator.
        """
        if self._settled:
            yield
            return
        lost = None
        try:
            with DetectingLoss(self, what):
                yield
        except RankLost as error:
            lost = error
        try:
            settled = bool(self.comm.Agree(lost is None))
        except MPI.Exception:
            settled = False
        if not settled:
            raise lost or self.lose(what)
        self.comm, self._settled = self._own, True

    def loss(self, error: BaseException, what: str) -> RankLost | None:
        """Return the loss that has caused an exception, or None; after a loss no rank waits for this rank any more."""
        if isinstance(error, RankLost):
            return error
        if not isinstance(error, MPI.Exception):
            return None
        # MPI may give another class: for several requests ERR_IN_STATUS, or "known error not in list".
        if error.Get_error_class() not in _CLASSES and not self._revoked() and not self._lost_ranks(OTHER_S):
            return None
        return self.lose(what)

    def explains(self, error: BaseException) -> bool:
        """Return whether a rank is lost, so that an exception may be due to values that were never sent.

        If a rank dies in a collective, Open MPI 5.0.11 may report success on other ranks without that rank's data.
        """
        return isinstance(error, Exception) and bool(self._lost_ranks(OTHER_S))

    def lose(self, what: str) -> RankLost:
        """Revoke the guarded communicators because a rank is lost, so that no rank waits on them any more."""
        if self.lost is None:
            for comm in self._comms:
                if comm != MPI.COMM_NULL:
                    with suppress(MPI.Exception):
                        comm.Revoke()
            self.lost = RankLost(self._lost_ranks(KNOWN_S), self.comm.size, what, self.survivors)
            _end_without_the_launcher()
            for listener in list(self._listeners):
                listener.lose(self.lost)
        return self.lost

    def poll(self, what: str) -> None:
        """Call MPI, and raise `RankLost` if a rank is lost; for ranks that wait for something other than MPI."""
        try:
            self.comm.Iprobe()
        except MPI.Exception as error:
            lost = self.loss(error, what)
            if lost is None:
                raise
            raise lost from error

    def _revoked(self) -> bool:
        """Return whether another rank has detected a loss, of which MPI may not know here yet."""
        return any(comm != MPI.COMM_NULL and comm.Is_revoked() for comm in self._comms)

    def _lost_ranks(self, timeout_s: float) -> tuple[int, ...]:
        """Return the ranks that MPI knows to be lost; wait up to `timeout_s` for MPI to detect them."""
        end = perf_counter() + timeout_s
        while True:
            MPI.COMM_SELF.Iprobe()  # on a revoked communicator MPI does not progress messages
            lost, every = self.comm.Get_failed(), self.comm.Get_group()
            ranks = tuple(sorted(lost.Translate_ranks(None, every)))
            lost.Free()
            every.Free()
            if ranks or perf_counter() > end:
                return ranks
            sleep(_POLL_S)

    def survivors(self) -> Any:
        """Make a runtime of the ranks that are left (collective over them)."""
        if self._next is None or self._next.comm == MPI.COMM_NULL:  # freed with the runtime that was made before
            comm: Any = self.comm.Shrink()
            self._next = Guard(comm, self._remake, self.on_one_node)
            self._next.add(comm)
            self._next._settled = True
        if self._next.lost is not None:
            return self._next.survivors()
        return self._remake(self._next.comm)


class DetectingLoss:
    """A ``with`` block with MPI calls on a communicator that may be guarded.

    Raises `RankLost` if MPI has failed because a rank is lost, and `ClosedError` if the loss was known before.
    """

    __slots__ = ("_guard", "_what")

    def __init__(self, guard: Guard | None, what: object) -> None:
        self._guard, self._what = guard, what

    def __enter__(self) -> None:
        if self._guard is not None and self._guard.lost is not None:
            raise ClosedError(f"expected all ranks to be alive for {self._what}, received a loss: {self._guard.lost}")

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self._guard is not None and error is not None:
            lost = self._guard.loss(error, str(self._what))
            if lost is None and self._guard.explains(error):
                lost = self._guard.lose(str(self._what))
            if lost is not None and lost is not error:
                raise lost from error


def detecting_loss(comm: MPI.Comm, what: str) -> DetectingLoss:
    """Return a ``with`` block that raises `RankLost` if MPI fails because a rank of a guarded communicator is lost."""
    return DetectingLoss(guard_of(comm), what)


def guard_of(comm: MPI.Comm) -> Guard | None:
    """Return the guard of a communicator, or None."""
    guard: Any = None if _key is None or comm == MPI.COMM_NULL else comm.Get_attr(_key)
    return guard


def guarded(derived: Any_comm, comm: MPI.Comm) -> Any_comm:
    """Guard a communicator made from another one, if the latter is guarded, and return it."""
    guard = guard_of(comm)
    if guard is not None and derived != MPI.COMM_NULL:
        guard.add(derived)
    return derived


def _end_without_the_launcher() -> None:
    """Keep ``MPI_Finalize`` from waiting at the launcher's barrier, which may not know that lost ranks never arrive.

    With fault tolerance the surviving ranks still wait for each other in Open MPI 5 itself.
    """
    with suppress(OSError, ValueError):
        ctypes.c_bool.in_dll(ctypes.CDLL(MPI.__file__), "ompi_async_mpi_finalize").value = True


@atexit.register
def _at_exit() -> None:
    """Detect losses that no call has detected, so that all surviving ranks end in the same way."""
    if not MPI.Is_finalized():
        for guard in [known for known in _guards if known.comm != MPI.COMM_NULL]:
            with suppress(MPI.Exception, RankLost):
                guard.poll("the end of the process")


def tolerates() -> bool | None:
    """Return whether MPI was started with fault tolerance; None if this MPI library has none."""
    try:
        return bool(ctypes.c_bool.in_dll(ctypes.CDLL(MPI.__file__), "ompi_ftmpi_enabled").value)
    except (OSError, ValueError):
        return None


def tolerance_problem() -> str | None:
    """Return what the user must do so that ranks survive the loss of a rank; None if they survive already."""
    if tolerates():
        return None
    library = MPI.Get_library_version().split(",")[0].split("\n")[0]
    return (
        "expected an MPI started with fault tolerance, which Open MPI 5 has: `mpiexec --with-ft ulfm ...`, received "
        f"{library!r} started without it"
    )


def _attribute() -> int:
    """Return the MPI key of the attribute that holds a communicator's guard."""
    global _key
    if _key is None:
        _key = MPI.Comm.Create_keyval()
    return _key
