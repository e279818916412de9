"""The communicator: issues the MPI operations of a pipeline in an order that needs no messages.

Issue order. MPI matches collectives by call order, so the order must be a pure function of the
program. The communicator visits the slots in a fixed rotation; at each visit it takes the slot's
next item, waiting for its worker if need be. A slot at its end leaves the rotation; slots at a
barrier leave it together until the last one has arrived.

Agreement. A rank on which a slice failed keeps issuing what the others wait for (`Slot` drains),
until all ranks have agreed that one of them failed. The agreement is a nonblocking reduction of one
flag every so many operations, looked at one interval later, when it has long arrived; and one at
the end. All ranks see the same flags at the same place in the issue order and stop there together.

Learning. To drain, a rank must know what its slices still await. A program without a `skeleton`
shows that with its first slice. Until this has ended, every item is agreed on before it is issued,
and every operation is known to have started on all ranks before any rank waits for it.

Three ways to wait, one small class each in `waiting`: `Inline` has no threads at all,
`Blocking` makes the blocking call and holds a core token meanwhile, `Polling` keeps several nonblocking
calls in flight and sleeps between looks.
"""

import pickle
import zlib

import numpy as np
from mpi4py import MPI

from ..errors import SliceError
from .requests import TakeTurn
from .slots import AT_BARRIER, END, FAILED
from .waiting import Blocking, Inline, Polling

# Raised by a blocking call before anything was sent; any other error class comes after.
ARGUMENT_ERRORS = frozenset((
    MPI.ERR_ARG, MPI.ERR_BUFFER, MPI.ERR_COMM, MPI.ERR_COUNT, MPI.ERR_OP, MPI.ERR_RANK,
    MPI.ERR_ROOT, MPI.ERR_TAG, MPI.ERR_TYPE))


class Scheduler:
    """Issues the operations of one job at a time.

    Parameters
    ----------
    control : mpi4py.MPI.Comm
        Carries the agreements and nothing else, so that they always match.
    comms : list of AsyncComm
        All communicators that programs may use.
    outstanding : dict
        What MPI has not finished yet, to its start (`time.perf_counter`); read by the watchdog.
    agree_every : int
        Operations between two agreements.
    """

    def __init__(self, control, comms, outstanding, agree_every):
        self.control = control
        self.comms = comms
        self.outstanding = outstanding
        self.agree_every = agree_every
        self._abandoned = []  # requests that can never complete: MPI may still write their buffers

    def waiting(self, wait, job, workers, in_flight, polls):
        """The way to wait called `wait`: ``"off"``, ``"block"`` or ``"poll"``."""
        if wait == "off":
            return Inline(job, self.outstanding, None)
        if wait == "block":
            return Blocking(job, self.outstanding, workers)
        return Polling(job, self.outstanding, workers, in_flight, polls)

    def run(self, job, waiting):
        """Issue all operations of `job`; returns the `SliceError` of all ranks, or None."""
        self._job = job
        self._waiting = waiting
        self._agreement = None
        self._spoilt = False
        for slot in job.slots:
            waiting.resume(slot)
        if not self._issue_all():
            self._stop()
        return self._outcome()

    def _issue_all(self):
        """The rotation. False if the ranks agreed to stop early."""
        job, waiting = self._job, self._waiting
        rotation = list(job.slots)
        parked = []
        issued = 0
        while rotation or parked:
            if not rotation:  # the last slot has arrived at the barrier
                rotation = sorted(parked, key=lambda slot: slot.index)
                parked = []
                for slot in rotation:
                    slot.release_barrier()
                    waiting.resume(slot)
            visited, rotation = rotation, []
            for slot in visited:
                item = self._take(slot)
                if item is None:
                    return False
                if item is END:
                    continue
                if item is AT_BARRIER:
                    parked.append(slot)
                    continue
                rotation.append(slot)
                if not self._issue(slot, item):
                    return False
                issued += 1
                if issued % self.agree_every == 0 and not self._agree():
                    return False
        waiting.finish()
        return self._agreement is None or self._agreed()

    def _take(self, slot):
        """The slot's next item; None if, while learning, some rank failed."""
        job, waiting = self._job, self._waiting
        waiting.take(slot)
        if slot.index == 0 and job.skeleton is None and job.first_ended and not job.stopping:
            learned = True
        else:
            learned = False
        if job.skeleton is None and not self._same_everywhere(slot.item, learned):
            return None
        if learned:
            job.learned()
        while slot.item is FAILED:  # posted before the skeleton was known
            slot.item = None
            waiting.resume(slot)
            waiting.take(slot)
        item, slot.item = slot.item, None
        slot.taken += 1
        return item

    def _issue(self, slot, operation):
        """Issue one operation; False if, while learning, it did not start on all ranks."""
        job, waiting = self._job, self._waiting
        if isinstance(operation, TakeTurn):
            waiting.completed(slot)
            return True
        if job.skeleton is None:
            waiting.make_room()
            request = None
            try:
                request = operation.start()
            except Exception as error:
                job.fail(slot.current.key, error)
            if not self._minimum([request is not None])[0]:
                # Where it did start it can never complete: leave the communicators behind.
                self._spoilt = True
                self._abandoned.append((request, waiting))
                return False
            waiting.adopt(slot, operation, request)
            return True
        while True:
            try:
                waiting.issue(slot, operation)
                return True
            except Exception as error:
                # The others issue it: so must this rank, on buffers from the skeleton.
                if isinstance(error, MPI.Exception) and (
                        error.Get_error_class() not in ARGUMENT_ERRORS):
                    waiting.completed(slot, error)
                    return True
                run = slot.current
                if run.draining:
                    raise
                run.error = error
                run.awaited -= 1
                job.fail(run.key, error)
                waiting.resume(slot)
                waiting.take(slot)
                operation, slot.item = slot.item, None

    def _same_everywhere(self, item, learned):
        """While learning: has no rank failed, and do all ranks take the same item here?"""
        job = self._job
        signature = zlib.crc32(f"{item} {learned}".encode())
        healthy, smallest, largest = self._minimum(
            [not job.stopping and item is not FAILED, signature, -signature])
        if healthy and smallest != -largest:
            job.fail("?", RuntimeError(
                "the slice programs of the ranks await different operations: expected the same on "
                f"all ranks, rank {self.control.rank} received {item}"))
            return False
        return bool(healthy)

    def _minimum(self, values):
        """Element-wise minimum over the ranks of a few integers."""
        values = np.array(values, dtype=np.int64)
        request = self.control.Iallreduce(MPI.IN_PLACE, values, MPI.MIN)
        self._waiting.wait(request, "agreement of all ranks")
        return values

    def _agree(self):
        """Look at the last agreement and start the next one; False if a rank had failed."""
        if self._agreement is not None and not self._agreed():
            return False
        flag = np.array([self._job.failure is None], dtype=np.int64)
        request = self.control.Iallreduce(MPI.IN_PLACE, flag, MPI.MIN)
        self._agreement = request, flag
        return True

    def _agreed(self):
        request, flag = self._agreement
        self._agreement = None
        self._waiting.wait(request, "agreement of all ranks")
        return bool(flag[0])

    def _stop(self):
        """All ranks stop here: let what is under way end, and drop the rest."""
        job, waiting = self._job, self._waiting
        job.stopping = True
        job.lock_gates()
        if self._agreement is not None:  # while learning the ranks stop before it was looked at
            self._agreed()
        waiting.stopped = True
        waiting.finish()
        for slot in job.slots:
            waiting.quiet(slot)
        for slot in job.slots:
            slot.close()

    def _outcome(self):
        """The same SliceError on all ranks, or None if the job has ended well on all."""
        job = self._job
        if self._spoilt:
            with self._waiting.watched("new communicators on all ranks"):
                for comm in self.comms:
                    comm.renew()
        rank, size = self.control.rank, self.control.size
        failed = job.failure is not None
        origin = int(self._minimum([rank if failed else size])[0])
        if origin == size:
            return None
        text = b""
        if rank == origin:
            failure = job.failure
            text = pickle.dumps((rank, failure.key, failure.summary, failure.traceback_text))
        with self._waiting.watched("the report of what failed"):
            length = np.array([len(text)], dtype=np.int64)
            self.control.Bcast(length, root=origin)
            data = np.frombuffer(text, dtype=np.uint8).copy() if rank == origin else np.empty(
                length[0], dtype=np.uint8)
            self.control.Bcast(data, root=origin)
        return SliceError(*pickle.loads(data.tobytes()))

