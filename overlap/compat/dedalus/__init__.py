"""Dedalus on pipelines: transposes are hidden behind transforms and packing.

Import this module before any object of Dedalus is made, and change nothing else::

    import overlap.compat.dedalus
    import dedalus.public as d3

All fields of a batch that Dedalus moves between layouts go through one pipeline, component by component, with all
transforms and exchanges up to the next layout in which an operator can be evaluated. Fourier series (real and complex)
and Chebyshev polynomials are transformed by compiled programs; for other bases only the exchanges are pipelines, and
the transforms are Dedalus' own.

On one rank, or for fields that are on one rank, nothing changes. Distributors that are made while the hooks are in use
keep them.
"""

from __future__ import annotations

from importlib import metadata

TESTED = ("3.0.5",)

version = metadata.version("dedalus")
if version not in TESTED:
    raise ImportError(f"expected Dedalus {' or '.join(TESTED)}, received {version}")

from .hooks import leave, use  # noqa: E402

__all__ = ["TESTED", "leave", "use"]

use()
