"""Draw what hides behind what: the simulated schedule of the runtime, slice by slice.

python docs/draw/slices.py docs/ideas
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from svg import COLOURS, INK, Picture, lighter

from overlap.timing.simulate import Machine, Options, Program, SimulatedTransfer, ranks

SLICES, STEP_S, BANDWIDTH_BPS = 6, 1.0, 1.0
NBYTES = 2.0  # of a slice's exchange: it takes as long as the slice's two steps
MACHINE = Machine(name="virtual", fft_flops=1.0, copy_Bps=1.0, latency_s=0.0, bandwidth_Bps=BANDWIDTH_BPS, wake_s=0.0)
COMPUTE, EXCHANGE = COLOURS[0], COLOURS[1]


@dataclass
class Record:
    """Begin and end, in virtual seconds, of every step and of every exchange, by slice."""

    steps: dict[tuple[int, int], tuple[float, float]]
    exchanges: dict[int, tuple[float, float]]
    end_s: float


def run(wait: str, depth: int) -> Record:
    """Run slices of two steps with an exchange between them, on two ranks of one worker, of which one stands for both.

    Parameters
    ----------
    wait : {"off", "poll"}
    depth : int
        Slots.
    """
    options = Options(ranks=2, workers=1, wait=wait, depth=depth)
    program = Program.alike(SLICES, (STEP_S, STEP_S), (SimulatedTransfer(NBYTES, 1),))
    found = ranks.run(MACHINE, (program,), (1.0,), options, np.empty((1, 0)))
    record = Record(
        {(key, place): (begin_s, end_s) for (key, place), begin_s, end_s in rows(found.steps_s)},
        {key: (begin_s, end_s) for (key, _), begin_s, end_s in rows(found.exchanges_s)},
        float(found.ends_s[0]),
    )
    # The link carries one exchange at a time, in the order of issue.
    free_s = 0.0
    for key, (begin_s, end_s) in sorted(record.exchanges.items(), key=lambda item: item[1][1]):
        record.exchanges[key] = max(begin_s, free_s), end_s
        free_s = end_s
    return record


def rows(times_s: np.ndarray) -> Iterator[tuple[tuple[int, ...], float, float]]:
    """Iterate over slices and the places in them, and begin and end there, in the order of time."""
    for place in sorted(np.ndindex(times_s.shape[:2]), key=lambda place: tuple(times_s[place])):
        begin_s, end_s = times_s[place].tolist()
        yield place, begin_s, end_s


LEFT, UNIT, ROW = 96.0, 20.5, 24.0


def bar(picture: Picture, times_s: tuple[float, float], top: float, colour: str, words: str) -> None:
    """Draw one thing that took its time."""
    begin_s, end_s = times_s
    picture.box(LEFT + UNIT * begin_s, top, UNIT * (end_s - begin_s), ROW - 4, colour)
    picture.text(LEFT + UNIT * (begin_s + end_s) / 2, top + ROW - 10, words, size=11)


def axis(picture: Picture, top: float, end_s: float, words: str) -> None:
    """Mark the end of a run."""
    picture.line((LEFT + UNIT * end_s, top - 6), (LEFT + UNIT * end_s, top + 2 * ROW), INK, "4 3")
    picture.text(LEFT + UNIT * end_s + 6, top + ROW + 3, words, size=11, anchor="start")


def draw_overlap() -> Picture:
    """Draw the worker and the link without overlap and with it, on one scale of time."""
    picture = Picture(680, 236)
    picture.text(
        LEFT, 20, f"{SLICES} slices: two steps of 1 each, and an exchange of 2 between them", anchor="start", size=12
    )
    for top, title, wait in ((58.0, "without overlap: C + T", "off"), (160.0, "with it: towards max(C, T)", "poll")):
        record = run(wait, 3)
        picture.text(LEFT, top - 10, title, anchor="start", bold=True)
        for row, name in enumerate(("worker", "link")):
            picture.text(LEFT - 8, top + ROW * row + 14, name, anchor="end", size=12)
        for (key, _), times_s in record.steps.items():
            bar(picture, times_s, top, COMPUTE, str(key))
        for key, times_s in record.exchanges.items():
            bar(picture, times_s, top + ROW, EXCHANGE, str(key))
        axis(picture, top, record.end_s, f"{record.end_s:g}")
    return picture


def draw_slots() -> Picture:
    """Draw which slice each slot has, and what it does or waits for, of the same run with overlap."""
    depth, record, top = 3, run("poll", 3), 46.0
    picture = Picture(680, 160)
    picture.text(LEFT, 20, "the same run, slot by slot (depth 3)", anchor="start", bold=True)
    for slot in range(depth):
        row = top + (ROW + 4) * slot
        picture.text(LEFT - 8, row + 14, f"slot {slot}", anchor="end", size=12)
        for key in range(slot, SLICES, depth):
            first, last = record.steps[key, 0], record.steps[key, 1]
            begin, end = record.exchanges[key]
            bar(picture, (first[1], last[0]), row, lighter(EXCHANGE, 0.75), "")
            bar(picture, first, row, COMPUTE, str(key))
            bar(picture, (begin, end), row, EXCHANGE, str(key))
            bar(picture, last, row, COMPUTE, str(key))
    for left, colour, words in (
        (0, COMPUTE, "a step, on the worker"),
        (160, EXCHANGE, "its exchange is on the link"),
        (352, lighter(EXCHANGE, 0.75), "it waits for its turn"),
    ):
        picture.box(LEFT + left, 136, 12, 12, colour)
        picture.text(LEFT + left + 18, 146, words, anchor="start", size=11)
    return picture


def pictures() -> dict[str, str]:
    """Return all pictures by the name of their file."""
    return {"slices.svg": str(draw_overlap()), "slots.svg": str(draw_slots())}


def main() -> None:
    """Write the pictures to the folder that the command line names."""
    for name, text in pictures().items():
        Path(sys.argv[1], name).write_text(text)


if __name__ == "__main__":
    main()
