"""What type checkers see of the package."""

import ast
from pathlib import Path

import overlap

PACKAGE = Path(overlap.__file__).parent


def test_type_checkers_see_the_names_that_are_imported_later():
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    block, = (node for node in tree.body if isinstance(node, ast.If)
              and ast.unparse(node.test) == "TYPE_CHECKING")
    seen = {alias.asname: node.module for node in block.body for alias in node.names}
    assert seen == overlap._LAYER_OF
    assert (PACKAGE / "py.typed").exists()
