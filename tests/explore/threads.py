"""Threads on a clock that chooses: what the runtime takes from `threading`, `queue` and `time`.

Each thread is a greenlet. Whenever it blocks, and at the preemption points that `source` puts between
any two statements, the schedule chooses among all threads and network events that could go on.
"""

import contextlib
import gc
from collections import deque
from heapq import heappop, heappush
from itertools import chain, repeat
from random import Random
from traceback import extract_stack, format_list

from greenlet import getcurrent, greenlet

IDLE_TIMERS = 400  # so many timers in a row that change nothing: nothing will ever change
NEVER = 1 << 60
LOOK_S = 20e-6  # the clock goes on at least that far when somebody waits
GAPS = (8, 30, 100, 400, NEVER)  # mean number of statements from one preemption to the next

schedule = None  # the one that runs


class Stuck(BaseException):
    """Unwinds the threads of a schedule that was given up."""


class Thread(greenlet):
    """A thread: what it is called, and where it stands among the others."""

    priority = 0.0
    name = ""


class Schedule:
    """Threads and events, of which any that is ready may come next, as the seed has it.

    Two policies, drawn per schedule: uniform among all that is ready; or PCT, where every thread and
    every network event has a random priority, and the running thread becomes the last at a few
    random moments. Timers come when nothing else is ready, and now and then too early.

    What is ready is a list of `Thread`, to be switched to, and of events: objects with a `priority`
    and a method `happen`, which makes others ready and never blocks.
    """

    def __init__(self, seed):
        self.random = random = Random(seed).random
        self.now_s = 0.0
        self.threads = []
        self.pending = {}  # thread -> function that is to interrupt it
        self._modules = ()
        self._main = getcurrent()
        self._uniform = random() < 0.5
        self._gap = GAPS[int(random() * len(GAPS))]
        self._early = random() * 0.05 if random() < 0.5 else 0.0  # share of timers that come early
        self._lowest = 0.0
        self._ready = []
        self._timers = []
        self._count = 0
        self._idle = 0  # timers in a row that changed nothing
        self._halted = None
        # Called at every preemption point, and true where the thread is to give way. All in C.
        self.point = chain.from_iterable(self._points()).__next__

    def begin(self, modules):
        """Make this the schedule on which the explored code in `modules` runs."""
        global schedule
        schedule = self
        self._modules = modules
        self._set_points(self.point)
        return self

    def _set_points(self, point):
        for module in self._modules:
            module.__explore_point__ = point

    def interrupt(self, function):
        """Have the calling thread call `function` at its next preemption point."""
        self.pending[getcurrent()] = function
        self._set_points(_always)

    def _points(self):
        while self._gap != NEVER:
            yield repeat(False, int(2 * self._gap * self.random()))
            yield (True,)
        yield repeat(False)

    # ---- events ----

    def start(self, function, name):
        """Have `function` run as a thread called `name`."""
        thread = Thread(function, self._main)
        thread.name = name
        thread.priority = self.random()
        self.threads.append(thread)
        self._ready.append(thread)

    def ready(self, event):
        """A thread can go on, or an event can happen: this is progress."""
        self._idle = 0
        self._ready.append(event)

    def later(self, seconds, sleeper):
        """Call ``sleeper.late()`` in a while."""
        self._count += 1
        heappush(self._timers, (self.now_s + seconds, self._count, sleeper))

    def late(self, thread):
        """A thread's timer has run out: that is no progress."""
        self._ready.append(thread)

    def halt(self, error):
        """End the schedule with `error`."""
        if self._halted is None:
            self._halted = error

    def suspend(self):
        """Give way until somebody makes the calling thread ready."""
        me = getcurrent()
        while self._halted is None:
            event = self._pick()
            if event is me:
                return
            if event is None:
                break
            if type(event) is Thread:
                event.switch()
                if self._halted is not None:
                    break
                return
            event.happen()
        if self._unwinding:
            raise Stuck
        self._main.switch()
        raise Stuck

    _unwinding = False

    def run(self):
        """Go on until nothing can happen any more; raises what `halt` was given."""
        collecting = gc.isenabled()
        gc.disable()
        try:
            while self._halted is None and (event := self._pick()) is not None:
                if type(event) is Thread:
                    event.switch()
                else:
                    event.happen()
        finally:
            if collecting:
                gc.enable()
        if self._halted is not None:
            raise self._halted

    def _pick(self):
        """What comes next."""
        ready = self._ready
        count = len(ready)
        if not count or (self._early and self._timers and self.random() < self._early):
            if not self._timers or self._idle > IDLE_TIMERS:
                return None
            self._idle += 1
            time_s, _, sleeper = heappop(self._timers)
            if time_s > self.now_s:
                self.now_s = time_s
            sleeper.late()
            return self._pick()
        if count == 1:
            return ready.pop()
        if self._uniform:
            place = int(self.random() * count)
        else:
            place, highest = 0, -NEVER
            for index, event in enumerate(ready):
                if event.priority > highest:
                    place, highest = index, event.priority
        event, ready[place] = ready[place], ready[-1]
        ready.pop()
        return event

    def preempt(self):
        """Let others run, in the middle of a thread."""
        thread = getcurrent()
        if type(thread) is not Thread or self._halted is not None:
            return
        if thread in self.pending:
            function = self.pending.pop(thread)
            if not self.pending:
                self._set_points(self.point)
            function()
            return
        self._lowest -= 1.0
        thread.priority = self._lowest
        self._ready.append(thread)  # no progress
        self.suspend()

    def end(self):
        """Unwind the threads that have not ended: nothing of them may run later, as garbage."""
        global schedule
        self._set_points(bool)
        self._halted = self._halted or Stuck()
        self._unwinding = True
        for thread in self.threads:
            while not thread.dead:
                with contextlib.suppress(BaseException):
                    thread.throw(Stuck)
        schedule = None

    def stacks(self):
        """Where every unfinished thread stands, in the runtime's own code."""
        lines = []
        for thread in self.threads:
            if thread.dead or thread.gr_frame is None:
                continue
            frames = [frame for frame in extract_stack(thread.gr_frame) if "explore/threads" not in frame.filename]
            lines.append(f"{thread.name}:\n" + "".join(format_list(frames[-6:])).rstrip())
        return "\n".join(lines)


def _always():
    return True


def preempt():
    """Let others run, in the middle of a thread."""
    schedule.preempt()


# ---- in the place of `threading`, `queue` and `time` ----


class _Sleeper:
    """A thread that waits for a release, perhaps until a timer."""

    __slots__ = ("state", "thread")
    WAITING, WOKEN, LATE = range(3)

    def __init__(self):
        self.thread = getcurrent()
        self.state = self.WAITING

    def late(self):
        if self.state == self.WAITING:
            self.state = self.LATE
            schedule.late(self.thread)


class Lock:
    """As `threading.Lock`; who is awake may be faster than who was waiting."""

    def __init__(self):
        self._held = False
        self._waiting = deque()

    @classmethod
    def held(cls):
        lock = cls()
        lock._held = True
        return lock

    def acquire(self, blocking=True, timeout=-1):
        while self._held:
            if not blocking:
                return False
            sleeper = _Sleeper()
            self._waiting.append(sleeper)
            if timeout >= 0:
                schedule.later(max(timeout, LOOK_S), sleeper)
            schedule.suspend()
            if sleeper.state == sleeper.LATE:
                return False
        self._held = True
        return True

    def release(self):
        if not self._held:
            raise RuntimeError("release unlocked lock")
        self._held = False
        _wake(self._waiting)

    def locked(self):
        return self._held

    def __enter__(self):
        self.acquire()

    def __exit__(self, *exc_info):
        self.release()


def _wake(waiting):
    """Wake one of those that still wait."""
    while waiting:
        sleeper = waiting.popleft()
        if sleeper.state == sleeper.WAITING:
            sleeper.state = sleeper.WOKEN
            schedule.ready(sleeper.thread)
            return


class RLock:
    """As `threading.RLock`."""

    def __init__(self):
        self._lock = Lock()
        self._owner = None
        self._count = 0

    def acquire(self, blocking=True, timeout=-1):
        thread = getcurrent()
        if self._owner is not thread:
            if not self._lock.acquire(blocking, timeout):
                return False
            self._owner = thread
        self._count += 1
        return True

    def release(self):
        self._count -= 1
        if not self._count:
            self._owner = None
            self._lock.release()

    def __enter__(self):
        self.acquire()

    def __exit__(self, *exc_info):
        self.release()


class SimpleQueue:
    """As `queue.SimpleQueue`."""

    def __init__(self):
        self._items = deque()
        self._waiting = deque()

    def put(self, item):
        self._items.append(item)
        _wake(self._waiting)

    def get(self):
        while not self._items:
            self._waiting.append(_Sleeper())
            schedule.suspend()
        return self._items.popleft()

    def qsize(self):
        return len(self._items)


current_thread = getcurrent


def perf_counter():
    return schedule.now_s


def sleep(seconds):
    Lock.held().acquire(timeout=seconds)


def sched_yield():
    sleep(0.0)


def get_ident():
    return id(getcurrent())


class local:
    """As `threading.local`, for what the explored threads never set."""
