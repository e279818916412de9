"""The seven collectives among ranks of one node, by rounds of `protocol`; compiled code.

`collective` takes the address of the rank's state, addresses of the caller's memory, and the signature on which ranks
must agree. Messages longer than a slot take a round for each piece.

Up to `FLAT` ranks every collective takes one step: the ranks that have data publish them, and the ranks that need them
read them there. That causes the least traffic and, if there are fewer cores than ranks, the fewest waits. With more
ranks a collective takes log2(size) steps: scalars are reduced by recursive doubling (Kogge and Stone 1973; the ranks
beyond the largest power of two first add theirs to others), a barrier disseminates (Hensgen, Finkel and Manber 1988),
and a broadcast follows a binomial tree (Grama et al. 2003).

Reductions combine ((x0 + x1) + x2) + ... in the order of ranks, or by recursive doubling (x0 + x1) + (x2 + x3):
lower ranks first, on all ranks alike.
"""

from __future__ import annotations

from ..compiled import njit
from ..compiled.memory import LINE, Words, call_function, copy, copy_item, words
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
    """Make a collective, whose root is `EVERYBODY` if all ranks get the result.

    A rank's piece has `nbytes` bytes; in a reduction `count` items of `nbytes` bytes in all are combined.
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
        source, destination = send + begun, target + begun
        if kind == BARRIER:
            _barrier(state, number, agreed)
        elif kind == BCAST:
            _bcast(state, number, source, part, root, agreed)
        elif kind == SCATTER:
            _scatter(state, number, source, destination, part, nbytes, root, agreed)
        elif kind in (GATHER, ALLGATHER):
            _gather(state, number, source, destination, part, nbytes, root, agreed)
        else:
            items = count if part == nbytes else part // itemsize
            _reduce(state, number, source, destination, items, part, root, kernel, agreed)
        finish(state, number, root == EVERYBODY)
        begun += part
        if begun >= nbytes:
            return


@njit
def _barrier(state: Words, number: int, agreed: int) -> None:
    """Wait until all ranks have entered the barrier."""
    rank, size = state[RANK], state[SIZE]
    own_slot = claim(state, number, EVERYBODY)
    if size <= state[FLAT]:
        publish(own_slot, number, agreed)
        for peer in range(size):
            if peer != rank:
                receive(state, peer, number, agreed)
        return
    step, distance = 0, 1
    while distance < size:
        publish(step_slot(state, rank, number, step), number, agreed)
        peer = (rank + size - distance) % size
        await_slot(state, peer, step_slot(state, peer, number, step), number, agreed)
        step, distance = step + 1, 2 * distance


@njit
def _bcast(state: Words, number: int, buffer: int, part: int, root: int, agreed: int) -> None:
    """Copy the root's bytes to all ranks."""
    size = state[SIZE]
    place = (state[RANK] + size - root) % size
    # In the tree a rank reads from the place without its lowest bit, and the places with one more bit below read from
    # it.
    lowest = place & -place if place else size
    if place:
        parent = root if size <= state[FLAT] else (place - lowest + root) % size
        copy(buffer, payload(receive(state, parent, number, agreed), part), part)
    if place == 0 or (size > state[FLAT] and lowest > 1 and place + 1 < size):
        own_slot = claim(state, number, EVERYBODY)
        copy(payload(own_slot, part), buffer, part)
        publish(own_slot, number, agreed)


@njit
def _scatter(state: Words, number: int, send: int, target: int, part: int, nbytes: int, root: int, agreed: int) -> None:
    """Copy a part of the root's piece i, which has `nbytes` bytes, to rank i."""
    rank, size = state[RANK], state[SIZE]
    if rank != root:
        pieces = payload(receive(state, root, number, agreed), size * part)
        copy(target, pieces + rank * part, part)
        return
    own_slot = claim(state, number, EVERYBODY)
    pieces = payload(own_slot, size * part)
    for peer in range(size):
        if peer != rank:
            copy(pieces + peer * part, send + peer * nbytes, part)
    publish(own_slot, number, agreed)
    if target != send + rank * nbytes:
        copy(target, send + rank * nbytes, part)


@njit
def _gather(state: Words, number: int, send: int, target: int, part: int, nbytes: int, root: int, agreed: int) -> None:
    """Copy a part of every rank's piece to the root or to all ranks, in the order of ranks."""
    rank = state[RANK]
    if rank != root:
        own_slot = claim(state, number, root)
        copy(payload(own_slot, part), send, part)
        publish(own_slot, number, agreed)
    if rank == root or root == EVERYBODY:
        if send != target + rank * nbytes:
            copy(target + rank * nbytes, send, part)
        for peer in range(state[SIZE]):
            if peer != rank:
                copy(target + peer * nbytes, payload(receive(state, peer, number, agreed), part), part)


@njit
def _reduce(
    state: Words, number: int, send: int, target: int, items: int, part: int, root: int, kernel: int, agreed: int
) -> None:
    """Combine the items of all ranks, `part` bytes each, on the root or on all ranks."""
    if root == EVERYBODY and state[SIZE] > state[FLAT] and part <= INLINE:
        claim(state, number, EVERYBODY)
        _double(state, number, send, target, items, part, kernel, agreed)
        return
    rank, own = state[RANK], send
    if rank != root or send == target:
        own_slot = claim(state, number, root)
        copy_item(payload(own_slot, part), send, part)
        if send == target:
            own = payload(own_slot, part)
        if rank != root:
            publish(own_slot, number, agreed)
    if rank == root or root == EVERYBODY:
        _combine(state, number, own, target, items, part, kernel, agreed)


@njit
def _combine(state: Words, number: int, own: int, target: int, items: int, part: int, kernel: int, agreed: int) -> None:
    """Combine the payloads of all ranks one after the other; this rank's payload `own` is not at `target`."""
    first = _present(state, 0, number, own, part, agreed)
    if state[SIZE] == 1:
        copy(target, first, part)
        return
    for peer in range(1, state[SIZE]):
        second = _present(state, peer, number, own, part, agreed)
        call_function(kernel, target, first, second, items)
        first = target


@njit
def _present(state: Words, rank: int, number: int, own: int, part: int, agreed: int) -> int:
    return own if rank == state[RANK] else payload(receive(state, rank, number, agreed), part)


@njit
def _double(state: Words, number: int, send: int, target: int, items: int, part: int, kernel: int, agreed: int) -> None:
    """Combine by recursive doubling among a power of two of ranks; each rank beyond adds its values to another's before
    and receives the result afterwards."""
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
        own_values = _put(state, number, step, target, part, agreed)
        peer_values = _got(state, number, step, rank ^ distance, agreed)
        if rank & distance:
            call_function(kernel, target, peer_values, own_values, items)
        else:
            call_function(kernel, target, target, peer_values, items)
        step, distance = step + 1, 2 * distance
    if rank + members < size:
        _put(state, number, 1, target, part, agreed)


@njit
def _put(state: Words, number: int, step: int, source: int, part: int, agreed: int) -> int:
    """Publish in this rank's slot of a step; return the address of the payload."""
    own_slot = step_slot(state, state[RANK], number, step)
    copy(payload(own_slot, part), source, part)
    publish(own_slot, number, agreed)
    return payload(own_slot, part)


@njit
def _got(state: Words, number: int, step: int, rank: int, agreed: int) -> int:
    """Wait for a rank's payload of a step; return its address."""
    peer_slot = step_slot(state, rank, number, step)
    await_slot(state, rank, peer_slot, number, agreed)
    return payload(peer_slot, INLINE)
