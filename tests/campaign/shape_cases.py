"""What `shapes` runs on every rank."""

import numpy as np
from compat_cases import FAST, OPTIONS, _against_numpy
from fft2_cases import modes_agree

from overlap import InputError
from overlap.compat.mpi4py_fft import PFFT
from overlap.fft.engine.schedule import Schedule


def drop_in(comm, seed, count):
    """Plans of any dimension, axes, kind and options, forward and backward, against numpy."""
    drawn, made = np.random.default_rng(seed), 0
    while made < count:
        dimensions = int(drawn.integers(2, 5))
        shape = [int(n) for n in drawn.integers(1, 13 if dimensions < 4 else 7, dimensions)]
        axes = tuple((int(axis),) for axis in drawn.permutation(dimensions))
        kind, options = drawn.choice(list("fdFD")), OPTIONS[drawn.integers(len(OPTIONS))]
        try:
            plan = PFFT(comm, shape, axes=axes, dtype=kind, **options, **FAST)
        except InputError:  # one axis must be whole, and every rank says so
            continue
        _against_numpy(comm, plan, shape, kind)
        plan.destroy()
        made += 1


def spoilt(comm):
    """As in `fft2_cases`, but that the last rank leaves out the unpacking of the first slice."""
    execute = Schedule._execute

    def leaving_out(schedule, number, arrays, rows):
        if rows.label != "unpack" or number > 0 or comm.rank < comm.size - 1:
            execute(schedule, number, arrays, rows)

    Schedule._execute = leaving_out
    modes_agree(comm, (6, 12, 8), "f8", "natural", [(2, 1, None)], workers=(1,), effort="estimate")
