"""What type checkers see of the package."""

import ast
import sys
import tomllib
from pathlib import Path

import commands

import overlap

PACKAGE = Path(overlap.__file__).parent
PROJECT = Path(__file__).parents[2]


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


def test_mypy_has_no_complaint():
    """Neither of the package nor of a program that uses it."""
    done = commands.run(sys.executable, "-m", "mypy", "--no-error-summary", cwd=PROJECT, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
