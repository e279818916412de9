"""pytest's plugin for tests that are run twice, with our library and without: both runs draw the same numbers."""

import numpy as np

made = np.random.default_rng
np.random.default_rng = lambda seed=None: made(0 if seed is None else seed)


def pytest_runtest_setup(item):
    np.random.seed(0)
