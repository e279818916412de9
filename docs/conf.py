"""Sphinx's configuration: `python -m sphinx -W docs site` builds the documentation, without a network.

With OVERLAP_DOCS_INVENTORIES=1 in the environment, names of Python, NumPy and mpi4py become links to their
documentation, whose inventories are then fetched.
"""

import inspect
import os
from importlib import metadata

import mpi4py
from docutils import nodes
from latex2mathml.converter import convert

mpi4py.rc.initialize = False  # reading docstrings needs no MPI

project = "overlap"
author = "the overlap developers"
version = release = metadata.version("overlap-mpi")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.intersphinx", "numpydoc"]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
default_role = "py:obj"
html_theme = "furo"
html_math_renderer = "mathml"
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


def signature_of_class(app, what, name, value, options, signature, returned):
    """Show the arguments of a class whose base has a `__new__` that takes any."""
    if what != "class" or signature != "(*args, **kwargs)":
        return None
    plain = inspect.signature(value)
    parameters = [each.replace(annotation=inspect.Parameter.empty) for each in plain.parameters.values()]
    return str(plain.replace(parameters=parameters, return_annotation=inspect.Signature.empty)), returned


def write_formula(translator, node):
    """Write a formula as MathML, which browsers show without a script from the network."""
    translator.body.append(convert(node.astext(), display="block" if node.tagname == "math_block" else "inline"))
    raise nodes.SkipNode


def setup(app):
    """Connect what Sphinx calls."""
    app.add_html_math_renderer("mathml", (write_formula, None), (write_formula, None))
    app.connect("autodoc-process-signature", signature_of_class)
