"""The levels of a multigrid: which there are, who has them, what they cost."""

from math import prod

import numpy as np
import pytest

from overlap import Blocks, InputError
from overlap.sparse.cells import coordinates_of, numbers_of
from overlap.sparse.levels import Costs, best_switch, last_switch, levels_of, merged_grid, merged_rank


def described(levels):
    return [(blocks.shape[0], blocks.size) for blocks in levels]


def test_levels_of_64_ranks():
    blocks = Blocks((64, 64, 64), (4, 4, 4))
    assert last_switch(blocks) == 4
    assert described(levels_of(blocks, 4)) == [(64, 64), (32, 64), (16, 64), (8, 64), (4, 1)]
    assert described(levels_of(blocks, 1)) == [(64, 64), (32, 1), (16, 1), (8, 1), (4, 1)]
    assert described(levels_of(blocks, 2, 8)) == [(64, 64), (32, 64), (16, 8), (8, 8), (4, 1)]
    assert all(blocks.grid == (2, 2, 2) for blocks in levels_of(blocks, 2, 8)[2:4])


def test_one_rank_has_the_same_levels_for_every_switch():
    blocks = Blocks((32, 16, 48), (1, 1, 1))
    assert described(levels_of(blocks, 1)) == described(levels_of(blocks, 3)) == [(32, 1), (16, 1), (8, 1), (4, 1)]


@pytest.mark.parametrize(
    "shape, grid, switch, ranks, text",
    [
        ((64, 64, 64), (2, 2, 2), 5, 1, "expected switch to be a level from 1 to 4, received 5"),
        ((64, 64, 64), (2, 2, 2), 0, 1, "expected switch to be a level from 1 to 4, received 0"),
        ((6, 4, 4), (2, 1, 1), 1, 1, "expected blocks of an even number of cells along each axis, received (3, 4, 4)"),
        ((7, 8, 8), (2, 1, 1), 1, 1, "expected blocks of equal size, received a grid of (2, 1, 1) ranks"),
        (
            (30, 30, 30),
            (1, 1, 1),
            1,
            1,
            "until at most 1000 cells are left, received (30, 30, 30), which ends at (15, 15, 15)",
        ),
        ((8, 8), (1, 1), 1, 1, "expected three axes that are not periodic"),
        (
            (64, 64, 64),
            (2, 2, 2),
            1,
            3,
            "expected gather_to to be a number of ranks that a part of the grid (2, 2, 2) has, received 3",
        ),
    ],
)
def test_what_is_refused(shape, grid, switch, ranks, text):
    with pytest.raises(InputError) as error:
        levels_of(Blocks(shape, grid), switch, ranks)
    assert text in str(error.value)


def test_merged_ranks_have_whole_blocks():
    blocks = Blocks((16, 8, 8), (4, 2, 2))
    for ranks in (1, 2, 4, 8, 16):
        few = merged_grid(blocks, ranks)
        counts = np.bincount([merged_rank(rank, blocks.grid, few) for rank in range(16)])
        assert prod(few) == ranks and (counts == 16 // ranks).all()
        merged = Blocks(blocks.shape, few)
        for rank in range(16):
            outer = merged.part(merged_rank(rank, blocks.grid, few))
            assert all(a.start <= b.start and b.stop <= a.stop for a, b in zip(outer, blocks.part(rank)))


def test_numbers_of_cells():
    blocks = Blocks((4, 6, 2), (2, 3, 1))
    numbers = np.arange(48)
    places = coordinates_of(numbers, blocks)
    np.testing.assert_array_equal(numbers_of(places, blocks), numbers)
    for rank in range(6):
        mine = places[:, rank * 8 : rank * 8 + 8]
        expected = [
            axis.ravel()
            for axis in np.meshgrid(*(np.arange(side.start, side.stop) for side in blocks.part(rank)), indexing="ij")
        ]
        np.testing.assert_array_equal(mine, expected)


def test_the_best_switch_balances_messages_and_cells():
    blocks = Blocks((256, 256, 256), (4, 4, 4))
    switches = [best_switch(blocks, 1, Costs(20e-9, latency_s, 1e-9)) for latency_s in (1e-7, 1e-5, 1e-4, 1e-2, 1.0)]
    assert switches == sorted(switches, reverse=True) and switches[0] > switches[-1] == 1
    costs = Costs(20e-9, 3e-6, 1e-9)
    times = [costs.cycle_s(levels_of(blocks, switch)) for switch in range(1, 7)]
    assert np.argmin(times) + 1 == best_switch(blocks, 1, costs)
    two = levels_of(Blocks((16, 8, 8), (2, 1, 1)), 1)
    assert described(two) == [(16, 2), (8, 1)] or described(two) == [(16, 2), (8, 1), (4, 1)]
    by_hand = 512 * 1e-6 + 6 * 1e-3 + 2 * (1e-3 + 8 * 128 * 1e-9) + 128 * 1e-6
    np.testing.assert_allclose(Costs(1e-6, 1e-3, 1e-9).cycle_s(two[:2]), by_hand, rtol=1e-12)
