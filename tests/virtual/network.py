"""The network: when an all-to-all among the simulated ranks is over.

An exchange belongs to all ranks; the n-th that one rank issues is the n-th of every other (MPI
matches collectives by call order). Bytes leave a node through its one network card, first come,
first served: a token bucket of rate W that lets a burst through after a pause. The exchange is over
on all ranks when the last node has sent its share, plus one latency. A message may leave before its
receiver is there only if it is small (`Machine.eager_nbytes`).

Between ranks of one node an exchange is a copy, made by the ranks' own cores (see `Rank`).
"""

from __future__ import annotations

from math import ceil, log2
from typing import Protocol

import numpy as np

from overlap.timing.simulate.machine import Machine
from overlap.timing.simulate.simulated_program import SimulatedTransfer

from .clock import Clock


class Member(Protocol):
    """What the network knows of a rank."""

    number: int

    def mark(self) -> tuple[float, float]:
        """Now, and the time so far with all cores busy."""

    def completed(self, ticket: Ticket) -> None:
        """Note that an exchange or a reduction is over."""

    def sleep_until_completion(self) -> None:
        """Be in a blocking call."""


class Card:
    """The network cards of all nodes, as arrays over the nodes."""

    def __init__(self, nodes: int, machine: Machine) -> None:
        self._free_s = np.full(nodes, -np.inf)  # when the bucket will be full, less its depth
        self._burst_s = machine.burst_nbytes / machine.bandwidth_Bps
        self._s_per_byte = 1 / machine.bandwidth_Bps

    def send(self, node: int | slice, start_s: float, nbytes: float | np.ndarray) -> float:
        """Send bytes from one node, or from all (a slice of them); when they have left."""
        begin_s = np.maximum(self._free_s[node], start_s - self._burst_s)
        self._free_s[node] = begin_s + nbytes * self._s_per_byte
        return np.maximum(self._free_s[node], start_s).max()


class Ticket:
    """One rank's part in an exchange: what MPI calls its request."""

    __slots__ = ("done", "mark", "nbytes", "rank")

    def __init__(self, rank: Member, nbytes: float) -> None:
        self.rank = rank
        self.nbytes = nbytes
        self.done = False
        self.mark = rank.mark()  # the rank's busy time when it was issued

    def Test(self) -> bool:
        return self.done

    def Wait(self) -> None:
        while not self.done:
            self.rank.sleep_until_completion()


class _Rendezvous:
    """One exchange, until all ranks have come."""

    __slots__ = ("large", "nbytes", "sent_s", "signature", "tickets", "values")

    def __init__(self, nodes: int, signature: tuple[int, int] | None) -> None:
        self.tickets: list[Ticket] = []
        self.values: list[np.ndarray] = []  # to be added up
        self.signature = signature
        self.sent_s = 0.0
        self.large = False
        self.nbytes = np.zeros(nodes)  # still to be sent, by node


class Network:
    """Joins `ranks` ranks, of which `simulated` are simulated and stand for the others, all alike.

    Parameters
    ----------
    clock : Clock
    machine : Machine
    ranks, simulated : int
        `simulated` is `ranks`, or 1.

    Attributes
    ----------
    simulated : int
    remote : float
        Share of a rank's partners that are on other nodes.
    order : list of (int, int)
        The exchanges in issue order: slice, and which of its exchanges.
    """

    def __init__(self, clock: Clock, machine: Machine, ranks: int, simulated: int) -> None:
        self._clock = clock
        self._machine = machine
        self.simulated = simulated
        self._weight = 1  # ranks of a node that one simulated rank stands for
        per_node = min(ranks, machine.ranks_per_node)
        self._nodes = ceil(simulated / per_node)
        if simulated < ranks:
            self._weight = per_node
        self.remote = (ranks - per_node) / (ranks - 1) if ranks > 1 else 0.0
        self._tree_s = ceil(log2(ranks)) * (machine.latency_s + machine.message_s)
        self._per_node = per_node
        self._card = Card(self._nodes, machine)
        self._headers: dict[int, _Rendezvous] = {}
        self.order: list[tuple[int, int]] = []

    def exchange(self, number: int, rank: Member, transfer: SimulatedTransfer, signature: tuple[int, int]) -> Ticket:
        """`rank` takes part in exchange `number`; returns its `Ticket`."""
        nbytes = self.remote * transfer.nbytes * self._weight
        rendezvous = self._rendezvous(number, signature)
        node = rank.number // self._per_node
        if transfer.nbytes > self._machine.eager_nbytes * transfer.messages:
            rendezvous.large = True
            rendezvous.nbytes[node] += nbytes
        elif nbytes:
            rendezvous.sent_s = max(rendezvous.sent_s, self._card.send(node, self._clock.now_s, nbytes))
        ticket = Ticket(rank, self.remote * transfer.nbytes)
        rendezvous.tickets.append(ticket)
        if len(rendezvous.tickets) == self.simulated:
            del self._headers[number]
            end_s = self._clock.now_s
            if rendezvous.large:
                end_s = self._card.send(slice(None), end_s, rendezvous.nbytes)
            end_s = max(end_s, rendezvous.sent_s)
            self._complete(rendezvous, end_s + (self._machine.latency_s if self.remote else 0.0))
        return ticket

    def reduction(self, number: int, rank: Member, values: np.ndarray) -> Ticket:
        """`rank` adds to a small sum, through a tree of messages; returns its `Ticket`."""
        rendezvous = self._rendezvous(-1 - number, None)
        ticket = Ticket(rank, 0)
        rendezvous.tickets.append(ticket)
        rendezvous.values.append(values)
        if len(rendezvous.tickets) == self.simulated:
            del self._headers[-1 - number]
            total = sum(rendezvous.values)
            for values in rendezvous.values:
                values[:] = total
            self._complete(rendezvous, self._clock.now_s + self._tree_s)
        return ticket

    def _rendezvous(self, number: int, signature: tuple[int, int] | None) -> _Rendezvous:
        rendezvous = self._headers.get(number)
        if rendezvous is None:
            rendezvous = self._headers[number] = _Rendezvous(self._nodes, signature)
            if signature is not None:
                self.order.append(signature)
        elif rendezvous.signature != signature:
            self._clock.fail(
                RuntimeError(f"exchange {number}: expected {rendezvous.signature} on all ranks, received {signature}")
            )
        return rendezvous

    def _complete(self, rendezvous: _Rendezvous, end_s: float) -> None:
        def completed() -> None:
            for ticket in rendezvous.tickets:
                ticket.done = True
                ticket.rank.completed(ticket)

        self._clock.at(end_s, completed)
