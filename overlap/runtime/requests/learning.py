"""Learning what slices await from the first slice.

To drain, a rank must know what its slices still await. If a program has no `skeleton`, the runtime records what its
first slice awaits, and requires the same of all others. A slice that awaits something else, for instance another root,
tag or count, could not be drained, so it fails as soon as it does so, even if nothing else has failed. Until the first
slice has ended, the others follow it: what they await is compared, and issued, when that of the first slice has been.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from .operations import Operation, Pending, Request, Start


class Recorded:
    """Records what the first slice awaits."""

    def __init__(self) -> None:
        self.requests: list[Request] = []  # operations, turns and barriers, so far
        self.complete = False  # the first slice has ended

    def reaches(self, position: int) -> bool:
        """Return whether it is known what slices await at a position, or that they end there."""
        return self.complete or len(self.requests) > position

    def skeleton(self) -> Callable[[object, object], Coroutine[Any, Any, None]]:
        """Make a skeleton that awaits what the first slice has awaited."""
        return lambda key, resources: replayed(self.requests, resources)

    def problem(self, position: int, request: Request | None) -> Exception | None:
        """Return why a slice must not await `request` (None: end) at this position; None if it may."""
        requests = self.requests
        expected = requests[position] if position < len(requests) else None
        if request is expected:
            return None
        if request is not None and expected is not None and type(request) is type(expected):
            try:
                if _alike(expected, request):
                    return None
            except Exception as error:  # MPI would reject it, too
                return error
        return RuntimeError(
            "a program without a skeleton must await the same in every slice, but position "
            f"{position} differs: expected {_described(expected)} as in the first slice, received "
            f"{_described(request)}; such a program needs skeleton="
        )


class Follows:
    """The gate of a slice that must not be ahead of the first one, to which it is compared."""

    def __init__(self, recorded: Recorded, position: int) -> None:
        self._recorded, self._position = recorded, position

    def __str__(self) -> str:
        return f"waiting until the first slice has come to position {self._position} of the program"

    def is_open(self, ended: bytearray) -> bool:
        """Return whether the first slice has come as far."""
        return self._recorded.reaches(self._position)


async def replayed(requests: Iterable[Any], resources: object) -> None:
    """Await what a slice awaits, in this order, on scratch buffers like the slot's, `resources`.

    The second occurrence of a `Start`, or its `Pending`, stands for the wait for the operation that the `Start` has
    started.
    """
    started: dict[int, Pending] = {}
    numbered: list[Pending] = []
    for request in requests:
        if isinstance(request, Request):
            request.awaited = True  # another request is awaited in its place
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
    """Return whether two requests of the same type ask for the same."""
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
