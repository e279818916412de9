"""What is remembered of a call's arrays: as long as they are the same, and no longer."""

import gc
import warnings
import weakref

import numpy as np
import pytest

from overlap.arrays import DistArray
from overlap.fft.call import CALLS, Configuration, key_of
from overlap.fft.planning.settings import Settings


class Own(np.ndarray):
    """Arrays that may know more than their values."""


class Known:
    """The calls that a transform knows, under the name that it was kept with."""

    def __init__(self):
        self.made = Configuration(Settings(), None)

    def keep(self, arrays, out, call="call"):
        self.made.keep("whole", arrays, out, call, None)

    def find(self, arrays, out, what="whole"):
        call, *_ = self.made.known.get(key_of(what, arrays, out), (None,))
        return call


def known(*arrays, out):
    calls = Known()
    calls.keep(arrays, out)
    return calls


def test_the_same_arrays_are_known():
    a, b, c = np.zeros((3, 4))
    assert known(a, out=b).find((a,), b) == "call"
    assert known(a, out=(b, c)).find((a,), (b, c)) == "call"
    assert known(a, out=None).find((a,), None) == "call"
    assert known(a[:], out=b[:]).find((a[:],), b[:]) == "call"  # other objects, but nothing else


def test_others_are_not():
    a, b, c = np.zeros((3, 4))
    calls = known(a, out=b)
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
        assert calls.find(arrays, out) is None
    assert calls.find((a,), b, "compute") is None
    calls.made.forget()
    assert calls.find((a,), b) is None


def test_other_kinds_of_arrays_are_known_too():
    a, b = np.zeros((2, 4)).view(Own)
    calls = known(a, out=b)
    assert calls.find((a,), b) == calls.find((a[:],), b[:]) == "call"
    for arrays, out in (((np.asarray(a),), b), ((a,), np.asarray(b)), (([0.0],), b), ((None,), b)):
        assert calls.find(arrays, out) is None


@pytest.mark.parametrize("kind", [DistArray, type("Field", (DistArray,), {})])
def test_of_distributed_arrays_the_distribution_counts(kind):
    memory, place = np.zeros((4, 4)), ((8, 4), (0,), (slice(0, 4), slice(0, 4)))
    u = kind(memory, None, *place)
    calls = known(u, out=u)
    assert calls.find((u,), u) == calls.find((u.view(),), u) == "call"
    elsewhere = kind(memory, None, (8, 4), (0,), (slice(4, 8), slice(0, 4)))
    for other in (memory, elsewhere, u.T, u[::-1], u[:2], u.copy()):
        assert calls.find((other,), u) is None


def changed_shape(array):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of NumPy: not for long any more
        array.shape = 2, 2


def read_only(array):
    array.flags.writeable = False


@pytest.mark.parametrize("change", [changed_shape, read_only])
def test_an_array_that_has_changed_is_looked_at_again(change):
    a, b = np.zeros(4), np.zeros(4)
    calls = known(a, out=b)
    change(b)
    assert calls.find((a,), b) is None


def test_nothing_is_kept_alive():
    a, b = np.ones(1000), np.ones(1000)
    calls = known(a, out=b)
    watched = weakref.ref(a)
    del a
    gc.collect()
    assert watched() is None and len(calls.made.known) == 1


def test_a_few_calls_are_known():
    arrays = [np.zeros(4) for _ in range(CALLS + 1)]
    calls, out = Known(), np.zeros(4)
    for array in arrays:
        calls.keep((array,), out)
    found = [calls.find((array,), out) is not None for array in arrays]
    assert found == [False] + [True] * CALLS
