"""The flux-tube solver against GKV itself: the same grids, two ranks, one core each.

    python bench/gkv.py [--rounds 7] [--quick] [--out FILE.md]

GKV's figures are those of the reference collection (f0.65, gfortran, FFTW, the same kind of machine).
"core-ns" is wall time times cores over points and right-hand sides. Three tables:

1. the nonlinear term, as `overlap bench nonlinear` measures it, without overlap, blocking, polling, beside
   C, T, C + T/N and bare FFTs;
2. both forms of the nonlinear term inside the solver (whole planes or slabs), in interleaved rounds;
3. whole right-hand sides and their parts, and the memory.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median

from overlap import files
from overlap.tools import launch

REPOSITORY = Path(__file__).resolve().parents[1]
A = {"nx": 31, "ny": 15, "nz": 64, "nv": 64, "nmu": 7}
B = {"nx": 31, "ny": 15, "nz": 32, "nv": 32, "nmu": 7}
SMALL = {"nx": 5, "ny": 3, "nz": 8, "nv": 8, "nmu": 3}
# GKV: seconds of the nonlinear term; core-ns of the whole right-hand side.
NONLINEAR = {("A", "shm"): 0.703, ("B", "shm"): 0.164, ("B", "4gbit"): 0.276, ("B", "2gbit"): 0.411}
WHOLE = {"A": 81, "B": 75, "linear": 38}


# ---- on the ranks --------------------------------------------------------------------------------


def timed(comm, columns, rounds):
    """Median seconds of the slowest rank, by name; rounds are interleaved."""
    from mpi4py import MPI

    seconds = {name: [] for name in columns}
    for _ in range(rounds + 1):
        for name, run in columns.items():
            comm.Barrier()
            started = time.perf_counter()
            run()
            seconds[name].append(comm.allreduce(time.perf_counter() - started, MPI.MAX))
    return {name: median(values[1:]) for name, values in seconds.items()}


def on_rank(task, grid, rounds):
    """Measure on this rank; rank 0 prints the answer."""
    import numpy as np
    from mpi4py import MPI

    sys.path.insert(0, str(REPOSITORY / "examples" / "gkv"))
    from fluxtube.config import CASES
    from fluxtube.solver import Solver

    comm = MPI.COMM_WORLD
    columns, solvers, answer = {}, [], {}
    case = "cyclone" if task == "linear" else "turbulence"
    forms = {"forms": ("planes", "slab"), "linear": ("off",), "whole": ("planes",)}[task]
    for form in forms:
        config = CASES[case].with_values({"grid": grid, "parallel": {"nonlinear": form, "ky": comm.size}})
        solver = Solver(comm, config)
        solvers.append(solver)
        state, nonlinear = solver.state, solver.nonlinear
        for _ in range(7):  # pipelines choose their way to wait
            solver.rhs(state.f, solver.slope)
        if task == "forms":
            run = nonlinear.whole if form == "slab" else _whole_planes(nonlinear)
            columns[form] = lambda run=run, state=state, solver=solver: run(state.f, solver.slope)
            answer[f"{form} copies"] = solver.copies
            run(state.f, solver.slope)
            answer.setdefault("fields", []).append(solver.slope)
        else:
            columns |= {
                "whole": lambda: solver.rhs(state.f, solver.slope),
                "field solve": lambda: solver.solve_fields(state.f),
                "linear terms": lambda: solver.linear_terms(state.f, solver.slope, solver.linear),
                "Runge-Kutta": lambda: solver._update(range(len(state.f)), 0.0, 1),
            }
            if form != "off":
                columns["gradients of J0 phi"] = lambda: nonlinear.advect(solver.linear.psi)
            answer["copies"] = solver.copies
            answer["points"] = int(np.prod(state.global_shape))
    for run in columns.values():
        for _ in range(7):
            run()
    answer["seconds"] = timed(comm, columns, rounds)
    if "fields" in answer:
        first, second = answer.pop("fields")
        columns["planes"](), columns["slab"]()
        error = comm.allreduce(float(abs(first - second).max()), MPI.MAX)
        assert error <= 1e-12 * comm.allreduce(float(abs(first).max()), MPI.MAX), error
    for solver in solvers:
        solver.close()
    if comm.rank == 0:
        launch.tell(answer)


def _whole_planes(nonlinear):
    bracket = nonlinear._bracket
    return lambda f, out: bracket(f.reshape(bracket.spectrum.shape), out.reshape(bracket.spectrum.shape))


# ---- here ----------------------------------------------------------------------------------------


def ask(task, grid, rounds, link=None):
    """What fresh ranks answer."""
    found = {}
    status = launch.run_ranks(
        [sys.executable, __file__, "--task", json.dumps([task, grid, rounds])],
        ranks=2,
        workers=1,
        link=link,
        deadline_s=900,
        on_line=launch.listening(found.update),
    )
    if status or not found:
        sys.exit(f"{task} on {link or 'shared memory'}: the ranks ended with status {status}")
    return found


def shape(grid):
    """The arguments of `overlap bench nonlinear`: slices, and planes, modes."""
    return grid["nv"], ((grid["nmu"] + 1) * grid["nz"], grid["ny"] + 1, 2 * grid["nx"] + 1)


def points(grid):
    slices, (planes, nky, nkx) = shape(grid)
    return slices * planes * nky * nkx


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="small: only to see it work")
    parser.add_argument("--out", metavar="FILE.md", help="default: print it")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.task:
        on_rank(*json.loads(options.task))
        return
    from overlap.tools.bench import report, table
    from overlap.tools.bench.cases import Case
    from overlap.tools.bench.session import Session

    grids = {"A": SMALL, "B": SMALL} if options.quick else {"A": A, "B": B}
    session = Session([Path(sys.argv[0]).name, *sys.argv[1:]], deadline_s=900.0)
    words = [
        f"{report.machine()['cpu']}, {report.machine()['cores']} cores; overlap "
        f"{session.report['commit'][:9]}; 2 ranks x 1 worker, one core each; medians of "
        f"{options.rounds} interleaved rounds; MPICH.",
        "",
        "The nonlinear term (`overlap bench nonlinear`), ms:",
        "",
    ]
    rows = []
    with session.progress(len(NONLINEAR)):
        for (name, link), gkv_s in NONLINEAR.items():
            slices, size = shape(grids[name])
            record = session.measure(
                Case(workload="nonlinear", slices=slices, shape=size, rounds=options.rounds, link=link),
                None if link == "shm" else link,
                2,
            )
            rows.append(nonlinear_row(name, link, record, gkv_s, points(grids[name])))
    words += [
        table.markdown(
            (
                "grid",
                "between the ranks",
                "C",
                "bare FFTs",
                "T",
                "T/C",
                "off",
                "block (C + T/N)",
                "poll",
                "auto",
                "max(C, T)",
                "gain over off, over block",
                "hidden (control)",
                "core-ns",
                "GKV",
                "GKV, core-ns",
            ),
            rows,
        ),
        "",
        "Both forms inside the solver, grid B, ms, and copies of the state held:",
        "",
    ]
    rows = []
    for link in (None, "4gbit", "2gbit"):
        found = ask("forms", grids["B"], options.rounds, link)
        planes, slabs = (found["seconds"][form] for form in ("planes", "slab"))
        rows.append(
            (
                link or "shm",
                f"{1e3 * planes:.0f}",
                f"{1e3 * slabs:.0f}",
                f"{slabs / planes:.2f}x",
                f"{found['planes copies']:.1f}",
                f"{found['slab copies']:.1f}",
            )
        )
    words += [
        table.markdown(
            ("between the ranks", "whole planes", "slabs", "planes are faster by", "copies, planes", "copies, slabs"),
            rows,
        ),
        "",
        "Right-hand sides on shared memory, core-ns per point:",
        "",
    ]
    rows, parts = [], ("field solve", "gradients of J0 phi", "linear terms", "Runge-Kutta")
    for name, grid in (*grids.items(), ("linear", {})):
        found = ask("linear" if name == "linear" else "whole", grid, options.rounds)
        ns = {part: 2e9 * value / found["points"] for part, value in found["seconds"].items()}
        rows.append(
            (
                name,
                found["points"],
                f"{found['seconds']['whole']:.3f}",
                f"{ns['whole']:.1f}",
                WHOLE[name],
                *(f"{ns[part]:.1f}" if part in ns else "-" for part in parts),
                f"{found['copies']:.1f}",
            )
        )
    words += [table.markdown(("grid", "points", "s", "core-ns", "GKV", *parts, "copies of the state"), rows)]
    text = "\n".join(words) + "\n"
    if options.out:
        files.write(options.out, text)
    print(text)


def nonlinear_row(name, link, record, gkv_s, count):
    """A row of the first table."""

    def ms(seconds):
        return f"{1e3 * seconds:.0f}"

    off, block, poll, auto = (record[f"{mode}_s"] for mode in ("off", "block", "poll", "auto"))
    C, T, control = record["C_s"], record["T_s"], record["control_hidden"]
    hidden = "-" if record["hidden"] is None else f"{record['hidden']:.2f}"
    return (
        name,
        link,
        ms(C),
        ms(record["bare_fft_s"]),
        ms(T),
        f"{T / C:.2f}",
        ms(off),
        f"{ms(block)} ({ms(C + T)})",
        ms(poll),
        ms(auto),
        ms(max(C, T)),
        f"{off / auto:.2f}x, {block / auto:.2f}x",
        hidden + ("" if control is None else f" ({control:.2f})"),
        f"{2e9 * auto / count:.1f}",
        ms(gkv_s),
        f"{2e9 * gkv_s / points(B if name == 'B' else A):.1f}",
    )


if __name__ == "__main__":
    main()
