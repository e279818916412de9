"""What type checkers see of the package."""

import ast
import subprocess
import sys
import tomllib
from contextlib import ExitStack
from pathlib import Path

import pytest

import overlap

PACKAGE = Path(overlap.__file__).parent
HERE = Path(__file__).parent
PROJECT = HERE.parents[1]


def test_type_checkers_see_the_names_that_are_imported_later():
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    seen = {
        alias.asname: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert seen == overlap._LAYER_OF
    assert (PACKAGE / "py.typed").exists()


def test_no_module_is_exempt_from_annotations():
    """mypy checks every function of the package, so every function has its types."""
    mypy = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["mypy"]
    rules = {"disallow_untyped_defs", "check_untyped_defs"}
    assert all(mypy[rule] for rule in rules)
    assert not [override for override in mypy["overrides"] if rules & override.keys()]


@pytest.fixture(scope="module")
def checks():
    """mypy at work on the package, as pyproject.toml says, and on a program that uses it, side by side."""
    arguments = {"package": [], "use": ["--strict", "--follow-imports=silent", str(HERE / "typed_use.py")]}
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "mypy", "--no-error-summary", f"--cache-dir=.mypy_cache/{name}", *options],
                    cwd=PROJECT,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
            for name, options in arguments.items()
        }


@pytest.mark.parametrize("name", ["package", "use"])
def test_mypy_has_no_complaint(name, checks):
    out, _ = checks[name].communicate(timeout=240)
    assert checks[name].returncode == 0, out
