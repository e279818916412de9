"""Seeded defects as changes of what the runtime means: of its syntax trees, or of its classes once they are loaded.

A defect must outlive refactoring, so none is told by the text of a file or by the module that something stands in.
It is either a `Within`, which replaces an expression or statements of one function, or a function that is given the
loaded runtime and changes what one of its methods does (`around`).
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import wraps
from types import SimpleNamespace
from typing import Any


class Outdated(Exception):
    """A seeded defect no longer fits the runtime: write it anew."""


@dataclass(frozen=True)
class Within:
    """A change inside of one function.

    Attributes
    ----------
    function : str
        Its name with that of its class, such as ``"Scheduler._take"``; unique in the runtime.
    old, new : str
        An expression, or statements, of which there is one in the function, and what comes in its place. Layout and
        comments do not matter.
    """

    function: str
    old: str
    new: str

    def applied(self, trees: dict[str, ast.Module]) -> None:
        """Make the change in the syntax trees of all modules: in a copy of the one that it concerns.

        Raises
        ------
        Outdated
            The function, or what is to be replaced, is not there, or more than once.
        """
        names = self.function.split(".")
        found = [module for module, tree in trees.items() for _ in _named(tree, names)]
        if len(found) != 1:
            raise Outdated(f"expected one function {self.function}, found {len(found)}")
        tree = trees[found[0]] = deepcopy(trees[found[0]])
        (function,) = _named(tree, names)
        old, new = _parsed(self.old), _parsed(self.new)
        if isinstance(old, ast.expr) != isinstance(new, ast.expr):
            old, new = _statements(old), _statements(new)
        change = _Expression(old, new) if isinstance(old, ast.expr) else _Statements(old, new)
        change.visit(function)
        if change.count != 1:
            raise Outdated(f"{self.function}: expected once, found {change.count} times:\n{self.old}")


def _named(tree: ast.AST, names: list[str]) -> list[ast.AST]:
    """Find what is reached by these names of classes and functions, one inside of the other."""
    if not names:
        return [tree]
    return [
        found
        for node in ast.iter_child_nodes(tree)
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == names[0]
        for found in _named(node, names[1:])
    ]


def _parsed(text: str) -> Any:
    """Parse an expression, or else statements."""
    body = ast.parse(text).body
    return body[0].value if len(body) == 1 and isinstance(body[0], ast.Expr) else body


def _statements(parsed: Any) -> list[ast.stmt]:
    return [ast.Expr(parsed)] if isinstance(parsed, ast.expr) else parsed


class _Expression(ast.NodeTransformer):
    """Replaces an expression."""

    def __init__(self, old: ast.expr, new: ast.expr) -> None:
        self._old, self._new, self.count = ast.dump(old), new, 0

    def visit(self, node: ast.AST) -> Any:
        if ast.dump(node) == self._old:
            self.count += 1
            return self._new
        return self.generic_visit(node)


class _Statements(ast.NodeTransformer):
    """Replaces statements that follow each other in one block."""

    def __init__(self, old: list[ast.stmt], new: list[ast.stmt]) -> None:
        self._old, self._new, self.count = list(map(ast.dump, old)), new, 0

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if not isinstance(block, list):
                continue
            texts, length = list(map(ast.dump, block)), len(self._old)
            for place in range(len(block) - length, -1, -1):
                if texts[place : place + length] == self._old:
                    self.count += 1
                    block[place : place + length] = self._new
        return node


def around(owner: Any, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Have a decorated function stand for a method of the loaded runtime; its first argument is the method.

    Raises
    ------
    Outdated
        There is no such method.
    """
    original = vars(owner).get(name)
    if original is None:
        raise Outdated(f"expected {owner.__name__} to have a method {name}")

    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def changed(*args: Any, **kwargs: Any) -> Any:
            return function(original, *args, **kwargs)

        setattr(owner, name, changed)
        return changed

    return decorated


def everywhere(runtime: SimpleNamespace, name: str) -> Callable[[Callable[..., Any]], None]:
    """Have a decorated function stand for a function of the runtime, in all modules that have it; as of `around`."""

    def decorated(function: Callable[..., Any]) -> None:
        home = next((module for module in runtime.modules if _defines(module, name)), None)
        if home is None:
            raise Outdated(f"expected the runtime to have a function {name}")
        original = vars(home)[name]
        changed = around(home, name)(function)
        for module in runtime.modules:
            if vars(module).get(name) is original:
                setattr(module, name, changed)

    return decorated


def _defines(module: Any, name: str) -> bool:
    return getattr(vars(module).get(name), "__module__", None) == module.__name__
