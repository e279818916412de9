"""One schedule: the ranks' threads, and what is checked while they run and when they have ended."""

from dataclasses import dataclass

from . import source, threads
from .network import Agreements, Comm, Network, Violation
from .programs import Expected, draw
from .rank import Aborted, Rank


@dataclass
class Finding:
    """What a seed has found."""

    seed: int
    text: str

    def __str__(self):
        return f"seed {self.seed}: {self.text}"


class World:
    """The ranks of one schedule."""

    def __init__(self, seed, plan, runtime):
        self.plan = plan
        self.runtime = runtime
        self.clock = threads.Schedule(seed).begin(runtime.modules)
        runtime.executor._left_behind = 0
        self.network = Network(plan.ranks)
        self.coordinator = self.network.source(Agreements)
        self.sources = self.network.source(Comm)
        self.ranks = [Rank(self, number) for number in range(plan.ranks)]

    def run(self):
        self.clock.run()
        waiting = [rank for rank in self.ranks if rank.doing is not None]
        if waiting:
            lines = [f"rank {rank.number} is in {rank.doing} for ever" for rank in waiting]
            raise Violation("\n".join(lines + self.network.leftovers() + [self.clock.stacks()]))
        for rank in self.ranks:
            rank.check_end()

    def check(self, index):
        """All ranks have ended call `index`: do they agree?"""
        call, expected = self.plan.calls[index], self.expected(index)
        outcomes = [rank.outcomes[index] for rank in self.ranks]
        if any(outcome != outcomes[0] for outcome in outcomes):
            raise Violation(f"call {index}: different outcomes {outcomes}")
        fired = [fault for number, fault in self.network.fired if number == index]
        late = [fault for fault in fired if fault[0] == "signal"]  # after the ranks had agreed
        bad = expected.stuck or expected.irregular
        if outcomes[0] is None and (len(fired) > len(late) or bad):
            raise Violation(f"call {index}: no error after {fired or 'a bad program'}")
        if outcomes[0] is not None and not (fired or bad):
            raise Violation(f"call {index}: {outcomes[0][2]}\n{outcomes[0][3]}")
        for rank in self.ranks:
            order = rank.issued[index]
            if outcomes[0] is not None:
                if not expected.irregular and not _within(order, expected.issued):
                    raise Violation(
                        f"call {index}: issued {order}, expected some of {expected.issued}, in this order {fired}"
                    )
                continue
            if not _same(order, expected.issued, call):
                raise Violation(f"call {index}: issued {order}, expected {expected.issued}")
            rank.check_steps(index, call)
        if outcomes[0] is not None and fired and not bad:
            self._check_origin(index, outcomes[0], fired)

    def _check_origin(self, index, outcome, fired):
        """The error is that of a failure that has happened."""
        rank, name = outcome[:2]
        anywhere = ("signal", "network", "testsome")  # MPI does not say which one, nor does a signal
        if not any(
            rank == fault[1] and (name in (str(fault[2]), "?") or name.startswith("<") or fault[0] in anywhere)
            for fault in fired
        ):
            raise Violation(f"call {index}: slice {name} failed on rank {rank}, expected one of {fired}\n{outcome[3]}")

    def expected(self, index):
        return Expected(self.plan.calls[index])


def _same(issued, expected, call):
    """Whether these operations were issued; a barrier does not know whose it is."""
    return len(issued) == len(expected) and all(
        found == due or (found is None and call.steps[due[0]][due[1]][1] == "Barrier")
        for found, due in zip(issued, expected)
    )


def _within(issued, expected):
    """Whether some of the operations were issued, in the right order; None: one that was learned."""
    remaining = iter(expected)
    return all(any(found is None or found == due for due in remaining) for found in issued)


def explore(seed, edits=(), plan=None):
    """Run the schedule of a seed; what it found, or None."""
    runtime = source.load(edits)
    world = World(seed, plan or draw(seed), runtime)
    try:
        world.run()
    except (Violation, Aborted) as error:
        kinds = sorted({fault[0] for _, fault in world.network.fired})
        return Finding(seed, f"{error} {kinds if kinds else ''}")
    finally:
        world.clock.end()
    return None
