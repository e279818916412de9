"""The tail of a passage: units of its last leg that are exchanged late, each message complete.

They are put aside where they are sent from: in memory of the tail's own, message by message. What
stays on the rank goes straight to the target.
"""

from ...arrays import DeferredBlocks, chunks, length_of, moved
from ...runtime import worker_index
from .fftw import zeros
from .flights import Flight, Message, pieces_of, replaced, starts_of

MOST_MESSAGES = 16  # what is put aside is copied to every one of them


class Tail:
    """Late messages of a leg, which is cut along the axis that its exchange joins.

    Parameters
    ----------
    leg : Leg
    done : int
        Units that are not exchanged late.
    units : int
        How many there are along the axis that the exchange splits.
    chunk : int
        How many of these go into a message; more, where there would be many messages.
    dtype : dtype

    Attributes
    ----------
    parts : list of slice
        Units of every message.
    memory : ndarray
        What is put aside.
    receive_size : int
        Elements received of one message, at most.
    """

    def __init__(self, leg, done, units, chunk, dtype):
        self._leg = leg
        crossing = leg.crossing
        remainder = DeferredBlocks(crossing, done, units)
        self.parts = chunks(remainder.units, max(chunk, -(-remainder.units // MOST_MESSAGES)))
        messages = [Message(remainder.message(part), crossing.rank, leg.target, True, False)
                    for part in self.parts]
        sizes = [message.send_size for message in messages]
        self.receive_size = max(message.receive_size for message in messages)
        self.memory = zeros(sum(sizes), dtype)
        self._sends, self._pieces, boxes = {}, [], []
        for part, message, start in zip(self.parts, messages, starts_of(sizes)):
            send = self.memory[start:start + message.send_size]
            self._sends[part.start] = message, send
            pieces = pieces_of(send, message.starts_sent, message.shapes_sent, crossing.rank, send)
            for rank, (piece, box) in enumerate(zip(pieces, message.sent)):
                if rank != crossing.rank:
                    self._pieces.append(piece)
                    boxes.append(box)
        self._row = crossing.unit(done).start
        self._own = {}
        self._sweeps = [{} for _ in leg.first]
        along = crossing.along
        for number in range(done, crossing.units):
            message = crossing.message(slice(number, number + 1))
            self._own[number] = message.received[crossing.rank]
            length = length_of(crossing.unit(number))
            if length == 0 or length in self._sweeps[0]:
                continue
            unit = slice(0, length)
            tiles = [replaced(box, along, unit) for box in (message.sent[crossing.rank], *boxes)]
            for sweeps, first in zip(self._sweeps, leg.first):
                sweeps[length] = first[length].retargeted(tiles)

    def stow(self, part, source, target, scale):
        """Make the first FFTs of some units, and put the results aside."""
        crossing, sweeps = self._leg.crossing, self._sweeps[worker_index()]
        where = (slice(None),) * crossing.along
        for number in range(part.start, part.stop):
            here = crossing.unit(number)
            if length_of(here):
                there = (*where, moved(here, -self._row))
                sweeps[length_of(here)](
                    [source[(*where, here)]],
                    [target[self._own[number]], *(piece[there] for piece in self._pieces)], scale)

    def flight(self, part, slot, target, complete):
        """The flight of a message, which `complete()` ends."""
        return _Late(self._leg, *self._sends[part.start], slot, target, complete)


class _Late(Flight):
    def __init__(self, leg, message, send, slot, target, complete):
        super().__init__(leg, message, send, slot, target)
        self._complete = complete

    def load(self, scale):
        """Nothing: that was done before the pause."""

    def store(self):
        self.unpack()
        self._complete()
