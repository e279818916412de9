"""Random programs, and what must come of them.

A program is a table: per slice, the steps it takes. All ranks run the same table; what differs between
them is how fast they are, and what fails. `Expected` says from the table alone in which order the
operations must be issued, and whether some wait can never end.
"""

from collections import deque
from dataclasses import dataclass, field, replace
from random import Random

COLLECTIVES = ("Alltoall", "Allreduce", "Bcast", "Gather", "Barrier")
WAITS = ("off", "block", "poll")


@dataclass
class Call:
    """One call of a pipeline.

    Attributes
    ----------
    skeleton : bool or "agree"
        Given; or learned; or nothing is learned and all is agreed on.
    steps : list of list of tuple
        Per slice: ("op", name, argument), ("start", name, argument), ("finish", number) of what was
        started as such, ("turn",), ("barrier",), ("parallel", parts), ("wait", start, stop) or ("compute",).
    faults : list of tuple
        (kind, rank, slice, step): see `FAULTS`.
    """

    wait: str
    depth: int
    in_flight: int
    skeleton: bool | str
    buffers: bool
    steps: list
    shown: bool = True  # the slices' keys have a text
    placements: tuple = ()  # of each rank (see `overlap.runtime.threads.placement`); by default all threads
    faults: list = field(default_factory=list)


@dataclass
class Plan:
    """One schedule's world and what it runs."""

    ranks: int
    workers: int
    agree_every: int
    calls: list


# What may go wrong: an exception of the program, one that cannot be shown, one of its parallel parts, of
# MPI before anything was sent, of mpi4py for a bad argument, of the network, of Testsome; of the skeleton;
# Ctrl-C; and, with "off", what a signal handler raises right after an operation.
FAULTS = ("compute", "unspeakable", "parallel", "argument", "type", "network", "testsome", "signal", "after")


def draw(seed):
    """The plan of a seed."""
    random = Random(seed)
    ranks = random.choice((1, 2, 2, 2, 3, 4))
    workers = random.choice((1, 1, 2, 3))
    agree_every = random.choice((1, 1, 2, 3, 64))
    calls = [draw_call(random, ranks) for _ in range(random.choice((1, 2, 3)))]
    return Plan(ranks, workers, agree_every, calls)


def draw_call(random, ranks):
    wait = random.choice(WAITS)
    depth = random.choice((1, 2, 2, 3, 4))
    slices = random.choice((0, 1, 2, 3, 4, 5, 6))
    fails = random.random() < 0.45
    skeleton = random.choice((True, True, True, False, False, "agree"))
    uneven = random.random() < (0.5 if skeleton else 0.15)
    features = [name for name in ("turn", "barrier", "parallel", "wait", "start") if random.random() < 0.3]
    if not uneven:
        one = draw_slice(random, ranks, features)
        table = [list(one) for _ in range(slices)]
    else:
        table = [draw_slice(random, ranks, features) for _ in range(slices)]
    if skeleton or uneven:  # roots that depend on the slice
        table = [[varied(random, step, ranks) for step in steps] for steps in table]
    if "wait" in features:
        for number, steps in enumerate(table):
            if number and random.random() < 0.7:
                place = random.randrange(len(steps) + 1)
                stop = random.randint(1, number)
                steps.insert(place, ("wait", random.randrange(stop), stop))
    if random.random() < 0.1 and skeleton:  # as `stagger`
        for steps in table[1:depth:2]:
            steps.insert(0, ("turn",))
    barrier = any(("barrier",) in steps for steps in table)
    buffers = random.random() < 0.5 and not (barrier and slices > depth)
    call = Call(wait, depth, random.choice((1, 2, 3, depth)), skeleton, buffers, table)
    call.shown = random.random() < 0.8
    call.placements = tuple(random.choice(("alone", "helped", "threads")) for _ in range(ranks))
    if fails and slices:
        call.faults = [draw_fault(random, call, ranks) for _ in range(random.choice((1, 1, 2)))]
    return call


def draw_slice(random, ranks, features):
    """The steps of a slice, without waits for other slices."""
    steps = []
    for _ in range(random.choice((0, 1, 1, 1, 2, 3))):
        kind = random.choice(("op", "op", "op", *features))
        if kind in ("op", "start"):
            if random.random() < 0.2:
                steps.append((kind, "Sendrecv", random.randrange(ranks)))
            else:
                steps.append((kind, random.choice(COLLECTIVES), 0))
        elif kind == "parallel":
            steps.append(("parallel", random.choice((0, 1, 2, 3))))
        elif kind != "wait":
            steps.append((kind,))
    for number in range(sum(step[0] == "start" for step in steps)):
        starts = [place for place, step in enumerate(steps) if step[0] == "start"]
        steps.insert(random.randint(starts[number] + 1, len(steps)), ("finish", number))
    return steps


def varied(random, step, ranks):
    """The same step with another root or partner, if it has one."""
    if step[0] not in ("op", "start"):
        return step
    argument = random.randrange(ranks)
    return (*step[:2], argument) if step[1] in ("Bcast", "Gather", "Sendrecv") else step


def draw_fault(random, call, ranks):
    number = random.randrange(len(call.steps))
    kind = random.choice(FAULTS)
    places = range(len(call.steps[number]) + 1)
    if (kind == "testsome" and call.wait != "poll") or (kind == "after" and call.wait != "off"):
        kind = "compute"
    if kind in ("argument", "type", "network", "after"):
        places = [
            place
            for place, step in enumerate(call.steps[number])
            if step[0] in ("op", "start") and step[1] != "Barrier"
        ]
    elif kind == "parallel":
        places = [place for place, step in enumerate(call.steps[number]) if step[0] == "parallel" and step[1]]
    if not places:
        kind, places = "compute", range(len(call.steps[number]) + 1)
    return kind, random.randrange(ranks), number, random.choice(places)


def without_faults(plan):
    return replace(plan, calls=[replace(call, faults=[]) for call in plan.calls])


class Expected:
    """What a call without failures must do.

    Attributes
    ----------
    issued : list of (int, int)
        Slice and step of every operation, in the issue order.
    stuck : bool
        Some `wait_for_slices` can never end: an error, after which nothing is waited for.
    irregular : bool
        Slices await different things, and there is no skeleton: an error.
    """

    def __init__(self, call):
        self.issued = []
        self.stuck = False
        self.irregular = not call.skeleton and len({_awaited(steps) for steps in call.steps}) > 1
        self._steps = call.steps
        self._ended = set()
        count = len(call.steps)
        self._slots = [
            _Slot(deque((number, 0) for number in range(count)[first :: call.depth]))
            for first in range(min(call.depth, count))
        ]
        self._rotate()

    def _rotate(self):
        rotation, parked = list(self._slots), []
        while rotation or parked:
            if not rotation:
                rotation, parked = sorted(parked, key=self._slots.index), []
                for slot in rotation:
                    slot.waiting, slot.parked = slot.parked, slot.waiting
                    slot.item = None
            visited, rotation = rotation, []
            for slot in visited:
                while slot.item is None:
                    if not any([self._advance(other) for other in self._slots]):  # noqa: C419 (all advance)
                        self.stuck = True
                if slot.item == "end":
                    continue
                if slot.item == "barrier":
                    parked.append(slot)
                    continue
                if slot.item[0] in ("op", "start"):
                    self.issued.append(slot.at)
                slot.item = None
                number, step = slot.at
                slot.at = number, step + 1
                rotation.append(slot)

    def _advance(self, slot):
        """Go as far as possible; False if that is nowhere."""
        moved = False
        while slot.item is None:
            if slot.at is None:
                if not slot.waiting:
                    slot.item = "barrier" if slot.parked else "end"
                    return True
                slot.at = slot.waiting.popleft()
                moved = True
            number, step = slot.at
            if step == len(self._steps[number]):
                self._ended.add(number)
                slot.at = None
                moved = True
                continue
            request = self._steps[number][step]
            kind = request[0]
            if kind in ("op", "start", "finish", "turn"):
                slot.item = request
                return True
            if kind == "barrier":
                slot.parked.append((number, step + 1))
                slot.at = None
            elif kind == "wait" and not self.stuck and not self._ended.issuperset(range(request[1], request[2])):
                return moved
            else:
                slot.at = number, step + 1
            moved = True
        return moved


def _awaited(steps):
    """What must be the same in every slice if it is to be learned."""
    return tuple(step for step in steps if step[0] in ("op", "start", "finish", "turn", "barrier"))


class _Slot:
    def __init__(self, waiting):
        self.waiting = waiting
        self.parked = deque()
        self.at = None
        self.item = None
