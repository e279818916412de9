"""The pictures of the documentation show what plans hold and how the scheduler runs, today."""

import importlib
import sys
from pathlib import Path

import jobs
import processes

FOLDER = processes.REPOSITORY / "docs"


def pictures(name, *arguments):
    """Draw a program's pictures."""
    return called(name, "pictures", *arguments)


def called(name, function, *arguments):
    """Call a function of a program; it is imported from docs/draw, as its own `import svg` expects."""
    sys.path.insert(0, str(FOLDER / "draw"))
    try:
        return getattr(importlib.import_module(name), function)(*arguments)
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


def flows_are_close(comm, path):
    """Draw two small flows, with and without rounding in exchanges: a little apart (a case)."""
    energy, apart = called("exchange", "compared", comm, 32, 2, 10)
    difference = abs(energy[1] - energy[0]) / energy[0]
    assert energy.shape == (2, 11, 2) and (energy[:, 1:] < energy[:, :-1]).all()
    assert (difference[0] == 0).all() and 0 < difference.max() < 1e-8
    assert (apart[0] == 0).all() and (apart[1:] > 1e-12).all() and apart.max() < 1e-7
    if comm.rank == 0:
        called("exchange", "draw", Path(path), energy, apart)


def test_flows_with_rounded_exchanges(tmp_path):
    path = tmp_path / "exchange.png"
    jobs.run_job("test_drawings:flows_are_close", 2, args={"path": str(path)})
    assert path.read_bytes().startswith(b"\x89PNG")
