"""Docstrings that a newcomer can read: nothing is described by a mere "Of ...", or by what stands elsewhere."""

import ast
import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@pytest.mark.parametrize("folder", ["overlap", "tests", "bench", "examples"])
def test_docstrings(folder):
    found = []
    for path in sorted((REPOSITORY / folder).rglob("*.py")):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)):
            docstring = ast.get_docstring(node) if isinstance(node, DOCUMENTED) else None
            lines = (docstring or "").splitlines()
            # The first line of a docstring, or of what describes a parameter: "name : type".
            found += [
                f"{path.name}: {line.strip()}"
                for before, line in zip([" : ", *lines], lines)
                if line.lstrip().startswith("Of ") and " : " in before
            ]
        found += [f"{path.name}: {match}" for match in re.findall("design" + " section [0-9]+", text)]
    assert found == []
