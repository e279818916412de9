"""Dedalus on pipelines: transposes are hidden behind transforms and packing.

Import it before anything is made of Dedalus, and change nothing else::

    import overlap.compat.dedalus
    import dedalus.public as d3

Fields that Dedalus takes from layout to layout go in one pipeline: all fields of a batch, component by component,
through all transforms and exchanges up to the next layout in which an operator can be evaluated. Fourier series (real
and complex) and Chebyshev polynomials are transformed by compiled programs; of other bases only the exchanges are
pipelines, and the transforms are Dedalus' own.

On one rank, or for fields that are on one rank, nothing is different. Distributors made while this is in use keep it.
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
