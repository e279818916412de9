"""Strong scaling of the GKV document's benchmark, simulated: 4 to 64 nodes of 16 cores, and on to 65,536.

    python bench/scaling.py [--machine bench/machines/fx10.toml] [--out bench/results/scaling.md]

Known (application note on hiding communication in GKV): 2,048 spectral operations on 512 x 512,
16 threads, one process per node, 4 to 64 nodes; its curves are pictures without numbers.
Assumed: the machine file; this library's schedule in place of the note's loops.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from overlap.timing.simulate import Machine, Options, Program, SimulatedTransfer, Workload, simulate
from overlap.tools.bench.pages import Page
from overlap.tools.bench.table import markdown
from overlap.tools.predict import Row, draw, strong_scaling

GKV = Workload(workload="operation", slices=2048, shape=(512, 512), dtype="f8")
NODES = [2**k for k in range(2, 17)]
CORES = 16  # of a node
DEPTH = 32
GROUP = 32  # nodes of one FFT where the slices are dealt out to groups
JITTER = 0.1
PAYS = 1.05


@dataclass(frozen=True)
class Way:
    """A way to use the nodes, and what it took.

    Attributes
    ----------
    name : str
    rows : list of Row
        One for each number of nodes.
    uneven_s : list of float
        As their `wall_s`, where steps take longer on some ranks than on others.
    """

    name: str
    rows: list[Row]
    uneven_s: list[float]


def alike(machine: Machine, wait: str, group: int | None) -> Way:
    """One process of 16 threads per node, which all share every plane, or groups of nodes that share the planes."""
    rows, uneven_s = [], []
    for nodes in NODES:
        members = min(nodes, group or nodes)
        work = replace(GKV, slices=max(1, GKV.slices // (nodes // members)))
        (row,) = strong_scaling(work, machine, [members], workers=CORES, wait=wait, depth=DEPTH)
        program = work.program(members, machine, chunk=row.chunk, workers=CORES)
        options = Options(ranks=members, workers=CORES, wait=wait, depth=DEPTH)
        uneven_s.append(simulate(program, replace(machine, jitter=JITTER), options).wall_s)
        rows.append(replace(row, ranks=nodes))
    return Way(wait, rows, uneven_s)


def by_node(program: Program, nodes: int, machine: Machine) -> Program:
    """Exchange in the node first, then between cores of the same number: 16 times larger messages.

    The first exchange is a copy of everything that a rank sends, made in the step before.
    """
    copied = (CORES - 1) / CORES / machine.copy_Bps
    steps, transfers = [], []
    for mine, sent in zip(program.steps, program.transfers):
        copies = [copied * transfer.nbytes + (CORES - 1) * machine.message_s for transfer in sent]
        steps.append(tuple(seconds + more for seconds, more in zip(mine, [*copies, 0.0])))
        transfers.append(tuple(SimulatedTransfer(transfer.nbytes, nodes - 1) for transfer in sent))
    return Program(tuple(steps), tuple(transfers))


def processes(machine: Machine) -> list[tuple[int, float, float, float]]:
    """Sixteen processes of one thread per node: nodes; seconds without overlap, flat, and by node."""
    packed = replace(machine, ranks_per_node=CORES)
    found = []
    for nodes in NODES:
        members = CORES * min(nodes, GROUP)
        work = replace(GKV, slices=max(1, GKV.slices // (CORES * nodes // members)))
        times_s: list[list[float]] = [[], [], []]
        for chunk in (2**k for k in range(11)):
            if chunk > work.slices:
                break
            flat = work.program(members, packed, chunk=chunk)
            hierarchical = by_node(flat, members // CORES, packed)
            for place, (program, wait) in enumerate(((flat, "off"), (flat, "poll"), (hierarchical, "poll"))):
                options = Options(ranks=members, wait=wait, depth=DEPTH)
                times_s[place].append(simulate(program, packed, options).wall_s)
        off_s, flat_s, by_node_s = map(min, times_s)
        found.append((nodes, off_s, flat_s, by_node_s))
    return found


def where_it_ends(rows: Sequence[Row]) -> str:
    """Tell where the gain is largest, where the time stops falling, and where hiding stops paying."""
    best = max(rows, key=lambda row: row.gain)
    text = f"Largest gain {best.gain:.2f}x on {best.ranks} nodes ({best.limit})."
    last = next((a for a, b in pairwise(rows) if b.wall_s > 0.99 * a.wall_s), None)
    if last is not None:
        text += f" The time falls no further than on {last.ranks} nodes."
    paying = max((row.ranks for row in rows if row.gain >= PAYS), default=0)
    row = next((row for row in rows if row.ranks > paying), None)
    if row is None:
        return text + f" Hiding still pays {rows[-1].gain:.2f}x on {rows[-1].ranks}."
    return text + (
        f" Hiding pays (gain of {PAYS} or more) up to {paying} nodes; on "
        f"{row.ranks} the gain is {row.gain:.2f}x: {row.limit}, T/C = "
        f"{row.communication_s / row.compute_s:.3g}."
    )


def table(way: Way) -> str:
    """Show a way's rows; milliseconds."""
    form = "max(C + T/N, T)" if way.name == "block" else "max(C, T)"
    head = ("nodes", "slices per message", "C", "T", "C + T", form, "simulated", "over the form", "uneven", "gain")
    cells = []
    for row, uneven_s in zip(way.rows, way.uneven_s):
        form_s = row.block_s if way.name == "block" else row.bound_s
        times = [f"{1e3 * t:.4g}" for t in (row.compute_s, row.communication_s, row.off_s, form_s, row.wall_s)]
        over = f"{row.wall_s / form_s:.2f}"
        cells.append((row.ranks, row.chunk, *times, over, f"{1e3 * uneven_s:.4g}", f"{row.gain:.2f}x"))
    return markdown(head, cells)


HEAD = """2,048 spectral operations (4 fields to real space, product, 1 field back) on 512 x 512, one process of 16
threads per node. Known from the application note: sizes, threads, 4 to 64 nodes. Assumed: the machine,
`bench/machines/fx10.toml`; depth {depth}; the slices per message of the smallest simulated time, without
overlap as with it. Milliseconds. T counts each exchange with its latency, one after another; with several in
flight latencies hide each other, so a simulated time can be below max(C, T). *Uneven*: the same where the
time of a step varies by {jitter:.0%}, by chance, on every rank.

More than 512 nodes have no more rows of a plane to share: what a node does not have it does not send, and the
fullest one still has one row and one column. Where groups share the planes, the planes run out instead."""

HIERARCHICAL = """## Sixteen processes per node, and exchanges by node

One process of one thread per core in place of one per node, "poll". *By node*: all processes of a node first
exchange among themselves, which copies everything once, and then with those of the same place in other nodes:
16 times fewer and larger messages. Groups of {nodes} nodes, {ranks} processes, share the planes;
milliseconds."""


GROUPS = {None: "All nodes share every plane", GROUP: f"Groups of {GROUP} nodes share the planes"}


def here(given: Any) -> Iterator[dict[str, Any]]:
    """Simulate the ways to use the nodes, and then processes of one thread."""
    machine = Machine.read(given.machine)
    for group in GROUPS:
        for wait in ("block", "poll"):
            yield {"group": group, "way": alike(machine, wait, group)}
    yield {"processes": processes(machine)}


def text(records: list[dict[str, Any]], given: Any) -> str:
    """Draw the pictures beside the page, and return the page."""
    *ways, last = records
    lines = [HEAD.format(jitter=JITTER, depth=DEPTH)]
    for record in ways:
        way = record["way"]
        lines += [f"## {GROUPS[record['group']]}; {way.name}", where_it_ends(way.rows), table(way)]
    for group, words in GROUPS.items():
        picture = Path(given.out or OUT).parent / f"scaling{'_groups' if group else ''}.png"
        rows = {record["way"].name: record["way"].rows for record in ways if record["group"] == group}
        draw(rows, picture, f"{words}: 2,048 operations, 512 x 512")
    cells = [
        (nodes, *(f"{1e3 * t:.4g}" for t in (off_s, flat_s, by_node_s)), f"{flat_s / by_node_s:.2f}x")
        for nodes, off_s, flat_s, by_node_s in last["processes"]
    ]
    head = "nodes | no overlap | poll | poll, exchanged by node | gain by node"
    return "\n\n".join([*lines, HIERARCHICAL.format(nodes=GROUP, ranks=CORES * GROUP), markdown(head, cells)])


OUT = "bench/results/scaling.md"
PAGE = Page(__doc__, here=here, text=text, out=OUT)
PAGE.add("--machine", default=str(Path(__file__).parent / "machines" / "fx10.toml"))

if __name__ == "__main__":
    sys.exit(PAGE.run())
