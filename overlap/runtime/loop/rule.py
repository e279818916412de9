"""The rule by which a call goes on: what a slot comes to, who may run it, and which slot is next.

Slot i of `depth` runs slices i, i + depth, i + 2 depth, ... one after the other. What the slices do is a list of items
for each slot. A thread that *owns* a slot runs its computing items one after the other, up to an item that is none: so
what they leave in the thread's scratch memory is there for the next one. Only the calling thread issues exchanges, in
the order of *visits*, which is the same on all ranks: it visits the slots in rotation, and at each visit issues the
slot's next exchange, or takes its turn.

Ownership is one word of the slot. A thread takes a slot by replacing FREE by OWNED, and gives it back by storing FREE,
with release: the next owner sees all that it has written. An item whose parts several threads may run makes the slot
SHARED. Its parts are then taken one by one, from a word that holds the item's number as well: so a thread that was late
takes no part of another item. The thread that runs the last part gives the slot back.

Nothing in here waits, calls MPI or reads a clock.
"""

from __future__ import annotations

from ...compiled import njit
from ...compiled.memory import Words, add_word, load_acquire, replace_word, store_release, words
from . import words as w

# What a slot comes to, besides the kinds of items: something is under way or awaited; its slices have all ended.
BLOCKED, ALL_ENDED = 7, 8
ONE_PART = (1 << w.PART_BITS) - 1


@njit
def begin_slots(tables: int) -> None:
    """Let all slots begin with their first items, and no slice have ended."""
    state: Words = words(w.table(tables, w.STATE))
    bounds: Words = words(w.table(tables, w.BOUNDS))
    ended: Words = words(w.table(tables, w.ENDED))
    for slot in range(state[w.DEPTH]):
        place: Words = words(w.slot_at(tables, slot))
        place[w.POSITION] = bounds[w.BOUND_WORDS * slot + w.BEGIN]
        place[w.OWNER] = w.FREE
        place[w.UNDER_WAY] = place[w.SEEN] = place[w.PARTS] = place[w.DONE] = 0
    for number in range(words(tables)[w.ENTRY * w.ENDED + 1]):
        ended[number] = 0


@njit
def take(tables: int, slot: int) -> bool:
    """Take a slot; return whether the calling thread owns it now."""
    owner = w.slot_at(tables, slot) + 8 * w.OWNER
    return load_acquire(owner) == w.FREE and replace_word(owner, w.FREE, w.OWNED)


@njit
def give_back(tables: int, slot: int) -> None:
    """Give a slot back, for any thread to take it."""
    store_release(w.slot_at(tables, slot) + 8 * w.OWNER, w.FREE)


@njit
def pass_item(tables: int, slot: int) -> None:
    """Let a slot that the calling thread owns go on to its next item."""
    place: Words = words(w.slot_at(tables, slot))
    place[w.POSITION] += 1


@njit
def comes_to(tables: int, slot: int) -> int:
    """Return what a slot comes to, which the calling thread owns, after it has passed what needs no computing.

    It passes ends of slices, waits that are over and, if the call does not compute, all computing items. Returns the
    kind of its next item, BLOCKED, or ALL_ENDED.
    """
    place: Words = words(w.slot_at(tables, slot))
    if load_acquire(w.slot_at(tables, slot) + 8 * w.UNDER_WAY):
        return BLOCKED
    finish = words(w.table(tables, w.BOUNDS))[w.BOUND_WORDS * slot + w.FINISH]
    computes = load_acquire(w.table(tables, w.STATE) + 8 * w.COMPUTES)
    while place[w.POSITION] < finish:
        item: Words = words(w.item_at(tables, slot))
        kind = item[w.KIND]
        if kind == w.END:
            store_release(w.table(tables, w.ENDED) + 8 * item[w.FIRST], 1)
        elif kind == w.WAIT:
            if computes and not _have_ended(tables, place, item):
                return BLOCKED
        elif computes or kind > w.WAIT:
            return kind
        place[w.POSITION] += 1
    return ALL_ENDED


@njit
def _have_ended(tables: int, place: Words, item: Words) -> bool:
    """Return whether the slices of a WAIT have ended; a slot keeps how many of them it has seen to have."""
    ended = w.table(tables, w.ENDED)
    while item[w.FIRST] + place[w.SEEN] < item[w.LAST]:
        if not load_acquire(ended + 8 * (item[w.FIRST] + place[w.SEEN])):
            return False
        place[w.SEEN] += 1
    place[w.SEEN] = 0
    return True


@njit
def share(tables: int, slot: int) -> None:
    """Let several threads run the parts of the SPLIT to which an owned slot has come."""
    place: Words = words(w.slot_at(tables, slot))
    place[w.DONE] = 0
    store_release(w.slot_at(tables, slot) + 8 * w.PARTS, place[w.POSITION] << w.PART_BITS)
    store_release(w.slot_at(tables, slot) + 8 * w.OWNER, w.SHARED)


@njit
def take_part(tables: int, slot: int) -> int:
    """Take a part of a shared slot's item; return its row, or NONE if there is no part to take."""
    place = w.slot_at(tables, slot)
    # The word is read before the owner. A thread writes the word of the slot's next item while it owns the slot, and
    # says only then that the slot is SHARED: another thread that has read SHARED earlier, of the item before, could
    # take the parts of the next item and give the slot back before that; SHARED would be the last word, for ever.
    word = load_acquire(place + 8 * w.PARTS)
    if load_acquire(place + 8 * w.OWNER) != w.SHARED:
        return w.NONE
    item: Words = words(w.table(tables, w.ITEMS) + 8 * w.ITEM_WORDS * (word >> w.PART_BITS))
    row = item[w.FIRST] + (word & ONE_PART)
    # Another thread may have taken it, or the last part of the item, meanwhile: then the word is another one.
    if row < item[w.LAST] and replace_word(place + 8 * w.PARTS, word, word + 1):
        return row
    return w.NONE


@njit
def end_part(tables: int, slot: int) -> None:
    """Note that a part has been run; after the last one the slot goes on."""
    place = w.slot_at(tables, slot)
    item: Words = words(w.item_at(tables, slot))
    count = item[w.LAST] - item[w.FIRST]
    if add_word(place + 8 * w.DONE, 1) + 1 == count:
        pass_item(tables, slot)
        give_back(tables, slot)


@njit
def may_issue(tables: int, kind: int) -> bool:
    """Return whether the visited slot, which comes to an item of this kind, may issue now."""
    state: Words = words(w.table(tables, w.STATE))
    return kind == w.TURN or (kind == w.EXCHANGE and (not state[w.POLLED] or state[w.FLYING] < state[w.LIMIT]))


@njit
def take_ready(tables: int, first: int) -> int:
    """Take the first slot in the rotation, from slot `first` on, that comes to a computing item; else return NONE."""
    depth = words(w.table(tables, w.STATE))[w.DEPTH]
    for step in range(depth):
        slot = (first + step) % depth
        if take(tables, slot):
            if comes_to(tables, slot) <= w.CALL:
                return slot
            give_back(tables, slot)
    return w.NONE


@njit
def all_ended(tables: int) -> bool:
    """Return whether all slices have ended."""
    ended = w.table(tables, w.ENDED)
    for number in range(words(tables)[w.ENTRY * w.ENDED + 1]):  # noqa: SIM110 (numba compiles no generator)
        if not load_acquire(ended + 8 * number):
            return False
    return True
