"""Backward, function, forward: the steps of a slice of planes, on this rank.

    pack every input | exchange | to real space, a function, and to modes again | exchange | unpack every output

Two stages are around the exchanges, `back` and `forth`. What is between the exchanges is done by a subclass, block by
block in scratch memory that stays in the cache. If a message is sent from the user's input directly, nothing is packed,
and if it is received in the user's output, nothing is unpacked. A rank's own piece then is read and written there, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from ...arrays import chunks, length_of
from ...compiled.memory import address_of
from ...runtime.loop.words import ASIDE, RECEIVE, SOURCE, TARGET
from ...runtime.requests.requests import AsyncComm
from .fftw import zeros
from .message import Message, write_unpacking
from .program import ArrayReference, Buffers, CompiledProgram, ProgramCache, View, on_lines
from .stage import Stage
from .steps import AnyStep, Exchange, Run, checked
from .tasks import Task

ONE = slice(0, 1)
Arrays = tuple[Sequence[ArrayReference], Sequence[ArrayReference]]
"""Inputs and outputs."""


class SlotBuffers:
    """The buffers of a slot; the memory from which inputs are sent is reused to receive outputs."""

    def __init__(self, kept: np.ndarray, rows: np.ndarray, fields: np.ndarray, results: np.ndarray) -> None:
        # For the programs before, between and after the exchanges. Those between have this rank's own piece of the
        # outputs on base `TARGET`, and the kept fields on base `ASIDE`.
        self.back, self.forth = Buffers(rows, fields), Buffers(results, rows)
        self.middle = Buffers(results, fields)
        self.middle.bases[TARGET], self.middle.bases[ASIDE] = address_of(rows), address_of(kept)

    @staticmethod
    def lengths(messages: Sequence[Message]) -> list[int]:
        """Return the lengths of the three buffers, for the messages of a slice."""
        back, forth = messages
        return on_lines((max(back.send_size, forth.receive_size), back.receive_size, forth.send_size), back.wire.dtype)

    @classmethod
    def alone(cls, messages: Sequence[Message], kept: np.ndarray) -> SlotBuffers:
        """Make the buffers of one slot in memory of their own."""
        return cls(kept, *(zeros((length,), messages[0].wire.dtype) for length in cls.lengths(messages)))


class PlaneComposition:
    """Base of what lies between two stages of planes, with the steps of both."""

    calls = True  # some steps call Python functions
    by_index = True  # slices are indices of the batch
    returned = 0  # arrays that a user's function returns, from which a transform reads

    def __init__(
        self,
        stages: Sequence[Stage],  # of the planes of all inputs, and of all outputs; a message has those of a slice
        counts: tuple[int, int],  # of inputs with batch axes, and of outputs
        scales: tuple[float, float],  # factors of the transforms to real space, and back
        kept: np.ndarray,  # the fields in real space that all slices share
    ) -> None:
        self.back, self.forth = stages
        self.counts, self.scales, self.kept = counts, scales, kept
        self.wire = self.back.wire
        # With other ranks slices exchange twice, and every second one starts late (`runtime.stagger`).
        self.staggers = self.back.blocks.size > 1
        self._codes = ProgramCache()
        self._scratch: list[np.ndarray] = []

    def _allocate(self, nbytes: int, workers: int) -> None:
        """Allocate the scratch memory of every worker."""
        self._scratch = [zeros((nbytes,), np.uint8) for _ in range(workers)]

    @property
    def scratch(self) -> list[int]:
        """Return the addresses of every worker's scratch memory."""
        return [address_of(memory) for memory in self._scratch]

    def messages(self, count: int) -> tuple[Message, Message]:
        """Return the messages of `count` slices, to real space and back."""
        inputs, outputs = self.counts
        return self.back.message(slice(0, count * inputs)), self.forth.message(slice(0, count * outputs))

    def tasks(self, chunk: int, entries: int, late: float = 0.0) -> list[Task]:
        """Return the slices of a pipeline: `entries` indices of the batch, `chunk` in a message; none is late."""
        return [Task(0, 0, part, kind="indices") for part in chunks(entries, chunk)]

    def buffer_lengths(self, chunk: int) -> list[int]:
        """Return the lengths of a slot's buffers for `chunk` slices in a message."""
        return SlotBuffers.lengths(self.messages(min(chunk, self.back.blocks.units // self.counts[0])))

    def slot(self, *buffers: np.ndarray) -> SlotBuffers:
        """Return the buffers of a slot."""
        return SlotBuffers(self.kept, *buffers)

    def describe(self) -> str:
        """Return nothing to be added to the description of a transform."""
        return ""

    def arrays(self, inputs: Sequence[ArrayReference], outputs: Sequence[ArrayReference]) -> Arrays:
        """Return the arrays of all slices as `steps` expects them; shared inputs are left out."""
        return inputs[: self.counts[0]], outputs

    def steps(
        self, task: Task, slot: SlotBuffers, arrays: Arrays, comms: Sequence[AsyncComm] | None, planning: bool = False
    ) -> Iterator[AnyStep]:
        """Yield the steps of some slices, which share their messages.

        `arrays` are the inputs and the outputs of all slices, in natural order, `comms` one communicator, not used on
        one rank. If `planning`, the arrays hold no user data, so no user function may be called.
        """
        part, (inputs, outputs) = task.part, arrays
        forth = self.forth.message(slice(0, length_of(part) * self.counts[1]))
        yield from self.arriving(part, slot, inputs, comms)
        yield from self._between(part, slot, arrays, planning)
        yield from checked(self.forth.wire)
        if comms and self.staggers:
            receive = outputs[0].at(part) if forth.direct else slot.forth.receive
            yield Exchange(comms[0], forth, slot.forth.send, receive)
        for which, output in enumerate(() if forth.direct else outputs):
            yield self._run("unpack", self._write_unpack, slot.forth, part, which, output)

    def arriving(
        self, part: slice, slot: SlotBuffers, inputs: Sequence[ArrayReference], comms: Sequence[AsyncComm] | None
    ) -> Iterator[AnyStep]:
        """Yield the steps up to the end of the first exchange."""
        back = self.back.message(slice(0, length_of(part) * self.counts[0]))
        for which, field in enumerate(() if back.unpacked else inputs):
            yield self._run("pack", self._write_pack, slot.back, part, which, field)
        yield from checked(self.back.wire)
        if comms and self.staggers:
            send = inputs[0].at(part) if back.unpacked else slot.back.send
            yield Exchange(comms[0], back, send, slot.back.receive)

    def _between(self, part: slice, slot: SlotBuffers, arrays: Arrays, planning: bool) -> Iterable[AnyStep]:
        """Return the steps between the exchanges."""
        raise NotImplementedError

    def _run(
        self, label: str, write: Callable[..., None], buffers: Buffers, part: slice, which: int, array: ArrayReference
    ) -> Run:
        count, bases = length_of(part), buffers.bases.copy()
        code = self._codes.find(array.kind, (label, which, count), write, array.view(SOURCE), which, count)
        bases[SOURCE] = array.address_at(part.start)
        return Run(code, bases, label)

    def _write_pack(self, program: CompiledProgram, source: View, which: int, count: int) -> None:
        inputs, body = self.counts[0], CompiledProgram()
        pieces = self.back.pieces_to_send(count * inputs, RECEIVE)
        self.back.first[1].write(
            body,
            [source[:1].stepping(0, 1)],
            [piece[which : which + 1].stepping(0, inputs) for piece in pieces],
            self.scales[0],
        )
        program.repeat(body, count)

    def _write_unpack(self, program: CompiledProgram, target: View, which: int, count: int) -> None:
        outputs, body = self.counts[1], CompiledProgram()
        pieces = self.forth.pieces_received(count * outputs)
        received = [piece[which : which + 1].stepping(0, outputs) for piece in pieces]
        plane = target[:1].stepping(0, 1)
        if self.forth.then:
            self.forth.then[1].write(body, received, [plane])
        else:
            write_unpacking(body, self.forth.message(ONE), received, plane)
        program.repeat(body, count)
