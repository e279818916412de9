"""What is remembered of a call's arrays: as long as they are the same, and no longer."""

import gc
import warnings
import weakref

import numpy as np
import pytest

from overlap.arrays import DistArray
from overlap.fft.bound import CALLS, BoundArrays, unowned


class Own(np.ndarray):
    """Arrays that may know more than their values."""


def bound(*arrays, out):
    memory = BoundArrays()
    memory.keep(arrays, out, ("prepared",))
    return memory


def test_the_same_arrays_are_known():
    a, b, c = np.zeros((3, 4))
    assert bound(a, out=b).prepared((a,), b) == ("prepared",)
    assert bound(a, out=(b, c)).prepared((a,), (b, c)) == ("prepared",)
    assert bound(a[:], out=b[:]).prepared((a[:],), b[:]) == ("prepared",)  # other objects, but nothing else


def test_others_are_not():
    a, b, c = np.zeros((3, 4))
    memory = bound(a, out=b)
    for arrays, out in (
        ((b,), a),
        ((a,), None),
        ((a,), c),
        ((a, b), None),
        ((a,), (b,)),
        ((a.copy(),), b),
        ((a[:3],), b),
        ((a[::-1],), b),
        ((a.view(Own),), b),
        ((a,), b.view(Own)),
        ((a.view("c16"),), b),
    ):
        assert memory.prepared(arrays, out) is None
    memory.forget()
    assert memory.prepared((a,), b) is None


def test_of_results_made_here_the_place_counts():
    a, made, elsewhere = np.zeros((3, 4))
    memory = BoundArrays()
    assert not memory.comes_again((a,), (made,)) and memory.comes_again((a,), (made[:],))
    memory.keep((a,), None, ("prepared",), (made,))
    assert memory.prepared((a,), None, (made[:],)) == ("prepared",)
    for arrays, out, results in (
        ((a,), None, (elsewhere,)),
        ((a,), made, ()),
        ((a.copy(),), None, (made,)),
        ((a,), None, ()),
    ):
        assert memory.prepared(arrays, out, results) is None
    memory.forget()
    assert not memory.comes_again((a,), (made,))


def test_other_kinds_of_arrays_are_known_too():
    a, b = np.zeros((2, 4)).view(Own)
    memory = bound(a, out=b)
    assert memory.prepared((a,), b) == memory.prepared((a[:],), b[:]) == ("prepared",)
    for arrays, out in (((np.asarray(a),), b), ((a,), np.asarray(b)), (([0.0],), b), ((None,), b)):
        assert memory.prepared(arrays, out) is None


@pytest.mark.parametrize("kind", [DistArray, type("Field", (DistArray,), {})])
def test_of_distributed_arrays_the_distribution_counts(kind):
    memory = np.zeros((4, 4))
    u = kind(memory, None, (8, 4), (0,), (slice(0, 4), slice(0, 4)))
    known = bound(u, out=u)
    assert known.prepared((u,), u) == known.prepared((u.view(),), u) == ("prepared",)
    elsewhere = kind(memory, None, (8, 4), (0,), (slice(4, 8), slice(0, 4)))
    for other in (memory, elsewhere, u.T, u[::-1], u[:2], u.copy()):
        assert known.prepared((other,), u) is None


def changed_shape(array):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of NumPy: not for long any more
        array.shape = 2, 2


def read_only(array):
    array.flags.writeable = False


@pytest.mark.parametrize("change", [changed_shape, read_only])
def test_an_array_that_has_changed_is_looked_at_again(change):
    a, b = np.zeros(4), np.zeros(4)
    memory = bound(a, out=b)
    change(b)
    assert memory.prepared((a,), b) is None


def test_nothing_is_kept_alive():
    a, b = np.ones(1000), np.ones(1000)
    memory = BoundArrays()
    memory.keep((a,), b, (unowned(a), unowned(b)))
    watched = weakref.ref(a)
    (view,) = memory.prepared((a,), b)[:1]
    assert view.sum() == 1000
    del a, view
    gc.collect()
    assert watched() is None


def test_a_few_calls_are_remembered():
    arrays = [np.zeros(4) for _ in range(CALLS + 1)]
    memory, out = BoundArrays(), np.zeros(4)
    for array in arrays:
        memory.keep((array,), out, ("prepared",))
    known = [memory.prepared((array,), out) is not None for array in arrays]
    assert known == [False] + [True] * CALLS
