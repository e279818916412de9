"""What slices await, learned from the first one.

To drain, a rank must know what its slices still await. A program without a `skeleton` shows that with its
first slice. All others are held to it: one that awaits anything else, another root or tag or count for
one, could not be drained, so it fails as soon as it shows, whether anything else fails or not.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from .operations import Operation, Pending, Request, Start

Run = TypeVar("Run")  # what a slot keeps of a slice


class Recorded:
    """What the first slice awaited.

    Attributes
    ----------
    requests : list
        Operations, turns and barriers. They are complete when the first slice has ended. Written by the
        worker that has slot 0, read by whoever knows (`Slot.known`) that it has ended.
    """

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def skeleton(self) -> Callable[[object, object], Coroutine[Any, Any, None]]:
        """Make a skeleton that awaits the same."""
        return lambda key, resources: replayed(self.requests, resources)

    def problem(self, position: int, request: Request | None) -> Exception | None:
        """Why a slice must not await `request` at this position, or (None) end there; None if it may."""
        requests = self.requests
        expected = requests[position] if position < len(requests) else None
        if request is expected:
            return None
        if request is not None and expected is not None and type(request) is type(expected):
            try:
                if _alike(expected, request):
                    return None
            except Exception as error:  # MPI would refuse it as well
                return error
        return RuntimeError(
            "a program without a skeleton must await the same in every slice, but position "
            f"{position} differs: expected {_described(expected)} as in the first slice, received "
            f"{_described(request)}; such a program needs skeleton="
        )

    def problems(self, unchecked: Iterable[tuple[Run, int, Request | None]]) -> list[tuple[Run, Exception]]:
        """Say what is wrong with a slot's early awaits, as a list of (run, error)."""
        found = ((run, self.problem(position, request)) for run, position, request in unchecked)
        return [(run, error) for run, error in found if error is not None]


async def replayed(requests: Iterable[Any], resources: object) -> None:
    """Await what a slice awaits, on buffers that nobody reads.

    Parameters
    ----------
    requests : iterable
        In the order in which the slice awaits them. A `Start` that comes again, or its `Pending`, stands for the end of
        what it has started.
    resources : object
        The slot's buffers.
    """
    started: dict[int, Pending] = {}
    numbered: list[Pending] = []
    for request in requests:
        if isinstance(request, Request):
            request.awaited = True  # by another one in its place
        if isinstance(request, Start) and id(request) in started:
            await started.pop(id(request))
        elif isinstance(request, Start):
            numbered.append(await Start(request.operation.on_scratch(resources)))
            started[id(request)] = numbered[-1]
        elif isinstance(request, Pending):
            await numbered[request.number]
        else:
            await (request.on_scratch(resources) if isinstance(request, Operation) else request)


def _alike(expected: Request, request: Request) -> bool:
    """Tell whether two requests of the same type are the same."""
    if isinstance(expected, Start) and isinstance(request, Start):
        return expected.operation.alike(request.operation)
    if isinstance(expected, Pending) and isinstance(request, Pending):
        return expected.number == request.number
    return not (isinstance(expected, Operation) and isinstance(request, Operation)) or expected.alike(request)


def _described(request: Request | None) -> str:
    if request is None:
        return "the end of the slice"
    if isinstance(request, Start):
        return f"the start of {request.operation.described()}"
    return request.described() if isinstance(request, Operation) else str(request)
