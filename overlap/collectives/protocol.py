"""Rounds, slots and flags, by which ranks of one node pass data through a shared window.

Every rank owns a *segment* of the window, which the others map. Only the owner writes to it:

* ``done``: the number of the last round, that is, collective, that the owner has completed;
* ``begun``: the number of the last round that the owner has begun, and the signatures of its last two rounds, by which
  a rank that waits for data detects that the owner makes another collective;
* two *slots*, used alternately: the slot of round k is k modulo 2. A slot has a flag, which is the number of the round
  whose payload it holds, and beside it the collective's `signature`; then small slots for algorithms of several steps;
  then the payload. A payload of up to `INLINE` bytes is beside the flag, in its cache line.

To *publish* in round k, a rank waits until its slot is free, stores the payload and then the flag, by a release. A
reader waits for the flag, by acquires, and then reads. Nothing is sent back unless a writer needs it:

* The slot that round k uses was last used in an earlier round `last`, k - 2 or before. It is free when all its
  readers have completed `last`.
* A rank that publishes in round k has completed round k - 1. In an allreduce, an allgather or a barrier every rank
  reads from every other one, so all ranks then know that round k - 1 is complete everywhere: the slot that is not
  current is free. A sequence of such collectives never waits for a free slot; double buffering is enough.
* In a bcast, a scatter, a gather or a reduce this is not so. There a writer checks its readers' ``done``, as its
  *credit* to write again, and remembers the numbers that it has read.

A rank that fails in a collective sets a mark in its segment, after its last flag, and publishes nothing any more.
Another rank raises only if it waits for a flag that is missing and whose owner has set its mark: that flag will never
be set. So every collective that can be completed is completed, even if some rank has failed meanwhile in a later one,
and which collective raises on a rank does not depend on how fast the ranks are.

tests/unit/test_collectives_protocol.py runs these very functions on a model of the memory, in every order
in which two and three ranks can run.

The state of a rank is an array of words, private to the rank; compiled code receives its address.
"""

from __future__ import annotations

from ..compiled import njit
from ..compiled.memory import (
    LINE,
    Words,
    begin_wait,
    call_python,
    load,
    load_acquire,
    pause,
    replace_word,
    store,
    store_release,
    waited,
    words,
)

# Words of a rank's state.
RANK, SIZE, ROUND, COMPLETE, CAPACITY, POLLS, FLAT, ATTEND, KERNELS, EXPECTED, RECEIVED = range(11)
SCRATCH, BROKEN, SELF, NODE, CHAINS, COPIED, MPI_START, MPI_TEST = range(11, 19)  # the last five: see `chains`
LIMITS = 19  # for each collective, the longest message in bytes that passes through the window
BASES = 26  # bases of a chain's steps: zero, and the address of the collective's arguments
ARGUMENTS = 27  # see `chains.collective`
LAST = 34  # for each slot, the round in which this rank has written to it
READER = 36  # for each slot, its reader: a rank, or EVERYBODY
PAST = 38  # for odd and even rounds between nodes, the signature of the last one
INSIDE = 40  # 1 while a thread is in a collective, or closes the instance
UNUSED = 41
SEEN = 42  # for each rank, a round that it is known to have completed; then the segments' addresses
EVERYBODY = -1

# A rank's segment, in bytes.
DONE, BEGUN, FAILED, SLOTS = 0, LINE, 2 * LINE, 32 * LINE  # at FAILED the mark, and the failure stored by `window`
STEPS = 15  # small slots
HEADER = (STEPS + 1) * LINE  # the last line is the slot's own flag
INLINE = LINE - 16

# Reasons for which compiled code calls Python.
WAITING, GONE, DIFFERENT, REFUSED, PREPARE, UNUSABLE, ELSEWHERE, COMING, LEAVING, FAULT, FAILURE, BUSY, REFUSED_BUSY = (
    range(13)
)


def segment_nbytes(capacity: int) -> int:
    """Return the bytes of a rank's segment with slots for `capacity` bytes, a multiple of a cache line."""
    return SLOTS + 2 * (HEADER + capacity)


@njit
def ask(state: Words, reason: int, detail: int) -> None:
    """Call Python. If it raises, this rank takes no further part, which the ranks that wait for it can detect."""
    call_python(state[ATTEND], reason, detail, FAILURE, state[SELF] + 8 * BROKEN, segment(state, state[RANK]) + FAILED)


@njit
def take(address: int) -> bool:
    """Let no other thread make a collective, or free the window; return False if another one does so now."""
    return replace_word(address + 8 * INSIDE, 0, 1)


@njit
def give_back(address: int) -> None:
    """Let any thread make a collective."""
    store_release(address + 8 * INSIDE, 0)


@njit
def enter(address: int) -> Words:
    """Return the state for a collective of this thread; raise if another thread makes one, which goes on."""
    state = words(address)
    if not take(address):
        # Not `ask`: the other thread may be freeing the segments, and still has what `ask` would give back.
        unused = address + 8 * UNUSED
        call_python(state[ATTEND], UNUSABLE if state[BROKEN] else BUSY, 0, REFUSED_BUSY, unused, unused)
    return state


@njit
def begin(state: Words, agreed: int) -> int:
    """Begin a round and return its number."""
    if state[BROKEN]:
        ask(state, UNUSABLE, 0)
    state[ROUND] += 1
    announce(state, state[ROUND], agreed)
    return state[ROUND]


@njit
def announce(state: Words, number: int, agreed: int) -> None:
    """Store this rank's signature for ranks in long waits; the signature of the round before stays beside it."""
    place = segment(state, state[RANK]) + BEGUN
    store_release(place + 8 + 8 * (number & 1), agreed)
    store_release(place, number)


@njit
def segment(state: Words, rank: int) -> int:
    return state[SEEN + state[SIZE] + rank]


@njit
def slot(state: Words, rank: int, number: int) -> int:
    """Return the address of a rank's slot of a round."""
    return segment(state, rank) + SLOTS + (number & 1) * (HEADER + state[CAPACITY]) + STEPS * LINE


@njit
def step_slot(state: Words, rank: int, number: int, step: int) -> int:
    """Return the address of the small slot for a step of a round."""
    return slot(state, rank, number) - (step + 1) * LINE


@njit
def payload(address: int, nbytes: int) -> int:
    """Return the address of a slot's payload."""
    return address + 16 if nbytes <= INLINE else address + LINE


# Signatures: what ranks must agree on, in one word.
BARRIER, BCAST, SCATTER, GATHER, ALLGATHER, REDUCE, ALLREDUCE = range(7)
NOTHING = -1  # no collective
NAMES = ("Barrier", "Bcast", "Scatter", "Gather", "Allgather", "Reduce", "Allreduce")


@njit
def signature(kind: int, op: int, code: int, root: int, nbytes: int) -> int:
    """Return collective, operation, type, root and bytes packed into one word."""
    return kind | op << 4 | code << 8 | root << 16 | nbytes << 32


@njit
def wait(state: Words, address: int, number: int, rank: int, agreed: int) -> None:
    """Wait until the word at an address is at least `number`.

    `rank` writes the word in a round whose signature must be `agreed`, or in one that this rank has completed
    (`NOTHING`).
    """
    for _ in range(state[POLLS]):
        if load_acquire(address) >= number:
            return
        pause()
    clock = state[SCRATCH] + 2 * LINE
    begin_wait(clock)
    while load_acquire(address) < number:
        if waited(clock):
            if agreed != NOTHING:
                _compare(state, address, number, rank, agreed)
            ask(state, GONE if never(state, rank, address, number) else WAITING, rank)


@njit
def _compare(state: Words, address: int, number: int, rank: int, agreed: int) -> None:
    """Raise if a rank makes another collective in this round, so that it does not write the word waited for."""
    place = segment(state, rank) + BEGUN
    if load_acquire(place) >= number:
        received = load_acquire(place + 8 + 8 * (number & 1))
        if load_acquire(place) > number + 1:
            received = NOTHING  # the signature of another round may be there
        if received != agreed and load_acquire(address) < number:
            _differs(state, rank, agreed, received)


@njit
def _differs(state: Words, rank: int, expected: int, received: int) -> None:
    state[EXPECTED] = expected
    state[RECEIVED] = received
    ask(state, DIFFERENT, rank)


@njit
def never(state: Words, rank: int, address: int, number: int) -> bool:
    """Return whether the rank that writes the word at an address has failed before the word reached `number`."""
    # Read in this order, because a rank sets the mark after all flags.
    return load_acquire(segment(state, rank) + FAILED) != 0 and load_acquire(address) < number


@njit
def set_mark(address: int, value: int) -> None:
    """Set a rank's mark, or clear it; `address` is its segment's."""
    store_release(address + FAILED, value)


@njit
def claim(state: Words, number: int, reader: int) -> int:
    """Wait until this rank's slot of a round, to be read by `reader`, is free; return its address."""
    place = number & 1
    last = state[LAST + place]
    if last > state[COMPLETE]:
        _wait_for_readers(state, last, state[READER + place])
    state[LAST + place] = number
    state[READER + place] = reader
    return slot(state, state[RANK], number)


@njit
def _wait_for_readers(state: Words, last: int, reader: int) -> None:
    for rank in range(state[SIZE]):
        if rank != state[RANK] and (reader == EVERYBODY or rank == reader) and state[SEEN + rank] < last:
            wait(state, segment(state, rank) + DONE, last, rank, NOTHING)
            state[SEEN + rank] = last
    if reader == EVERYBODY:
        state[COMPLETE] = last


@njit
def publish(address: int, number: int, agreed: int) -> None:
    """Let others read a slot, whose payload has been stored; `agreed` is the signature."""
    store(address + 8, agreed)
    store_release(address, number)


@njit
def await_slot(state: Words, rank: int, address: int, number: int, agreed: int) -> None:
    """Wait until a rank has published in a slot, and check that its collective is the same."""
    wait(state, address, number, rank, agreed)
    state[SEEN + rank] = number - 1
    received = load(address + 8, agreed)
    if received != agreed:
        _differs(state, rank, agreed, received)


@njit
def receive(state: Words, rank: int, number: int, agreed: int) -> int:
    """Wait until a rank has published in a round; return the address of its slot."""
    address = slot(state, rank, number)
    await_slot(state, rank, address, number, agreed)
    return address


@njit
def finish(state: Words, number: int, everybody: bool) -> None:
    """End a round on this rank; if `everybody`, it has read from all ranks, so all of them have begun the round."""
    if everybody:
        state[COMPLETE] = number - 1
    store_release(segment(state, state[RANK]) + DONE, number)
