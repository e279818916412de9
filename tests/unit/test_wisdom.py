"""Wisdom as text, against FFTW itself."""

import pytest

from overlap.fft.engine import fftw
from overlap.fft.engine.fftw import joined, without
from overlap.fft.engine.lines import LineTransform

HEADER = "(fftw-3.3.10 fftw_wisdom #x1 #x2 #x3 #x4"


def text(*entries, header=HEADER):
    return "\n".join(
        [header, *(f"  ({solver} 0 #x1 #x1 #x0 #x{problem} #x2 #x3 #x4)" for solver, problem in entries), ")\n"]
    )


def test_of_what_several_know_the_first_ones_counts():
    one, other = text(("a", 1), ("b", 2)), text(("c", 2), ("d", 3))
    assert set(joined([one, other]).splitlines()) == set(text(("a", 1), ("b", 2), ("d", 3)).splitlines())
    assert set(joined(["", other, one, other]).splitlines()) == set(text(("a", 1), ("c", 2), ("d", 3)).splitlines())
    assert joined([one, text(("e", 5), header="(fftw-2")]) == one
    assert joined([]) == joined(["", ""]) == ""
    assert joined([text()]) == text()


def test_what_is_new():
    one, other = text(("a", 1), ("b", 2)), text(("c", 2))
    assert without(one, other) == text(("a", 1))
    assert without(one, "") == one
    assert without(one, one) == without("", one) == without(text(), one) == ""


@pytest.fixture
def as_before():
    known = fftw.learned()
    fftw.forget()
    yield
    fftw.relearn(known)


def plan(length):
    lines = fftw.zeros((3, length), "D")
    LineTransform(lines, lines, 1, True, "estimate")


def test_fftw_takes_both_and_keeps_what_it_knew(as_before):
    texts = []
    for length in (15, 16):
        fftw.forget()
        plan(length)
        texts.append(fftw.wisdom("D"))
    everything = {line for one in texts for line in one.splitlines()}
    assert len({*texts}) == 2
    with fftw.only_wisdom("D", joined(texts)) as accepted:
        assert accepted
        assert set(fftw.wisdom("D").splitlines()) == everything
    fftw.absorb("D", texts[0])  # beside the second
    assert set(fftw.wisdom("D").splitlines()) == everything
    assert without(fftw.wisdom("D"), texts[1]) and not without(texts[0], fftw.wisdom("D"))
    fftw.absorb("D", text(("nonsense", 1)))  # which FFTW refuses
    assert set(fftw.wisdom("D").splitlines()) == everything
