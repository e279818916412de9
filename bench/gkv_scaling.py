"""Strong scaling of the GKV document's benchmark, simulated: 4 to 64 nodes, and on to 65,536.

    python bench/gkv_scaling.py [--machine bench/machines/fx10.toml] [--out bench/results]

Known (application note on hiding communication in GKV): 2,048 spectral operations on 512 x 512,
16 threads, one process per node, 4 to 64 nodes; its curves are pictures without numbers.
Assumed: the machine file; this library's schedule in place of the note's loops.
"""

import argparse
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from overlap import files
from overlap.timing.simulate import Machine, Workload
from overlap.tools.predict import draw, strong_scaling, table

GKV = Workload(workload="operation", slices=2048, shape=(512, 512), dtype="f8")
RANKS = [2**k for k in range(2, 17)]
GROUP = 32  # ranks of one FFT where the slices are dealt out to groups
PAYS = 1.05


def dealt_out(machine, ranks, **options):
    """Rows of the scaling in which each group of ranks has its own share of the slices."""
    rows = []
    for count in ranks:
        group = min(count, GROUP)
        share = max(1, GKV.slices // (count // group))
        (row,) = strong_scaling(replace(GKV, slices=share), machine, [group], **options)
        rows.append(replace(row, ranks=count))
    return rows


def where_it_ends(rows):
    """Where the gain is largest, where the time stops falling, and where hiding stops paying."""
    best = max(rows, key=lambda row: row.gain)
    text = f"Largest gain {best.gain:.2f}x at {best.ranks} ranks ({best.limit})."
    last = next((a for a, b in pairwise(rows) if b.wall_s > 0.99 * a.wall_s), None)
    if last is not None:
        text += f" The time falls no further than at {last.ranks} ranks."
    paying = max((row.ranks for row in rows if row.gain >= PAYS), default=0)
    row = next((row for row in rows if row.ranks > paying), None)
    if row is None:
        return text + f" Hiding still pays {rows[-1].gain:.2f}x at {rows[-1].ranks}."
    return text + (
        f" Hiding pays (gain of {PAYS} or more) up to {paying} ranks; at "
        f"{row.ranks} the gain is {row.gain:.2f}x: {row.limit}, T/C = "
        f"{row.communication_s / row.compute_s:.3g}."
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--machine", default=str(Path(__file__).parent / "machines" / "fx10.toml"))
    parser.add_argument("--out", default="bench/results")
    options = parser.parse_args()
    machine = Machine.read(options.machine)
    lines = [HEAD.format(group=GROUP)]
    for words, scaling in (
        ("All ranks transform each slice together", lambda **how: strong_scaling(GKV, machine, RANKS, **how)),
        (f"Groups of {GROUP} ranks, each with its share of the slices", lambda **how: dealt_out(machine, RANKS, **how)),
    ):
        series = {wait: scaling(workers=16, wait=wait, depth=32) for wait in ("block", "poll")}
        for wait, rows in series.items():
            lines += ["", f"## {words}; {wait}", "", where_it_ends(rows), "", table(rows)]
        picture = "gkv_scaling" + ("_groups" if "Groups" in words else "") + ".png"
        draw(series, Path(options.out) / picture, f"{words}: {GKV.slices} operations, 512 x 512, 16 threads")
    text = "\n".join(lines) + "\n"
    files.write(Path(options.out) / "gkv_scaling.md", text)
    print(text)


HEAD = """# The GKV benchmark's strong scaling, simulated

`python bench/gkv_scaling.py`: 2,048 spectral operations (4 fields to real space, product, 1
field back) on 512 x 512, 16 threads and one process per node. Known from the application note:
sizes, threads, 4 to 64 nodes. Assumed: the machine, `bench/machines/fx10.toml`; depth 32; the
slices per message of the smallest simulated time, without overlap as with it. Milliseconds. T
counts each exchange with its latency, one after another; with several in flight latencies hide
each other, so a simulated time can be below max(C, T).

Beyond 512 ranks some have no row: what they do not have they do not send, and the fullest rank
still has one row and one column. Dealt out to groups of {group} ranks, the slices run out
instead.
"""


if __name__ == "__main__":
    main()
