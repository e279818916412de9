"""Halos by remote writes: ranks of one node write data into each other's memory.

A *link* joins two ranks, one that sends and one that receives. Rounds are numbered from 1 and every round has one
message per link. Two pairs of flags in a shared window, each written by one rank alone, carry round numbers:

* The receiver's *request*, read by the sender: the receiver's round, the set of shared arrays into which the data go
  (or none), and the last round that the receiver has completed.
* The sender's *delivery*, read by the receiver, one for odd and one for even rounds: the round whose data have been
  written, and where they are.

The receiver starts a round by a request. The sender writes the payload once and then the delivery, by a release. If the
receiver has requested it and is in the same round already, the payload goes directly into the ghost cells, else into
the slot of the round in the receiver's segment. There are two slots, used alternately; that of round k is free when
round k - 2 is complete. So a sender waits only if the receiver is a whole round late; data that cannot be sent at the
start are sent while the sender tests or waits. When the receiver finds the delivery, it copies data from the slot to
the ghost cells, unless they are there already, and notes the round as completed.

From the request to the delivery of a round the ghost cells belong to the neighbour, at other times to their owner: no
write precedes the request of its round.

Order in memory: payload and the words of a flag are plain stores before a `store_release` of the round number, and
plain loads after a `load_acquire` of it (`compiled.memory`). Because both sides map the same memory
(`ranks.segments`), this is enough on ARM, too.
"""

from __future__ import annotations

from typing import Any

from ..compiled import njit
from ..compiled.copy_table import execute
from ..compiled.memory import (
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
# `OVERFLOW` is the address of a word that copies set if a number is too large to be sent as a single, or 0.
ROUND, LINKS, POLLS, ATTEND, SCRATCH, SOURCES, BROKEN, OVERFLOW, STATE = range(9)
# Words of a link: whether sending and receiving are still to be done in this round, and whether they exist at all; the
# part of the own segment for the other rank, the part of the other rank's segment for this one, and the bytes of their
# slots; tables of copies into a slot, into shared arrays, and from a slot to the ghost cells; the addresses of the sets
# of shared arrays.
(SENDING, RECEIVING, SENDS, RECEIVES, MINE, THEIRS, MY_SLOT_NBYTES, THEIR_SLOT_NBYTES) = range(8)
(INTO_SLOT, INTO_SLOT_ROWS, DIRECT, DIRECT_ROWS, FROM_SLOT, FROM_SLOT_ROWS, SETS, PEER) = range(8, 16)
LINK = 16

# A part of a segment: the other rank's request; in cache lines of their own, the last round that it has completed and
# its deliveries of odd and even rounds; the slots for its data. A request is the round and the set of arrays, a
# delivery the round and whether the data are in the ghost cells.
SET, COMPLETED, DELIVERIES, IN_PLACE, SLOTS = 8, LINE, 2 * LINE, 8, 4 * LINE
NO_SET = -1


@njit
def start(state_at: Any, set_number: Any) -> Any:
    """Begin a round: request data, into a set of shared arrays or `NO_SET`, and send the data that can be sent."""
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
    """Send the payload of a round if the receiver is ready for it; return whether it is still to be sent.

    A payload with a number that is too large for a single is never sent; the caller raises an error.
    """
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
    if state[OVERFLOW] and load(state[OVERFLOW], number):
        return 1
    store_release(delivery, number)
    link[SENDING] = 0
    return 0


@njit
def receive(state: Any, link: Any, number: Any) -> Any:
    """Take the payload of a round if it has arrived; return whether it is still to be taken."""
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
    """Send and take the payloads that are ready; return how many messages of the round are left."""
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
    """Wait until the round is complete. Calls Python now and then, which may raise."""
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
