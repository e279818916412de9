"""The linter, the formatter and the speller find nothing; hooks before a commit use the same ones."""

import re
import sys
from importlib import metadata
from pathlib import Path

import commands
import pytest

PROJECT = Path(__file__).resolve().parents[2]
CODE = ["overlap", "tests", "bench", "examples", "docs", "noxfile.py"]


def found(*command):
    """Run a tool that is installed beside this Python; what it complains of."""
    done = commands.run(sys.executable, "-m", *command, cwd=PROJECT)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.parametrize("check", [["check", "--no-cache", "--output-format", "concise"], ["format", "--check"]])
def test_ruff_finds_nothing(check):
    assert found("ruff", *check, *CODE) == ""


def test_nothing_is_misspelt():
    assert found("codespell_lib", *CODE, *(path.name for path in PROJECT.glob("*.md"))) == ""


def test_hooks_have_the_versions_that_the_tests_have():
    hooks = (PROJECT / ".pre-commit-config.yaml").read_text()
    for name in ("ruff", "codespell"):
        assert set(re.findall(rf"\b{name}==([\d.]+)", hooks)) == {metadata.version(name)}
