"""Exceptions and values as text: whatever they do, they are shown, and nothing is raised."""

import pickle

import pytest

from overlap import InputError
from overlap.errors import formatted, repr_of, text_of
from overlap.ranks.failures import RankFailure


class Odd(Exception):
    """What the cases below derive from."""


class Unattributable(Odd):
    def __getattr__(self, name):
        raise KeyError(name)


class RaisingNotes(Odd):
    @property
    def __notes__(self):
        raise RuntimeError("no notes")


class RaisingText(Odd):
    def __str__(self):
        raise ZeroDivisionError

    __repr__ = __str__


class RaisingTruth(Odd):
    def __bool__(self):
        raise ValueError("neither true nor false")


class Leaving(Odd):
    def __str__(self):
        raise SystemExit(3)


class NoPickle(Odd):
    def __reduce__(self):
        raise TypeError("cannot be pickled")


class Text(str):
    def __reduce__(self):
        raise TypeError("cannot be pickled")


class SubclassedText(Odd):
    def __str__(self):
        return Text("shown")


class Meta(type):
    def __getattribute__(cls, name):
        raise OSError(name)


class OddType(Odd, metaclass=Meta):
    pass


def odd_syntax_error():
    return SyntaxError("odd", ("file", "line 1", "offset", "text", "end", None))


def of_an_odd_cause():
    error = ValueError("plain")
    error.__cause__ = RaisingText()
    return error


CASES = {
    case.__name__: case
    for case in (Unattributable, RaisingNotes, RaisingText, RaisingTruth, Leaving, NoPickle, SubclassedText)
}
CASES |= {"SyntaxError": odd_syntax_error, "ValueError": of_an_odd_cause, "OddType": OddType}


@pytest.mark.parametrize("name", CASES)
def test_every_exception_has_a_text(name):
    try:
        raise CASES[name]()
    except BaseException as caught:
        error = caught
    summary, text = formatted(error)
    assert type(summary) is str is type(text)
    assert pickle.loads(pickle.dumps((summary, text))) == (summary, text)
    assert name in summary
    assert "test_every_exception_has_a_text" in text


def test_values_have_a_text():
    for value in [factory() for factory in CASES.values()] + [Text("shown"), 3]:
        for shown in (text_of(value), repr_of(value)):
            assert type(shown) is str
    assert text_of(Text("shown")) == "shown"
    assert "RaisingText" in text_of(RaisingText()) and "RaisingText" in repr_of(RaisingText())


@pytest.mark.parametrize("text", ["", "\ud800 no UTF-8", "a\0b", "line\nline \N{GREEK SMALL LETTER PHI}"])
@pytest.mark.parametrize("kind", [ValueError, InputError])
def test_a_failure_reaches_all_ranks_with_the_same_text(kind, text):
    """Ranks hear of it as bytes or as the object itself."""
    failure = RankFailure.of(3, kind(text))
    assert RankFailure.unpacked(failure.packed()) == failure
