"""Who imports whom inside `overlap`: downwards only, and each foreign package from few places."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import overlap

PACKAGE = Path(overlap.__file__).parent

# Lowest first. `overlap` itself re-exports, so nothing inside may import from it.
FLOORS = ("errors", "files", "runtime", "arrays", "timing", "fft", "compat", "tools", "__main__", "overlap")
ONLY = {"arrays": {"errors", "arrays"}}  # stricter than the floors

# Foreign packages with few importers: a module, or all modules of a floor.
IMPORTERS = {
    "pyfftw": {"fft/engine/fftw.py"},
    "threadpoolctl": {"runtime/workers.py"},
    "mpi4py": {"__main__.py", "runtime", "arrays/exchange.py", "fft/planning/grids.py",
               "fft/planning/search.py", "fft/planning/tuning.py", "tools", "compat"},
    "mpi4py_fft": {"tools/bench/peer.py"},
    "greenlet": {"timing/simulate/clock.py"},
    "numba": {"fft/engine/planes.py"},
}
LAZY = {"pyroute2", "rich", "matplotlib", "mpi4py_fft", "greenlet"}  # extras: never at module level


def imports(tree):
    """Yield (node, at module level) of every import in a syntax tree."""
    lazy = {id(node) for function in ast.walk(tree)
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            for node in ast.walk(function)}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node, id(node) not in lazy


def targets(node, path, root):
    """Absolute dotted names of the modules that an import statement refers to."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    package = ("overlap", *path.relative_to(root).parent.parts)
    above = package[:len(package) + 1 - node.level] if node.level else ()
    base = ".".join((*above, *([node.module] if node.module else [])))
    if base != "overlap":
        return [base]
    modules = {entry.stem for entry in root.iterdir()}
    return [f"overlap.{alias.name}" if alias.name in modules else "overlap" for alias in node.names]


def floor_of(path, root):
    first = path.relative_to(root).parts[0].removesuffix(".py")
    return "overlap" if first == "__init__" else first


def violations(root):
    """What is wrong with the imports of the package in `root`, one line each."""
    found = []
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        floor = floor_of(path, root)
        if floor not in FLOORS:
            found.append(f"{name}: on no floor")
            continue
        tree = ast.parse(path.read_text())
        for node, at_module_level in imports(tree):
            for target in targets(node, path, root):
                top, *rest = target.split(".")
                where = f"{name}:{node.lineno} imports {target}"
                if top == "overlap":
                    to = rest[0] if rest else "overlap"
                    if to not in FLOORS or FLOORS.index(to) > FLOORS.index(floor):
                        found.append(f"{where}, upwards")
                    elif to not in ONLY.get(floor, FLOORS):
                        found.append(f"{where}, though {floor} stands apart")
                if not {name, floor} & IMPORTERS.get(top, {name}):
                    found.append(f"{where}, not among {sorted(IMPORTERS[top])}")
                if top in LAZY and at_module_level:
                    found.append(f"{where} at module level")
    return found


def test_imports_go_downwards():
    assert violations(PACKAGE) == []


def test_every_module_on_the_list_exists():
    """A rule about a module that has moved would hold for ever."""
    listed = {name for names in IMPORTERS.values() for name in names}
    missing = {name for name in listed if not (PACKAGE / name).exists()}
    assert not missing


@pytest.mark.parametrize("module, source, complaint", [
    ("timing/model.py", "from .runtime import Runtime", "upwards"),
    ("timing/model.py", "from . import cli", "upwards"),
    ("timing/model.py", "import overlap.fft.engine.fftw", "upwards"),
    ("timing/model.py", "from overlap import errors, Runtime", "imports overlap, upwards"),
    ("runtime/runtime.py", "def f():\n    from ..fft import FFT2", "upwards"),
    ("runtime/runtime.py", "from .. import fft", "upwards"),
    ("arrays/slab.py", "from ..runtime import Runtime", "stands apart"),
    ("tools/links.py", "from .trace import Trace", "stands apart"),
    ("fft/fft2.py", "import pyfftw.interfaces", "not among"),
    ("fft/engine/fftw.py", "import threadpoolctl", "not among"),
    ("runtime/trace.py", "from mpi4py import MPI", "not among"),
    ("runtime/trace.py", "import matplotlib.figure", "at module level"),
    ("tools/links.py", "if True:\n    from pyroute2 import IPRoute", "at module level"),
    ("surprise.py", "", "on no floor"),
])
def test_the_checker_complains(tmp_path, module, source, complaint):
    root = tmp_path / "overlap"
    for name in ("fft/engine/fftw.py", "runtime/runtime.py", "tools/cli.py", "errors.py", module):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    assert violations(root) == [] or module == "surprise.py"
    (root / module).write_text(source)
    found = violations(root)
    assert len(found) == 1 and complaint in found[0] and module in found[0]


@pytest.mark.parametrize("module, source", [
    ("runtime/runtime.py", "from ..errors import InputError\nfrom ..trace import Trace"),
    ("runtime/runtime.py", "from . import workers\nfrom mpi4py import MPI"),
    ("fft/engine/fftw.py", "import pyfftw\nfrom ...arrays import Slab"),
    ("runtime/trace.py", "def draw():\n    from matplotlib.figure import Figure"),
    ("tools/cli.py", "from . import errors\nimport json"),
    ("__init__.py", "from .cli import main"),
])
def test_the_checker_is_content(tmp_path, module, source):
    root = tmp_path / "overlap"
    for name in ("errors.py", module):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    (root / module).write_text(source)
    assert violations(root) == []


def test_numba_is_not_needed_until_a_bracket_is_made():
    code = "import sys, overlap.fft.bracket; assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
