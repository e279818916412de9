"""Exceptions and values as text: whatever they do, they are shown, and nothing is raised."""

import pickle

import pytest
from odd_errors import (
    Leaving,
    NoPickle,
    OddType,
    RaisingNotes,
    RaisingText,
    RaisingTruth,
    SubclassedText,
    Text,
    Unattributable,
    odd_syntax_error,
)

from overlap import InputError
from overlap.errors import formatted, repr_of, text_of
from overlap.ranks.failures import RankFailure


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
