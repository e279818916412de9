"""Halos by remote writes: how ranks of one node put data into each other's memory.

A *link* joins two ranks, one that sends and one that receives. Rounds are numbered from 1 and every round has one
message per link. Two pairs of flags in a shared window, each written by one rank alone, carry round numbers:

* The receiver's *request*, read by the sender: in which round it is, into which set of shared arrays it wants the data
  (or none), and the last round that it has completed.
* The sender's *delivery*, read by the receiver, one for odd and one for even rounds: the round whose data are there,
  and where.

The receiver starts a round by a request. The sender writes the payload once, then the delivery, by a release: straight
into the ghost cells, if the receiver has asked for that and is in the same round already, or else into the slot of the
round in the receiver's segment. There are two slots, used alternately, and that of round k is free when round k - 2 is
complete. So nobody waits before sending, but where the receiver is a whole round late; what cannot be sent at the start
is sent while the sender tests or waits. A receiver that finds its delivery moves data from the slot to the ghost cells,
unless they are there, and notes the round as completed.

Ghost cells belong to the neighbour from the request to the delivery of a round, and to their owner else: no write
comes before the request of its round.

Order in memory: payload and the words of a flag are plain stores before a `store_release` of the round number, and
plain loads after a `load_acquire` of it (`lowlevel.memory`). That is enough on ARM too, as both sides map the same
memory (`lowlevel.segments`).
"""

from __future__ import annotations

from typing import Any

from ..collectives.protocol import INTERVAL_NS, LINE
from ..compiled import njit
from ..lowlevel.memory import call_python, clock_ns, load, load_acquire, pause, sched_yield, store, store_release, words
from .moves import move

# Words of a rank's state; then the links.
ROUND, LINKS, POLLS, ATTEND, SCRATCH, SOURCES, BROKEN, STATE = 0, 1, 2, 3, 4, 5, 6, 8
# Words of a link's end at the sender: is something left to do in this round, where the receiver's request and slots
# stand, tables of moves into a slot and into shared arrays, and for each set of these where their addresses stand.
(
    SENDING,
    REQUEST,
    DELIVERY,
    SLOT,
    SLOT_NBYTES,
    SLOT_TABLE,
    SLOT_ROWS,
    SLOT_WIDTH,
    DIRECT_TABLE,
    DIRECT_ROWS,
    DIRECT_WIDTH,
    SETS,
    PEER,
) = range(13)
# And at the receiver: likewise; the table moves data from a slot to the ghost cells.
(RECEIVING, MY_REQUEST, MY_DELIVERY, MY_SLOT, MY_SLOT_NBYTES, TABLE, ROWS, WIDTH) = range(13, 21)
LINK = 24

# A request is a cache line: the round, the set of arrays, and in a line of its own the last round completed.
SET, COMPLETED, REQUEST_NBYTES = 8, LINE, 2 * LINE
# A delivery: the round, where the data are (1: in the ghost cells); for odd and even rounds.
DIRECT, DELIVERY_NBYTES = 8, LINE
NO_SET = -1


@njit
def start(state_at: Any, set_number: Any) -> Any:
    """Begin a round: ask for what is received, into a set of shared arrays or `NO_SET`, and send what can be sent."""
    state = words(state_at)
    state[ROUND] += 1
    number = state[ROUND]
    for place in range(state[LINKS]):
        link = words(state_at + 8 * (STATE + LINK * place))
        if link[MY_REQUEST]:
            link[RECEIVING] = 1
            store(link[MY_REQUEST] + SET, set_number)
            store_release(link[MY_REQUEST], number)
    left = 0
    for place in range(state[LINKS]):
        link = words(state_at + 8 * (STATE + LINK * place))
        if link[REQUEST]:
            link[SENDING] = 1
            left += send(state, link, number)
        left += link[RECEIVING]
    return left


@njit
def send(state: Any, link: Any, number: Any) -> Any:
    """Send the payload of a round, if the receiver lets us; returns whether that is still to be done."""
    target = link[DELIVERY] + (number & 1) * DELIVERY_NBYTES
    asked = load_acquire(link[REQUEST])
    wanted = load(link[REQUEST] + SET, number) if asked == number else NO_SET
    if wanted != NO_SET:
        move(link[DIRECT_TABLE], link[DIRECT_ROWS], link[DIRECT_WIDTH], state[SOURCES], words(link[SETS])[wanted])
        store(target + DIRECT, 1)
    elif load_acquire(link[REQUEST] + COMPLETED) >= number - 2:
        slot = link[SLOT] + (number & 1) * link[SLOT_NBYTES]
        store(state[SCRATCH], slot)
        move(link[SLOT_TABLE], link[SLOT_ROWS], link[SLOT_WIDTH], state[SOURCES], state[SCRATCH])
        store(target + DIRECT, 0)
    else:
        return 1
    store_release(target, number)
    link[SENDING] = 0
    return 0


@njit
def receive(state: Any, link: Any, number: Any) -> Any:
    """Take the payload of a round, if it is there; returns whether that is still to be done."""
    delivery = link[MY_DELIVERY] + (number & 1) * DELIVERY_NBYTES
    if load_acquire(delivery) != number:
        return 1
    if load(delivery + DIRECT, number) == 0:
        store(state[SCRATCH], link[MY_SLOT] + (number & 1) * link[MY_SLOT_NBYTES])
        move(link[TABLE], link[ROWS], link[WIDTH], state[SCRATCH], state[SOURCES])
    store_release(link[MY_REQUEST] + COMPLETED, number)
    link[RECEIVING] = 0
    return 0


@njit
def progress(state_at: Any) -> Any:
    """Send and take what can be now; returns how many messages are left of the round."""
    state = words(state_at)
    number, left = state[ROUND], 0
    for place in range(state[LINKS]):
        link = words(state_at + 8 * (STATE + LINK * place))
        if link[SENDING]:
            left += send(state, link, number)
        if link[RECEIVING]:
            left += receive(state, link, number)
    return left


@njit
def complete(state_at: Any) -> None:
    """Wait until nothing is left of the round. Calls Python now and then, which may raise."""
    state = words(state_at)
    for _ in range(state[POLLS]):
        if progress(state_at) == 0:
            return
        pause()
    asked = clock_ns(state[SCRATCH])
    while progress(state_at):
        sched_yield()
        if clock_ns(state[SCRATCH]) - asked > INTERVAL_NS:
            mark = state_at + 8 * BROKEN
            call_python(state[ATTEND], 0, 0, 1, mark, mark)
            asked = clock_ns(state[SCRATCH])
