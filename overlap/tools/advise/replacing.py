"""Classes that stand in place of mpi4py's."""

from __future__ import annotations

from typing import Any


class _Replacing(type):
    """The type of classes that stand in place of mpi4py's: they are equal to these, and have the same instances."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.__dict__.get("_original", ())) or super().__instancecheck__(instance)

    def __subclasscheck__(cls, subclass: Any) -> bool:
        return issubclass(subclass, cls.__dict__.get("_original", ())) or super().__subclasscheck__(subclass)

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is cls.__dict__.get("_original", cls)

    def __hash__(cls) -> int:
        return type.__hash__(cls.__dict__.get("_original", cls))


def replacing(base: type, slots: tuple[str, ...], methods: dict[str, Any]) -> type:
    """Make a class that stands in place of one of mpi4py's."""
    own = {"__module__": base.__module__, "__doc__": base.__doc__, "__slots__": slots, "_original": base}
    return _Replacing(base.__name__, (base,), own | methods)
