"""`of_plan`: what a plan's constructor says of arguments that it does not have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from inspect import signature
from typing import Concatenate, ParamSpec, TypeVar

from ..errors import repr_of
from ..runtime import Runtime
from ..runtime.on_runtime import OnRuntime
from .planning.settings import Settings

_SETTINGS = {field.name for field in fields(Settings)}
_RUNTIME_OPTIONS = signature(Runtime).parameters.keys()

P = ParamSpec("P")
Made = TypeVar("Made", bound=OnRuntime)


def of_plan(init: Callable[Concatenate[Made, P], None]) -> Callable[Concatenate[Made, P], None]:
    """Decorate a plan's constructor, so that it says where the options of a runtime, and the settings, belong."""

    @wraps(init)
    def made(self: Made, /, *args: P.args, **options: P.kwargs) -> None:
        own = signature(init).parameters
        for name, value in options.items():
            if name not in own and name in _SETTINGS:
                raise TypeError(f"{self._kind} has no argument {name!r}: pass settings={{{name!r}: {repr_of(value)}}}")
            if name not in own and name in _RUNTIME_OPTIONS:
                raise TypeError(
                    f"{self._kind} has no argument {name!r}, which a runtime has: make the plan of one, "
                    f"{self._kind}(Runtime(comm, {name}={repr_of(value)}), ...)"
                )
            if name not in own:
                raise TypeError(
                    f"{self._kind}() got an unexpected keyword argument {name!r}; its arguments are "
                    f"{', '.join(list(own)[1:])}"
                )
        init(self, *args, **options)

    return made
