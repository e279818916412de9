"""Collectives between nodes as chains of steps: each is prepared once, and compiled code runs it any number of times.

What a rank has to do in a collective of several nodes (which messages it sends and expects, what is copied where, what
its node does in the window) depends on what the collective is (`protocol.signature`) and on nothing else. So `nodes`
writes it down once, as steps in memory, like the chained descriptors of remote writes (Matsumoto et al. 2015). Compiled
code finds a chain by its signature, and asks Python for one that is not there yet. Messages are persistent requests, of
which MPI takes addresses alone: so its functions are called from compiled code, whatever the library.

A *letter* is memory for messages to or from one rank: a line of words for us, then the data, with a header in the
word before them: what the collective is.
"""

from __future__ import annotations

from ..compiled import njit
from ..lowlevel.memory import call_kernel, call_mpi, clock_ns, copy, load_int, sched_yield, words
from . import node
from .protocol import (
    ARGUMENTS,
    BROKEN,
    CHAINS,
    COMING,
    DIFFERENT,
    ELSEWHERE,
    EXPECTED,
    FAULT,
    INTERVAL_NS,
    LEAVING,
    LINE,
    MPI_START,
    MPI_TEST,
    NODE,
    NOTHING,
    PAST,
    RECEIVED,
    ROUND,
    SCRATCH,
    UNUSABLE,
    ask,
)

# Words of a letter: address of its request, the other rank, address of a count of messages, whether it is under way.
REQUEST, OTHER, COUNTED, ACTIVE = range(4)
HEADER, DATA = 2 * LINE - 8, 2 * LINE  # bytes from the begin of a letter

# What a step does. Its words: this, three operands, and a number.
(
    END,
    EXPECT,
    TAKE,
    SEND,
    SENT,
    COPY,
    COLLECT,
    DISTRIBUTE,
    COMBINE,
    NODE_BARRIER,
    NODE_BCAST,
    NODE_SCATTER,
    NODE_GATHER,
    NODE_REDUCE,
) = range(14)
STEP = 8
# An operand is an address, or counts from one of the caller's: two words.
ABSOLUTE, FROM_SEND, FROM_TARGET = range(3)

PLACES = 1024  # of the table of chains: signature and address; a power of two


@njit
def elsewhere(state, kind, send, receive_at, count, nbytes, root, kernel, agreed):
    """Do a collective that does not pass through the window alone: it goes to other nodes, or is too long."""
    if state[BROKEN]:
        ask(state, UNUSABLE, 0)
    state[ARGUMENTS] = send
    state[ARGUMENTS + 1] = receive_at
    state[ARGUMENTS + 2] = count
    state[ARGUMENTS + 3] = nbytes
    state[ARGUMENTS + 4] = root
    state[ARGUMENTS + 5] = kernel
    state[ARGUMENTS + 6] = agreed
    if state[CHAINS] == 0:
        ask(state, ELSEWHERE, kind)
        return
    place = place_of(state[CHAINS], agreed)
    if place[0] == NOTHING:
        ask(state, ELSEWHERE, kind)
        place = place_of(state[CHAINS], agreed)
    _run(state, place[1])


@njit
def place_of(table, agreed):
    """Return the words of a chain in the table, or those where it is to be written."""
    number = agreed * 0x1E3779B97F4A7C15 >> 40
    while True:
        place = words(table + 16 * (number & (PLACES - 1)))
        if place[0] == agreed or place[0] == NOTHING:
            return place
        number += 1


@njit
def enter(table, agreed, chain):
    """Write a chain's address into the table."""
    place = place_of(table, agreed)
    place[0] = agreed
    place[1] = chain


@njit
def _operand(state, step, place):
    if step[place] == ABSOLUTE:
        return step[place + 1]
    return state[ARGUMENTS + step[place] - FROM_SEND] + step[place + 1]


@njit
def _run(state, chain):
    """Take the steps of a chain."""
    on_node = state[NODE]
    count, nbytes, kernel, agreed = (
        state[ARGUMENTS + 2],
        state[ARGUMENTS + 3],
        state[ARGUMENTS + 5],
        state[ARGUMENTS + 6],
    )
    state[ROUND] += 1
    state[PAST + (state[ROUND] & 1)] = agreed
    while True:
        step = words(chain)
        chain += 8 * STEP
        kind, number = step[0], step[7]
        first, second, third = _operand(state, step, 1), _operand(state, step, 3), _operand(state, step, 5)
        if kind == END:
            return
        if kind == EXPECT:
            _start(state, first, NOTHING)
        elif kind == TAKE:
            _take(state, first, agreed)
        elif kind == SEND:
            _start(state, first, agreed)
            words(words(first)[COUNTED])[0] += 1
        elif kind == SENT:
            _complete(state, first, LEAVING)
        elif kind == COPY:
            copy(first, second, number)
        elif kind == COLLECT:
            _collect(first, second, third, number, nbytes)
        elif kind == DISTRIBUTE:
            _distribute(first, second, third, number, nbytes)
        elif kind == COMBINE:
            call_kernel(kernel, first, second, third, number)
        elif kind == NODE_BARRIER:
            node.barrier(on_node, agreed)
        elif kind == NODE_BCAST:
            node.bcast(on_node, first, number, third, agreed)
        elif kind == NODE_SCATTER:
            node.scatter(on_node, first, second, nbytes, third, agreed)
        elif kind == NODE_GATHER:
            node.gather(on_node, first, second, nbytes, third, agreed)
        else:
            node.reduce(on_node, first, second, count, nbytes, third, kernel, agreed)


@njit
def _start(state, letter, header):
    content = words(letter)
    words(letter + HEADER)[0] = header
    code = call_mpi(state[MPI_START], (content[REQUEST],))
    if code != 0:
        ask(state, FAULT, code)
    content[ACTIVE] = 1


@njit
def _take(state, letter, agreed):
    """Wait for an expected letter, and see that it is of the same collective."""
    _complete(state, letter, COMING)
    content = words(letter)
    words(content[COUNTED])[0] += 1
    received = words(letter + HEADER)[0]
    if received != agreed:
        state[EXPECTED] = agreed
        state[RECEIVED] = received
        ask(state, DIFFERENT, content[OTHER])


@njit
def _complete(state, letter, reason):
    """Wait until a letter is sent or has come."""
    content = words(letter)
    if not _tested(state, content):
        clock = state[SCRATCH] + 2 * LINE
        asked = clock_ns(clock)
        while not _tested(state, content):
            sched_yield()
            if clock_ns(clock) - asked > INTERVAL_NS:
                ask(state, reason, content[OTHER])
                asked = clock_ns(clock)
    content[ACTIVE] = 0


@njit
def _tested(state, content):
    flag = state[SCRATCH] + 3 * LINE  # and MPI's status behind it
    code = call_mpi(state[MPI_TEST], (content[REQUEST], flag, flag + 16))
    if code != 0:
        content[ACTIVE] = 0
        ask(state, FAULT, code)  # raises, unless it is a longer message than expected: the header tells of that
        return True
    return load_int(flag) != 0


@njit
def _collect(target, pieces, ranks_at, count, nbytes):
    """Copy the pieces of some ranks, whose numbers stand at an address, one beside the other."""
    ranks = words(ranks_at)
    for place in range(count):
        copy(target + place * nbytes, pieces + ranks[place] * nbytes, nbytes)


@njit
def _distribute(pieces, source, ranks_at, count, nbytes):
    """Copy the other way: what stands one beside the other to the pieces of some ranks."""
    ranks = words(ranks_at)
    for place in range(count):
        copy(pieces + ranks[place] * nbytes, source + place * nbytes, nbytes)
