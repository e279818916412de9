"""The gallery's pages have what the index promises: equation, split, command, known answer, picture, and a program."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = sorted((REPOSITORY / "docs" / "gallery").glob("*.md"))
SECTIONS = ["The equation", "How it is split over ranks", "Run it", "What is known, and what was found"]


def test_there_are_eight_pages_and_the_index_has_them_all():
    index = (REPOSITORY / "docs" / "gallery.md").read_text()
    assert len(PAGES) >= 8
    for page in PAGES:
        assert f"(gallery/{page.name})" in index and f"\ngallery/{page.stem}\n" in index


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page(page):
    text = page.read_text()
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == SECTIONS
    assert re.search(r"^!\[[^\]]+\]\(\S+\.png\)$", text, re.MULTILINE)
    formulas = text.count("$") // 2
    assert formulas >= 1 and text.count("$") % 2 == 0
    commands = re.findall(r"python (examples/\S+\.py)", text)
    assert commands and all((REPOSITORY / command).is_file() for command in commands)
    for command, given in re.findall(r"python (examples/\S+\.py)(.*)$", text, re.MULTILINE):
        known = (REPOSITORY / command).read_text()
        for option in re.findall(r"--[\w-]+", given):
            assert f'"{option}"' in known, f"{command} has no {option}"
