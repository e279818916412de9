"""Collectives between nodes as chains of steps: each is prepared once, and compiled code runs it any number of times.

The work of a rank in a collective of several nodes (the messages that it sends and expects, the copies, its node's part
in the window) depends on the collective's signature (`protocol.signature`) alone. So `nodes` writes it once, as steps
in memory, like the chained descriptors of remote writes (Matsumoto et al. 2015). Compiled code finds a chain by its
signature, and asks Python to make a missing one. Messages are persistent requests, which MPI functions take by their
addresses alone, so compiled code can call these functions of any MPI library.

A *message buffer* is memory for messages to or from one rank: a cache line of words for the library, then the data,
preceded by a header word with the collective's signature. The steps are instructions of `compiled.copy_table`, and a
few others.
"""

from __future__ import annotations

from ..compiled import copy_table, njit
from ..compiled.copy_table import OTHERS
from ..compiled.memory import LINE, Words, begin_wait, call_function, call_mpi, load_int, waited, words
from . import node, protocol
from .protocol import NOTHING, ask

# Words of a message buffer: address of its request, the other rank, address of a count of messages, whether a message
# is under way, and whether the buffer is for sending.
REQUEST, OTHER, COUNTED, ACTIVE, SENT = range(5)
HEADER, DATA = 2 * LINE - 8, 2 * LINE  # bytes from the begin of a message buffer

# Steps other than copies: start the message of a buffer, wait for it, combine the source with another operand (its
# base, offset and number of items), and make a collective of the node (its kind, bytes and root).
START, AWAIT, COMBINE, ON_NODE, END = range(OTHERS, OTHERS + 5)
NOWHERE, SEND, TARGET = (0, 0), (1, 0), (2, 0)  # operands: a base, and an offset

PLACES = 1024  # entries of the table of chains, a signature and an address each; a power of two


@njit
def collective(
    address: int, kind: int, send: int, target: int, count: int, nbytes: int, root: int, kernel: int, agreed: int
) -> None:
    """Make a collective in the window, or by messages if it involves other nodes or is too long."""
    state = words(address)
    if nbytes <= state[protocol.LIMITS + kind]:
        node.collective(address, kind, send, target, count, nbytes, root, kernel, agreed)
    else:
        _elsewhere(state, kind, send, target, count, nbytes, root, kernel, agreed)


@njit
def _elsewhere(
    state: Words, kind: int, send: int, target: int, count: int, nbytes: int, root: int, kernel: int, agreed: int
) -> None:
    if state[protocol.BROKEN]:
        ask(state, protocol.UNUSABLE, 0)
    state[protocol.ARGUMENTS] = send
    state[protocol.ARGUMENTS + 1] = target
    state[protocol.ARGUMENTS + 2] = count
    state[protocol.ARGUMENTS + 3] = nbytes
    state[protocol.ARGUMENTS + 4] = root
    state[protocol.ARGUMENTS + 5] = kernel
    state[protocol.ARGUMENTS + 6] = agreed
    if state[protocol.CHAINS] == 0:
        ask(state, protocol.ELSEWHERE, kind)
        return
    place = place_of(state[protocol.CHAINS], agreed)
    if place[0] == NOTHING:
        ask(state, protocol.ELSEWHERE, kind)
        place = place_of(state[protocol.CHAINS], agreed)
    _run(state, place[1])


@njit
def place_of(table: int, agreed: int) -> Words:
    """Return the entry of a chain in the table, or the entry in which to write it."""
    number = agreed * 0x1E3779B97F4A7C15 >> 40
    while True:
        place = words(table + 16 * (number & (PLACES - 1)))
        if place[0] == agreed or place[0] == NOTHING:
            return place
        number += 1


@njit
def enter(table: int, agreed: int, chain: int) -> None:
    """Write a chain's address into the table."""
    place = place_of(table, agreed)
    place[0] = agreed
    place[1] = chain


@njit
def _run(state: Words, chain: int) -> None:
    count, kernel, agreed = state[protocol.ARGUMENTS + 2], state[protocol.ARGUMENTS + 5], state[protocol.ARGUMENTS + 6]
    bases = words(state[protocol.SELF] + 8 * protocol.BASES)
    state[protocol.ROUND] += 1
    state[protocol.PAST + (state[protocol.ROUND] & 1)] = agreed
    while True:
        step_at, step = chain, words(chain)
        chain += 8 * copy_table.WIDTH
        operation = step[copy_table.OPERATION]
        source = bases[step[copy_table.SOURCE]] + step[copy_table.SOURCE_OFFSET]
        target = bases[step[copy_table.TARGET]] + step[copy_table.TARGET_OFFSET]
        first, second, third = (
            step[copy_table.ARGUMENTS],
            step[copy_table.ARGUMENTS + 1],
            step[copy_table.ARGUMENTS + 2],
        )
        if operation < OTHERS:
            call_function(state[protocol.COPIED], step_at, source, target, 0)
        elif operation == START:
            _start(state, source, agreed)
        elif operation == AWAIT:
            _await(state, source, agreed)
        elif operation == COMBINE:
            call_function(kernel, target, source, bases[first] + second, third)
        elif operation == ON_NODE:
            node.collective(state[protocol.NODE], first, source, target, count, second, third, kernel, agreed)
        else:
            return


@njit
def _start(state: Words, buffer: int, agreed: int) -> None:
    """Start to send or to receive the message of a buffer."""
    content = words(buffer)
    words(buffer + HEADER)[0] = agreed if content[SENT] else NOTHING
    code = call_mpi(state[protocol.MPI_START], (content[REQUEST],))
    if code != 0:
        ask(state, protocol.FAULT, code)
    content[ACTIVE] = 1
    if content[SENT]:
        words(content[COUNTED])[0] += 1


@njit
def _await(state: Words, buffer: int, agreed: int) -> None:
    """Wait until a message has been sent or received; check that a received one belongs to the same collective."""
    content = words(buffer)
    if not _tested(state, content):
        clock = state[protocol.SCRATCH] + 2 * LINE
        begin_wait(clock)
        while not _tested(state, content):
            if waited(clock):
                ask(state, protocol.LEAVING if content[SENT] else protocol.COMING, content[OTHER])
    content[ACTIVE] = 0
    if content[SENT]:
        return
    words(content[COUNTED])[0] += 1
    received = words(buffer + HEADER)[0]
    if received != agreed:
        state[protocol.EXPECTED] = agreed
        state[protocol.RECEIVED] = received
        ask(state, protocol.DIFFERENT, content[OTHER])


@njit
def _tested(state: Words, content: Words) -> bool:
    flag = state[protocol.SCRATCH] + 3 * LINE  # a flag, followed by MPI's status
    code = call_mpi(state[protocol.MPI_TEST], (content[REQUEST], flag, flag + 16))
    if code != 0:
        content[ACTIVE] = 0
        ask(state, protocol.FAULT, code)  # raises, unless the message is longer than expected, which the header shows
        return True
    return load_int(flag) != 0
