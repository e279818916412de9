"""A simulated machine in a few numbers, kept as a short TOML file, and the options of a run on it."""

from __future__ import annotations

import json
import math
import os
import tomllib
from collections.abc import Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any

import numpy as np

from ... import files
from ...checks import WAITS, choice_problem, integer_problem, number_problem
from ...errors import InputError, repr_of
from ..thread_scaling import ThreadScaling


def refuse(*problems: str | None) -> None:
    """Raise an `InputError` that says what is wrong, if anything is."""
    if any(problems):
        raise InputError("; ".join(filter(None, problems)))


def numbers_problem(name: str, values: Any, ranks: int) -> str | None:
    """Return what is wrong with positive numbers, one per rank, or None."""
    good = isinstance(values, Sequence | np.ndarray) and len(values) == ranks
    if good and not any(number_problem(name, value, positive=True) for value in values):
        return None
    return f"expected {name} to be {ranks} positive numbers, one per rank, received {repr_of(values)}"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a simulated run; see the arguments of `overlap.Runtime`.

    Attributes
    ----------
    ranks : int
    workers : int
        Threads per rank that compute, each with a core; the first one exchanges, too.
    wait : {"off", "block", "poll"}
    depth : int
    in_flight : int or None
        None: `depth`.
    seed : int
        The seed of the jitter.
    speeds : tuple of float or None
        Speed of each rank relative to the machine's and the program's times; None: 1 for all ranks.

    Raises
    ------
    InputError
        A value is out of its range.

    Examples
    --------
    >>> from overlap.timing.simulate import Options
    >>> Options(ranks=16, workers=4, wait="block").limit
    8
    """

    ranks: int = 2
    workers: int = 1
    wait: str = "poll"
    depth: int = 8
    in_flight: int | None = None
    seed: int = 0
    speeds: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        refuse(
            *(integer_problem(name, getattr(self, name), 1) for name in ("ranks", "workers", "depth")),
            choice_problem("wait", self.wait, WAITS, listed=False),
            integer_problem("in_flight", self.in_flight, 1, none=True),
            integer_problem("seed", self.seed, 0),
        )
        if self.speeds is not None:
            refuse(numbers_problem("speeds", self.speeds, self.ranks))

    @property
    def limit(self) -> int:
        """Return the largest number of exchanges in flight with ``wait="poll"``."""
        return self.depth if self.in_flight is None else self.in_flight


def _number(
    section: str,
    words: str,
    default: float | None = None,
    *,
    least: float = 0.0,
    above: float | None = None,
    kind: type = float,
) -> Any:
    """Declare a field of `Machine`: its section in the file, its meaning, its range."""
    metadata = dict(section=section, words=words, least=least, above=above, kind=kind)
    if default is None:
        return field(metadata=metadata)
    return field(default=default, metadata=metadata)


MOST_JITTER = 0.3  # of an idle machine; about ten times as much as measured on those of `bench/machines`


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A model of a machine for the simulation; times in seconds, sizes in bytes.

    `latency_s`, `message_s` and ``1 / bandwidth_Bps`` are L, o and G of the LogGP model. `threads` is the speed-up of
    several threads of a rank.

    Parameters
    ----------
    name : str
        Name of the machine, for the reader.
    fft_flops : float
        Operations per second of one thread in FFTs, counted as 5 n log2 n.
    copy_Bps : float
        Bytes per second that a rank exchanges inside a node, by copying.
    latency_s : float
        Latency of an exchange, once.
    bandwidth_Bps : float
        Bandwidth of one node's network card, each way.
    message_s, byte_s : float
        Core time per message, its answer included, and per byte sent and received (TCP).
    burst_nbytes : float
        Bytes that an idle link lets through at once (token bucket).
    eager_nbytes : float
        Largest message that is sent before its receiver is ready.
    ranks_per_node : int
        Ranks that share a network card.
    operation_s, poll_s : float
        Core time of the runtime per exchange, and of one test of what is under way.
    interpreter_s : float
        Time of a step of a slice during which it holds Python's interpreter lock.
    wake_s : float
        Time by which a thread that has nothing to compute goes on too late when an exchange has ended.
    jitter : float
        Standard deviation of the logarithm of a step's time.
    threads : ThreadScaling
        The speed-up of several threads of a rank.

    Raises
    ------
    InputError
        A value is out of its range.

    Examples
    --------
    >>> from overlap.timing.simulate import Machine
    >>> machine = Machine(name="mine", fft_flops=4e9, copy_Bps=5e9, latency_s=1e-5, bandwidth_Bps=1e9)
    >>> machine.write("mine.toml")
    >>> Machine.read("mine.toml") == machine
    True
    """

    name: str = field(metadata={"section": None, "words": "for the reader", "kind": str})
    fft_flops: float = _number("compute", "operations per second of one thread in FFTs, counted as 5 n log2 n", above=0)
    copy_Bps: float = _number("compute", "bytes per second that a rank exchanges inside a node, by copying", above=0)
    latency_s: float = _number("network", "latency of an exchange, counted once")
    bandwidth_Bps: float = _number("network", "bandwidth of one node's network card, each way", above=0)
    message_s: float = _number("network", "core time per message, its answer included", 0.0)
    byte_s: float = _number("network", "core time per byte sent and received (TCP)", 0.0)
    burst_nbytes: float = _number("network", "token bucket: bytes that an idle link passes at once", 0.0)
    eager_nbytes: float = _number("network", "largest message that is sent before its receiver is ready", 0.0)
    ranks_per_node: int = _number("network", "ranks that share a network card", 1, least=1, kind=int)
    operation_s: float = _number("runtime", "core time of the runtime per exchange", 0.0)
    interpreter_s: float = _number("runtime", "time of a slice's step in which it holds Python's interpreter lock", 0.0)
    poll_s: float = _number("runtime", "core time of one test of what is under way", 0.0)
    wake_s: float = _number("runtime", "delay with which a thread goes on when an exchange has ended", 0.0)
    jitter: float = _number("runtime", "standard deviation of the logarithm of a step's time", 0.0)
    threads: ThreadScaling = ThreadScaling()

    def __post_init__(self) -> None:
        refuse(*(_problem(entry, getattr(self, entry.name)) for entry in _simple()))

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Machine:
        """Read a machine from a file, written by `write` or by hand.

        Parameters
        ----------
        path : path-like

        Raises
        ------
        InputError
            A key is unknown or missing, or a value is out of its range; the error lists all of them.
        OSError
            The file cannot be read.
        """
        try:
            with open(path, "rb") as file:
                content = tomllib.load(file)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: expected a machine as TOML, received {error}") from None
        known = {_where(entry): entry for entry in _simple()}
        entries: dict[str, Any] = {}
        problems: list[str | None] = []
        try:
            threads = ThreadScaling.of_table(content.pop("threads", {}))
        except InputError as error:
            problems.append(str(error))
        for key, value in content.items():
            entries |= (
                {f"{key}.{name}": number for name, number in value.items()} if isinstance(value, dict) else {key: value}
            )
        problems += [
            f"{where}: unknown, expected one of {', '.join(known)}, threads" for where in entries if where not in known
        ]
        for where, entry in known.items():
            if where in entries:
                problems.append(_problem(entry, entries[where]))
            elif entry.default is MISSING:
                problems.append(f"{where}: missing, expected {_expected(entry)}")
        if any(problems):
            raise InputError(f"{path}: " + "; ".join(filter(None, problems)))
        return cls(threads=threads, **{known[where].name: value for where, value in entries.items()})

    def doubts(self) -> list[str]:
        """Say which values look as if they had been measured while other programs used the cores.

        Returns
        -------
        list of str
            What is doubtful, with the values; empty if nothing is.
        """
        slow = [
            f"{threads} threads {speedup:.3g} times as fast as one for planes of {n} x {n}"
            for n, row in self.threads.table().items()
            for threads, speedup in row.items()
            if speedup < 1
        ]
        varying = [f"a jitter of {self.jitter:.3g}"] if self.jitter > MOST_JITTER else []
        again = "such values come from cores that other programs used; measure again on an idle machine"
        return [f"{', '.join(found)}: {again}" for found in (slow, varying) if found]

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the machine to a file, whole or not at all.

        Parameters
        ----------
        path : path-like

        Raises
        ------
        OSError
            The file cannot be written.
        """
        files.write(path, self.text())

    def text(self) -> str:
        """Return the machine as TOML."""
        lines, section = [], None
        for entry in _simple():
            if entry.metadata["section"] != section:
                section = entry.metadata["section"]
                lines += ["", f"[{section}]"]
            value = getattr(self, entry.name)
            # Strings and numbers are written in the same way in JSON and TOML.
            shown = json.dumps(float(f"{value:.4g}") if isinstance(value, float) else value)
            lines.append(f"{entry.name} = {shown}  # {entry.metadata['words']}")
        if self.threads.speedups:
            lines += ["", "[threads]  # for planes of n x n: number of threads of a rank = speed-up over one thread"]
            for n, row in self.threads.table().items():
                cells = ", ".join(f"{threads} = {speedup:.4g}" for threads, speedup in row.items())
                lines.append(f"{n} = {{{cells}}}")
        return "\n".join(lines) + "\n"


def _simple() -> list[Field[Any]]:
    """Return the fields that are numbers or text."""
    return [entry for entry in fields(Machine) if entry.metadata]


def _where(entry: Field[Any]) -> str:
    section = entry.metadata["section"]
    return f"{section}.{entry.name}" if section else entry.name


def _expected(entry: Field[Any]) -> str:
    allowed = entry.metadata
    if allowed["kind"] is str:
        return "text"
    return ("an integer" if allowed["kind"] is int else "a finite number") + (
        f" > {allowed['above']:g}" if allowed["above"] is not None else f" >= {allowed['least']:g}"
    )


def _problem(entry: Field[Any], value: object) -> str | None:
    """Return what is wrong with one value, or None."""
    allowed = entry.metadata
    if allowed["kind"] is str:
        good = isinstance(value, str)
    else:
        good = (
            isinstance(value, int if allowed["kind"] is int else (int, float))
            and not isinstance(value, bool)
            and math.isfinite(value)
            and value >= allowed["least"]
            and (allowed["above"] is None or value > allowed["above"])
        )
    return None if good else f"{_where(entry)}: expected {_expected(entry)}, received {value!r}"
