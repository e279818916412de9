"""NPB's random numbers: x' = 5^13 x mod 2^46, r = 2^-46 x.

64-bit products overflow without harm, as 2^46 divides 2^64. Numbers are made in blocks, each from the block before it
by one multiplication per number, so that loops are vectorised.
"""

from __future__ import annotations

import numpy as np

from overlap.compiled import njit

MULTIPLIER = 5**13
MODULUS = 2**46
MASK = np.uint64(MODULUS - 1)
SCALE = 2.0**-46
BLOCK = 1024


def power(steps: int) -> np.uint64:
    """Return the multiplier for a number of steps at once."""
    return np.uint64(pow(MULTIPLIER, steps, MODULUS))


def jumped(seed: int, steps: int) -> np.uint64:
    """Return the state after a number of steps."""
    return np.uint64(pow(MULTIPLIER, steps, MODULUS) * seed % MODULUS)


_STEP, _BLOCK_STEP = power(1), power(BLOCK)


@njit
def fill(state, out):
    """Fill an array with the numbers that follow a state."""
    states = np.empty(BLOCK, np.uint64)
    for place in range(min(BLOCK, len(out))):
        state = (state * _STEP) & MASK
        states[place] = state
    for first in range(0, len(out), BLOCK):
        part = out[first : first + BLOCK]
        for place in range(len(part)):
            part[place] = np.int64(states[place]) * SCALE
            states[place] = (states[place] * _BLOCK_STEP) & MASK


def numbers(seed: int, first: int, count: int) -> np.ndarray:
    """Return the numbers r_(first + 1) to r_(first + count) of the stream of a seed."""
    out = np.empty(count)
    fill(jumped(seed, first), out)
    return out
