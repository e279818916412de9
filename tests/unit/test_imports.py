"""Who imports whom inside `overlap`: downwards, without circles, and each foreign package from few places.

The list of layers stands in the package's docstring and nowhere else.
"""

import ast
import functools
import re
from pathlib import Path

import pytest

import overlap

PACKAGE = Path(overlap.__file__).parent
PROJECT = Path(__file__).parents[2]  # the package may be installed elsewhere
LINE = re.compile(r"^    (  )?([a-z_]+) {2,}\S.*$", re.MULTILINE)
APART = {"arrays": {"runtime"}}  # lower in the list, and still not to be imported

# Foreign packages with few importers: a module, or all modules of a folder.
IMPORTERS = {
    "pyfftw": {"fft/engine/library.py", "tools", "compat"},
    "threadpoolctl": {"runtime/threads/workers.py"},
    "mpi4py": {
        "__main__.py",
        "output",
        "protected.py",
        "collectives",
        "compiled",
        "runtime",
        "ranks",
        "arrays/exchange.py",
        "arrays/topology.py",
        "halo",
        "sparse",
        "fft/functional.py",
        "fft/scipy_backend.py",
        "fft/planning/plan_cache.py",
        "tools",
        "compat",
    },
    "mpi4py_fft": {"tools/bench/peer.py"},
    "dedalus": {"compat/dedalus/hooks.py", "compat/dedalus/series.py"},
    "fluidfft": {"compat/fluidfft/fft3d.py", "compat/fluidsim.py"},
    "fluidsim": {"compat/fluidsim.py"},
    "numba": {
        "compiled",
        "collectives",
        "compat/dedalus/series.py",
        "fft/engine/plane_blocks.py",
        "fft/engine/plane_brackets.py",
        "fft/engine/six_step.py",
        "sparse/block_diagonals.py",
        "sparse/kernels.py",
    },
}
# Circles that are there for annotations alone, behind ``if TYPE_CHECKING``. The list only becomes shorter.
ANNOTATED: set[str] = set()
LAZY = {"pyroute2", "rich", "matplotlib", "mpi4py_fft"}  # extras: never at module level


def read_layers(docstring):
    """The dotted names of the layers in a docstring, lowest first: the parts of a folder before the folder."""
    layers, folder, parts = [], None, []
    for indented, name in (*LINE.findall(docstring), ("", None)):
        if indented:
            parts.append(f"{folder}.{name}")
        else:
            layers += [*parts, *([folder] if folder else [])]
            folder, parts = name, []
    return layers


LAYERS = read_layers(overlap.__doc__)


def layer_of(module):
    """The longest listed name that a module ("fft.engine.fftw") stands in; the package itself is above all."""
    if module in ("", "__main__"):
        return len(LAYERS)
    parts = module.split(".")
    names = [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
    return next((LAYERS.index(name) for name in names if name in LAYERS), None)


def is_type_checking(node):
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


@functools.cache
def imports(source):
    """(node, at module level, for annotations only) of every import in a module's source."""
    found, todo = [], [(ast.parse(source), True, False)]
    while todo:
        node, at_module_level, for_annotations = todo.pop()
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found.append((node, at_module_level, for_annotations))
        at_module_level = at_module_level and not is_function(node)
        for_annotations = for_annotations or is_type_checking(node)
        todo += [(child, at_module_level, for_annotations) for child in ast.iter_child_nodes(node)]
    return found


def is_function(node):
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))


def modules(root):
    """The path of every module by its dotted name below the package: "" is the package itself."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def targets(node, path, root, known):
    """Dotted names of the modules that an import statement refers to: absolute, from "overlap" on."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    package = ("overlap", *path.relative_to(root).parent.parts)
    above = package[: len(package) + 1 - node.level] if node.level else ()
    base = ".".join((*above, *([node.module] if node.module else [])))
    names = [f"{base}.{alias.name}" for alias in node.names]
    return [name if name.removeprefix("overlap.") in known else base for name in names]


def violations(root):
    """What is wrong with the imports of the package in `root`, one line each."""
    found, known = [], modules(root)
    for module, path in known.items():
        name, layer = path.relative_to(root).as_posix(), layer_of(module)
        if layer is None:
            found.append(f"{name}: in no layer")
            continue
        folder = module.split(".")[0]
        for node, at_module_level, _ in imports(path.read_text()):
            for target in dict.fromkeys(targets(node, path, root, known)):
                top, _, inner = target.partition(".")
                where = f"{name}:{node.lineno} imports {target}"
                if top == "overlap":
                    to = layer_of(inner)
                    if to is None or to > layer:
                        found.append(f"{where}, upwards")
                    elif inner.split(".")[0] in APART.get(folder, ()):
                        found.append(f"{where}, though {folder} stands apart")
                elif not {name, folder} & IMPORTERS.get(top, {name}):
                    found.append(f"{where}, not among {sorted(IMPORTERS[top])}")
                if top in LAZY and at_module_level:
                    found.append(f"{where} at module level")
    allowed = ANNOTATED.difference(circles(arrows_between(known, root, annotations=False)))
    return found + [f"a circle: {circle}" for circle in circles(arrows_between(known, root)) if circle not in allowed]


def arrows_between(known, root, annotations=True):
    """Which modules each of them imports, by their dotted names."""
    return {
        module: {
            target.removeprefix("overlap.")
            for node, _, annotations_only in imports(path.read_text())
            for target in targets(node, path, root, known)
            if target.startswith("overlap.") and (annotations or not annotations_only)
        }
        for module, path in known.items()
    }


def circles(arrows):
    """The sets of modules that reach each other, each sorted and as text."""
    reach = {start: reachable(start, arrows) for start in arrows}
    rings = {
        ", ".join(sorted({start} | {other for other in there if start in reach.get(other, ())}))
        for start, there in reach.items()
        if start in there
    }
    return sorted(rings)


def reachable(start, arrows):
    """All modules that one can come to from `start` along arrows."""
    seen, todo = set(), [start]
    while todo:
        new = arrows.get(todo.pop(), set()) - seen
        seen |= new
        todo += new
    return seen


def test_imports_go_downwards_and_not_in_circles():
    assert violations(PACKAGE) == []


def test_every_layer_and_every_importer_exists():
    """A rule about a module that has moved would hold for ever."""
    assert {"errors", "runtime", "fft.engine", "tools.cli"} <= set(LAYERS)
    missing = {layer for layer in LAYERS if layer not in modules(PACKAGE)}
    missing |= {name for names in IMPORTERS.values() for name in names if not (PACKAGE / name).exists()}
    assert not missing


def test_every_circle_of_annotations_is_there():
    """Circles that are gone must not come back."""
    assert set(circles(arrows_between(modules(PACKAGE), PACKAGE))) == ANNOTATED


def test_the_list_stands_nowhere_else():
    """Two lists drift apart."""
    top = [layer for layer in LAYERS if "." not in layer]
    lines = re.compile(r"\n".join(rf"\s*{layer}\b.*" for layer in top[:4]))
    for path in (PROJECT / "README.md", *(PROJECT / "docs").glob("*.md")):
        assert not lines.search(path.read_text()), path


def test_parts_of_a_folder_come_before_the_folder():
    assert read_layers("x\n\n    low   a\n    high  b\n      one  c\n      two  d\n    top  e\n") == [
        "low",
        "high.one",
        "high.two",
        "high",
        "top",
    ]


@pytest.mark.parametrize(
    "module, source, complaint",
    [
        ("timing/model.py", "from ..fft import FFT2", "upwards"),
        ("timing/model.py", "from .. import tools", "upwards"),
        ("timing/model.py", "import overlap.fft.engine.fftw", "upwards"),
        ("timing/model.py", "from overlap import Runtime", "imports overlap, upwards"),
        ("runtime/runtime.py", "def f():\n    from ..fft import FFT2", "upwards"),
        ("runtime/runtime.py", "if TYPE_CHECKING:\n    from ..fft import FFT2", "upwards"),
        ("runtime/runtime.py", "from .. import fft", "upwards"),
        ("fft/engine/fftw.py", "from ..planning import search", "upwards"),
        ("fft/engine/fftw.py", "from .. import plan", "upwards"),
        ("fft/planning/tournament.py", "from ..fft2 import FFT2", "upwards"),
        ("tools/links.py", "from .bench import measure", "upwards"),
        ("arrays/layout.py", "from ..runtime import Runtime", "stands apart"),
        ("fft/fft2.py", "import pyfftw.interfaces", "not among"),
        ("fft/engine/fftw.py", "import threadpoolctl", "not among"),
        ("errors.py", "from mpi4py import MPI", "not among"),
        ("runtime/trace.py", "import matplotlib.figure", "at module level"),
        ("tools/links.py", "if True:\n    from pyroute2 import IPRoute", "at module level"),
        ("runtime/runtime.py", "from . import pipeline", "circle: runtime.pipeline, runtime.runtime"),
        (
            "runtime/runtime.py",
            "if TYPE_CHECKING:\n    from .pipeline import P",
            "circle: runtime.pipeline, runtime.run",
        ),
        ("runtime/runtime.py", "def f():\n    from .pipeline import P", "circle: runtime.pipeline, runtime.runtime"),
        ("fft/plan.py", "if TYPE_CHECKING:\n    from .fft2 import FFT2", "circle: fft.fft2, fft.plan"),
        ("surprise.py", "", "in no layer"),
    ],
)
def test_the_checker_complains(tmp_path, module, source, complaint):
    root = make_package(tmp_path, module)
    assert violations(root) == [] or module == "surprise.py"
    (root / module).write_text(source)
    found = violations(root)
    assert len(found) == 1 and complaint in found[0]
    assert module.removesuffix(".py").replace("/", ".") in found[0].replace("/", ".")


@pytest.mark.parametrize(
    "module, source",
    [
        ("runtime/runtime.py", "from ..errors import InputError\nfrom .trace import Trace"),
        ("runtime/runtime.py", "from .threads import workers\nfrom mpi4py import MPI"),
        ("fft/engine/library.py", "import pyfftw\nfrom ...arrays import Layout"),
        ("fft/planning/tournament.py", "from ..engine import fftw\nfrom ...timing import model"),
        ("fft/fft2.py", "from .planning import search\nfrom . import plan"),
        ("runtime/trace.py", "def draw():\n    from matplotlib.figure import Figure"),
        ("tools/cli.py", "from .. import errors\nimport json\nfrom .scale import run"),
        ("__init__.py", "from .runtime import Runtime"),
    ],
)
def test_the_checker_is_content(tmp_path, module, source):
    root = make_package(tmp_path, module)
    (root / module).write_text(source)
    assert violations(root) == []


EMPTY = """__init__ errors arrays/__init__ runtime/__init__ runtime/runtime runtime/trace timing/model fft/__init__
fft/engine/__init__ fft/engine/fftw fft/planning/__init__ fft/planning/tournament fft/plan tools/__init__
tools/bench/measure tools/scale/run tools/cli"""


def make_package(folder, module):
    """A package of empty modules, and one module that imports another."""
    root = folder / "overlap"
    for name in (*(f"{name}.py" for name in EMPTY.split()), module):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    (root / "runtime/pipeline.py").write_text("from . import runtime\n")
    (root / "fft/fft2.py").write_text("from . import plan\n")
    return root
