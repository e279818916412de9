"""The seven collectives among ranks of one node, by rounds of `protocol`; compiled code.

Every function takes the address of the rank's state, addresses of the caller's memory, and what ranks must
agree on (`signature`). Messages longer than a slot take a round for each piece.

Up to `FLAT` ranks everything goes in one step: who has something publishes it, and all who need it read it
there. That is the least traffic, and with fewer cores than ranks the fewest waits. With more ranks scalars
are reduced by recursive doubling (Kogge and Stone 1973; with as many ranks as are a power of two, to which
the others have added theirs before), a barrier disseminates (Hensgen, Finkel and Manber 1988), and a broadcast
follows a binomial tree (Grama et al. 2003): log2(size) steps.

Reductions combine ((x0 + x1) + x2) + ... in the order of ranks, or by recursive doubling (x0 + x1) + (x2 + x3):
lower ranks first, on all ranks alike.
"""

from __future__ import annotations

from ..compiled import njit
from ..lowlevel.memory import call_kernel, copy, words
from .protocol import (
    CAPACITY,
    DONE,
    EVERYBODY,
    FLAT,
    INLINE,
    LINE,
    NOTHING,
    RANK,
    SIZE,
    await_slot,
    begin,
    claim,
    finish,
    finish_everywhere,
    never,
    payload,
    publish,
    receive,
    segment,
    step_slot,
)


@njit
def barrier(address, agreed):
    """All ranks have come here."""
    state = words(address)
    rank, size = state[RANK], state[SIZE]
    number = begin(state, agreed)
    mine = claim(state, number, EVERYBODY)
    if size <= state[FLAT]:
        publish(mine, number, agreed)
        for other in range(size):
            if other != rank:
                receive(state, other, number, agreed)
    else:
        step, distance = 0, 1
        while distance < size:
            publish(step_slot(state, rank, number, step), number, agreed)
            other = (rank + size - distance) % size
            await_slot(state, other, step_slot(state, other, number, step), number, agreed)
            step, distance = step + 1, 2 * distance
    finish_everywhere(state, number)


@njit
def bcast(address, buffer, nbytes, root, agreed):
    """Return the root's bytes, on all ranks."""
    state = words(address)
    rank, size = state[RANK], state[SIZE]
    place = (rank + size - root) % size
    begun = 0
    while True:
        part = min(nbytes - begun, state[CAPACITY])
        number = begin(state, agreed)
        here = buffer + begun
        # In the tree a rank hears from the place without its lowest bit, and is heard by those with a bit below it.
        lowest = place & -place if place else size
        if place:
            parent = root if size <= state[FLAT] else (place - lowest + root) % size
            copy(here, payload(receive(state, parent, number, agreed), part), part)
        if place == 0 or (size > state[FLAT] and lowest > 1 and place + 1 < size):
            mine = claim(state, number, EVERYBODY)
            copy(payload(mine, part), here, part)
            publish(mine, number, agreed)
        finish(state, number)
        begun += part
        if begun >= nbytes:
            break


@njit
def scatter(address, send, receive_at, nbytes, root, agreed):
    """Piece i, `nbytes` long, of the root's on rank i."""
    state = words(address)
    rank, size = state[RANK], state[SIZE]
    limit = state[CAPACITY] // size // LINE * LINE
    begun = 0
    while True:
        part = min(nbytes - begun, limit)
        number = begin(state, agreed)
        if rank == root:
            mine = claim(state, number, EVERYBODY)
            pieces = payload(mine, size * part)
            for other in range(size):
                if other != rank:
                    copy(pieces + other * part, send + other * nbytes + begun, part)
            publish(mine, number, agreed)
            if receive_at != send + rank * nbytes:
                copy(receive_at + begun, send + rank * nbytes + begun, part)
        else:
            pieces = payload(receive(state, root, number, agreed), size * part)
            copy(receive_at + begun, pieces + rank * part, part)
        finish(state, number)
        begun += part
        if begun >= nbytes:
            break


@njit
def gather(address, send, receive_at, nbytes, root, agreed):
    """Every rank's piece on the root, in the order of ranks."""
    state = words(address)
    rank, size = state[RANK], state[SIZE]
    begun = 0
    while True:
        part = min(nbytes - begun, state[CAPACITY])
        number = begin(state, agreed)
        if rank == root:
            if send != receive_at + rank * nbytes:
                copy(receive_at + rank * nbytes + begun, send + begun, part)
            for other in range(size):
                if other != rank:
                    piece = payload(receive(state, other, number, agreed), part)
                    copy(receive_at + other * nbytes + begun, piece, part)
        else:
            mine = claim(state, number, root)
            copy(payload(mine, part), send + begun, part)
            publish(mine, number, agreed)
        finish(state, number)
        begun += part
        if begun >= nbytes:
            break


@njit
def allgather(address, send, receive_at, nbytes, agreed):
    """Every rank's piece on all ranks, in the order of ranks."""
    state = words(address)
    rank, size = state[RANK], state[SIZE]
    begun = 0
    while True:
        part = min(nbytes - begun, state[CAPACITY])
        number = begin(state, agreed)
        mine = claim(state, number, EVERYBODY)
        copy(payload(mine, part), send + begun, part)
        publish(mine, number, agreed)
        if send != receive_at + rank * nbytes:
            copy(receive_at + rank * nbytes + begun, send + begun, part)
        for other in range(size):
            if other != rank:
                piece = payload(receive(state, other, number, agreed), part)
                copy(receive_at + other * nbytes + begun, piece, part)
        finish_everywhere(state, number)
        begun += part
        if begun >= nbytes:
            break


@njit
def reduce(address, send, receive_at, count, nbytes, root, kernel, agreed):
    """All ranks' items combined, on the root; `count` items are `nbytes` long."""
    state = words(address)
    rank, itemsize = state[RANK], nbytes // max(count, 1)
    limit = state[CAPACITY] // max(itemsize, 1)
    begun = 0
    while True:
        items = min(count - begun, limit)
        part = items * itemsize
        number = begin(state, agreed)
        own = send + begun * itemsize
        if rank != root or send == receive_at:
            mine = claim(state, number, root)
            copy(payload(mine, part), own, part)
            own = payload(mine, part)
        if rank == root:
            _combine(state, number, own, receive_at + begun * itemsize, items, part, kernel, agreed)
        else:
            publish(mine, number, agreed)
        finish(state, number)
        begun += items
        if begun >= count:
            break


@njit
def allreduce(address, send, receive_at, count, nbytes, kernel, agreed):
    """All ranks' items combined, on all ranks; `count` items are `nbytes` long."""
    state = words(address)
    itemsize = nbytes // max(count, 1)
    limit = state[CAPACITY] // max(itemsize, 1)
    begun = 0
    while True:
        items = min(count - begun, limit)
        part = items * itemsize
        number = begin(state, agreed)
        mine = claim(state, number, EVERYBODY)
        if state[SIZE] > state[FLAT] and part <= INLINE:
            _double(state, number, send + begun * itemsize, receive_at + begun * itemsize, items, part, kernel, agreed)
        else:
            own = send + begun * itemsize
            copy(payload(mine, part), own, part)
            publish(mine, number, agreed)
            if send == receive_at:
                own = payload(mine, part)
            _combine(state, number, own, receive_at + begun * itemsize, items, part, kernel, agreed)
        finish_everywhere(state, number)
        begun += items
        if begun >= count:
            break


@njit
def _combine(state, number, own, target, items, part, kernel, agreed):
    """Combine the payload of all ranks, one after the other; this rank's is `own`, which is not `target`."""
    first = _present(state, 0, number, own, part, agreed)
    if state[SIZE] == 1:
        copy(target, first, part)
        return
    for other in range(1, state[SIZE]):
        second = _present(state, other, number, own, part, agreed)
        call_kernel(kernel, target, first, second, items)
        first = target


@njit
def _present(state, rank, number, own, part, agreed):
    return own if rank == state[RANK] else payload(receive(state, rank, number, agreed), part)


@njit
def _double(state, number, send, target, items, part, kernel, agreed):
    """Recursive doubling. Of the ranks, the last ones beyond a power of two take no part: the first ones add
    theirs before, and give them the result afterwards."""
    rank, size = state[RANK], state[SIZE]
    members = 1
    while 2 * members <= size:
        members *= 2
    if rank >= members:
        _put(state, number, 0, send, part, agreed)
        copy(target, _got(state, number, 1, rank - members, agreed), part)
        return
    if target != send:
        copy(target, send, part)
    if rank + members < size:
        call_kernel(kernel, target, target, _got(state, number, 0, rank + members, agreed), items)
    step, distance = 2, 1
    while distance < members:
        mine = _put(state, number, step, target, part, agreed)
        other = _got(state, number, step, rank ^ distance, agreed)
        if rank & distance:
            call_kernel(kernel, target, other, mine, items)
        else:
            call_kernel(kernel, target, target, other, items)
        step, distance = step + 1, 2 * distance
    if rank + members < size:
        _put(state, number, 1, target, part, agreed)


@njit
def _put(state, number, step, source, part, agreed):
    """Publish in the own slot of a step; returns where the payload stands."""
    mine = step_slot(state, state[RANK], number, step)
    copy(payload(mine, part), source, part)
    publish(mine, number, agreed)
    return payload(mine, part)


@njit
def _got(state, number, step, rank, agreed):
    """Where a rank's payload of a step stands, once it is there."""
    theirs = step_slot(state, rank, number, step)
    await_slot(state, rank, theirs, number, agreed)
    return payload(theirs, INLINE)


@njit
def begin_by_mpi(address):
    """Begin a round in which MPI moves the data; returns its number."""
    return begin(words(address), NOTHING)


@njit
def finish_by_mpi(address, number):
    """End such a round on this rank."""
    finish(words(address), number)


@njit
def never_by_mpi(address, rank, number):
    """Whether a rank has failed before it came to the end of such a round."""
    state = words(address)
    return never(state, rank, segment(state, rank) + DONE, number)
