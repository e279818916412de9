"""The straight path of one slice whose operations are not known before: all ranks agree on each, as in `Scheduler`.

Before anything is issued all ranks tell each other that they are well and about to do the same; and every operation is
known to have started on all of them before any rank waits for it. If something is wrong, all ranks stop at once.
"""

from __future__ import annotations

from typing import Any

from mpi4py import MPI

from ..requests.operations import Start
from .slots import END
from .straight import StraightPath
from .waiting import tried


class AgreedPath(StraightPath):
    """One call of one slice, or of none, of a program whose `skeleton` is ``"agree"``; see `StraightPath`."""

    learns = False  # what the slice awaits stands for what slices await
    _stopped: Any = None  # requests that can never be over, if all ranks have agreed to stop

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._requests = []  # that the slice has awaited

    def _handed_over(self, *args):
        begun = super()._handed_over(*args)
        begun.stopped = self._stopped
        if self.job.recorded is not None:
            self.job.recorded.requests += self._requests
        return begun

    def _issue_all(self, agreements):
        for slot in self._slots:
            while True:
                if (slot.request is None or self._left) and not self._arrive(slot):
                    return [slot]
                request = slot.request
                over = request is END
                operation = request.operation if type(request) is Start else request
                if any(pending.operation is operation and not pending.done for pending in slot.pending):
                    return [slot]  # a persistent one that is under way
                if not self._same(agreements, request, over and self.learns):
                    return [slot]
                if over:
                    break
                self._requests.append(request)
                if not self._issue(slot, agreements):
                    return [slot]
                if not self._counted(agreements):
                    return [slot]
                if slot.flight is None:
                    self._step(slot)
        return []

    def _same(self, agreements, request, learned):
        """Whether no rank has failed, and all are about to do the same."""
        problem = agreements.same(True, request, learned)
        if problem is None and learned:  # from here on slices are held to the program: this one's end, too
            problem = agreements.same(True, request, False)
        if problem is None:
            return True
        self._left, self._stopped = True, []
        if problem:
            self.fail(None, RuntimeError(problem))
        return False

    def _make(self, slot, operation, later, agreements):
        made, error = tried(operation)
        if error is not None:
            self.fail(slot.key, error)
        if (started := agreements.sum([len(made)])[0]) < self._scheduler.control.size:
            self._left, self._stopped = True, made if started else []
            return False
        agreements.note(operation)
        if later:
            slot.started(operation, made[0])
        elif self._in_flight:
            self._fly(slot, operation, made[0])
        else:
            try:
                self._watched(slot, made[0].Wait)
            except MPI.Exception as failure:
                slot.error, self._left = failure, True
        return True


class LearningPath(AgreedPath):
    """The same of a program that is learned."""

    learns = True
