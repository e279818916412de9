"""The volumetric FFT against its model, mpi4py-fft, FFTW's own MPI transform, and threads.

    python bench/fft3.py [--quick] [--only N ...] [--rounds 5] [--passes 2] [--out FILE.md]

Each of `CASES` is measured as `overlap bench fft3` does, with mpi4py-fft's rounds interleaved with
ours; FFTW's program is one of its own and runs after every pass. Writes one table, in Markdown.
FFTW's needs Debian's libfftw3-mpi-dev and openmpi-bin; what is missing is left out and said.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
from peers import install

from overlap import files
from overlap.tools.bench import report, table
from overlap.tools.bench.cases import Case
from overlap.tools.bench.record import pooled
from overlap.tools.bench.session import Session, need
from overlap.tools.options import count

HERE = Path(__file__).resolve().parent


def _cases():
    for link in ("shm", "2gbit", "4gbit"):
        for dtype in ("c16", "f8"):
            yield 2, Case(workload="fft3", shape=(256,) * 3, dtype=dtype, link=link, peer=True)
    for dtype in ("c16", "f8"):
        yield 2, Case(workload="fft3", shape=(128,) * 3, dtype=dtype, peer=True)
        for n in (128, 256):
            yield 2, Case(workload="fft3", shape=(n,) * 3, dtype=dtype, order="transposed")
    yield 2, Case(workload="fft3", shape=(128,) * 3, slices=3, link="2gbit")
    for grid in ((2, 2), (1, 4)):
        yield 4, Case(workload="fft3", shape=(128,) * 3, link="2gbit", grid=grid, peer=True)


CASES = tuple(_cases())


# --- FFTW's own -----------------------------------------------------------------------------------


def build(folder):
    """Compile `reference/fftw_mpi3d.c`; the program, or why not."""
    tools = [shutil.which(f"{name}.openmpi") for name in ("mpicc", "mpirun")]
    if None in tools:
        return None, "FFTW-MPI: needs apt-get install gcc libfftw3-mpi-dev openmpi-bin"
    program = Path(folder) / "fftw_mpi3d"
    made = subprocess.run(
        [tools[0], "-O3", "-o", program, HERE / "reference" / "fftw_mpi3d.c", "-lfftw3_mpi", "-lfftw3", "-lm"],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    if made.returncode:
        return None, f"FFTW-MPI cannot be built: {made.stderr[-300:]}"
    return [tools[1], "-n", "2", "--bind-to", "core", str(program)], None


def fftw_mpi_s(program, case):
    """Seconds per transform, in place or out of place, whichever is faster."""
    kind = "c2c" if case.dtype == "c16" else "r2c"
    done = subprocess.run(
        [*program, str(case.shape[0]), kind, case.order, str(case.calls), str(case.rounds)],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=600,
        check=True,
        env=os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
    )
    return min(float(line.split()[1]) for line in done.stdout.splitlines())


# --- threads --------------------------------------------------------------------------------------


def threads(n, dtype, rounds):
    """One rank of two workers, against FFTW and scipy of two threads: medians in seconds."""
    import pyfftw
    import scipy.fft
    from mpi4py import MPI

    from overlap import FFT3, Runtime

    with Runtime(MPI.COMM_SELF, workers=2) as rt, FFT3(rt, (n, n, n), dtype) as plan:
        field, out = plan.real.empty(), plan.spectrum.empty()
        given = pyfftw.empty_aligned(field.shape, dtype)
        spectrum = pyfftw.empty_aligned(out.shape, out.dtype)
        fftw = pyfftw.FFTW(given, spectrum, axes=(0, 1, 2), threads=2, flags=("FFTW_MEASURE",))
        given[...] = field[...] = np.random.default_rng(0).random(field.shape)
        serial = scipy.fft.fftn if dtype == "c16" else scipy.fft.rfftn
        columns = {
            "ours": lambda: plan.forward(field, out=out),
            "pyfftw": fftw.execute,
            "scipy": lambda: serial(given, workers=2),
        }
        seconds = {name: [] for name in columns}
        for _ in range(rounds + 1):
            for name, run in columns.items():
                if name == "pyfftw" and dtype == "f8":
                    given[...] = field  # FFTW may have destroyed it
                started = time.perf_counter()
                run()
                seconds[name].append(time.perf_counter() - started)
        worst = np.abs(out - serial(np.asarray(field))).max() / np.abs(out).max()
        if not worst < 1e-14:
            raise RuntimeError(f"expected scipy's result, received an error of {worst:.1e}")
    return {name: median(values[1:]) for name, values in seconds.items()}


# --- the table ------------------------------------------------------------------------------------

HEAD = (
    "case",
    "link",
    "ranks, grid",
    "C",
    "sweeps alone",
    "T",
    "T/C",
    "off",
    "block",
    "poll",
    "auto",
    "auto/max(C, T)",
    "auto/(C + T)",
    "hidden (control)",
    "mpi4py-fft best, default",
    "FFTW-MPI",
    "GFlop/s",
)


def row(record, fftw_s):
    """The table's row of a record."""

    def ms(seconds):
        if seconds is None:
            return "-"
        return f"{1e3 * seconds:.1f}" if seconds < 0.1 else f"{1e3 * seconds:.0f}"

    def over(seconds):
        return "-" if seconds is None else f"{ms(seconds)} ({seconds / auto:.2f}x)"

    auto, C, T = record["auto_s"], record["C_s"], record["T_s"]
    control = record["control_hidden"]
    kind = "c2c" if record["dtype"] == "c16" else "r2c"
    order = "" if record["order"] == "natural" else ", transposed"
    times = "" if record["slices"] == 1 else f"{record['slices']} x "
    peers = [record.get(f"peer_mpi4py_fft{which}_s") for which in ("", "_default")]
    return (
        f"{times}{record['shape'][0]}^3 {kind}{order}",
        record["link"],
        f"{record['ranks']}, {record['grid'][0]} x {record['grid'][1]}",
        ms(C),
        ms(record["bare_fft_s"]),
        ms(T),
        f"{T / C:.2f}",
        ms(record["off_s"]),
        ms(record["block_s"]),
        ms(record["poll_s"]),
        ms(auto),
        f"{auto / max(C, T):.3f}",
        f"{auto / (C + T):.3f}",
        f"{record['hidden']:.2f}" + ("" if control is None else f" ({control:.2f})"),
        ", ".join(map(over, peers)) if any(peers) else "-",
        over(fftw_s),
        f"{record['gflops']:.1f}",
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=count, default=5)
    parser.add_argument("--passes", type=count, default=2)
    parser.add_argument("--only", type=count, nargs="+", help=f"cases, 1 to {len(CASES)}")
    parser.add_argument("--quick", action="store_true", help="small: only to see it work")
    parser.add_argument("--install", action="store_true", help="pip-install mpi4py-fft if missing")
    parser.add_argument("--out", metavar="FILE.md", help="default: print it")
    options = parser.parse_args()
    need("rich")
    if options.install:
        install()
    chosen = [CASES[number - 1] for number in options.only or range(1, len(CASES) + 1)]
    session = Session([Path(sys.argv[0]).name, *sys.argv[1:]], deadline_s=600.0)
    rows = []
    with tempfile.TemporaryDirectory() as folder, session.progress(len(chosen) * options.passes):
        program, reason = build(folder)
        for ranks, case in chosen:
            case = replace(case, rounds=options.rounds, calls=1)
            if options.quick:
                case = replace(case, shape=(24,) * 3, rounds=2)
            link = None if case.link == "shm" else case.link
            records, found = [], []
            for _ in range(options.passes):
                records.append(session.measure(case, link, ranks))
                if program and link is None:
                    found.append(fftw_mpi_s(program, case))
            rows.append(row(pooled(records), median(found) if found else None))
    words = [
        f"{report.machine()['cpu']}, {report.machine()['cores']} cores; overlap "
        f"{session.report['commit'][:9]}; ms, medians of {options.passes} passes of "
        f"{options.rounds} interleaved rounds; FFTW's program after every pass.",
        "",
        table.markdown(HEAD, rows),
    ]
    if reason:
        words += ["", reason]
    if not options.only:
        words += [
            "",
            "One rank of two workers, against two threads, ms:",
            "",
            table.markdown(
                ("case", "overlap", "pyfftw", "scipy.fft"),
                [
                    (
                        f"{n}^3 {'c2c' if dtype == 'c16' else 'r2c'}",
                        *(f"{1e3 * value:.1f}" for value in threads(n, dtype, options.rounds).values()),
                    )
                    for n in ((16,) if options.quick else (128, 256))
                    for dtype in ("c16", "f8")
                ],
            ),
        ]
    text = "\n".join(words) + "\n"
    if options.out:
        files.write(options.out, text)
    print(text)


if __name__ == "__main__":
    main()
