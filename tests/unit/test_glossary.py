"""The glossary has the field's words, one sentence and one link each; a term that is a class is one class."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs" / "glossary.md"
WANTED = """agreement, chunk, control, depth, drain, halo, header, in flight, late exchange, message, pencil, schedule,
skeleton, slab, slice, slot, step, transpose"""
ENTRIES = re.findall(r"^\* \*\*([\w ]+)\*\*(?: \([\w ]+\))?: (.*(?:\n  .*)*)", PAGE.read_text(), re.MULTILINE)


def classes():
    """Count the classes of the library by name."""
    found = Counter()
    for path in (REPOSITORY / "overlap").rglob("*.py"):
        found.update(node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef))
    return found


def test_all_terms_are_there_in_order():
    assert [term for term, _ in ENTRIES] == re.split(r",\s+", WANTED)


@pytest.mark.parametrize("term, text", ENTRIES, ids=[term for term, _ in ENTRIES])
def test_an_entry_is_one_sentence_and_a_link_to_a_section_that_is_there(term, text):
    sentence, _, target = re.fullmatch(r"([A-Z].*\.)\s+\[([^\]]+)\]\((\S+)\)", text, re.DOTALL).groups()
    assert ". " not in sentence.replace("\n", " ")
    path, _, anchor = target.partition("#")
    headings = re.findall(r"^#+ (.*)$", (PAGE.parent / path).read_text(), re.MULTILINE)
    anchors = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
    assert not anchor or anchor in anchors


def test_a_term_that_is_a_class_is_one_class():
    count = classes()
    several = {term: count[name] for term, _ in ENTRIES if count[name := term.title().replace(" ", "")] > 1}
    assert several == {}
    assert count["Slice"] == count["Slot"] == count["Schedule"] == count["Message"] == count["Halo"] == 1
