"""The seven collectives among ranks of one node, by rounds of `protocol`; compiled code.

`collective` takes the address of the rank's state, addresses of the caller's memory, and what ranks must agree on
(`signature`). Messages longer than a slot take a round for each piece.

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
from ..lowlevel.memory import LINE, Words, call_function, copy, copy_item, words
from .protocol import (
    ALLGATHER,
    BARRIER,
    BCAST,
    CAPACITY,
    EVERYBODY,
    FLAT,
    GATHER,
    INLINE,
    RANK,
    SCATTER,
    SIZE,
    await_slot,
    begin,
    claim,
    finish,
    payload,
    publish,
    receive,
    step_slot,
)


@njit
def collective(
    address: int, kind: int, send: int, target: int, count: int, nbytes: int, root: int, kernel: int, agreed: int
) -> None:
    """Do a collective, whose root is `EVERYBODY` where all ranks get the result.

    A rank's piece, or what is combined, has `nbytes`, and `count` items of a reduction.
    """
    state = words(address)
    limit, itemsize = state[CAPACITY], 1
    if kind == SCATTER:
        limit = limit // state[SIZE] // LINE * LINE
    elif count > 0 and nbytes > limit:
        itemsize = max(nbytes // count, 1)
        limit = limit // itemsize * itemsize
    begun = 0
    while True:
        part = min(nbytes - begun, limit)
        number = begin(state, agreed)
        here, there = send + begun, target + begun
        if kind == BARRIER:
            _barrier(state, number, agreed)
        elif kind == BCAST:
            _bcast(state, number, here, part, root, agreed)
        elif kind == SCATTER:
            _scatter(state, number, here, there, part, nbytes, root, agreed)
        elif kind in (GATHER, ALLGATHER):
            _gather(state, number, here, there, part, nbytes, root, agreed)
        else:
            items = count if part == nbytes else part // itemsize
            _reduce(state, number, here, there, items, part, root, kernel, agreed)
        finish(state, number, root == EVERYBODY)
        begun += part
        if begun >= nbytes:
            return


@njit
def _barrier(state: Words, number: int, agreed: int) -> None:
    """All ranks have come here."""
    rank, size = state[RANK], state[SIZE]
    mine = claim(state, number, EVERYBODY)
    if size <= state[FLAT]:
        publish(mine, number, agreed)
        for other in range(size):
            if other != rank:
                receive(state, other, number, agreed)
        return
    step, distance = 0, 1
    while distance < size:
        publish(step_slot(state, rank, number, step), number, agreed)
        other = (rank + size - distance) % size
        await_slot(state, other, step_slot(state, other, number, step), number, agreed)
        step, distance = step + 1, 2 * distance


@njit
def _bcast(state: Words, number: int, buffer: int, part: int, root: int, agreed: int) -> None:
    """Give all ranks the root's bytes."""
    size = state[SIZE]
    place = (state[RANK] + size - root) % size
    # In the tree a rank hears from the place without its lowest bit, and is heard by those with a bit below it.
    lowest = place & -place if place else size
    if place:
        parent = root if size <= state[FLAT] else (place - lowest + root) % size
        copy(buffer, payload(receive(state, parent, number, agreed), part), part)
    if place == 0 or (size > state[FLAT] and lowest > 1 and place + 1 < size):
        mine = claim(state, number, EVERYBODY)
        copy(payload(mine, part), buffer, part)
        publish(mine, number, agreed)


@njit
def _scatter(state: Words, number: int, send: int, target: int, part: int, nbytes: int, root: int, agreed: int) -> None:
    """Give rank i a part of piece i, `nbytes` long, of the root's."""
    rank, size = state[RANK], state[SIZE]
    if rank != root:
        pieces = payload(receive(state, root, number, agreed), size * part)
        copy(target, pieces + rank * part, part)
        return
    mine = claim(state, number, EVERYBODY)
    pieces = payload(mine, size * part)
    for other in range(size):
        if other != rank:
            copy(pieces + other * part, send + other * nbytes, part)
    publish(mine, number, agreed)
    if target != send + rank * nbytes:
        copy(target, send + rank * nbytes, part)


@njit
def _gather(state: Words, number: int, send: int, target: int, part: int, nbytes: int, root: int, agreed: int) -> None:
    """Give the root, or everybody, a part of every rank's piece, in the order of ranks."""
    rank = state[RANK]
    if rank != root:
        mine = claim(state, number, root)
        copy(payload(mine, part), send, part)
        publish(mine, number, agreed)
    if rank == root or root == EVERYBODY:
        if send != target + rank * nbytes:
            copy(target + rank * nbytes, send, part)
        for other in range(state[SIZE]):
            if other != rank:
                copy(target + other * nbytes, payload(receive(state, other, number, agreed), part), part)


@njit
def _reduce(
    state: Words, number: int, send: int, target: int, items: int, part: int, root: int, kernel: int, agreed: int
) -> None:
    """Give the root, or everybody, all ranks' items combined; they have `part` bytes."""
    if root == EVERYBODY and state[SIZE] > state[FLAT] and part <= INLINE:
        claim(state, number, EVERYBODY)
        _double(state, number, send, target, items, part, kernel, agreed)
        return
    rank, own = state[RANK], send
    if rank != root or send == target:
        mine = claim(state, number, root)
        copy_item(payload(mine, part), send, part)
        if send == target:
            own = payload(mine, part)
        if rank != root:
            publish(mine, number, agreed)
    if rank == root or root == EVERYBODY:
        _combine(state, number, own, target, items, part, kernel, agreed)


@njit
def _combine(state: Words, number: int, own: int, target: int, items: int, part: int, kernel: int, agreed: int) -> None:
    """Combine the payload of all ranks, one after the other; this rank's is `own`, which is not `target`."""
    first = _present(state, 0, number, own, part, agreed)
    if state[SIZE] == 1:
        copy(target, first, part)
        return
    for other in range(1, state[SIZE]):
        second = _present(state, other, number, own, part, agreed)
        call_function(kernel, target, first, second, items)
        first = target


@njit
def _present(state: Words, rank: int, number: int, own: int, part: int, agreed: int) -> int:
    return own if rank == state[RANK] else payload(receive(state, rank, number, agreed), part)


@njit
def _double(state: Words, number: int, send: int, target: int, items: int, part: int, kernel: int, agreed: int) -> None:
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
        call_function(kernel, target, target, _got(state, number, 0, rank + members, agreed), items)
    step, distance = 2, 1
    while distance < members:
        mine = _put(state, number, step, target, part, agreed)
        other = _got(state, number, step, rank ^ distance, agreed)
        if rank & distance:
            call_function(kernel, target, other, mine, items)
        else:
            call_function(kernel, target, target, other, items)
        step, distance = step + 1, 2 * distance
    if rank + members < size:
        _put(state, number, 1, target, part, agreed)


@njit
def _put(state: Words, number: int, step: int, source: int, part: int, agreed: int) -> int:
    """Publish in the own slot of a step; returns where the payload stands."""
    mine = step_slot(state, state[RANK], number, step)
    copy(payload(mine, part), source, part)
    publish(mine, number, agreed)
    return payload(mine, part)


@njit
def _got(state: Words, number: int, step: int, rank: int, agreed: int) -> int:
    """Tell where a rank's payload of a step stands, once it is there."""
    theirs = step_slot(state, rank, number, step)
    await_slot(state, rank, theirs, number, agreed)
    return payload(theirs, INLINE)
