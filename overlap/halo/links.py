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

from ..compiled import njit
from ..lowlevel.copy_table import execute
from ..lowlevel.memory import (
    LINE,
    begin_wait,
    call_python,
    load,
    load_acquire,
    pause,
    store,
    store_release,
    waited,
    words,
)

# Words of a rank's state; then the links.
ROUND, LINKS, POLLS, ATTEND, SCRATCH, SOURCES, BROKEN, STATE = 0, 1, 2, 3, 4, 5, 6, 8
# Words of a link: whether something is left to do in this round, and whether there is something at all; the part of the
# own segment that is for the other rank, the other way round, and the bytes of their slots; tables of copies into a
# slot, into shared arrays, and from a slot to the ghost cells; for each set of shared arrays where their addresses are.
(SENDING, RECEIVING, SENDS, RECEIVES, MINE, THEIRS, MY_SLOT_NBYTES, THEIR_SLOT_NBYTES) = range(8)
(INTO_SLOT, INTO_SLOT_ROWS, DIRECT, DIRECT_ROWS, FROM_SLOT, FROM_SLOT_ROWS, SETS, PEER) = range(8, 16)
LINK = 16

# A part of a segment: the other rank's request, in cache lines of its own the last round that it has completed and its
# deliveries of odd and even rounds, and the slots for what it sends. A request is the round and the set of arrays, a
# delivery the round and whether the data are in the ghost cells.
SET, COMPLETED, DELIVERIES, IN_PLACE, SLOTS = 8, LINE, 2 * LINE, 8, 4 * LINE
NO_SET = -1


@njit
def start(state_at: Any, set_number: Any) -> Any:
    """Begin a round: ask for what is received, into a set of shared arrays or `NO_SET`, and send what can be sent."""
    state = words(state_at)
    state[ROUND] += 1
    number = state[ROUND]
    for place in range(state[LINKS]):
        link = words(state_at + 8 * (STATE + LINK * place))
        if link[RECEIVES]:
            link[RECEIVING] = 1
            store(link[THEIRS] + SET, set_number)
            store_release(link[THEIRS], number)
    left = 0
    for place in range(state[LINKS]):
        link = words(state_at + 8 * (STATE + LINK * place))
        if link[SENDS]:
            link[SENDING] = 1
            left += send(state, link, number)
        left += link[RECEIVING]
    return left


@njit
def send(state: Any, link: Any, number: Any) -> Any:
    """Send the payload of a round, if the receiver lets us; returns whether that is still to be done."""
    request, place = link[MINE], number & 1
    delivery = link[THEIRS] + DELIVERIES + place * LINE
    asked = load_acquire(request)
    wanted = load(request + SET, number) if asked == number else NO_SET
    if wanted != NO_SET:
        execute(link[DIRECT], link[DIRECT_ROWS], state[SOURCES], words(link[SETS])[wanted])
        store(delivery + IN_PLACE, 1)
    elif load_acquire(request + COMPLETED) >= number - 2:
        store(state[SCRATCH], link[THEIRS] + SLOTS + place * link[THEIR_SLOT_NBYTES])
        execute(link[INTO_SLOT], link[INTO_SLOT_ROWS], state[SOURCES], state[SCRATCH])
        store(delivery + IN_PLACE, 0)
    else:
        return 1
    store_release(delivery, number)
    link[SENDING] = 0
    return 0


@njit
def receive(state: Any, link: Any, number: Any) -> Any:
    """Take the payload of a round, if it is there; returns whether that is still to be done."""
    place = number & 1
    delivery = link[MINE] + DELIVERIES + place * LINE
    if load_acquire(delivery) != number:
        return 1
    if load(delivery + IN_PLACE, number) == 0:
        store(state[SCRATCH], link[MINE] + SLOTS + place * link[MY_SLOT_NBYTES])
        execute(link[FROM_SLOT], link[FROM_SLOT_ROWS], state[SCRATCH], state[SOURCES])
    store_release(link[THEIRS] + COMPLETED, number)
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
    begin_wait(state[SCRATCH])
    while progress(state_at):
        if waited(state[SCRATCH]):
            mark = state_at + 8 * BROKEN
            call_python(state[ATTEND], 0, 0, 1, mark, mark)
