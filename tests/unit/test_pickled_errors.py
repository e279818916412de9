"""Exceptions of the library travel between processes: pickled, they keep their class, text and attributes."""

import copy
import inspect
import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor

import pytest

import overlap
from overlap.errors import OverlapError
from overlap.tools.bench.measure import WrongResult  # noqa: F401 (one more class to find)

ARGUMENTS = {"int": 2, "str": "some text", "tuple[int, ...]": (0, 2), "Callable[[], Any] | None": lambda: None}


def classes(of):
    """A class and all that derive from it."""
    return [of, *(found for derived in of.__subclasses__() for found in classes(derived))]


def made(kind):
    """An exception of a class, from arguments of the types in its signature."""
    if "__init__" not in vars(kind):
        return kind("some text")
    parameters = list(inspect.signature(kind).parameters.values())
    return kind(*(ARGUMENTS[parameter.annotation] for parameter in parameters))


def shown(error):
    """What a user sees of an exception: class, texts and attributes."""
    names = (name for name in dir(error) if not name.startswith("_") and not callable(getattr(error, name)))
    return type(error), str(error), {name: getattr(error, name) for name in names if name != "with_traceback"}


@pytest.mark.parametrize("kind", sorted(set(classes(OverlapError)), key=str), ids=lambda kind: kind.__name__)
def test_every_class(kind):
    error = made(kind)
    error.add_note("a note")
    error.of_the_user = [1]
    found = pickle.loads(pickle.dumps(error))
    assert shown(found)[:2] == shown(error)[:2]
    assert {**shown(found)[2], "__traceback__": None} == {**shown(error)[2], "__traceback__": None}
    assert found.__notes__ == ["a note"] and found.of_the_user == [1]
    assert shown(copy.copy(error)) == shown(error)


def test_every_public_class_is_among_them():
    public = [getattr(overlap, name) for name in overlap.__all__]
    public = {one for one in public if isinstance(one, type) and issubclass(one, BaseException)}
    assert public and public <= set(classes(OverlapError))


def bad_plan():
    from mpi4py import MPI

    overlap.FFT2(MPI.COMM_SELF, (8, 16, 16), dtype="i8")


def test_from_a_pool_of_processes():
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        error = pool.submit(bad_plan).exception(timeout=120)
    assert type(error) is overlap.InputError, error
    assert str(error) == "rank 0: expected a dtype of float32, float64, complex64, complex128, received 'i8'"
    assert error.disagreement is False
