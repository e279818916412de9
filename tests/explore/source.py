"""The runtime's own source with preemption points, and with defects put back where asked.

`load` compiles the modules of `overlap.runtime`, and those of `overlap.ranks` by which it waits, once more, as a
package of their own that nobody else sees. Three things differ from the original: a preemption point (see
`threads.Schedule`) stands between any two statements (and between the operands of ``and`` and ``or``), so that a thread
can lose its core there; `threading`, `queue` and `time` are `threads`; and `mpi4py.MPI` is `network.MPI`.
"""

from __future__ import annotations

import ast
import importlib
import sys
from copy import deepcopy
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace

import overlap

from . import network, threads
from .mutation import Within

PACKAGE = Path(overlap.__file__).parent
EXPLORED = ("runtime", "ranks/rendezvous.py", "ranks/wait.py")
MODULES = {
    path.stem: path.relative_to(PACKAGE)
    for part in EXPLORED
    for path in ([PACKAGE / part] if part.endswith(".py") else (PACKAGE / part).rglob("*.py"))
}  # by their names, which are unique
REPLACED = {"threading": threads, "queue": threads, "time": threads, "mpi4py": network}
# Communicators of `network` have no handles; a whole call, which would want some, is never made here.
REPLACED_LAYERS = {"compiled.mpi": SimpleNamespace(handle_of=id, mpi_function=None)}
TAKEN_FROM = REPLACED | {"os": threads}  # where names are imported, not the module
_versions = 0


@cache
def load(edits=()):
    """Load the runtime's classes anew, with `edits`.

    Parameters
    ----------
    edits : tuple of (Within or callable)
        Changes of the source, and functions that change what has been loaded.

    Raises
    ------
    Outdated
        An edit does not fit.
    """
    global _versions
    _versions += 1
    root = f"explored_{_versions}"
    trees = {name: _parsed(path) for name, path in MODULES.items()}
    for edit in edits:
        if isinstance(edit, Within):
            edit.applied(trees)
    finder = _Finder(root, trees)
    sys.meta_path.insert(0, finder)
    try:
        names = {
            name: importlib.import_module(".".join((root, *MODULES[name].with_suffix("").parts)))
            for name in (
                "learning",
                "operations",
                "polling",
                "requests",
                "slots",
                "job",
                "host",
                "waiting",
                "ready_steps",
                "executor",
            )
        }
    finally:
        sys.meta_path.remove(finder)
    within = tuple(f"{root}.{_dotted(part)}" for part in EXPLORED)
    everything = [module for name, module in sys.modules.items() if name.startswith(within)]
    runtime = SimpleNamespace(**names, modules=everything)
    for edit in edits:
        if not isinstance(edit, Within):
            edit(runtime)
    return runtime


@cache
def _parsed(path):
    """The syntax tree of a file of the package. All versions share it: who changes it, changes a copy."""
    return ast.parse((PACKAGE / path).read_text())


@cache
def _code(path, tree):
    """Code of a tree with preemption points. Versions with the same tree share it: an edit changes one file's."""
    return compile(ast.fix_missing_locations(_Points().visit(deepcopy(tree))), str(PACKAGE / path), "exec")


def _dotted(part):
    return part.removesuffix(".py").replace("/", ".")


class _Finder:
    """Finds the modules of one version of the runtime, and runs them."""

    def __init__(self, root, trees):
        self._root = root
        self._trees = trees

    def find_spec(self, name, path=None, target=None):
        root, _, rest = name.partition(".")
        if root != self._root:
            return None
        return ModuleSpec(name, self, is_package=PACKAGE.joinpath(*rest.split(".")).is_dir())

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        _, _, rest = module.__name__.partition(".")
        explored = tuple(map(_dotted, EXPLORED))
        if rest and not rest.startswith(explored) and not any(part.startswith(f"{rest}.") for part in explored):
            # The one that everybody has.
            sys.modules[module.__name__] = REPLACED_LAYERS.get(rest) or importlib.import_module(
                f"{overlap.__name__}.{rest}"
            )
            return
        if module.__spec__.submodule_search_locations is not None:
            return
        name = rest.rpartition(".")[2]
        vars(module)["__explore_point__"] = bool  # false, until a schedule begins
        vars(module)["__explore_preempt__"] = threads.preempt
        vars(module).update({f"__explore_{key}__": value for key, value in TAKEN_FROM.items()})
        exec(_code(MODULES[name], self._trees[name]), vars(module))


def _point():
    point, preempt = (ast.Call(ast.Name(f"__explore_{name}__", ast.Load()), [], []) for name in ("point", "preempt"))
    return ast.BoolOp(ast.And(), [point, preempt])  # false, or None


class _Points(ast.NodeTransformer):
    """Puts the preemption points in, and the replaced modules."""

    def __init__(self):
        self._inside = False  # a function

    def _function(self, node):
        if node.name == "__del__":  # runs at any moment, and must not give way
            return node
        outside, self._inside = self._inside, True
        node = self.generic_visit(node)
        self._inside = outside
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = _function

    def generic_visit(self, node):
        super().generic_visit(node)
        if self._inside:
            for field in ("body", "orelse", "finalbody"):
                statements = getattr(node, field, None)
                if isinstance(statements, list) and statements:
                    setattr(node, field, _between(statements))
        return node

    def visit_BoolOp(self, node):
        self.generic_visit(node)
        if self._inside:
            node.values[1:] = [ast.BoolOp(ast.Or(), [_point(), value]) for value in node.values[1:]]
        return node

    def visit_Import(self, node):
        return [self._replaced(alias.name, alias.asname or alias.name) or ast.Import([alias]) for alias in node.names]

    def visit_ImportFrom(self, node):
        if node.module not in TAKEN_FROM or node.level:
            return node
        return [
            ast.Assign(
                [ast.Name(alias.asname or alias.name, ast.Store())],
                ast.Attribute(ast.Name(f"__explore_{node.module}__", ast.Load()), alias.name, ast.Load()),
            )
            for alias in node.names
        ]

    def _replaced(self, name, known_as):
        if name in REPLACED:
            return ast.Assign([ast.Name(known_as, ast.Store())], ast.Name(f"__explore_{name}__", ast.Load()))
        return None


def _between(statements):
    """The statements with a point before each, and at the end."""
    result = []
    for place, statement in enumerate(statements):
        docstring = place == 0 and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if not docstring:
            result.append(ast.Expr(_point()))
        result.append(statement)
    if not isinstance(statements[-1], (ast.Return, ast.Raise, ast.Continue, ast.Break)):
        result.append(ast.Expr(_point()))
    return result
