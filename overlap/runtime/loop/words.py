"""The words of the compiled loop's tables, all of 64 bits, which Python writes and compiled code reads.

A call is a list of tables, each with its address and its length. Most of them are the plan's schedule, which does not
change: programs and the rows that run them, the arguments of exchanges, the *items* of every slot (what its slices do,
one after the other) and the order of *visits* (which slot issues next). Three belong to the call: its *state*, a line
for every *slot*, and a word for every slice that has *ended*.

A runtime has one *control*: the words by which a call meets the crew, the runtime's further threads.
"""

from __future__ import annotations

from ...compiled import njit
from ...compiled.memory import Words, words

# The tables of a call.
CODE, ROWS, EXCHANGES, ITEMS, BOUNDS, VISITS, WORKSPACES, MPI, STATE, SLOTS, ENDED, TABLES = range(12)
ENTRY = 2  # words of a table's entry in the list: address, length

# A program works on memory at six bases, which are given with each row.
BASES = 6
SOURCE, TARGET, SEND, RECEIVE, SCRATCH, ASIDE = range(BASES)
# Words of a row: begin and end of its program; then every base, as two words: the number of one of the call's arrays
# and an offset, or FIXED and an address.
PROGRAM, STOP, BASE = range(3)
FIXED = -1
ROW_WORDS = BASE + 2 * BASES

# Words of an exchange: its two buffers as bases; the addresses of counts and starts; MPI's type; the address of the
# word that holds the communicator.
SENT, RECEIVED = 0, 2
COUNTS_SENT, STARTS_SENT, COUNTS_RECEIVED, STARTS_RECEIVED, TYPE, COMM, EXCHANGE_WORDS = range(4, 11)

# Words of an item: its kind and two numbers.
KIND, FIRST, LAST, ITEM_WORDS = range(4)
RUN = 0  # run row FIRST
SPLIT = 1  # run rows FIRST up to LAST, which several threads may share
CALL = 2  # call the Python function FIRST
WAIT = 3  # wait until slices FIRST up to LAST have ended
END = 4  # slice FIRST ends
EXCHANGE = 5  # issue exchange FIRST
TURN = 6  # take a turn in the order of issue, without an exchange

# Words of a slot's bounds: its first item, and the end of its items.
BEGIN, FINISH, BOUND_WORDS = range(3)

# Words of a slot, on cache lines of its own.
POSITION = 0  # its next item
OWNER = 1  # FREE, OWNED by one thread, or SHARED: several threads run the parts of its next item
UNDER_WAY = 2  # 1 while an exchange is under way in MPI
REQUEST = 3  # MPI's request
SEEN = 4  # how many slices of its next item, a WAIT, are known to have ended
PARTS = 5  # while it is SHARED: the item and the next part to take
DONE = 6  # and how many of its parts have been run
SLOT_WORDS = 8
FREE, OWNED, SHARED = range(3)
PART_BITS = 20

# Words of a call's state.
(
    STAGE,  # what the call is at: IDLE, ENTERING, RUNNING, AGREEING
    WAITS,  # MEETING at the header, WAITING for MPI, or 0: it does not wait for other ranks
    SINCE,  # since when the calling thread has had nothing to compute; 0: it has
    ABOUT,  # the exchange for which it waits, or NONE: an agreement
    ERROR,  # error code of the last call of MPI
    BEGAN,  # times at which all ranks had made the call, and at which it was over
    ENDED_AT,
    WAITED,  # nanoseconds for which the calling thread has not computed
    CREW_COMPUTED,  # nanoseconds for which the crew has computed
    COMPUTES_TOO,  # 0: the call makes its exchanges only
    COMPUTES,  # 0: computing items are skipped, since this rank has failed or the call makes its exchanges only
    EXCHANGES_TOO,  # 0: exchanges are skipped
    POLLED,  # 1: exchanges are nonblocking, and are tested; else they are blocking
    LIMIT,  # exchanges under way at once
    HELD,  # the slot that the calling thread owns, to compute, or NONE
    AT,  # the slot because of which the loop has returned to Python
    VISIT,  # number of visits so far
    FLYING,  # exchanges under way
    DEPTH,  # slots
    ALONE,  # 1: there are no other ranks
    FAILED,  # 1: this rank has failed
    DOOR,  # why the loop has returned to Python
    REDUCES,  # 1: this rank has begun to reduce a header or an agreement
    ARRAYS,  # address of the list of addresses of the call's arrays
    CONTROL,  # address of the runtime's control
    CREW,  # threads of the crew that may take part
    TOOK_PART,  # threads of the crew that have been called
    COMPUTED,  # nanoseconds that all threads together have computed in the last call
    STAMPS,  # address of the times of rows, then of exchanges; 0: no trace
    LOADS,  # addresses of two loads, which count a call that ends without an error
    OTHER_LOAD,
    ENTERED_AT,  # when the loop has last been entered from Python
    TESTED_AT,  # when what is under way has last been tested
    PROGRESS_AT,  # when a thread has last made progress
    SLEEP,  # microseconds of the next sleep
    EXECUTE,  # address of the function that executes programs
) = range(36)
# Three of a header; three of an agreement, and its request; two; MPI's flag and status.
NUMBERS, SUMS, AGREEMENT_REQUEST, CLOCK, FLAG = 36, 39, 42, 43, 45
STATE_WORDS = FLAG + 14
IDLE, ENTERING, RUNNING, AGREEING = range(4)
MEETING, WAITING = 1, 2
NONE = -1

# Words of a stamp.
FROM, TO, THREAD, STAMP_WORDS = range(4)

# Words of the table of MPI: functions, handles, for how long to poll without sleep, the address of the rendezvous'
# state (0: no board), and the numbers reduced at the beginning and at the end.
(
    ALLREDUCE,
    IALLREDUCE,
    ALLTOALLV,
    IALLTOALLV,
    TEST,
    IPROBE,
    CONTROL_COMM,
    SIGNED,
    UNSIGNED,
    MIN,
    SUM,
    IN_PLACE,
    ANY_SOURCE,
    ANY_TAG,
    HOT_NS,
    RENDEZVOUS,
    REDUCED,  # six words: three of the header, three of the agreement
) = range(17)
MPI_WORDS = REDUCED + 6

# Why the loop returns to Python.
OVER = 0  # the call has ended without an error
BUSY_ELSEWHERE = 1  # another thread is in a call of this runtime
UNLIKE = 2  # according to the header, some rank has failed or makes another call; nothing has been done
DISAGREED = 3  # the call has ended; according to the agreement some rank has failed or has issued other operations
CALLS_PYTHON = 4  # the held slot comes to a Python function
NOT_ISSUED = 5  # MPI has rejected an exchange, of the held slot
NOT_COMPLETED = 6  # an exchange under way has failed
BROKEN = 7  # MPI has failed at the header or the agreement
TICK = 8  # it is time to let Python run its signal handlers
TICK_NS = 10_000_000

# Words of a runtime's control: each on a cache line of its own, as several threads write it.
LINE_WORDS = 8
(
    TICKET,  # number of the calls for which the crew has been called; idle threads sleep on it
    SLEEPERS,  # threads of the crew that sleep
    ACTIVE,  # address of the tables of the call in which the crew takes part; 0: none
    INSIDE,  # threads of the crew that are in a call
    BUSY,  # 1 while a call is being made
    MODE,  # what the crew is to do: SERVE or QUIT
    SEATS,  # how many further threads may take part in the call
) = range(0, 7 * LINE_WORDS, LINE_WORDS)
WORKERS = 7 * LINE_WORDS  # then a line for every worker
TICKET_SEEN, NAP, IDLE_NS, JOINED_AT, WORKER_CLOCK = range(5)  # words of a worker's line
SERVE, QUIT = range(2)
LEFT = -1  # returned by the crew's loop: the runtime is being closed


@njit
def table(tables: int, which: int) -> int:
    """Return the address of a table."""
    listed: Words = words(tables)
    return listed[ENTRY * which]


@njit
def slot_at(tables: int, slot: int) -> int:
    """Return the address of a slot's words."""
    return table(tables, SLOTS) + 8 * SLOT_WORDS * slot


@njit
def item_at(tables: int, slot: int) -> int:
    """Return the address of the next item of a slot."""
    place: Words = words(slot_at(tables, slot))
    return table(tables, ITEMS) + 8 * ITEM_WORDS * place[POSITION]
