"""Replacements of parts of Dedalus: paths between layouts, and methods that move fields along several paths."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

from dedalus.core import distributor
from dedalus.core.evaluator import Evaluator
from dedalus.core.field import Field
from dedalus.core.future import Future

from .climbs import climbs_of


class _Path:
    """A path between two layouts whose moves are noted."""

    layout0: Any

    def increment(self, fields: Iterable[Any]) -> None:
        """Move fields towards the grid (collective)."""
        climbs_of(self.layout0.dist).move(fields, self.layout0.index, up=True)

    def decrement(self, fields: Iterable[Any]) -> None:
        """Move fields towards coefficients (collective)."""
        climbs_of(self.layout0.dist).move(fields, self.layout0.index, up=False)

    def move_alone(self, fields: list[Any], up: bool) -> None:
        """Move fields by Dedalus' own code."""
        move: Any = super()
        (move.increment if up else move.decrement)(fields)


class TransformPath(_Path, distributor.Transform):
    """Dedalus' `Transform`."""


class TransposePath(_Path, distributor.Transpose):
    """Dedalus' `Transpose`."""


def _batched(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method of a field or an evaluator, so that its moves are one climb."""

    @wraps(method)
    def climbing(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self.dist.paths[0], _Path):  # a distributor made before `use`
            return method(self, *args, **kwargs)
        with climbs_of(self.dist).batched():
            return method(self, *args, **kwargs)

    return climbing


def _attempt_tasks(attempt: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """Wrap an evaluator's method, so that it attempts tasks only in layouts in which an operator can be evaluated."""

    @wraps(attempt)
    def attempting(tasks: list[Any], **kwargs: Any) -> list[Any]:
        if tasks and isinstance(tasks[0]["operator"].dist.paths[0], _Path):
            climbs = climbs_of(tasks[0]["operator"].dist)
            if climbs.pending:
                if not any(_is_ready(task["operator"], kwargs.get("id")) for task in tasks):
                    return tasks
                climbs.flush()
        return attempt(tasks, **kwargs)

    return attempting


def _is_ready(operator: Any, number: Any) -> bool:
    """Return whether a part of an operator can be, or in this evaluation has been, evaluated in the fields' layouts."""
    if not isinstance(operator, Future):
        return True
    if operator.store_last and number is not None and operator.last_id == number:
        return True
    inner = [argument for argument in operator.args if isinstance(argument, Future)]
    if inner:
        return any(_is_ready(argument, number) for argument in inner)
    return bool(operator.check_conditions())


_PATHS = {"Transform": TransformPath, "Transpose": TransposePath}
_THEIRS = {name: getattr(distributor, name) for name in _PATHS}
# These wrappers check the paths of a distributor, so they are never removed.
for _owner, *_names in (
    (Field, "change_layout", "require_grid_space", "require_coeff_space"),
    (Evaluator, "evaluate_handlers", "require_grid_space", "require_coeff_space"),
):
    for _name in _names:
        setattr(_owner, _name, _batched(getattr(_owner, _name)))
Evaluator.attempt_tasks = staticmethod(_attempt_tasks(Evaluator.attempt_tasks))


def use() -> None:
    """Use pipelines for the fields of distributors that are made from now on."""
    vars(distributor).update(_PATHS)


def leave() -> None:
    """Use Dedalus' own code for distributors that are made from now on."""
    vars(distributor).update(_THEIRS)
