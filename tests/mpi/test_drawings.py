"""The pictures of the documentation show what plans hold and how the scheduler runs, today."""

import importlib
import sys

import jobs
import processes

FOLDER = processes.REPOSITORY / "docs"


def pictures(name, *arguments):
    """Draw a program's pictures; it is imported from docs/draw, as its own `import svg` expects."""
    sys.path.insert(0, str(FOLDER / "draw"))
    try:
        return importlib.import_module(name).pictures(*arguments)
    finally:
        sys.path.remove(str(FOLDER / "draw"))
        for module in (name, "svg"):
            sys.modules.pop(module, None)


def check(found):
    """Compare pictures with the files of the documentation."""
    for name, text in found.items():
        assert (FOLDER / "ideas" / name).read_text() == text, f"{name}: draw it again, see docs/ideas/layouts.md"


def compare_layouts(comm):
    """Draw what four ranks hold (a case: this module is imported on the ranks too)."""
    check(pictures("layouts", comm))


def test_layouts():
    jobs.run_job("test_drawings:compare_layouts", 4)


def test_slices():
    found = pictures("slices")
    check(found)
    assert sorted(found) == ["slices.svg", "slots.svg"]


def test_every_picture_of_the_ideas_is_drawn_and_shown():
    text = "".join(path.read_text() for path in (FOLDER / "ideas").glob("*.md"))
    for path in (FOLDER / "ideas").glob("*.svg"):
        assert text.count(f"({path.name})") == 1
