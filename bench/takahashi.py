"""Takahashi's table 2 (256^3, 1 to 4,096 cores of 16-core nodes): two models fitted, row by row.

    python bench/takahashi.py [--out bench/results/takahashi.md]

The two-parameter model of the paper and a node-aware one of four (`overlap.timing.alltoall`) are fitted to
the measured communication; then each is asked where the 2-D decomposition begins to win.
"""

import sys

import numpy as np

from overlap.timing.alltoall import fit_costs, node_counts, plain_counts
from overlap.tools.bench.pages import Page
from overlap.tools.bench.table import markdown

POINTS = 256**3
# Communication on 1, 2, 4, ... cores (D. Takahashi, volumetric parallel 3-D FFT, table 2)
MS = 337.56, 257.05, 265.79, 165.14, 118.32, 63.72, 37.37, 21.76, 13.20, 14.61, 10.79, 6.52, 4.82
MEASURED_S = {2**power: 1e-3 * ms for power, ms in enumerate(MS)}
FULL_NODE = 16
LARGE_NBYTES = 8192


def grid(cores):
    """The squarest grid P x Q of powers of two, P >= Q, as 16 x 8 in the paper."""
    power = cores.bit_length() - 1
    return 2 ** (power - power // 2), 2 ** (power // 2)


def modelled(counts, costs):
    return float(np.dot(counts, costs))


def crossover(counts_of, costs, cores=(16, 32, 64, 128, 256)):
    """1-D and 2-D times of each number of cores."""
    return {n: (modelled(counts_of(POINTS, (n,)), costs), modelled(counts_of(POINTS, grid(n)), costs)) for n in cores}


def fitted(large_nbytes=LARGE_NBYTES):
    """Costs of both models, and the counts they belong to."""

    def nodes(points, grid):
        return node_counts(points, grid, large_nbytes=large_nbytes)

    found = {}
    for name, counts_of, least in (("plain", plain_counts, 2), ("node-aware", nodes, FULL_NODE)):
        rows = [n for n in MEASURED_S if n >= least]
        costs = fit_costs([counts_of(POINTS, grid(n)) for n in rows], [MEASURED_S[n] for n in rows])
        found[name] = counts_of, costs
    return found


def error(counts_of, costs, n):
    """How far the model is off, relative to what was measured on n cores."""
    return modelled(counts_of(POINTS, grid(n)), costs) / MEASURED_S[n] - 1


def mean_error(counts_of, costs):
    """The mean size of the errors from a full node on, in percent."""
    return 100 * np.mean([abs(error(counts_of, costs, n)) for n in MEASURED_S if n >= FULL_NODE])


def here(given):
    """The rows of both tables, and what they say."""
    found = fitted()
    for n, t in MEASURED_S.items():
        times = [(modelled(counts_of(POINTS, grid(n)), costs), error(counts_of, costs, n))
                 for counts_of, costs in found.values()]  # fmt: skip
        yield {"cores": n, "measured_s": t, "modelled": times}


def text(records, given):
    """The page."""
    found = fitted()
    (_, (L, s)), (_, costs) = found["plain"], found["node-aware"]
    head = HEAD.format(L=1e6 * L, W=1e-6 / s, small=1e6 * costs[0], large=1e6 * costs[1], card=1e-6 / costs[2],
                       memory=1e-6 / costs[3])  # fmt: skip
    rows = [
        (n := record["cores"], "{} x {}".format(*grid(n)), f"{1e3 * record['measured_s']:.2f}")
        + tuple(cell for t, off in record["modelled"] for cell in (f"{1e3 * t:.2f}", f"{100 * off:+.0f} %"))
        for record in records
    ]
    means = (cell for pair in found.values() for cell in ("", f"{mean_error(*pair):.0f} %"))
    rows.append((f"mean size, from {FULL_NODE} cores", "", "", *means))
    times = {name: crossover(*pair) for name, pair in found.items()}
    begins = [(n, *(f"{1e3 * t:.2f}" for name in found for t in times[name][n])) for n in times["plain"]]
    ends = [f"* {name}: 2-D wins from {first_2d(times[name])} cores on." for name in found]
    for other in (4096, 16384):
        pair = fitted(other)["node-aware"]
        ends.append(
            f"* node-aware with large messages from {other // 1024} KiB instead of 8: "
            f"mean error {mean_error(*pair):.0f} %, 2-D wins from {first_2d(crossover(*pair))}."
        )
    return "\n\n".join(
        (
            head,
            markdown("cores | grid | measured ms | plain ms | error | node-aware ms | error", rows),
            "## Where 2-D begins to win (communication alone)",
            markdown("cores | plain: 1-D ms | 2-D ms | node-aware: 1-D ms | 2-D ms", begins),
            "Paper, measured: 1-D is faster up to 64 cores, 2-D from 128.",
            "\n".join(ends),
            FAILURES,
        )
    )


def first_2d(times):
    """The first number of cores from which the 2-D time stays the smaller one."""
    slower = [n for n, (one, two) in times.items() if one <= two]
    return 2 * max(slower)


HEAD = """# Takahashi's table 2: communication of a 256³ FFT, two models

`python bench/takahashi.py`. Least squares of log(model/measured). Grids are the squarest ones, P
not below Q (the paper names 16 x 8 and 64 x 64 only). Model and notation: `overlap/timing/alltoall.py`.

* plain, fitted from 2 cores on: L = {L:.0f} us per message, W = {W:.0f} MB/s per core
* node-aware, fitted from one full node on: l = {small:.0f} us per message below 8 KiB, L =
  {large:.0f} us from 8 KiB on, W = {card:.0f} MB/s per node, M = {memory:.0f} MB/s of copies per
  node. The 8 KiB are set, not fitted (see below)."""

FAILURES = """Where they fail:

* Below 16 cores the node-aware model has the memory's rate of a whole node, which a few cores do
  not reach: far too fast. It is not fitted there.
* The plain model has one W per core although 16 share a card, and one L for all messages: too
  slow on few cores and at 4,096, too fast by almost two at 512 and 1,024, where messages of 8 to
  32 KiB cost far more than it allows; so it lets 1-D, which has such messages at 128 cores, win
  for too long.
* No model with one cost per message can have the step up from 256 to 512 cores. The step is
  where the all-to-all along the first axis leaves the node; what makes it so high, two costs
  (MPI asks the receiver before it sends a large message) explain best, to about 20 %."""


PAGE = Page(__doc__, here=here, text=text, out="bench/results/takahashi.md")

if __name__ == "__main__":
    sys.exit(PAGE.run())
