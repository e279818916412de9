"""What type checkers see of the package."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import overlap

PACKAGE = Path(overlap.__file__).parent
HERE = Path(__file__).parent


def test_type_checkers_see_the_names_that_are_imported_later():
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    block, = (node for node in tree.body if isinstance(node, ast.If)
              and ast.unparse(node.test) == "TYPE_CHECKING")
    seen = {alias.asname: node.module for node in block.body for alias in node.names}
    assert seen == overlap._LAYER_OF
    assert (PACKAGE / "py.typed").exists()


@pytest.mark.parametrize("arguments", [
    [],  # the package, as pyproject.toml says
    ["--strict", "--follow-imports=silent", str(HERE / "typed_use.py")],
], ids=["package", "use"])
def test_mypy_has_no_complaint(arguments):
    done = subprocess.run([sys.executable, "-m", "mypy", "--no-error-summary", *arguments],
                          cwd=HERE.parents[1], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
