"""Headers: the call that a rank is about to make, as values that can be compared and as a checksum."""

from __future__ import annotations

import zlib
from numbers import Complex, Integral, Number, Real
from typing import Any

import numpy as np


class Header:
    """The header of a collective call: the call and what must be equal, as text, and their checksum `signature`."""

    __slots__ = ("call", "signature", "values")

    def __init__(self, call: str, agreed: dict[str, Any] | None = None) -> None:
        self.call = call
        self.values = {"call": call} | {name: canonical(value) for name, value in (agreed or {}).items()}
        self.signature = zlib.crc32(repr(self.values).encode("utf-8", "backslashreplace"))


def canonical(value: Any) -> str:
    """Return a value as text, the same text for values that compare equal and for lists and tuples."""
    if value is None or type(value) is int:
        return repr(value)
    if isinstance(value, str):
        return str.__repr__(value)
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, (bool, np.bool_)):
        return repr(bool(value))
    if isinstance(value, Number):
        return _canonical_number(value)
    if isinstance(value, (list, tuple)):
        parts = ", ".join(map(canonical, value))
        return f"({parts},)" if len(value) == 1 else f"({parts})"
    if isinstance(value, dict):
        return "{" + ", ".join(sorted(f"{canonical(key)}: {canonical(part)}" for key, part in value.items())) + "}"
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(sorted(map(canonical, value))) + "}"
    return repr(value)


def _canonical_number(value: Any) -> str:
    if isinstance(value, Integral):
        return repr(int(value))
    if isinstance(value, Real):
        value = float(value)
        return repr(int(value)) if value.is_integer() else repr(value)
    if isinstance(value, Complex):
        value = complex(value)
        return _canonical_number(value.real) if value.imag == 0 else repr(value)
    return repr(value)


def disagreement(headers: list[dict[str, str]]) -> str:
    """Return a message that lists the values that differ between the ranks, rank by rank."""
    calls = [header["call"] for header in headers]
    if any(call != calls[0] for call in calls):
        headers = [{"call": call} for call in calls]
    lines = []
    for name in dict.fromkeys(name for header in headers for name in header):
        values = [header.get(name, "nothing") for header in headers]
        if any(value != values[0] for value in values):
            lines.append(
                f"{name}: expected the same on all ranks, received "
                + ", ".join(f"{value} (rank {rank})" for rank, value in enumerate(values))
            )
    return "; ".join(lines)
