"""The compiled loop's rule and its crew, in orders drawn at random on a model of memory; seeded defects are found."""

import pytest
from loop_model import Violation, explore, shared_items
from marks import exhaustive

DEFECTS = {
    "the end of a call is a plain store": (
        "    exchange_word(state[CONTROL] + 8 * ACTIVE, 0)\n    looks",
        "    store_release(state[CONTROL] + 8 * ACTIVE, 0)\n    looks",
    ),
    "the end of a call does not wait for the crew": (
        "    while load_acquire(state[CONTROL] + 8 * INSIDE):",
        "    while False:",
    ),
    "a thread looks for the call before it enters": (
        "            add_word(control + 8 * INSIDE, 1)\n",
        "            early = load_acquire(control + 8 * ACTIVE)\n            add_word(control + 8 * INSIDE, 1)\n",
    ),
    "a slot is taken by a load and a store": (
        "load_acquire(owner) == FREE and replace_word(owner, FREE, OWNED)",
        "load_acquire(owner) == FREE and not store_release(owner, OWNED)",
    ),
    "a part is taken by a load and a store": (
        "row < item[LAST] and replace_word(place + 8 * PARTS, word, word + 1)",
        "row < item[LAST] and not store_release(place + 8 * PARTS, word + 1)",
    ),
    "parts that have been run are counted by a load and a store": (
        "    if add_word(place + 8 * DONE, 1) + 1 == count:",
        "    done = load_acquire(place + 8 * DONE) + 1\n    store_release(place + 8 * DONE, done)\n"
        "    if done == count:",
    ),
    "a slot is given back before it goes on": (
        "        pass_item(tables, slot)\n        give_back(tables, slot)\n\n\n@njit\ndef may_issue",
        "        give_back(tables, slot)\n        pass_item(tables, slot)\n\n\n@njit\ndef may_issue",
    ),
    "an exchange is not seen to be under way": ("            words(address)[UNDER_WAY] = 1\n", ""),
    "a wait for slices is passed": (
        "            if computes and not _have_ended(tables, place, item):",
        "            if False:",
    ),
}
RARE = {"an exchange is not seen to be under way", "a slot is given back before it goes on"}  # takes many orders
# The first change of a pair is made with these, too.
MORE = {
    "a thread looks for the call before it enters": [
        ("        tables = add_word(control + 8 * ACTIVE, 0)\n", "        tables = early if slot == NONE else early\n")
    ]
}


@pytest.mark.parametrize("seed", [*range(2), *(exhaustive(seed) for seed in range(2, 40))])
def test_orders_drawn_at_random(seed):
    explore(seed, count=100)


@pytest.mark.parametrize("defect", [exhaustive(defect) if defect in RARE else defect for defect in DEFECTS])
def test_seeded_defects_are_found(defect):
    changes = [DEFECTS[defect], *MORE.get(defect, ())]
    with pytest.raises(Violation):
        for seed in range(60):
            explore(seed, changes, count=100)


def test_a_late_thread_takes_no_part_of_an_item_that_is_not_shared_yet():
    reads = (
        "    word = load_acquire(place + 8 * PARTS)\n",
        "    if load_acquire(place + 8 * OWNER) != SHARED:\n        return NONE\n",
    )
    explore(0, count=300, draw=shared_items)
    with pytest.raises(Violation, match="never ends"):
        explore(0, [("".join(reads), "".join(reversed(reads)))], count=1000, draw=shared_items)
