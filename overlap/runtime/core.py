"""`Runtime`: threads, communicators and deadline; `Pipeline`: a slice program made callable.

The calling thread checks the input together with all ranks (`Runtime.preflight`), hands one `Job`
to the communicator thread and waits for its outcome. With ``wait="off"`` it runs the job itself.
Only one thread talks to MPI at any time: the caller between pipelines, the communicator inside one.
"""

import signal
import threading
import zlib
from contextlib import contextmanager
from queue import SimpleQueue
from time import perf_counter

import numpy as np
from mpi4py import MPI

from ..errors import ClosedError, InputError, ThreadLevelError
from ..trace import Trace
from .communicator import LOOKS_PER_EXCHANGE, Bell, Communicator
from .lanes import Job
from .requests import AsyncComm
from .scheduling import take_short_slices
from .watchdog import Watchdog, abort_on
from .workers import Seats, Workers, single_threaded_pools

WAITS = ("off", "block", "poll")
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
        Lanes: slices in flight, which bounds the memory in flight.
    wait : {"auto", "block", "poll", "off"}
        How the communicator waits: the blocking call (takes one worker's seat), nonblocking calls
        with sleep in between, or no overlap at all. ``"auto"`` runs each pipeline every way at
        first and then keeps the fastest; with several workers ``"off"``, which has one, is none.
    in_flight : int, optional
        With ``"poll"``: exchanges in flight at once; `depth` by default.
    deadline_s : float
        Seconds after which an MPI operation that has not completed aborts the job.
    trace : overlap.trace.Trace or bool, optional
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
        problem = (_problem(workers=workers, depth=depth, agree_every=agree_every,
                            in_flight=in_flight, wait=wait)
                   or _number_problem("deadline_s", deadline_s, positive=True)
                   or _number_problem("nice", nice))
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
        self._communicator = Communicator(
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

    def pipelined(self, program=None, *, lane=None, skeleton=None, depth=None, wait=None,
                  in_flight=None, looks=None):
        """Make a pipeline of a slice program; a decorator, with or without arguments.

        Parameters
        ----------
        program : coroutine function
            ``program(slice, *args)``, or ``program(slice, buffers, *args)`` with `lane`.
        lane : callable, optional
            Makes one lane's buffers; called `depth` times, now. A slice in flight owns one lane.
        skeleton : coroutine function, optional
            Same arguments as `program`: awaits the same requests and computes nothing. Needed
            only where slices await different operations or sizes; otherwise the runtime learns
            it from the first slice, which costs two small reductions per operation there.
        depth, wait, in_flight
            As of the runtime, for this pipeline alone.
        looks : int, optional
            With ``"poll"``: looks at the exchanges per expected time of one, 8 by default. More
            find a finished exchange sooner, and take more of the core.

        Returns
        -------
        Pipeline
            Call it with the slices (any sequence), then `args`.
        """
        if program is None:
            return lambda program: self.pipelined(
                program, lane=lane, skeleton=skeleton, depth=depth, wait=wait,
                in_flight=in_flight, looks=looks)
        if problem := _problem(depth=depth, wait=wait, in_flight=in_flight, looks=looks):
            raise InputError(problem)
        depth = depth or self.depth
        return Pipeline(self, program, lane, skeleton, depth, wait or self.wait,
                        in_flight or min(depth, self.in_flight), looks or LOOKS_PER_EXCHANGE)

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
             looks):
        """Run one job to its end; raises what all ranks agreed on."""
        if wait != "off" and self._pool is None:
            self._start_threads()
        pool = self._pool if wait != "off" else None
        if pool is not None:
            pool.seats = self._seats if wait == "block" else None
        job = Job(keys, coroutine, skeleton, resources, depth, pool, self.trace)
        waiting = self._communicator.waiting(wait, job, pool, in_flight, looks)
        self._running = True
        try:
            interrupts.fail(job)
            if pool is None:
                error = self._communicator.run(job, waiting)
            else:
                outcome, done = [], Bell()
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
        self._seats = Seats(self.workers)
        self._pool.seats = self._seats
        self._thread = threading.Thread(
            target=self._communicate, daemon=True, name="communicator")
        self._thread.start()

    def _communicate(self):
        take_short_slices()
        while (work := self._jobs.get()) is not None:
            job, waiting, outcome, done = work
            try:
                outcome.append(self._communicator.run(job, waiting))
                done.ring()
            except BaseException as error:
                abort_on(error)
            del work, job, waiting, outcome, done


class Pipeline:
    """A slice program made callable: see `Runtime.pipelined`.

    Attributes
    ----------
    wait : str
        The way to wait that the last call used; `"auto"` before the first one.
    lanes : list
        The lanes' buffers, `depth` of them, or None each.
    """

    def __init__(self, runtime, program, lane, skeleton, depth, wait, in_flight, looks):
        self.depth = depth
        self.wait = wait
        self.in_flight = in_flight
        self.looks = looks
        self.lanes = [lane() if lane is not None else None for _ in range(depth)]
        self._runtime = runtime
        self._program = program
        self._skeleton = skeleton
        self._has_buffers = lane is not None
        self._name = getattr(program, "__qualname__", repr(program))
        ways = ("poll", "block", "off") if runtime.workers == 1 else ("poll", "block")
        self._trial = {way: [] for way in ways} if wait == "auto" else None

    def __call__(self, slices, *args, problem=None, **agreed):
        """Run all slices to their end (collective).

        Parameters
        ----------
        slices : sequence
            One entry per slice, as many on every rank.
        args
            Passed to the program.
        problem, agreed
            As in `Runtime.preflight`.

        Raises
        ------
        InputError
            Before anything ran, on all ranks.
        SliceError
            A slice failed on some rank; the same on all ranks. The runtime is usable again.
        """
        runtime = self._runtime
        with runtime._exclusive(), _Interrupts() as interrupts:
            slices = list(slices)
            wait = self._next_wait()
            runtime.preflight(
                problem, pipeline=self._name, slices=len(slices), depth=self.depth, wait=wait,
                in_flight=self.in_flight, looks=self.looks, **agreed)
            started = perf_counter()
            runtime._run(
                interrupts, slices, self._bound(self._program, args),
                self._skeleton and self._bound(self._skeleton, args),
                self.lanes, self.depth, wait, self.in_flight, self.looks)
            if self._trial is not None and slices:
                self._judge(wait, (perf_counter() - started) / len(slices))

    def _bound(self, function, args):
        if self._has_buffers:
            return lambda key, buffers: function(key, buffers, *args)
        return lambda key, buffers: function(key, *args)

    def _next_wait(self):
        if self._trial is None:
            return self.wait
        return min(self._trial, key=lambda wait: len(self._trial[wait]))

    def _judge(self, wait, seconds_per_slice):
        """After two calls every way, all ranks keep the way whose better call was the fastest."""
        self._trial[wait].append(seconds_per_slice)
        if all(len(seconds) == 2 for seconds in self._trial.values()):
            best = np.array([min(seconds) for seconds in self._trial.values()])
            with self._runtime._watched("the choice of the way to wait"):
                self._runtime._control.Allreduce(MPI.IN_PLACE, best, MPI.MAX)
            self.wait = list(self._trial)[int(np.argmin(best))]
            self._trial = None


class _Interrupts:
    """While a pipeline is called, Ctrl-C is a failure of this rank like any other.

    Raised at once, it would leave the other ranks waiting. On other threads than the main one, and
    where the program handles the signal itself, nothing changes.
    """

    def __enter__(self):
        self._job = None
        self._interrupted = False
        self._handler = signal.getsignal(signal.SIGINT)
        self._ours = (threading.current_thread() is threading.main_thread()
                      and self._handler is signal.default_int_handler)
        if self._ours:
            signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, kind, error, tb):
        if self._ours:
            signal.signal(signal.SIGINT, self._handler)
        if self._interrupted and not isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt from error

    def fail(self, job):
        """From now on an interrupt, or one that has come already, fails `job`."""
        self._job = job
        if self._interrupted:
            job.fail(None, KeyboardInterrupt())

    def _interrupt(self, *_):
        self._interrupted = True
        if self._job is not None:
            self._job.fail(None, KeyboardInterrupt())


def _problem(wait=None, **counts):
    """What is wrong with a runtime's or a pipeline's options, or None; None is always right."""
    for name, value in counts.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)
                                  or value < 1):
            return f"expected {name} to be a positive integer, received {value!r}"
    if wait is not None and wait not in ("auto", *WAITS):
        return f"expected wait to be one of auto, {', '.join(WAITS)}, received {wait!r}"
    return None


def _number_problem(name, value, positive=False):
    """What is wrong with a finite number that may not be negative, or None."""
    if (isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < np.inf
            or (positive and value == 0)):
        return (f"expected {name} to be a {'positive' if positive else 'non-negative'} number, "
                f"received {value!r}")
    return None


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
