"""`Runtime`: threads, communicators and deadline; `Pipeline`: a slice program made callable.

The calling thread checks the input together with all ranks (`Runtime.preflight`), hands one `Job`
to the communicator thread and waits for its outcome. With ``wait="off"`` it runs the job itself.
Only one thread talks to MPI at any time: the caller between pipelines, the communicator inside one.
"""

import threading
import zlib
from contextlib import contextmanager
from queue import SimpleQueue
from time import perf_counter

import numpy as np
from mpi4py import MPI

from ..errors import ClosedError, InputError, ThreadLevelError
from .arguments import number_problem, options_problem
from .job import Job
from .pipeline import Pipeline
from .priority import take_short_slices
from .requests import AsyncComm
from .scheduler import Scheduler
from .trace import Trace
from .waiting import POLLS_PER_EXCHANGE, WakeEvent
from .watchdog import Watchdog, abort_on
from .workers import CoreTokens, Workers, single_threaded_pools

SIGNAL_LATENCY_S = 0.2


class Runtime:
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
        How the communicator waits: the blocking call (takes one worker's core token), nonblocking calls
        with sleep in between, or no overlap at all. ``"auto"`` runs each pipeline every way at
        first and then keeps the fastest; with several workers ``"off"``, which has one, is none.
    in_flight : int, optional
        With ``"poll"``: exchanges in flight at once; `depth` by default.
    deadline_s : float
        Seconds after which an MPI operation that has not completed aborts the job.
    trace : overlap.runtime.trace.Trace or bool, optional
        Record what every thread does. True makes a new trace (`Runtime.trace`).
    agree_every : int
        Operations between two looks at whether a slice failed on some rank.
    nice : int
        Nice value added to the workers' threads, so that a communicator that shares their core
        gets it as soon as it wakes.

    Raises
    ------
    InputError
        On all ranks, when an argument is bad or differs between ranks.
    ThreadLevelError
        When MPI was not initialised with at least ``MPI_THREAD_SERIALIZED``.
    """

    def __init__(self, comm, *, workers=1, depth=8, wait="auto", in_flight=None, deadline_s=60.0,
                 trace=None, agree_every=64, nice=0):
        if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
            raise ThreadLevelError(
                "expected an MPI thread level of at least MPI_THREAD_SERIALIZED "
                f"({MPI.THREAD_SERIALIZED}), received {MPI.Query_thread()}; set "
                "mpi4py.rc.thread_level = 'multiple' before importing mpi4py.MPI")
        if not isinstance(comm, MPI.Intracomm):
            raise InputError(f"expected an mpi4py.MPI.Intracomm, received {comm!r}")
        problem = (options_problem(workers=workers, depth=depth, agree_every=agree_every,
                            in_flight=in_flight, wait=wait)
                   or number_problem("deadline_s", deadline_s, positive=True)
                   or number_problem("nice", nice))
        self.workers = workers
        self.depth = depth
        self.wait = wait
        self.in_flight = depth if in_flight is None else in_flight
        self.deadline_s = deadline_s
        self.agree_every = agree_every
        self.closed = False
        self._nice = nice
        self._outstanding = {}
        self._comms = []
        self._wrapped = 0
        self._owner = None  # the thread that is in a pipeline's call
        self._running = False  # a job runs: nobody but the communicator may call MPI
        self._watchdog = Watchdog(self._outstanding, 60.0 if problem else deadline_s)
        with self._watched("making a runtime on all ranks"):
            self._control = comm.Dup()
            self._control.Set_errhandler(MPI.ERRORS_RETURN)
            self.comm = self._wrap(comm)
        try:
            self.preflight(problem, depth=depth, wait=wait, in_flight=in_flight,
                           agree_every=agree_every)
        except InputError:
            self._free()
            raise
        with self._watched("comparing the clocks of all ranks"):
            self.trace = Trace.start(self._control) if trace is True else trace or None
        self._pools = single_threaded_pools()
        self._pools.__enter__()
        self._pool = None  # threads start with the first pipeline that needs them
        self._jobs = SimpleQueue()
        self._scheduler = Scheduler(
            self._control, self._comms, self._outstanding, agree_every)

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()

    def close(self):
        """Join the threads, free the communicators, restore the thread pools (collective)."""
        if self.closed:
            return
        self._check_idle()
        self.closed = True
        if self._pool is not None:
            self._jobs.put(None)
            self._thread.join()
            self._pool.close()
        self._pools.__exit__(None, None, None)
        self._free()

    def _free(self):
        if not MPI.Is_finalized():
            with self._watched("freeing a runtime's communicators on all ranks"):
                for comm in reversed(self._comms):
                    comm.free()
                self._control.Free()
        self._comms.clear()
        self._watchdog.close()

    def wrap(self, comm):
        """Make an awaitable communicator of any mpi4py communicator (collective over it)."""
        return self._wrap(comm)

    def _wrap(self, comm):
        """Wrap a communicator, or what a function makes: that one is ours to free."""
        self._check_idle()
        # Counted on every rank, also on those that get none: the number names it everywhere.
        number = self._wrapped
        self._wrapped += 1
        with self._watched("making a communicator on all its ranks"):
            owned = callable(comm)
            source = comm() if owned else comm
            if source == MPI.COMM_NULL:
                return None
            wrapped = AsyncComm(source, number, self._wrap, owned)
        self._comms.append(wrapped)
        return wrapped

    def pipelined(self, program=None, *, buffers=None, skeleton=None, depth=None, wait=None,
                  in_flight=None, polls=None):
        """Make a pipeline of a slice program; a decorator, with or without arguments.

        Parameters
        ----------
        program : coroutine function
            ``program(slice, *args)``, or ``program(slice, buffers, *args)`` with `slot`.
        slot : callable, optional
            Makes one slot's buffers; called `depth` times, now. A slice in flight owns one slot.
        skeleton : coroutine function, optional
            Same arguments as `program`: awaits the same requests and computes nothing. Needed
            only where slices await different operations or sizes; otherwise the runtime learns
            it from the first slice, which costs two small reductions per operation there.
        depth, wait, in_flight
            As of the runtime, for this pipeline alone.
        polls : int, optional
            With ``"poll"``: polls of the exchanges per expected time of one, 8 by default. More
            find a finished exchange sooner, and take more of the core.

        Returns
        -------
        Pipeline
            Call it with the slices (any sequence), then `args`.
        """
        if program is None:
            return lambda program: self.pipelined(
                program, buffers=buffers, skeleton=skeleton, depth=depth, wait=wait,
                in_flight=in_flight, polls=polls)
        if problem := options_problem(depth=depth, wait=wait, in_flight=in_flight, polls=polls):
            raise InputError(problem)
        depth = depth or self.depth
        return Pipeline(self, program, buffers, skeleton, depth, wait or self.wait,
                        in_flight or min(depth, self.in_flight), polls or POLLS_PER_EXCHANGE)

    def preflight(self, problem=None, **agreed):
        """Agree with all ranks that the input is good, before any work is accepted (collective).

        Parameters
        ----------
        problem : str, optional
            What is wrong with this rank's input.
        agreed
            Values that must be the same on all ranks.

        Raises
        ------
        InputError
            The same on all ranks.
        """
        self._check_idle()
        signature = zlib.crc32(repr(agreed).encode())
        values = np.array([problem is None, signature, -signature], dtype=np.int64)
        comm = self._control
        with self._watched("the check of the input on all ranks"):
            comm.Allreduce(MPI.IN_PLACE, values, MPI.MIN)
            if values[0] and values[1] == -values[2]:
                return
            if not values[0]:
                problems = comm.allgather(problem)
                raise InputError("; ".join(
                    f"rank {rank}: {text}" for rank, text in enumerate(problems) if text))
            received = comm.allgather(agreed)
        raise InputError(_disagreement(received))

    def check_open(self):
        """Raise `ClosedError` after `close`."""
        if self.closed:
            raise ClosedError("expected an open runtime, received one that was closed")

    def _check_idle(self):
        """Only the communicator may call MPI while a job runs."""
        self.check_open()
        if self._running or self._owner not in (None, threading.get_ident()):
            raise RuntimeError(
                "a pipeline of this runtime is running: expected one at a time, and no other call "
                "of the runtime meanwhile")

    @contextmanager
    def _watched(self, label):
        self._outstanding[label] = perf_counter()
        try:
            yield
        finally:
            del self._outstanding[label]

    @contextmanager
    def _exclusive(self):
        """Keep other threads, and slices, from using the runtime."""
        self._check_idle()
        self._owner = threading.get_ident()
        try:
            yield
        finally:
            self._owner = None

    def _run(self, interrupts, keys, coroutine, skeleton, resources, depth, wait, in_flight,
             polls):
        """Run one job to its end; raises what all ranks agreed on."""
        if wait != "off" and self._pool is None:
            self._start_threads()
        pool = self._pool if wait != "off" else None
        if pool is not None:
            pool.core_tokens = self._core_tokens if wait == "block" else None
        job = Job(keys, coroutine, skeleton, resources, depth, pool, self.trace)
        waiting = self._scheduler.waiting(wait, job, pool, in_flight, polls)
        self._running = True
        try:
            interrupts.fail(job)
            if pool is None:
                error = self._scheduler.run(job, waiting)
            else:
                outcome, done = [], WakeEvent()
                self._jobs.put((job, waiting, outcome, done))
                # A signal just before the sleep does not end it: look now and then.
                while not done.sleep(SIGNAL_LATENCY_S):
                    pass
                error = outcome[0]
        finally:
            self._running = False
        cause = job.failure and job.failure.error
        if isinstance(cause, KeyboardInterrupt):  # perhaps too late for the others to hear of it
            raise cause from error
        if error is not None:
            raise error from cause

    def _start_threads(self):
        self._pool = Workers(self.workers, self._nice, abort_on)
        self._core_tokens = CoreTokens(self.workers)
        self._pool.core_tokens = self._core_tokens
        self._thread = threading.Thread(
            target=self._communicate, daemon=True, name="communicator")
        self._thread.start()

    def _communicate(self):
        take_short_slices()
        while (work := self._jobs.get()) is not None:
            job, waiting, outcome, done = work
            try:
                outcome.append(self._scheduler.run(job, waiting))
                done.ring()
            except BaseException as error:
                abort_on(error)
            del work, job, waiting, outcome, done


def _disagreement(received):
    """Name what differs between the ranks' values, rank by rank."""
    keys = dict.fromkeys(key for values in received for key in values)
    lines = []
    for key in keys:
        values = [values.get(key) for values in received]
        if any(value != values[0] for value in values):
            lines.append(f"{key}: expected the same on all ranks, received " + ", ".join(
                f"{value!r} (rank {rank})" for rank, value in enumerate(values)))
    return "; ".join(lines)
