"""Memory of results is used again when nobody holds it, and never before."""

import gc
import threading

import numpy as np

from overlap.fft.call import LEAST_NBYTES, ResultMemory

SHAPE = (LEAST_NBYTES // 16, 2)


def address(array):
    return array.__array_interface__["data"][0]


def test_a_result_that_has_gone_is_the_next_one():
    memory = ResultMemory(SHAPE, float)
    first = memory.empty()
    assert first.shape == SHAPE and first.dtype == float and first.flags.c_contiguous
    assert first.flags.writeable and address(first) % 64 == 0
    place = address(first)
    del first
    assert address(memory.empty()) == place


def test_any_view_keeps_it():
    memory = ResultMemory(SHAPE, complex)
    first = memory.empty()
    first[...] = 1
    view = first.T[1:, ::2].real.view(type("Mine", (np.ndarray,), {}))
    place = address(first)
    del first
    gc.collect()
    second = memory.empty()
    second[...] = 2
    assert address(second) != place and (view == 1).all()
    base = view.base
    del view
    third = memory.empty()
    assert address(third) not in (place, address(second)) and (np.asarray(base) != 2).any()


def test_only_one_is_kept():
    memory = ResultMemory(SHAPE, float)
    several = [memory.empty() for _ in range(4)]
    places = {address(one) for one in several}
    assert len(places) == 4
    last = address(several[-1])
    while several:
        del several[0]
    assert len(memory._free) == 1 and address(memory.empty()) == last


def test_small_results_are_not_kept():
    memory = ResultMemory((4,), float)
    memory.empty()
    assert not memory._free


def test_results_dropped_by_other_threads():
    memory = ResultMemory(SHAPE, float)

    def use(number):
        for _ in range(50):
            mine = memory.empty()
            mine[:] = number
            wrong.extend(mine[mine != number])

    wrong = []
    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
