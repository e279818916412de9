"""The documentation builds without a complaint and without a network, and its reference is complete."""

import importlib
import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from enum import Enum
from pathlib import Path

import commands
import pytest
from bs4 import BeautifulSoup

from overlap.tools.cli import make_parser

PROJECT = Path(__file__).resolve().parents[2]
REFERENCE = PROJECT / "docs" / "reference"
PACKAGES = ["overlap", "overlap.fft", "overlap.runtime", "overlap.halo", "overlap.collectives", "overlap.sparse"]


def entries():
    """List what the reference describes: (page, full name)."""
    return [
        (path, name)
        for path in sorted(REFERENCE.glob("*.rst"))
        for name in re.findall(r"^\.\. (?:auto(?:class|function)|py:type):: (\S+)", path.read_text(), re.MULTILINE)
    ]


def object_of(name):
    """Find the object of a full name: a module's, or a class's."""
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError:
        return getattr(object_of(module), attribute)


def sections(value):
    """List the headings of a docstring."""
    return set(re.findall(r"^(\w+)\n-{3,}$", inspect.getdoc(value) or "", re.MULTILINE))


def shown_callables():
    """List what the reference shows and can be called: entries, and the members that their pages name."""
    found = []
    for path in sorted(REFERENCE.glob("*.rst")):
        for name, options in re.findall(
            r"^\.\. auto(?:class|function):: (\S+)\n((?:   :.*\n)*)", path.read_text(), re.MULTILINE
        ):
            members = re.findall(r":(?:special-)?members: (.*)", options)
            names = [f"{name}.{member}" for each in members for member in each.split(", ")]
            found += [(one, object_of(one)) for one in (name, *names)]
    return [
        (name, value)
        for name, value in found
        if inspect.isroutine(value) or (inspect.isclass(value) and not issubclass(value, BaseException | Enum))
    ]


def built(python, folder, source=PROJECT):
    """The site, built as the reader of CONTRIBUTING.md does it: every warning is an error."""
    environ = {name: value for name, value in os.environ.items() if name != "OVERLAP_DOCS_INVENTORIES"}
    done = commands.run(
        python, "-m", "sphinx", "-W", "--keep-going", "-q", "docs", folder, cwd=source, env=environ, timeout=900
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built in this environment."""
    return built(sys.executable, tmp_path_factory.mktemp("site"))


@pytest.mark.exhaustive
def test_the_extra_docs_is_all_that_the_site_needs(tmp_path):
    """In an environment of its own, as the README says; without an MPI library the reference would be empty."""
    source = tmp_path / "source"
    shutil.copytree(PROJECT, source, ignore=shutil.ignore_patterns(".*", "site", "*.egg-info", "build"))
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "env"], check=True, timeout=300)
    python = tmp_path / "env" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", ".[docs]"], cwd=source, check=True, timeout=900)
    page = built(python, tmp_path / "site", source) / "reference" / "matrix.html"
    assert 'id="overlap.sparse.Matrix"' in page.read_text()


def test_every_entry_is_on_its_page(site):
    for path, name in entries():
        page = (site / path.relative_to(PROJECT / "docs")).with_suffix(".html").read_text()
        assert f'id="{name}"' in page, name


def test_what_a_reader_copies_is_what_the_tests_run(site):
    """Each page of the site shows the blocks of Python of its source, which `tests/mpi/test_documents.py` runs."""
    pages = 0
    for path in sorted((PROJECT / "docs").rglob("*.md")):
        written = re.findall(r"^```python\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL)
        if written:
            page = (site / path.relative_to(PROJECT / "docs")).with_suffix(".html").read_text()
            blocks = BeautifulSoup(page, "html.parser").select("div.highlight-python pre")
            assert [block.get_text() for block in blocks] == written, path.name
            pages += 1
    assert pages > 15


def test_every_public_name_has_one_entry():
    """Plans have a common base, of which only the plans are shown."""
    names = [name for _, name in entries()]
    shown = [id(object_of(name)) for name in names]
    assert len(set(shown)) == len(shown), names
    for package in PACKAGES:
        module = importlib.import_module(package)
        public = {name: getattr(module, name) for name in module.__all__ if name != "Plan"}
        missing = [name for name, value in public.items() if id(value) not in shown]
        assert missing == [], f"{package}: not in the reference"


def test_every_entry_has_an_example():
    """An exception is shown where it is raised; a type has no code of its own."""
    objects = {name: object_of(name) for _, name in entries()}
    assert [
        name
        for name, value in objects.items()
        if not (inspect.isclass(value) and issubclass(value, BaseException))
        and name != "overlap.arrays.Box"
        and ">>> " not in inspect.getdoc(value)
    ] == []


def test_the_calls_of_communicators_are_listed():
    from overlap.runtime import AsyncComm

    page = (REFERENCE / "communicator.rst").read_text()
    listed = set(re.findall(r"``([A-Z]\w+)``", page.partition("started, awaited later")[2]))
    calls = {name for name in vars(AsyncComm) if name[0].isupper()} - {"Split"}
    assert listed == calls


def test_parameters_are_described():
    """Classes that are records list their fields as attributes."""
    found = []
    for name, value in shown_callables():
        described = sections(value) | (sections(value.__init__) if inspect.isclass(value) else set())
        names = [
            parameter
            for parameter in inspect.signature(value).parameters.values()
            if parameter.name not in ("self", "cls") and parameter.kind is not parameter.VAR_KEYWORD
        ]
        if names and not described & {"Parameters", "Attributes"}:
            found.append(name)
    assert found == []


def commands_of(path):
    """List the `overlap` commands in a page's shell blocks, as lists of arguments."""
    found = []
    for block in re.findall(r"^ *```sh\n(.*?)^ *```", path.read_text(), re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            for start, word in enumerate(words):
                if word.rpartition("/")[2] == "overlap":
                    ends = (place for place in range(start, len(words)) if words[place] in ("&&", "|", ">", ";", "--"))
                    found.append(words[start + 1 : next(ends, None)])
    return found


def test_commands_in_the_documentation_are_accepted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # files that a command would write are looked for
    pages = (PROJECT / "README.md", *(PROJECT / "docs").rglob("*.md"))
    commands = [(path.name, words) for path in pages for words in commands_of(path)]
    assert len(commands) > 15
    for page, words in commands:
        try:
            make_parser().parse_args(words)
        except SystemExit:
            pytest.fail(f"{page}: overlap {shlex.join(words)}")


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
    headings = re.findall(r"^## ([\d.]+)", (PROJECT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == version


def test_the_readme_is_short_and_begins_with_the_picture():
    lines = (PROJECT / "README.md").read_text().splitlines()
    assert len(lines) < 100
    picture, table = (
        next(number for number, line in enumerate(lines) if line.startswith(start)) for start in ("![", "|")
    )
    assert picture < 10 < table
