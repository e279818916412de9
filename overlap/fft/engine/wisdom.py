"""FFTW's wisdom as text: a line that names the version and its tables of codelets, a line for each entry, and ``)``.

An entry ends with the effort with which it was found (three words of flags) and the problem (four words of a digest).
This module works on the text alone; FFTW itself would have to forget and learn again all its wisdom.
"""

from __future__ import annotations

from collections.abc import Iterable

_KEY_WORDS = 7


def joined(texts: Iterable[str]) -> str:
    """Join the wisdom of several processes; if entries differ, the first one is kept.

    Text of another version of FFTW than the first one's is left out.
    """
    header = ""
    entries: dict[tuple[str, ...], str] = {}
    for text in texts:
        head, *lines = text.splitlines() or [""]
        header = header or head
        if head == header:
            entries = {_key(line): line for line in lines[:-1]} | entries
    return _text(header, entries.values()) if header else ""


def without(text: str, other: str) -> str:
    """Return the entries of `text` for which `other` has none, as wisdom; "" if there are none."""
    if text == other:
        return ""
    known = {_key(line) for line in other.splitlines()}
    header, *lines = text.splitlines() or [""]
    new = [line for line in lines[:-1] if _key(line) not in known]
    return _text(header, new) if new else ""


def _key(line: str) -> tuple[str, ...]:
    return tuple(line.split()[-_KEY_WORDS:])


def _text(header: str, lines: Iterable[str]) -> str:
    return "\n".join([header, *lines, ")\n"])
