"""The protocol of the collectives by remote writes, in every order in which its ranks can run.

Programs are sequences of collectives: a slot is used again after two rounds, so three of them show what can go
wrong with one, and more what a rank can remember wrongly.
"""

import itertools
import random

import pytest
from model_checking import NAMES, Violation, explore

WITHOUT_ROOT = NAMES[:3]


def calls(size):
    """Every collective with every root."""
    return [(name, root) for name in NAMES for root in range(1 if name in WITHOUT_ROOT else size)]


@pytest.mark.parametrize("first", NAMES)
def test_all_programs_of_three_collectives_on_two_ranks(first):
    """With root 0 first: the other half is the same with the ranks' numbers exchanged."""
    for others in itertools.product(calls(2), repeat=2):
        explore([(first, 0), *others], 2)


@pytest.mark.parametrize("first", calls(3), ids="{0[0]}-{0[1]}".format)
def test_all_programs_of_two_collectives_on_three_ranks(first):
    for second in calls(3):
        explore([first, second], 3)


@pytest.mark.parametrize("flat", [8, 1], ids=["one step", "trees"])
@pytest.mark.parametrize("call", calls(3), ids="{0[0]}-{0[1]}".format)
def test_one_collective_again_and_again(call, flat):
    explore([(call[0], min(call[1], 1))] * 4, 2, flat=flat, words=2)
    explore([call] * 3, 3, flat=flat)


@pytest.mark.parametrize("seed", range(12))
def test_longer_programs(seed):
    chance = random.Random(seed)
    size, flat = chance.choice([(2, 8), (2, 8), (3, 8), (3, 1)])
    explore(chance.choices(calls(size), k=5 if size == 2 else 4), size, flat=flat)


@pytest.mark.parametrize("name", NAMES)
def test_stores_that_reach_the_memory_in_any_order(name):
    """Only a release waits for those before it, as on ARM."""
    explore([(name, 0), (name, 1 if name not in WITHOUT_ROOT else 0), (name, 0)], 2, words=2, weak=True)


def fails(change, name, size=2, **options):
    """Whether some order of the ranks gives a wrong result, or none at all."""
    program = [(name, 0)] * 3 if isinstance(name, str) else name
    with pytest.raises(Violation):
        explore(program, size, changes=[change], **options)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", NAMES[1:])
def test_without_the_double_buffer_data_are_overwritten(name, size):
    fails(("(number & 1) * (HEADER", "0 * (HEADER"), name, size)


@pytest.mark.parametrize("name", ["bcast", "scatter", "gather", "reduce"])
def test_without_credit_data_are_overwritten(name):
    fails(("    if last > state[COMPLETE]:\n", "    if False:\n"), name)


@pytest.mark.parametrize("name", NAMES[1:])
def test_flags_that_are_plain_stores_come_too_early(name):
    fails(("store_release(address, number)", "store(address, number)"), name, weak=True)


def test_a_completed_round_that_is_told_too_early():
    fails(
        ("    state[COMPLETE] = number - 1\n", "    state[COMPLETE] = number\n"),
        [("allgather", 0), ("bcast", 0), ("bcast", 0)],
    )


def test_a_rank_that_forgets_to_end_its_rounds_stops_the_others():
    fails(("    store_release(segment(state, state[RANK]) + DONE, number)\n", "    pass\n"), "bcast")
