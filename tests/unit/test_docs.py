"""The documentation builds without a complaint and without a network, and shows every public name."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import overlap

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built as the reader of CONTRIBUTING.md does it: every warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    environ = {name: value for name, value in os.environ.items() if name != "OVERLAP_DOCS_INVENTORIES"}
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "docs", folder],
        cwd=PROJECT,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_every_public_name_has_an_entry(site):
    entries = re.findall(r'id="overlap\.(\w+)"', (site / "reference" / "generated" / "overlap.html").read_text())
    assert set(entries) >= set(overlap.__all__)


def test_files_that_pages_and_readme_link_to_are_there():
    for path in (PROJECT / "README.md", PROJECT / "CONTRIBUTING.md", *(PROJECT / "docs").rglob("*.md")):
        if "generated" in path.parts or not path.exists():
            continue
        for target in re.findall(r"\]\(([^)#\s]+)", path.read_text()):
            if "://" not in target:
                assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_one_version_everywhere():
    version = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["version"]
    assert f"version: {version}\n" in (PROJECT / "CITATION.cff").read_text()
    headings = re.findall(r"^## ([\d.]+)(.*)", (PROJECT / "CHANGELOG.md").read_text(), re.MULTILINE)
    if headings[0][1] == " (unreleased)":  # what is on its way to the next one
        following, _ = headings.pop(0)
        assert [int(part) for part in following.split(".")] > [int(part) for part in version.split(".")]
    assert headings[0][0] == version


def test_the_readme_is_short_and_begins_with_the_picture():
    lines = (PROJECT / "README.md").read_text().splitlines()
    assert len(lines) < 120
    picture, table = (
        next(number for number, line in enumerate(lines) if line.startswith(start)) for start in ("![", "|")
    )
    assert picture < 10 < table
