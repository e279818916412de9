"""The calls of all ranks beside each other: which part of a call waited for other ranks.

A call cannot end before those ranks have come to it for which it waits. What comes before this moment is *waiting*,
what comes after it is *transferring*. Collectives of a communicator are matched by their order, messages by the order
of those with the same sender, receiver and tag; or sender and receiver, if the receiver takes any tag.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .records import (
    ALL,
    COLUMNS,
    COMM,
    COMPLETION,
    END,
    FROM_ROOT,
    KIND,
    NBYTES,
    NEIGHBOURS,
    PART,
    PEER,
    PREFIX,
    RECEIVE,
    SEND,
    SITE,
    START,
    STARTED,
    TAG,
    TO_ROOT,
    UNKNOWN,
    RankRecord,
    Site,
)

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class RankCalls:
    """The calls of one rank in their order; seconds on rank 0's clock.

    Attributes
    ----------
    site : ndarray of int
        Numbers in the table of all ranks.
    start_s, end_s : ndarray
    nbytes : ndarray
    waiting_s : ndarray
        Time of the call until the ranks for which it waits have come; NaN if it is not known which these are.
    computing_s : ndarray
        From the end of the call before; 0 for the first call.
    covered_s : ndarray
        Time outside of MPI while the requests that the call completed were under way.
    near : ndarray
        Share of the partners that are on the same host.
    again : ndarray of bool
        The site has been called before.
    requests : list of (site, start_s, end_s)
        Operations that were started and completed by different calls.
    """

    site: NDArray[np.int64]
    start_s: Floats
    end_s: Floats
    nbytes: Floats
    waiting_s: Floats
    computing_s: Floats
    covered_s: Floats
    near: Floats
    again: NDArray[np.bool_]
    requests: list[tuple[int, float, float]]


@dataclass(frozen=True)
class Matched:
    """All calls of a program.

    Attributes
    ----------
    sites : list of Site
    ranks : list of RankCalls
    hosts : tuple of str
        One per rank.
    cut : bool
        Some rank made more calls than were recorded.
    modules : frozenset of str
    """

    sites: list[Site]
    ranks: list[RankCalls]
    hosts: tuple[str, ...]
    cut: bool
    modules: frozenset[str]


class _AllRanks(NamedTuple):
    """What is known of each rank: for each row of its table, when it could go on, and the share of near partners."""

    records: Sequence[RankRecord]
    tables: Sequence[Floats]
    names: Sequence[Sequence[int]]
    ready: Sequence[Floats]
    near: Sequence[Floats]
    hosts: Sequence[str]


def match(records: Sequence[RankRecord]) -> Matched:
    """Find out for each call on each rank how long it waited for other ranks.

    Parameters
    ----------
    records : sequence of RankRecord
        One per rank.

    Returns
    -------
    Matched
    """
    tables = [_on_clock_of_rank_0(record) for record in records]
    names = _communicators(records)
    hosts = tuple(record.host for record in records)
    cut = any(record.cut for record in records)
    ready = [np.full(len(table), np.nan) for table in tables]
    near = [np.zeros(len(table)) for table in tables]
    all_ranks = _AllRanks(records, tables, names, ready, near, hosts)
    _match_collectives(all_ranks)
    _match_messages(all_ranks, cut)
    sites: dict[Site, int] = {}
    for record in records:
        for site in record.sites:
            sites.setdefault(site, len(sites))
    ranks = [
        _rank_calls(table, ready[rank], near[rank], [sites[site] for site in records[rank].sites])
        for rank, table in enumerate(tables)
    ]
    modules = frozenset(name for record in records for name in record.modules)
    return Matched(list(sites), ranks, hosts, cut, modules)


def _on_clock_of_rank_0(record: RankRecord) -> Floats:
    table = np.array(record.rows, dtype="f8").reshape(-1, COLUMNS)
    first_s, before_s, last_s, after_s = record.clock
    for column in (START, END):
        share = (table[:, column] - first_s) / max(last_s - first_s, 1e-9)
        table[:, column] -= before_s + share * (after_s - before_s)
    return table


def _communicators(records: Sequence[RankRecord]) -> list[list[Any]]:
    """Name each rank's communicators so that a communicator has the same name on all of its ranks."""
    names: list[list[Any]] = []
    for record in records:
        own: list[Any] = []
        for comm in record.communicators:
            parent = () if comm.parent == UNKNOWN else own[comm.parent]
            own.append((parent, comm.members, comm.index))
        names.append(own)
    numbers: dict[Any, int] = {}
    return [[numbers.setdefault(name, len(numbers)) for name in own] for own in names]


def _near(rank: int, others: Sequence[int], hosts: Sequence[str]) -> float:
    """Return the share of the other ranks that are on a rank's host."""
    others = [other for other in others if other != rank]
    return sum(hosts[other] == hosts[rank] for other in others) / len(others) if others else 1.0


def _match_collectives(all_ranks: _AllRanks) -> None:
    records, tables, names, ready, near, hosts = all_ranks
    calls: dict[int, dict[int, Any]] = defaultdict(dict)  # communicator: rank: (rows, its entry in the rank's table)
    for rank, table in enumerate(tables):
        kinds = table[:, KIND]
        rows = np.flatnonzero((kinds >= ALL) & (kinds <= NEIGHBOURS) & (table[:, COMM] != UNKNOWN))
        for comm in np.unique(table[rows, COMM]).astype(int):
            own = rows[table[rows, COMM] == comm]
            calls[names[rank][comm]][rank] = own, records[rank].communicators[comm]
    for by_rank in calls.values():
        (_, comm) = next(iter(by_rank.values()))
        members = comm.members
        if set(by_rank) != set(members):
            continue
        count = min(len(rows) for rows, _ in by_rank.values())
        starts = np.array([tables[rank][by_rank[rank][0][:count], START] for rank in members])
        last, so_far = starts.max(axis=0), np.maximum.accumulate(starts)
        for place, rank in enumerate(members):
            rows, own = by_rank[rank]
            rows = rows[:count]
            kinds, roots = tables[rank][rows, KIND], tables[rank][rows, PEER].astype(int)
            at_root = roots == place
            of_root = starts[np.clip(roots, 0, len(members) - 1), np.arange(count)]
            sources = [place, *(source for source in own.sources if 0 <= source < len(members))]
            found = np.select(
                [kinds == FROM_ROOT, (kinds == TO_ROOT) & ~at_root, kinds == PREFIX, kinds == NEIGHBOURS],
                [of_root, starts[place], so_far[place], starts[sources].max(axis=0)],
                last,
            )
            ready[rank][rows] = found
            near[rank][rows] = _near(rank, members, hosts)


def _match_messages(all_ranks: _AllRanks, cut: bool) -> None:
    records, tables, names, ready, near, hosts = all_ranks
    sent: dict[tuple[int, ...], list[tuple[int, int]]] = defaultdict(list)
    received: dict[tuple[int, ...], list[tuple[int, int]]] = defaultdict(list)
    any_source, any_tag = set(), set()  # communicators and receivers, and those and senders
    messages = []
    for rank, table in enumerate(tables):
        kinds = table[:, KIND]
        for row in np.flatnonzero(((kinds == SEND) | (kinds == RECEIVE)) & (table[:, COMM] != UNKNOWN)).tolist():
            number, peer, tag = (int(table[row, column]) for column in (COMM, PEER, TAG))
            members = records[rank].communicators[number].members
            comm, sends = names[rank][number], bool(kinds[row] == SEND)
            if peer == UNKNOWN:
                any_source.add((comm, rank))
            elif 0 <= peer < len(members):
                ends = (rank, members[peer]) if sends else (members[peer], rank)
                messages.append((sends, (comm, *ends), tag, (rank, row)))
                near[rank][row] = _near(rank, [members[peer]], hosts)
                if tag == UNKNOWN:
                    any_tag.add((comm, *ends))
    for sends, way, tag, place in messages:
        (sent if sends else received)[way if way in any_tag else (*way, tag)].append(place)
    for key, sends_of in sent.items():
        receives = received.get(key, [])
        if (key[0], key[2]) in any_source or (len(sends_of) != len(receives) and not cut):
            continue
        for one, other in zip(sends_of, receives):
            for (rank, row), (partner, its_row) in ((one, other), (other, one)):
                ready[rank][row] = tables[partner][its_row, START]


def _rank_calls(table: Floats, ready: Floats, near: Floats, numbers: Sequence[int]) -> RankCalls:
    """Put the rows of each call together."""
    is_call = table[:, SITE] != PART
    call_of = np.cumsum(is_call) - 1
    calls = table[is_call]
    count = len(calls)
    site = np.array([numbers[int(each)] for each in calls[:, SITE]], dtype="i8")
    starts, ends = calls[:, START], calls[:, END]

    started = table[:, KIND] == COMPLETION
    origin = table[started, STARTED].astype(int)  # rows that started what was completed
    ready[started], near[started] = ready[origin], near[origin]

    # A request is waited for by the call that completes it, not by the one that starts it.
    begun = np.zeros(len(table), bool)
    begun[origin] = True
    known = ~np.isnan(ready) & ~begun
    latest = np.full(count, -np.inf)
    np.maximum.at(latest, call_of[known], ready[known])
    waiting = np.where(np.isinf(latest), np.nan, np.clip(latest - starts, 0, ends - starts))
    waiting[call_of[begun]] = 0.0

    share, parts = np.zeros(count), np.zeros(count)
    has = table[:, KIND] != 0
    np.add.at(share, call_of[has], near[has])
    np.add.at(parts, call_of[has], 1)

    before = np.maximum.accumulate(ends) if count else ends
    computing = np.zeros(count)
    computing[1:] = np.maximum(starts[1:] - before[:-1], 0)
    so_far = np.cumsum(computing)
    covered = np.zeros(count)
    completing = call_of[started]
    np.maximum.at(covered, completing, so_far[completing] - so_far[call_of[origin]])

    _, first = np.unique(site, return_index=True)
    again = np.ones(count, bool)
    again[first] = False
    requests = [
        (int(site[one]), float(ends[one]), float(ends[other]))
        for one, other in zip(call_of[origin].tolist(), completing.tolist())
    ]
    return RankCalls(
        site, starts, ends, calls[:, NBYTES], waiting, computing, covered, share / np.maximum(parts, 1), again, requests
    )
