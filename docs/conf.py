"""Sphinx's configuration: `python -m sphinx -W docs site` builds the documentation, without a network.

With OVERLAP_DOCS_INVENTORIES=1 in the environment, names of Python, NumPy and mpi4py become links to their
documentation, whose inventories are then fetched.
"""

import importlib
import inspect
import os
import pkgutil
import shutil
from importlib import metadata
from pathlib import Path

import mpi4py

mpi4py.rc.initialize = False  # reading docstrings needs no MPI

import overlap

HERE = Path(__file__).parent
GENERATED = HERE / "reference" / "generated"

project = "overlap"
author = "the overlap developers"
version = release = metadata.version("overlap-mpi")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.intersphinx", "numpydoc"]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
default_role = "py:obj"
html_theme = "furo"
html_title = f"overlap {version}"
html_copy_source = False
html_show_copyright = False
html_static_path, html_css_files = ["_static"], ["wide.css"]

autodoc_typehints = "none"  # the docstrings say it, with shapes
autodoc_member_order = "bysource"
numpydoc_show_class_members = False  # autodoc does that

if os.environ.get("OVERLAP_DOCS_INVENTORIES"):
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3", None),
        "numpy": ("https://numpy.org/doc/stable", None),
        "mpi4py": ("https://mpi4py.readthedocs.io/en/stable", None),
    }

# ---- the reference: a page for each package and public module -----------------------------------------------------

SUBJECTS = [
    "overlap.compat.mpi4py_fft",
    "overlap.timing.simulate",
    "overlap.timing.model",
    "overlap.timing.messages",
    "overlap.timing.alltoall",
    "overlap.runtime.trace",
    "overlap.tools.timeline",
    "overlap.tools.links",
    "overlap.compiled",
]
PAGE = """{name}
{line}

.. automodule:: {name}
   :no-members:

.. currentmodule:: {name}

{lines}

{entries}
"""
CLASS = """.. autoclass:: {name}
   :members:
   :inherited-members: {foreign}
"""
FUNCTION = ".. autofunction:: {name}\n"
FOREIGN = {"ndarray", "BaseException", "IntEnum", "dict", "int", "list", "str", "tuple"}  # whose members are not ours


def subjects():
    """The package, its parts that have an `__all__`, and what else is public."""
    parts = [f"overlap.{part.name}" for part in pkgutil.iter_modules(overlap.__path__) if part.ispkg]
    with_all = [name for name in parts if hasattr(importlib.import_module(name), "__all__")]
    return ["overlap", *with_all, *SUBJECTS]


def public_names(module):
    """Classes and functions in a module's `__all__`, or else those that it defines."""
    names = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
    ]
    values = {name: getattr(module, name) for name in names}
    found = {name: value for name, value in values.items() if inspect.isclass(value) or inspect.isroutine(value)}
    return dict(sorted(found.items(), key=lambda pair: is_exception(pair[1])))  # these come last


def is_exception(value):
    """Whether a value is a class of exceptions."""
    return inspect.isclass(value) and issubclass(value, BaseException)


def write_reference(folder):
    """Write the pages; what several modules have is documented with the first one alone."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    documented = set()
    for subject in subjects():
        found = public_names(importlib.import_module(subject))
        new = {name: value for name, value in found.items() if id(value) not in documented}
        documented.update(map(id, found.values()))
        entries = "\n".join(
            (CLASS if inspect.isclass(value) else FUNCTION).format(name=name, foreign=", ".join(sorted(FOREIGN)))
            for name, value in new.items()
        )
        lines = "\n".join(
            f"* `{name}`: {(inspect.getdoc(value) or '').partition(chr(10))[0]}" for name, value in new.items()
        )
        text = PAGE.format(name=subject, line="=" * len(subject), lines=lines, entries=entries)
        (folder / f"{subject}.rst").write_text(text)


write_reference(GENERATED)
