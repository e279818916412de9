"""A network that checks what the ranks do: what the runtime takes from `mpi4py.MPI`.

Collectives are matched by call order per communicator, messages by partner and tag. An operation is
over when the schedule says so, after all ranks that it needs have come; roots of a broadcast, and
leaves of a gather, may be through before. What MPI would forgive or punish by a hang is a finding here:
ranks whose operations do not match, and everything that is left over at the end.
"""

from collections import defaultdict, deque
from types import SimpleNamespace

from mpi4py import MPI as real

from . import threads
from .tickets import Failed, Interrupted, Request, Ticket, Violation

EARLY = {
    "Bcast": lambda rank, root: rank == root,
    "Gather": lambda rank, root: rank != root,
    "Reduce": lambda rank, root: rank != root,
}


REDUCED = {real.MIN.handle: min, real.MAX.handle: max, real.SUM.handle: lambda values: sum(values) % 2**64}


def _raise():
    raise Interrupted("right after an operation")


class Rendezvous:
    """A collective, until all ranks have come."""

    __slots__ = ("identity", "result", "signature", "tickets", "values")

    def __init__(self, signature):
        self.signature = signature
        self.identity = None
        self.tickets = []
        self.result = None
        self.values = []


class Group:
    """A communicator as a whole: what is under way on it."""

    def __init__(self, network, number):
        self.number = number
        self.meetings = {}
        self.messages = defaultdict(deque)  # (source, target, tag) -> sent, or received if negative
        network.groups.append(self)


class Network:
    """What all ranks of one schedule share.

    Attributes
    ----------
    issued : list of list
        Per rank, the identities of its users' operations, in the order in which they were issued.
    faults : dict
        (rank, identity, kind) -> what goes wrong when this rank issues that operation.
    fired : list
        The faults that have happened.
    """

    def __init__(self, size):
        self.size = size
        self.groups = []
        self.open = set()  # tickets that no rank has collected
        self.issued = [[] for _ in range(size)]
        self.in_flight = [0] * size
        self.limits = [NO_LIMIT] * size
        self.faults = {}
        self.testsome = {}
        self.fired = []
        self.busy = [0] * size  # threads that compute, or spin in MPI
        self.cores = [NO_LIMIT] * size

    def source(self, kind):
        """A communicator's handles, one per rank."""
        group = Group(self, len(self.groups))
        return [kind(self, group, rank) for rank in range(self.size)]

    def violated(self, text):
        threads.schedule.halt(Violation(text))

    def fire(self, fault):
        self.fired.append(fault)

    def occupy(self, rank):
        self.busy[rank] += 1
        if self.busy[rank] > self.cores[rank]:
            self.violated(
                f"rank {rank}: {self.busy[rank]} threads compute or spin, expected at most {self.cores[rank]}"
            )

    def vacate(self, rank):
        self.busy[rank] -= 1

    def forget(self, rank):
        """The rank has left its communicators behind: what is under way on them counts no more."""
        self.in_flight[rank] = 0
        for ticket in [ticket for ticket in self.open if ticket.rank == rank]:
            ticket.counted = False
            self.open.discard(ticket)

    def leftovers(self, spoilt=()):
        """What is under way, one line each."""
        lines = []
        for group in self.groups:
            if group.number in spoilt:
                continue
            for number, rendezvous in group.meetings.items():
                ranks = sorted(ticket.rank for ticket in rendezvous.tickets)
                lines.append(
                    f"communicator {group.number}, operation {number}: "
                    f"{rendezvous.signature} {rendezvous.identity}: only ranks {ranks} came"
                )
            for (source, target, tag), queue in group.messages.items():
                if queue:
                    lines.append(
                        f"communicator {group.number}: {len(queue)} halves of messages "
                        f"from {source} to {target}, tag {tag}"
                    )
        return lines


NO_LIMIT = 1 << 30


class Comm:
    """One rank's handle of a communicator."""

    def __init__(self, network, group, rank):
        self.network = network
        self.group = group
        self.rank = rank
        self.size = network.size
        self._calls = 0

    def Set_errhandler(self, _):
        pass

    def Get_group(self):
        return self

    def Translate_ranks(self, ranks, _):
        return ranks

    def Free(self):
        pass

    def Dup(self):
        """A new communicator; the last one of them is `latest`."""
        ticket, rendezvous = self._join(("Dup",), None, None, None)
        ticket.Wait()
        self.latest = Comm(self.network, rendezvous.result, self.rank)
        return self.latest

    # ---- matching ----

    def _join(self, signature, identity, value, error, early=False, counted=False):
        """Take part in the next collective."""
        network, group = self.network, self.group
        number = self._calls
        self._calls += 1
        rendezvous = group.meetings.get(number)
        if rendezvous is None:
            rendezvous = group.meetings[number] = Rendezvous(signature)
        elif rendezvous.signature != signature:
            network.violated(
                f"communicator {group.number}, operation {number}: rank {self.rank} "
                f"issues {signature} {identity}, others {rendezvous.signature} "
                f"{rendezvous.identity}"
            )
        if identity is not None:
            if rendezvous.identity not in (None, identity):
                network.violated(
                    f"communicator {group.number}, operation {number}: rank "
                    f"{self.rank} issues {identity}, others {rendezvous.identity}"
                )
            rendezvous.identity = identity
        ticket = Ticket(network, self.rank, error, counted)
        rendezvous.tickets.append(ticket)
        rendezvous.values.append(value)
        if len(rendezvous.tickets) == network.size:
            del group.meetings[number]
            _combine(network, rendezvous)
            for other in rendezvous.tickets:
                if not other.done:
                    threads.schedule.ready(other)
        elif early:
            ticket.happen()
        return ticket, rendezvous

    def _message(self, source, target, tag, sends, arrived):
        """One half of a message; `arrived` is called when it has met the other half."""
        queue = self.group.messages[source, target, tag]
        if queue and queue[0][0] != sends:
            other = queue.popleft()[1]
            other()
            arrived()
        else:
            queue.append((sends, arrived))

    def _start(self, name, args, kwargs):
        network = self.network
        identity = getattr(args[0], "identity", None) if args else None
        error = None
        if network.faults and args and getattr(args[0], "genuine", False):
            if fault := network.faults.pop((self.rank, identity, "argument"), None):
                network.fire(fault)
                raise Failed(real.ERR_ARG)
            if fault := network.faults.pop((self.rank, identity, "type"), None):
                network.fire(fault)
                raise TypeError("a bad argument")
            if fault := network.faults.pop((self.rank, identity, "network"), None):
                network.fire(fault)
                error = Failed(real.ERR_OTHER)
        network.issued[self.rank].append((name, identity))
        network.in_flight[self.rank] += 1
        if network.in_flight[self.rank] > network.limits[self.rank]:
            network.violated(
                f"rank {self.rank}: {network.in_flight[self.rank]} in flight, "
                f"expected at most {network.limits[self.rank]}"
            )
        if name == "Sendrecv":
            return self._sendrecv(args, kwargs, error)
        root = kwargs.get("root")
        early = EARLY.get(name)
        return self._join(
            (name, root),
            identity,
            None,
            error,
            counted=True,
            early=early is not None and early(self.rank, root) and threads.schedule.random() < 0.5,
        )[0]

    def _sendrecv(self, args, kwargs, error):
        ticket = Ticket(self.network, self.rank, error, counted=True)
        halves = 2

        def arrived():
            nonlocal halves
            halves -= 1
            if not halves:
                threads.schedule.ready(ticket)

        self._message(self.rank, kwargs["dest"], kwargs["sendtag"], True, arrived)
        self._message(kwargs["source"], self.rank, kwargs["recvtag"], False, arrived)
        return ticket

    def _call(self, name, args, kwargs):
        network = self.network
        network.occupy(self.rank)
        try:
            self._start(name, args, kwargs).Wait()
        finally:
            network.vacate(self.rank)
        genuine = network.faults and args and getattr(args[0], "genuine", False)
        if genuine and (fault := network.faults.pop((self.rank, args[0].identity, "after"), None)):
            network.fire(fault)
            threads.schedule.interrupt(_raise)


class Agreements(Comm):
    """What the runtime itself agrees on."""

    def Iallreduce(self, _, values, op=None):
        return self._join(("agreement", len(values), op.handle), None, values, None)[0]

    def Allreduce(self, _, values, op=None):
        self._join(("agreement", len(values), op.handle, "blocking"), None, values, None)[0].Wait()

    def allgather(self, value):
        ticket, rendezvous = self._join(("allgather",), None, (self.rank, value), None)
        ticket.Wait()
        return rendezvous.result

    def Bcast(self, values, root=0):
        self._join(("report", root), None, (values, self.rank == root), None)[0].Wait()


def _combine(network, rendezvous):
    """Give the ranks what they agree on."""
    kind = rendezvous.signature[0]
    if kind == "agreement":
        values = rendezvous.values
        for place in range(len(values[0])):
            given = [int(value[place]) for value in values]
            result = REDUCED[rendezvous.signature[2]](given)
            for value in values:
                value[place] = result
    elif kind == "allgather":
        rendezvous.result = [value for _, value in sorted(rendezvous.values, key=lambda pair: pair[0])]
    elif kind == "report":
        [sent] = [values for values, is_root in rendezvous.values if is_root]
        for values, _is_root in rendezvous.values:
            if len(values) != len(sent):
                network.violated(f"a report of {len(sent)} bytes, received into {len(values)}")
            else:
                values[:] = sent
    elif kind == "Dup":
        rendezvous.result = Group(network, len(network.groups))


def _methods(name):
    def call(self, *args, **kwargs):
        return self._call(name, args, kwargs)

    def start(self, *args, **kwargs):
        return self._start(name, args, kwargs)

    return call, start


for _name in ("Barrier", "Bcast", "Gather", "Reduce", "Allgather", "Alltoall", "Allreduce", "Sendrecv"):
    for _known_as, _method in zip((_name, "I" + _name.lower()), _methods(_name)):
        if not hasattr(Comm, _known_as):
            setattr(Comm, _known_as, _method)

MPI = SimpleNamespace(**{name: getattr(real, name) for name in dir(real) if name.isupper() or name == "Comm"})
MPI.Exception = Failed
MPI.Request = Request
MPI.REQUEST_NULL = Request.NULL
MPI.Intracomm = Comm
