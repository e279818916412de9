"""A model of shared memory, and every order in which ranks can run the collectives' protocol on it.

What runs is the source of `overlap.collectives.protocol` and `node`, as Python, with other functions in the
place of loads and stores. Each of these is a step. A rank is deterministic, so where it stands is told by
the values that it has read: `Rank.step` runs it from its beginning, gives it these, and returns the step that
it takes next. The states of all ranks and of the memory make a graph, which `explore` visits whole.

Memory is as weak as on ARM: what a rank stores goes to its store buffer, and from there to the memory in any order,
except that a release waits for all before it. (With ``weak=False`` stores are seen at once.) An
acquire that finds its value is followed by what comes after it; payload is read word by word.
"""

import inspect
from types import SimpleNamespace

from overlap.collectives import node, protocol
from overlap.compiled import memory

WORD = 8
PRIVATE = 1 << 40  # addresses from here on are a rank's own memory
SEGMENT = 1 << 20  # rank r's segment begins at (r + 1) * SEGMENT


NAMES = ("barrier", "allgather", "allreduce", "bcast", "scatter", "gather", "reduce")
ROOTED = NAMES[3:]
KINDS = {name.lower(): kind for kind, name in enumerate(protocol.NAMES)}


class Violation(AssertionError):
    """A result is wrong, or no rank can go on."""


class _Next(Exception):
    """What the rank does next: (kind, address, value)."""


def sources(changes=()):
    """The functions of the protocol in plain Python, with a few lines changed: pairs (old, new)."""
    text = "\n".join(inspect.getsource(module) for module in (protocol, node))
    text = text.replace("from __future__ import annotations", "")
    for start in (
        "from ..compiled import",
        "from ..compiled.memory import (",
        "from ..compiled.memory import",
        "from .protocol import (",
    ):
        while start in text:
            before, _, after = text.partition(start)
            end = ")\n" if start.endswith("(") else "\n"
            text = before + after.partition(end)[2]
    for old, new in changes:
        assert text.count(old) == 1, (old, text.count(old))
        text = text.replace(old, new)
    text = "from __future__ import annotations  # which name what the model does not have\n" + text
    return compile(text, "protocol, as the model runs it", "exec")


class Rank:
    """One rank of a program: a list of (name, root).

    Parameters
    ----------
    rank, size : int
    program : list of (str, int)
    words : int
        Words of a rank's payload.
    code : code object
        What `sources` gives.
    flat : int
        Up to so many ranks take one step.
    """

    def __init__(self, rank, size, program, words, code, flat):
        self.rank, self.size, self.program, self.words = rank, size, program, words
        self._capacity = size * words * WORD + memory.LINE * size
        self._state = [0] * (protocol.SEEN + 2 * size)
        for place, value in (
            (protocol.RANK, rank),
            (protocol.SIZE, size),
            (protocol.FLAT, flat),
            (protocol.CAPACITY, self._capacity),
        ):
            self._state[place] = value
        for other in range(size):
            self._state[protocol.SEEN + size + other] = (other + 1) * SEGMENT
        self._known = {}
        space = {
            "njit": lambda function: function,
            "words": lambda address: self._words,
            "copy": self._copy,
            "copy_item": self._copy,
            "call_function": self._kernel,
            "store": self._write,
            "load": lambda address, like: self._read(address),
            "store_release": lambda address, value: self._act("release", address, value),
            "call_python": self._differs,
            "__name__": "model",
            "LINE": memory.LINE,
            "load_acquire": None,
            "pause": None,
        }
        exec(code, space)
        space["wait"] = lambda state, address, number, other, agreed: self._act("wait", address, number)
        space["announce"] = lambda state, number, agreed: None  # read by ranks that wait for long
        self._functions = SimpleNamespace(**space)

    def step(self, history):
        """The step after a history (the values of all steps before), or None at the end."""
        if history not in self._known:
            self._known[history] = self._run(history)
        return self._known[history]

    def _run(self, history):
        self._given, self._own, self._words = iter(history), {}, list(self._state)
        try:
            for place, (name, root) in enumerate(self.program):
                self._collective(self._functions, self._own, place, name, root)
        except _Next as step:
            return step.args[0]
        return None

    def _act(self, *step):
        try:
            return next(self._given)
        except StopIteration:
            raise _Next(step) from None

    def _read(self, address):
        return self._own[address] if address >= PRIVATE else self._act("load", address, None)

    def _write(self, address, value):
        if address >= PRIVATE:
            self._own[address] = value
        else:
            self._act("store", address, value)

    def _copy(self, target, source, nbytes):
        for offset in range(0, nbytes, WORD):
            self._write(target + offset, self._read(source + offset))

    def _kernel(self, function, target, first, second, count):
        for offset in range(0, count * WORD, WORD):
            self._write(target + offset, (self._read(first + offset), self._read(second + offset)))

    def _differs(self, function, reason, other, failed, mark, other_mark):
        raise Violation(f"rank {self.rank} found another collective on rank {other}")

    def _collective(self, functions, own, place, name, root):
        """Run one and compare its result; rank r's word w of collective c is (c, r, w)."""
        rank, size, words = self.rank, self.size, self.words
        nbytes = words * WORD
        send, target = PRIVATE, PRIVATE + SEGMENT

        def piece(owner, first=0):
            return [(place, owner, first + word) for word in range(words)]

        def reduced(word):
            doubled = name == "allreduce" and size > self._state[protocol.FLAT]
            return (_doubled if doubled else _in_order)([(place, owner, word) for owner in range(size)])

        pieces = size if name == "scatter" and rank == root else 1
        for word in range(pieces * words):
            own[send + word * WORD] = (place, rank, word)
        everything = [word for owner in range(size) for word in piece(owner)]
        combined = [reduced(word) for word in range(words)]
        if name == "bcast":
            send = target = send if rank == root else target
        expected = {
            "barrier": [],
            "bcast": piece(root),
            "scatter": piece(root, rank * words),
            "gather": everything if rank == root else [],
            "allgather": everything,
            "reduce": combined if rank == root else [],
            "allreduce": combined,
        }[name]
        functions.collective(
            0,
            KINDS[name],
            send,
            target,
            words if name.endswith("reduce") else 0,
            0 if name == "barrier" else nbytes,
            root if name in ROOTED else protocol.EVERYBODY,
            0,
            NAMES.index(name) * size + root,
        )
        found = [own.pop(target + word * WORD, None) for word in range(len(expected))]
        if found != expected:
            raise Violation(
                f"collective {place}, {name} with root {root}, rank {rank} of {size}: expected "
                f"{expected}, received {found}"
            )


def _in_order(values):
    """((x0 + x1) + x2) + ..."""
    total = values[0]
    for value in values[1:]:
        total = total, value
    return total


def _doubled(values):
    """As recursive doubling adds them, after those beyond a power of two have been added to the first ones."""
    members = 1 << (len(values).bit_length() - 1)
    values = [
        (values[one], values[one + members]) if one + members < len(values) else values[one] for one in range(members)
    ]
    while len(values) > 1:
        values = list(zip(values[::2], values[1::2]))
    return values[0]


def explore(program, size, *, words=1, weak=False, changes=(), flat=8):
    """Visit every state; returns how many there are.

    Raises
    ------
    Violation
        With the collective whose result can be wrong, or the state in which nobody can go on.
    """
    code = sources(changes)
    ranks = [Rank(rank, size, program, words, code, flat) for rank in range(size)]
    start = (((),) * size, ((),) * size, ())
    seen, todo = {start}, [start]
    while todo:
        histories, buffers, memory = todo.pop()
        contents = dict(memory)
        moves = 0
        for after in _successors(ranks, histories, buffers, contents, weak):
            moves += 1
            if after not in seen:
                seen.add(after)
                todo.append(after)
        if not moves and any(ranks[rank].step(histories[rank]) for rank in range(size)):
            raise Violation(f"nobody can go on: {[one.step(history) for one, history in zip(ranks, histories)]}")
    return len(seen)


def _successors(ranks, histories, buffers, contents, weak):
    for rank, (one, history, buffer) in enumerate(zip(ranks, histories, buffers)):
        for place in _drainable(buffer):
            kind, address, value = buffer[place]
            yield (
                histories,
                _with(buffers, rank, buffer[:place] + buffer[place + 1 :]),
                _frozen(contents | {address: value}),
            )
        step = one.step(history)
        if step is None:
            continue
        kind, address, value = step
        if kind in ("store", "release"):
            after = _with(histories, rank, (*history, None))
            if weak:
                yield after, _with(buffers, rank, (*buffer, step)), _frozen(contents)
            else:
                yield after, buffers, _frozen(contents | {address: value})
            continue
        found = contents.get(address, 0)
        for _, stored_at, stored in buffer:
            found = stored if stored_at == address else found
        if kind == "load" or found >= value:
            yield (_with(histories, rank, (*history, found if kind == "load" else None)), buffers, _frozen(contents))


def _drainable(buffer):
    """Places of the stores that may come to the memory next."""
    for place, (kind, address, _) in enumerate(buffer):
        if kind == "release":
            if place == 0:
                yield place
            continue
        if all(other != address for _, other, _ in buffer[:place]):
            yield place


def _with(items, place, item):
    return (*items[:place], item, *items[place + 1 :])


def _frozen(contents):
    return tuple(sorted(contents.items()))
