"""The code in the documentation runs: blocks of Markdown on two ranks, examples in docstrings on one."""

import contextlib
import doctest
import importlib
import os
import tempfile

import jobs
import numpy as np
import processes
import pytest

ROOT = processes.REPOSITORY
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
    if "```python" in path.read_text() and path.name != "survive.md"
)
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in (ROOT / "overlap").rglob("*.py")
    if ">>> " in path.read_text()
)


@contextlib.contextmanager
def one_folder(comm):
    """Let all ranks work in a temporary folder that they share, where blocks may write files."""
    here = os.getcwd()
    with tempfile.TemporaryDirectory() if comm.rank == 0 else contextlib.nullcontext() as folder:
        os.chdir(comm.bcast(folder))
        try:
            yield
            comm.Barrier()
        finally:
            os.chdir(here)


def run_page(comm, page):
    """Run the Python blocks of a page, one after the other, as one program (a case).

    What a page needs and does not show stands in comments: ``<!-- invisible-code-block: python``.
    """
    with one_folder(comm):
        run_blocks(comm, page)


def run_blocks(comm, page):
    """Run the blocks of a page that loses a rank (a case)."""
    from sybil import Sybil
    from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

    for example in Sybil([PythonCodeBlockParser(), SkipParser()]).parse(ROOT / page).examples():
        example.evaluate()


def run_examples(comm, modules):
    """Run the examples in the docstrings of modules; names are those that the reference states (a case)."""
    import overlap

    names = {"np": np, "overlap": overlap, "MPI": importlib.import_module("mpi4py.MPI"), "comm": comm}
    with one_folder(comm):
        found = {
            name: doctest.testmod(importlib.import_module(name), globs=names, optionflags=doctest.ELLIPSIS)
            for name in modules
        }
    assert [name for name, result in found.items() if result.failed or not result.attempted] == []


@pytest.mark.parametrize("page", PAGES)
def test_page(page):
    jobs.run_job("test_documents:run_page", 2, args={"page": page})


@pytest.mark.parametrize("page", ["docs/howto/survive.md", "docs/tutorials/survive.md"])
def test_page_that_loses_a_rank(page, openmpi):
    jobs.run_job("test_documents:run_blocks", 3, mpi="ulfm", lost=1, args={"page": page})


def test_examples_in_docstrings():
    jobs.run_job("test_documents:run_examples", 1, args={"modules": MODULES})
