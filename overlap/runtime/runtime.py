"""`Runtime`: threads, communicators, the deadline, and what all ranks do together.

The calling thread checks the input together with all ranks, passes one `Job` to the communicator thread and waits for
its outcome. With ``wait="off"`` it runs the job itself. Only one thread calls MPI at any time: the caller between
pipelines (`Coordinator`), the communicator thread inside of one.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from mpi4py import MPI

from ..checks import function_problem, integer_problem, number_problem, options_problem
from ..errors import InputError, OverlapError, RankLost, repr_of
from ..ranks.coordinator import Coordinator
from ..ranks.door import enter
from ..ranks.exclusive import check_thread_level, thread_level
from ..ranks.holding import DropWarning
from ..ranks.interrupts import held_signals
from ..ranks.losses import DetectingLoss, Guard, guard_of, tolerance_problem
from ..ranks.objects import old_method
from ..ranks.resource import Resource, Telling, closed_error
from ..ranks.watchdog import Watchdog
from .load import Load
from .pipeline import Pipeline, PipelineOptions, Skeleton, SliceProgram
from .requests.requests import AsyncComm
from .scheduling.executor import Executor
from .scheduling.host import Host
from .scheduling.polling import POLLS_PER_EXCHANGE
from .scheduling.ready_steps import is_worker
from .threads.threads import Threads
from .threads.workers import single_threaded_pools
from .trace import Trace

if TYPE_CHECKING:
    from .requests.async_collectives import AsyncCollectives

_MAKING, _CLOSING = "making a runtime", "closing a runtime"


class Runtime(Resource):
    """Runs slice programs so that their MPI calls are hidden behind other slices' computing.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        Duplicated; creating and closing a runtime is collective over it.
    workers : int
        Worker threads per rank, N in the timing model.
    depth : int
        Slots: slices in flight, which bounds the memory in flight.
    wait : {"auto", "block", "poll", "off"}
        How the communicator waits: in blocking calls (which take the core of one worker), in nonblocking calls with
        sleep in between, or without any overlap. ``"auto"`` runs each pipeline in every way at first and then keeps
        the fastest; with several workers it does not try ``"off"``, which has one worker.
    in_flight : int, optional
        With ``"poll"``: exchanges in flight at once; `depth` by default.
    deadline_s : float, optional
        Seconds after which an MPI operation that has not completed aborts the job; None: never. The deadline does not
        cover the wait at the beginning of a call for ranks that have not made the call yet: these may compute or write
        a file for longer.
    entry_deadline_s : float, optional
        Seconds after which that wait aborts the job, too; None: never.
    trace : overlap.runtime.trace.Trace or bool, optional
        Record what every thread does. True makes a new trace (`Runtime.trace`).
        `overlap.tools.timeline` writes it to a file and draws it.
    agree_every : int
        Number of operations between two agreements, by which the ranks learn whether a slice has failed.
    nice : int
        Nice value added to the workers' threads, so that a communicator that shares their core gets it as soon as it
        wakes. Where other programs run on the same cores, workers get less of these; 0 gives them the same share.
    on_loss : {None, "raise"}
        What happens when a rank's process ends in the middle of the job. By default the launcher ends the job, or the
        deadline does. ``"raise"``: the other ranks raise `RankLost` in their current or their next call, and can go on
        (`shrink`). MPI must have been started with fault tolerance. A runtime of a communicator of such a runtime
        (``rt.comm.source``) is like that one.

    Attributes
    ----------
    comm : AsyncComm
        The communicator of slice programs.
    load : Load
        How long this rank has computed and waited in the calls of its pipelines.

    Raises
    ------
    InputError
        On all ranks, when an argument is bad or differs between ranks.
    ThreadLevelError
        When MPI was not initialised with at least ``MPI_THREAD_SERIALIZED``.
    RankLost
        With ``on_loss="raise"``, on the other ranks if a rank is lost meanwhile.

    Examples
    --------
    >>> u = np.ones(8)
    >>> with overlap.Runtime(comm, workers=2) as rt:
    ...     @rt.pipelined
    ...     async def normalise(i):
    ...         await rt.comm.Allreduce(MPI.IN_PLACE, u[i : i + 1])
    ...         u[i] /= comm.size
    ...     normalise(range(8))
    >>> bool((u == 1).all())
    True
    """

    comm: AsyncComm
    trace: Trace | None

    def __init__(
        self,
        comm: MPI.Intracomm,
        *,
        workers: int = 1,
        depth: int = 8,
        wait: str = "auto",
        in_flight: int | None = None,
        deadline_s: float | None = 60.0,
        entry_deadline_s: float | None = None,
        trace: Trace | bool | None = None,
        agree_every: int = 64,
        nice: int = 10,
        on_loss: str | None = None,
    ) -> None:
        check_thread_level()
        if not isinstance(comm, MPI.Intracomm) or comm == MPI.COMM_NULL:
            raise InputError(f"expected an mpi4py.MPI.Intracomm that has not been freed, received {comm!r}")
        problem = (
            options_problem(workers=workers, depth=depth, agree_every=agree_every, in_flight=in_flight, wait=wait)
            or number_problem("deadline_s", deadline_s, positive=True, none=True)
            or number_problem("entry_deadline_s", entry_deadline_s, positive=True, none=True)
            or integer_problem("nice", nice, 0, 39)
            or _missing(workers=workers, depth=depth, wait=wait, agree_every=agree_every)
            or (
                None
                if trace is None or isinstance(trace, bool | Trace)
                else f"expected trace to be a Trace, True, False or None, received {repr_of(trace)}"
            )
            or _loss_problem(on_loss)
        )
        if problem is None:  # numpy's integers become Python's
            workers, depth, agree_every = map(int, (workers, depth, agree_every))
            in_flight = None if in_flight is None else int(in_flight)
        self.workers = workers
        self.depth = depth
        self.wait = wait
        self.in_flight = depth if in_flight is None else in_flight
        self.deadline_s = deadline_s
        self.agree_every = agree_every
        self.closed = False
        self.cache: dict[Any, Any] = {}
        self.load = Load()
        self._pools = ExitStack()
        guard = guard_of(comm)
        if guard is None and on_loss is not None and problem is None:
            remade = partial(
                type(self),
                workers=workers,
                depth=depth,
                wait=wait,
                in_flight=in_flight,
                deadline_s=deadline_s,
                entry_deadline_s=entry_deadline_s,
                trace=trace,
                agree_every=agree_every,
                nice=nice,
                on_loss=on_loss,
            )
            guard = Guard(comm, remade)
        with held_signals(), nullcontext() if guard is None else guard.settling(_MAKING):
            self._watchdog = Watchdog(60.0) if problem else Watchdog(deadline_s, entry_deadline_s)
            self._dropping = DropWarning("a Runtime, or a plan with one of its own,")
            enter(comm, self._watchdog, _MAKING)
            self.coordinator = Coordinator(comm, self._watchdog, guard, self._dropping)
            self.coordinator.runtime = weakref.ref(self)
            self.coordinator.is_worker = is_worker
            executor = Executor(
                self.coordinator.comm,
                self.coordinator.comms,
                self._watchdog.outstanding,
                agree_every,
                Host(hot_s=self.coordinator.rendezvous.hot_s),
                rendezvous=self.coordinator.rendezvous,
                guard=guard,
            )
            self.threads = Threads(self.coordinator, executor, 1 if problem else workers, nice, self.load)
            self.coordinator.holding.drop_with(self, end=partial(_stop, self.threads, self._watchdog))
            super().__init__()
            with self.collective_section(
                _MAKING,
                self.close,
                problem=problem,
                depth=depth,
                wait=wait,
                in_flight=in_flight,
                agree_every=agree_every,
                on_loss=on_loss,
            ):
                self.coordinator.free_dropped()
                source = comm if guard is None else guard.source(comm, self.coordinator.comm)
                self.comm = self.coordinator.wrap(source, AsyncComm)
                with self._watchdog.watching("comparing the clocks of all ranks"):
                    self.trace = Trace.start(self.coordinator.comm) if trace is True else trace or None
                self.threads.trace = self.trace
                self._pools.enter_context(single_threaded_pools())
        if self.coordinator.size > 1:
            self._begun()

    def __enter__(self) -> Self:
        if self.closed:
            raise closed_error("Runtime", "closed", self._forked)
        return self

    def _title(self) -> str:
        return (
            f"Runtime over {self.coordinator.size} rank(s), {self.workers} worker(s) each, depth {self.depth}, wait "
            f"{self.wait!r}, MPI at {thread_level()}"
        )

    def _has_ended(self) -> bool:
        return self.closed

    def close(self) -> None:
        """Join the threads, free the communicators, restore the thread pools (collective).

        Raises
        ------
        RankError
            Another rank has left the runtime by an exception. It is closed all the same.
        BusyError
            A call of the runtime, or of an object on it, is under way; nothing is closed.
        """
        if self.closed:
            return
        # ExitStack runs all steps, even if one of them raises.
        with self.coordinator.closing(_CLOSING), ExitStack() as closing:
            closing.callback(self._watchdog.close)
            closing.callback(self.coordinator.end, _CLOSING)
            self._release(closing)
            self._over()

    def _release(self, closing: ExitStack) -> None:
        """Let `closing`, as its last steps, end the threads and pools of this rank."""
        self.closed = True
        closing.push(self._pools)
        closing.callback(self.threads.close)
        self.cache.clear()

    def _end(self) -> None:
        self.close()

    def _fail(self, error: BaseException) -> Telling | None:
        coordinator = self.coordinator
        if self.closed:
            return None
        with coordinator.closing(_CLOSING):
            if coordinator.size == 1 or coordinator.left is not None:
                with suppress(OverlapError):  # the exception that ends the block must not be hidden
                    self.close()
                return None
            with ExitStack() as closing:
                self._release(closing)
            return coordinator.leave(error, self._all_notified)

    def _ending_calls(self) -> AbstractContextManager[bool]:
        return self.coordinator.ending_calls()

    def _all_notified(self) -> None:
        """Close this rank's part when all ranks know that it has left by an exception."""
        self._watchdog.close()
        self._over()

    def _closed_by_fork(self) -> None:
        super()._closed_by_fork()
        self.closed = True
        self.coordinator.close_in_child()

    @property
    def _user(self) -> int | None:
        return self.coordinator.exclusive.last

    def shrink(self) -> Runtime:
        """Make a runtime of the ranks that are left, with the same options (collective over them).

        This runtime can only be closed. Make its objects anew: plans by ``plan.on(...)``.

        Raises
        ------
        InputError
            No rank was lost.
        RankLost
            Another rank was lost meanwhile; that exception names the survivors.
        """
        lost = self.coordinator.left
        if not isinstance(lost, RankLost):
            self.check_open()
            raise InputError("expected a runtime that has lost ranks, received one with all of them")
        survivor: Runtime = lost.survivors()
        return survivor

    def detecting_losses(self, what: str) -> DetectingLoss:
        """Return a ``with`` block that raises `RankLost` if your own MPI calls on ``plan.comm`` fail for a lost rank.

        Parameters
        ----------
        what : str
            What is done, for the message.
        """
        return DetectingLoss(self.coordinator.guard, what)

    def pause(self) -> None:
        """Restore the thread pools until `resume`; idle threads stay, and `close` is not needed meanwhile (local)."""
        with held_signals():
            self.coordinator.check_idle()
            self._dropping.wanted = False
            self._pools.close()

    def resume(self, deadline_s: float | None) -> None:
        """Put the runtime to use again after `pause`, with this deadline (local).

        Parameters
        ----------
        deadline_s : float or None
            See `Runtime`.
        """
        with held_signals():
            self._dropping.wanted = True
            self._pools.enter_context(single_threaded_pools())
            if deadline_s != self.deadline_s:
                self.deadline_s = deadline_s
                self._watchdog.close()
                self._watchdog.start(deadline_s)

    def wrap(self, comm: MPI.Comm) -> AsyncComm:
        """Make an awaitable communicator of any mpi4py communicator (collective over it).

        Parameters
        ----------
        comm : mpi4py.MPI.Comm
            Any communicator whose ranks belong to the runtime. It is duplicated.

        Returns
        -------
        AsyncComm
            Freed with the runtime.

        Raises
        ------
        InputError
            On all ranks of `comm`, or on this one if it has none: it is no communicator of mpi4py, was freed, or has
            ranks that the runtime does not have.
        """
        if not isinstance(comm, MPI.Comm) or comm == MPI.COMM_NULL:
            raise InputError(f"expected a communicator of mpi4py, received {repr_of(comm)}")
        if outside := _count_outside(comm, self.comm.source):
            raise InputError(
                f"expected a communicator of ranks of the runtime, which has {self.comm.size}, received one with "
                f"{outside} other(s): they do not agree with this runtime on the order of calls"
            )
        with held_signals():
            return self.coordinator.wrap(comm, AsyncComm)

    def collectives(self, comm: AsyncComm | None = None, *, max_nbytes: int = 2**16) -> AsyncCollectives:
        """Make collectives by remote writes that slice programs await (collective).

        ``await fast.Allreduce(a, b)``, or ``total = await fast.allreduce(x)``: names and arguments of
        `overlap.collectives.Collectives`, in the issue order like MPI's. They are for short messages and are never
        hidden: the thread that talks to MPI waits for the other ranks, whatever `wait` is.

        Parameters
        ----------
        comm : AsyncComm, optional
            Its ranks take part, and the call is collective over them; by default all ranks of the runtime.
        max_nbytes : int
            See `Collectives`.

        Returns
        -------
        AsyncCollectives
            Freed with the runtime.
        """
        from .requests.async_collectives import making  # numba takes a second to import

        if comm is not None and not isinstance(comm, AsyncComm):
            raise InputError(f"expected a communicator of a runtime, or None, received {repr_of(comm)}")
        with held_signals():
            return self.coordinator.wrap((comm or self.comm).source, making(max_nbytes))

    @overload
    def pipelined(
        self,
        program: SliceProgram,
        *,
        buffers: Callable[[], Any] | None = None,
        skeleton: Skeleton | Literal["agree"] | None = None,
        depth: int | None = None,
        wait: str | None = None,
        in_flight: int | None = None,
        polls: int | None = None,
        independent: bool = False,
    ) -> Pipeline: ...

    @overload
    def pipelined(
        self,
        program: None = None,
        *,
        buffers: Callable[[], Any] | None = None,
        skeleton: Skeleton | Literal["agree"] | None = None,
        depth: int | None = None,
        wait: str | None = None,
        in_flight: int | None = None,
        polls: int | None = None,
        independent: bool = False,
    ) -> Callable[[SliceProgram], Pipeline]: ...

    def pipelined(
        self,
        program: SliceProgram | None = None,
        *,
        buffers: Callable[[], Any] | None = None,
        skeleton: Skeleton | Literal["agree"] | None = None,
        depth: int | None = None,
        wait: str | None = None,
        in_flight: int | None = None,
        polls: int | None = None,
        independent: bool = False,
    ) -> Pipeline | Callable[[SliceProgram], Pipeline]:
        """Make a pipeline of a slice program; a decorator, with or without arguments.

        Parameters
        ----------
        program : coroutine function
            ``program(slice, *args, **kwargs)``, or ``program(slice, buffers, *args, **kwargs)``
            with `buffers`.
        buffers : callable, optional
            Makes the buffers of one slot; called `depth` times as the pipeline is made. Each slice in flight owns one.
        skeleton : function, coroutine function or "agree", optional
            Lists what a slice awaits: a function that takes the arguments of `program` and returns a request or several
            in their order, or a program that awaits the same requests and computes nothing. It is needed only if
            slices, or ranks, await different operations, sizes, roots, tags or peers. Without it the runtime learns the
            operations from the first slice, which costs two small reductions per operation of that slice, and holds all
            slices to them. With ``"agree"`` the runtime learns nothing: every operation of every slice costs these
            reductions, and all ranks must await the same calls.
        depth, wait, in_flight
            Those of `Runtime`, for this pipeline alone.
        polls : int, optional
            With ``"poll"``: polls per expected time of an exchange, 8 by default. More polls find a finished exchange
            sooner and take more of the core's time.
        independent : bool
            Slices wait for each other only by an `await`. On one rank, where there is nothing to hide, the calling
            thread then computes in calls of any length. For other programs it does so in short calls only.

        Returns
        -------
        Pipeline
            Call it with the slices (any sequence), then `args` and `kwargs`.

        Raises
        ------
        InputError
            On this rank, if `program` is a plain function (``def``). The pipeline's first call reports other bad
            arguments on all ranks.
        """
        if program is None:
            return lambda program: self.pipelined(
                program,
                buffers=buffers,
                skeleton=skeleton,
                depth=depth,
                wait=wait,
                in_flight=in_flight,
                polls=polls,
                independent=independent,
            )
        problem = options_problem(depth=depth, wait=wait, in_flight=in_flight, polls=polls)
        if problem is None and not isinstance(independent, bool):
            problem = f"expected independent to be True or False, received {repr_of(independent)}"
        if problem is not None:
            depth = wait = in_flight = polls = None
        depth = depth or self.depth
        options = PipelineOptions(
            depth,
            wait or self.wait,
            in_flight or min(depth, self.in_flight),
            polls or POLLS_PER_EXCHANGE,
            independent is True and self.coordinator.size == 1,
        )
        return Pipeline(self.threads, program, buffers, skeleton, options, problem)

    def preflight(self, problem: str | None = None, **agreed: Any) -> None:
        """Agree with all ranks that the input is good, before any work is accepted (collective).

        The deadline does not cover the wait for ranks that have not made this call yet, unless the call is inside of
        `collective_section`; see ``entry_deadline_s``.

        Parameters
        ----------
        problem : str, optional
            What is wrong with this rank's input.
        agreed
            Values that must be equal on all ranks.

        Raises
        ------
        InputError
            The same on all ranks.
        """
        with held_signals():
            self.enter("the check of the input", agreed, None if problem is None else InputError(problem))

    def enter(self, call: str, agreed: dict[str, Any], error: BaseException | None = None) -> None:
        """Begin a public call: see `Coordinator.enter`."""
        self.coordinator.enter(call, agreed, error)

    @contextmanager
    def collective_section(
        self, what: str, undo: Callable[[], object] | None = None, *, problem: str | None = None, **agreed: Any
    ) -> Iterator[None]:
        """Return a ``with`` block that ends well on all ranks or fails on all of them (collective).

        For constructors and planning. The block begins and ends with a header of `Coordinator`, so all ranks must enter
        it, with the same `what`. Signals are held back meanwhile. If an exception leaves the block on one rank, all
        ranks raise at their next header: an `InputError` as `InputError`, anything else as `RankError`, whose cause on
        its own rank is the original (`KeyboardInterrupt` and what a signal handler raised are raised there themselves).
        What a pipeline or a collective of `Coordinator` raises is raised on all ranks already.

        Parameters
        ----------
        what : str
            Names what is done, such as "making an FFT2".
        undo : callable, optional
            Called on all ranks after a failure, to free what was made.
        problem, agreed
            Those of `preflight`, checked at the beginning.
        """
        if problem is None and (problem := function_problem("undo", undo, none=True)):
            undo = None
        with self.coordinator.collective_section(what, undo, problem, **agreed):
            yield

    together = old_method("together", "collective_section")

    def check_open(self) -> None:
        """Raise `ClosedError` after `close`."""
        self.coordinator.check_open()

    def loads(self) -> list[Load]:
        """Return how long every rank's workers have computed and waited so far (collective).

        Returns
        -------
        list of Load
            One for each rank of the runtime, in their order.
        """
        with held_signals():
            self.enter("comparing the loads of all ranks", {})
            return self.coordinator.allgather(self.load)


def _loss_problem(on_loss: object) -> str | None:
    """Return what is wrong with the argument `on_loss`, as text, or None."""
    if on_loss is None:
        return None
    if not isinstance(on_loss, str) or on_loss != "raise":
        return f'expected on_loss to be "raise" or None, received {repr_of(on_loss)}'
    return tolerance_problem()


def _missing(**arguments: Any) -> str | None:
    """Return what is wrong with arguments that may not be None, as text, or None."""
    return next(
        (f"expected a value of {name}, received None" for name, value in arguments.items() if value is None), None
    )


def _count_outside(comm: MPI.Comm, whole: MPI.Comm) -> int:
    """Count the ranks of a communicator, remote ones included, that another communicator does not have (local)."""
    groups = [comm.Get_group(), *([comm.Get_remote_group()] if isinstance(comm, MPI.Intercomm) else [])]
    all_ranks = whole.Get_group()
    count = sum(MPI.Group.Translate_ranks(group, None, all_ranks).count(MPI.UNDEFINED) for group in groups)
    for group in (*groups, all_ranks):
        group.Free()
    return count


def _stop(threads: Threads, watchdog: Watchdog) -> None:
    """End the threads of a runtime that was dropped."""
    threads.stop()
    watchdog.stop()
