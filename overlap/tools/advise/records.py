"""What is recorded of each call: a row of numbers, and tables of call sites and communicators."""

from __future__ import annotations

from dataclasses import dataclass, field

# Columns of a row. Times are those of `time.perf_counter`. A row that completes a request has the number of the row
# that started it in place of the tag.
SITE, START, END, NBYTES, KIND, COMM, PEER, TAG = range(8)
COLUMNS = 8
STARTED = TAG

PART = -1  # site of a row that is a further part of the call before it
UNKNOWN = -1  # source or tag of a receive that takes any, number of a communicator that is not tabulated

# Kinds of rows, by the ranks for which a call waits. LOCAL: for none that is known.
LOCAL, ALL, FROM_ROOT, TO_ROOT, PREFIX, NEIGHBOURS, SEND, RECEIVE, COMPLETION = range(9)


@dataclass(frozen=True, slots=True)
class Site:
    """A place in the program that calls MPI.

    Attributes
    ----------
    operation : str
        The method, such as "Alltoallw".
    file : str
        File of the program.
    line : int
    library : str
        Where the call is made, "file:line", if a library makes it for the program; else "".
    """

    operation: str
    file: str
    line: int
    library: str


@dataclass(frozen=True, slots=True)
class Communicator:
    """A communicator, in terms that all its ranks share.

    Attributes
    ----------
    parent : int
        Number of the communicator that it was made from, in this rank's table; -1 for COMM_WORLD and COMM_SELF.
    members : tuple of int
        The ranks in COMM_WORLD.
    index : int
        How many communicators with these members this rank had made from the parent before.
    sources : tuple of int
        The ranks, in this communicator, from which this rank receives in neighbourhood collectives.
    """

    parent: int
    members: tuple[int, ...]
    index: int
    sources: tuple[int, ...] = ()


@dataclass(slots=True)
class RankRecord:
    """Everything recorded on one rank.

    Attributes
    ----------
    rows : list of tuple
        `COLUMNS` numbers each.
    sites : list of Site
    communicators : list of Communicator
    host : str
    modules : tuple of str
        Libraries that the program has imported, of those that the advice knows.
    cut : bool
        More calls were made than are recorded.
    clock : tuple of float
        This rank's clock minus rank 0's, as (first time, difference, last time, difference); between them it is linear.
    """

    rows: list[tuple[float, ...]] = field(default_factory=list)
    sites: list[Site] = field(default_factory=list)
    communicators: list[Communicator] = field(default_factory=list)
    host: str = ""
    modules: tuple[str, ...] = ()
    cut: bool = False
    clock: tuple[float, float, float, float] = (0.0, 0.0, 1.0, 0.0)
