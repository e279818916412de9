"""Clusters with one slow node, simulated on 2 to 64 ranks, beside what was measured with blocks of different numbers.

The kernels of the NAS Parallel Benchmarks, class B, were run on Athlon nodes joined by Myrinet, one of them slower
(Sasou and Matsuoka, "An Efficient NAS Parallel Benchmarks Algorithm for Heterogeneous Clusters", tables 3, 4, 5, 8 and
9, here as ratios). There, more blocks on fast nodes meant more messages. Here every rank has one share, in proportion
to its speed, and as many messages as with even shares. What a kernel computes on one node is taken from the smallest
run on equal nodes; exchanges are those of a one-dimensional partition, as all-to-alls of their bytes and messages.
``python bench/slow_node.py [--ranks 2 4 8]`` prints tables in Markdown; "there" was measured, "here" is simulated, and
the bound is the sum of the speeds over that of fast nodes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from overlap.arrays import shares
from overlap.timing.simulate import Machine, Options, Program, SimulatedTransfer, simulate
from overlap.tools.bench.pages import Page
from overlap.tools.bench.table import markdown

MYRINET = Machine(
    name="Athlon MP, Myrinet 2000", fft_flops=1e8, copy_Bps=4e8, latency_s=10e-6, bandwidth_Bps=2.2e8, message_s=5e-6
)


@dataclass(frozen=True)
class Kernel:
    """One kernel, class B.

    Attributes
    ----------
    speed : float
        The slow node's, where the others' is 1 (measured, inverse times).
    node_s : float
        One fast node's computing of one iteration.
    units : int
        What is shared out: batches, keys, rows or planes.
    nbytes, near : int, bool
        Bytes of the whole array that is exchanged in an iteration, or of the planes sent to both neighbours.
    source : dict
        Ranks to (uneven over even, uneven over all fast), as measured there.
    hides : bool
        Whether the iteration can be cut into slices that hide each other's exchanges.
    """

    speed: float
    node_s: float
    units: int
    nbytes: float
    near: bool
    source: dict[int, tuple[float, float]]
    hides: bool = False

    def program(self, ranks: int, share: float, slices: int) -> Program:
        """Ten iterations of a rank with that share, each cut into slices."""
        if not self.nbytes or ranks == 1:
            transfer = SimulatedTransfer(0.0, 0)
        elif self.near:
            transfer = SimulatedTransfer(self.nbytes / slices, min(2, ranks - 1))
        else:
            transfer = SimulatedTransfer(self.nbytes * share * (1 - share) / slices, ranks - 1)
        half_s = 0.5 * self.node_s * share / slices
        return Program.alike(10 * slices, (half_s, half_s), (transfer,))


KERNELS = {  # Mop of class B over Mop/s per node of the smallest run; bytes of keys, vector, array, planes on all grids
    "EP (table 3)": Kernel(
        1 / 1.76,
        2147.5 / 6.285 / 16,
        2**14,
        0,
        False,
        {2: (1.385, 0.790), 4: (1.575, 0.900), 8: (1.664, 0.953), 16: (1.698, 0.971)},
    ),
    "IS (table 4)": Kernel(
        1 / 1.45,
        33.55 / 10.755,
        2**10,
        4 * 2**25,
        False,
        {2: (1.226, 0.896), 4: (1.239, 0.944), 8: (1.226, 0.956), 16: (1.159, 0.959)},
        hides=True,
    ),
    "CG (table 5)": Kernel(
        1 / 1.47,
        54.71e3 / 66.77 / 1950,
        75000,
        8 * 75000,
        False,
        {2: (1.494, 1.043), 4: (1.345, 0.968), 8: (0.782, 0.557), 16: (0.858, 0.625)},
    ),
    "FT (table 8)": Kernel(
        1 / 1.51,
        92.0e3 / 122.6 / 20,
        256,
        16 * 2**25,
        False,
        {4: (1.000, 0.776), 8: (0.964, 0.769), 16: (0.964, 0.767)},
        hides=True,
    ),
    "MG (table 9)": Kernel(
        1 / 1.35,
        19.46e3 / 204.1 / 20,
        256,
        2 * 4 * 8 * 256**2 * 4 / 3,
        True,
        {2: (1.090, 0.787), 4: (1.052, 0.769), 8: (0.875, 0.657), 16: (1.115, 0.868)},
    ),
}


def simulated_s(kernel: Kernel, speeds: tuple[float, ...], weights: tuple[float, ...], hidden: bool = False) -> float:
    """Seconds of ten iterations on ranks of these speeds with these weights."""
    ranks, slices = len(speeds), 8 if hidden else 1
    parts = [share / kernel.units for share in shares(kernel.units, weights)]
    options = Options(ranks=ranks, wait="poll" if hidden else "off", depth=4, speeds=speeds)
    return simulate([kernel.program(ranks, part, slices) for part in parts], MYRINET, options).wall_s


def rows(kernel: Kernel, counts: list[int]) -> list[tuple[Any, ...]]:
    """For each number of ranks: gain over even shares, share of all fast nodes' speed, the same hidden, and its
    bound.
    """
    found = []
    for ranks in counts:
        fast, slow = (1.0,) * ranks, (*(1.0,) * (ranks - 1), kernel.speed)
        even_s, uneven_s, equal_s = (simulated_s(kernel, *one) for one in ((slow, fast), (slow, slow), (fast, fast)))
        hidden = even_s / simulated_s(kernel, slow, slow, True) if kernel.hides else None
        found.append((ranks, even_s / uneven_s, equal_s / uneven_s, hidden, sum(slow) / ranks))
    return found


def here(given: Any) -> Iterator[dict[str, Any]]:
    """Yield the records of all kernels."""
    for name, kernel in KERNELS.items():
        yield {"kernel": name, "rows": rows(kernel, given.ranks)}


def text(records: list[dict[str, Any]], given: Any) -> str:
    """Return the tables."""
    head = "ranks | uneven over even: there | here | here, hidden | uneven over equal fast nodes: there | here | bound"
    parts = []
    for record in records:
        kernel = KERNELS[record["kernel"]]
        table = []
        for ranks, gain, kept, hidden, bound in record["rows"]:
            there = [f"{value:.2f}" for value in kernel.source.get(ranks, ())] or ["", ""]
            shown = "" if hidden is None else f"{hidden:.2f}"
            table.append((ranks, there[0], f"{gain:.2f}", shown, there[1], f"{kept:.2f}", f"{bound:.2f}"))
        parts += [f"{record['kernel']}, the slow node's speed {kernel.speed:.2f}", markdown(head, table)]
    return "\n\n".join(parts)


PAGE = Page(__doc__, here=here, text=text)
PAGE.add("--ranks", nargs="+", type=int, default=[2, 4, 8, 16, 32, 64])

if __name__ == "__main__":
    sys.exit(PAGE.run())
