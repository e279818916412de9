"""The flux-tube solver against GKV itself: the same grids, two ranks, one core each.

    python bench/gkv.py [--rounds 7] [--quick] [--out FILE.md]

GKV's figures are those of the reference collection (f0.65, gfortran, FFTW, the same kind of machine).
"core-ns" is wall time times cores over points and right-hand sides. Three tables:

1. the nonlinear term, as `overlap bench nonlinear` measures it, without overlap, blocking, polling, beside
   C, T, C + T/N and bare FFTs;
2. both forms of the nonlinear term inside the solver (whole planes or slabs), in interleaved rounds;
3. whole right-hand sides and their parts, and the memory.
"""

import json
import sys
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import numpy as np

from overlap.tools.bench import report
from overlap.tools.bench.jobs import Case
from overlap.tools.bench.pages import Page
from overlap.tools.bench.rank import record_of
from overlap.tools.bench.rounds import alike, medians, seconds_of
from overlap.tools.bench.table import markdown

A = {"nx": 31, "ny": 15, "nz": 64, "nv": 64, "nmu": 7}
B = {"nx": 31, "ny": 15, "nz": 32, "nv": 32, "nmu": 7}
SMALL = {"nx": 5, "ny": 3, "nz": 8, "nv": 8, "nmu": 3}
# GKV: seconds of the nonlinear term; core-ns of the whole right-hand side.
NONLINEAR = {("A", "shm"): 0.703, ("B", "shm"): 0.164, ("B", "4gbit"): 0.276, ("B", "2gbit"): 0.411}
WHOLE = {"A": 81, "B": 75, "linear": 38}
PARTS = "field solve", "gradients of J0 phi", "linear terms", "Runge-Kutta"
SETTLING = 7  # calls in which pipelines choose their way to wait


def grid_of(name, given):
    """The values of a grid."""
    return {} if name == "linear" else SMALL if given.quick else {"A": A, "B": B}[name]


def shape(grid):
    """The arguments of `overlap bench nonlinear`: slices, and planes, modes."""
    return grid["nv"], ((grid["nmu"] + 1) * grid["nz"], grid["ny"] + 1, 2 * grid["nx"] + 1)


def points(grid):
    slices, size = shape(grid)
    return slices * int(np.prod(size))


def measure(comm, given):
    """The record of a task on a grid."""
    task, name = json.loads(given.part)
    grid = grid_of(name, given)
    if task == "nonlinear":
        slices, size = shape(grid)
        yield record_of(comm, Case(workload="nonlinear", slices=slices, shape=size, rounds=given.rounds, link=given.on))
        return
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "gkv"))
    from fluxtube.config import CASES
    from fluxtube.solver import Solver

    columns, copies, slopes = {}, {}, {}
    with ExitStack() as stack:
        for form in {"forms": ("planes", "slab"), "linear": ("off",), "whole": ("planes",)}[task]:
            values = {"grid": grid, "parallel": {"nonlinear": form, "ky": comm.size}}
            config = CASES["cyclone" if task == "linear" else "turbulence"].with_values(values)
            solver = stack.enter_context(closing(Solver(comm, config)))
            state, nonlinear = solver.state, solver.nonlinear
            for _ in range(SETTLING):
                solver.rhs(state.f, solver.slope)
            copies[form] = solver.copies
            if task == "forms":
                slopes[form] = solver.slope
                columns[form] = partial(
                    nonlinear.whole if form == "slab" else whole_planes(nonlinear), state.f, solver.slope
                )
                continue
            columns |= {
                "whole": partial(solver.rhs, state.f, solver.slope),
                "field solve": partial(solver.solve_fields, state.f),
                "linear terms": partial(solver.linear_terms, state.f, solver.slope, solver.linear),
                "Runge-Kutta": partial(solver._update, range(len(state.f)), 0.0, 1),
            }
            if form != "off":
                columns["gradients of J0 phi"] = partial(nonlinear.advect, solver.linear.psi)
        seconds = medians(seconds_of(comm, columns, given.rounds, warm=SETTLING + 1))
        if slopes:
            alike(comm, slopes, 1e-12)
        yield {"seconds": seconds, "copies": copies, "points": int(np.prod(state.global_shape))}


def whole_planes(nonlinear):
    bracket = nonlinear._bracket
    return lambda f, out: bracket(f.reshape(bracket.spectrum.shape), out.reshape(bracket.spectrum.shape))


TASKS = (
    *(("nonlinear", name, link) for name, link in NONLINEAR),
    *(("forms", "B", link) for link in ("shm", "4gbit", "2gbit")),
    *(("linear" if name == "linear" else "whole", name, "shm") for name in WHOLE),
)


def here(given):
    """The records of all tasks."""
    for task, name, link in TASKS:
        for record in PAGE.ask("--part", json.dumps([task, name]), ranks=2, link=link):
            yield {"task": task, "grid": name, "link": link, "record": record}


def nonlinear_row(name, link, record, count):
    """A row of the first table."""

    def ms(seconds):
        return f"{1e3 * seconds:.0f}"

    off, block, poll, auto = (record[f"{mode}_s"] for mode in ("off", "block", "poll", "auto"))
    C, T, control, gkv_s = record["C_s"], record["T_s"], record["control_hidden"], NONLINEAR[name, link]
    hidden = "-" if record["hidden"] is None else f"{record['hidden']:.2f}"
    return (
        *(name, link, ms(C), ms(record["bare_fft_s"]), ms(T), f"{T / C:.2f}", ms(off), f"{ms(block)} ({ms(C + T)})"),
        *(ms(poll), ms(auto), ms(max(C, T)), f"{off / auto:.2f}x, {block / auto:.2f}x"),
        hidden + ("" if control is None else f" ({control:.2f})"),
        *(f"{2e9 * auto / count:.1f}", ms(gkv_s), f"{2e9 * gkv_s / points(B if name == 'B' else A):.1f}"),
    )


def forms_row(link, record):
    """A row of the second table."""
    planes_s, slabs_s = (record["seconds"][form] for form in ("planes", "slab"))
    copies = (f"{record['copies'][form]:.1f}" for form in ("planes", "slab"))
    return (link, f"{1e3 * planes_s:.0f}", f"{1e3 * slabs_s:.0f}", f"{slabs_s / planes_s:.2f}x", *copies)


def whole_row(name, record):
    """A row of the third table."""
    ns = {part: 2e9 * value / record["points"] for part, value in record["seconds"].items()}
    parts = (f"{ns[part]:.1f}" if part in ns else "-" for part in PARTS)
    (copies,) = record["copies"].values()
    whole_s = f"{record['seconds']['whole']:.3f}"
    return (name, record["points"], whole_s, f"{ns['whole']:.1f}", WHOLE[name], *parts, f"{copies:.1f}")


NONLINEAR_HEAD = (
    "grid | between the ranks | C | bare FFTs | T | T/C | off | block (C + T/N) | poll | auto | max(C, T) | gain over "
    "off, over block | hidden (control) | core-ns | GKV | GKV, core-ns"
)
FORMS_HEAD = "between the ranks | whole planes | slabs | planes are faster by | copies, planes | copies, slabs"


def text(records, given):
    """The page."""
    found = {"nonlinear": [], "forms": [], "whole": []}
    for one in records:
        record, name, link = one["record"], one["grid"], one["link"]
        if one["task"] == "nonlinear":
            found["nonlinear"].append(nonlinear_row(name, link, record, points(grid_of(name, given))))
        elif one["task"] == "forms":
            found["forms"].append(forms_row(link, record))
        else:
            found["whole"].append(whole_row(name, record))
    machine = report.machine()
    return "\n\n".join(
        [
            f"{machine['cpu']}, {machine['cores']} cores; overlap {str(report.commit())[:9]}; 2 ranks x 1 worker, one "
            f"core each; medians of {given.rounds} interleaved rounds; MPICH.",
            "The nonlinear term (`overlap bench nonlinear`), ms:",
            markdown(NONLINEAR_HEAD, found["nonlinear"]),
            "Both forms inside the solver, grid B, ms, and copies of the state held:",
            markdown(FORMS_HEAD, found["forms"]),
            "Right-hand sides on shared memory, core-ns per point:",
            markdown(("grid", "points", "s", "core-ns", "GKV", *PARTS, "copies of the state"), found["whole"]),
        ]
    )


PAGE = Page(__doc__, measure, text=text, here=here, ranks=None, links=(), rounds=7, quick={})

if __name__ == "__main__":
    sys.exit(PAGE.run())
