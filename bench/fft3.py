"""The volumetric FFT against its model, mpi4py-fft, FFTW's own MPI transform, and threads.

    python bench/fft3.py [--quick] [--only N ...] [--rounds 5] [--passes 2] [--out FILE.md]

Each of `CASES` is measured as `overlap bench fft3` does, with mpi4py-fft's rounds among ours; FFTW's program is one of
its own and runs after every pass. One rank of two workers is compared with FFTW and scipy of two threads. FFTW's
program needs Debian's libfftw3-mpi-dev and openmpi-bin; what is missing is left out and said.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
from mpi4py import MPI

from overlap import FFT3, Runtime
from overlap.tools.bench import report
from overlap.tools.bench.jobs import Case
from overlap.tools.bench.pages import Page
from overlap.tools.bench.rank import record_of
from overlap.tools.bench.record import pooled
from overlap.tools.bench.rounds import alike, medians, seconds_of
from overlap.tools.bench.table import markdown
from overlap.tools.values import count

PROGRAM = Path(__file__).resolve().parent / "reference" / "fftw_mpi3d.c"
KINDS = {"c16": "c2c", "f8": "r2c"}


def _cases():
    case = partial(Case, workload="fft3", calls=1)
    for link in ("shm", "2gbit", "4gbit"):
        for dtype in KINDS:
            yield 2, case(shape=(256,) * 3, dtype=dtype, link=link, peer=True)
    for dtype in KINDS:
        yield 2, case(shape=(128,) * 3, dtype=dtype, peer=True)
        for n in (128, 256):
            yield 2, case(shape=(n,) * 3, dtype=dtype, order="transposed")
    yield 2, case(shape=(128,) * 3, slices=3, link="2gbit")
    for grid in ((2, 2), (1, 4)):
        yield 4, case(shape=(128,) * 3, link="2gbit", grid=grid, peer=True)


CASES = tuple(_cases())


def chosen(given):
    """The cases that are measured: their numbers of ranks, and they."""
    smaller = {"shape": (24,) * 3} if given.quick else {}
    for number in given.only or range(1, len(CASES) + 1):
        ranks, case = CASES[number - 1]
        yield number, ranks, replace(case, rounds=given.rounds, **smaller)


def measure(comm, given):
    """The record of a case."""
    for number, _, case in chosen(given):
        if number == int(given.part):
            yield record_of(comm, case)


def build(folder):
    """Compile FFTW's program; its command, or why not."""
    tools = [shutil.which(f"{name}.openmpi") for name in ("mpicc", "mpirun")]
    if None in tools:
        return None, "FFTW-MPI: needs apt-get install gcc libfftw3-mpi-dev openmpi-bin"
    program = Path(folder) / "fftw_mpi3d"
    command = [tools[0], "-O3", "-o", program, PROGRAM, "-lfftw3_mpi", "-lfftw3", "-lm"]
    made = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if made.returncode:
        return None, f"FFTW-MPI cannot be built: {made.stderr[-300:]}"
    return [tools[1], "-n", "2", "--bind-to", "core", str(program)], None


def fftw_mpi_s(program, case):
    """Seconds per transform, in place or out of place, whichever is faster."""
    done = subprocess.run(
        [*program, str(case.shape[0]), KINDS[case.dtype], case.order, str(case.calls), str(case.rounds)],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=600,
        check=True,
        env=os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
    )
    return min(float(line.split()[1]) for line in done.stdout.splitlines())


def threads(n, dtype, rounds):
    """One rank of two workers, against FFTW and scipy of two threads: medians in seconds."""
    import pyfftw
    import scipy.fft

    with Runtime(MPI.COMM_SELF, workers=2) as rt, FFT3(rt, (n, n, n), dtype) as plan:
        field, out = plan.real.empty(), plan.spectrum.empty()
        given = pyfftw.empty_aligned(field.shape, dtype)
        spectrum = pyfftw.empty_aligned(out.shape, out.dtype)
        fftw = pyfftw.FFTW(given, spectrum, axes=(0, 1, 2), threads=2, flags=("FFTW_MEASURE",))
        given[...] = field[...] = np.random.default_rng(0).random(field.shape)
        serial = scipy.fft.fftn if dtype == "c16" else scipy.fft.rfftn
        columns = {
            "ours": partial(plan.forward, field, out=out),
            "pyfftw": fftw.execute,
            "scipy": partial(serial, field, workers=2),
        }
        seconds = seconds_of(MPI.COMM_SELF, columns, rounds)
        alike(MPI.COMM_SELF, {"scipy": serial(np.asarray(field)), "ours": out}, 1e-14)
    return medians(seconds)


def here(given):
    """The records of all cases, each of all passes together, and those of threads."""
    with tempfile.TemporaryDirectory() as folder:
        program, reason = build(folder)
        for number, ranks, case in chosen(given):
            records, found = [], []
            for _ in range(given.passes):
                records += PAGE.ask("--part", str(number), ranks=ranks, link=case.link)
                if program and case.link == "shm":
                    found.append(fftw_mpi_s(program, case))
            yield pooled(records) | {"fftw_s": median(found) if found else None, "fftw_skipped": reason}
    for n in () if given.only else (16,) if given.quick else (128, 256):
        for dtype in KINDS:
            yield {"threads": f"{n}^3 {KINDS[dtype]}", "seconds": threads(n, dtype, given.rounds)}


HEAD = (
    "case | link | ranks, grid | C | sweeps alone | T | T/C | off | block | poll | auto | auto/max(C, T) | auto/(C + T)"
    " | hidden (control) | mpi4py-fft best, default | FFTW-MPI | GFlop/s"
)


def row(record):
    """A record as a row of one of the tables."""
    if "threads" in record:
        return (record["threads"], *(f"{1e3 * value:.1f}" for value in record["seconds"].values()))

    def ms(seconds):
        return "-" if seconds is None else f"{1e3 * seconds:.{1 if seconds < 0.1 else 0}f}"

    def over(seconds):
        return "-" if seconds is None else f"{ms(seconds)} ({seconds / auto:.2f}x)"

    auto, C, T, control = (record[name] for name in ("auto_s", "C_s", "T_s", "control_hidden"))
    order = "" if record["order"] == "natural" else ", transposed"
    times = "" if record["slices"] == 1 else f"{record['slices']} x "
    peers = [record.get(f"peer_mpi4py_fft{which}_s") for which in ("", "_default")]
    return (
        f"{times}{record['shape'][0]}^3 {KINDS[record['dtype']]}{order}",
        record["link"],
        f"{record['ranks']}, {record['grid'][0]} x {record['grid'][1]}",
        *map(ms, (C, record["bare_fft_s"], T)),
        f"{T / C:.2f}",
        *(ms(record[f"{mode}_s"]) for mode in ("off", "block", "poll", "auto")),
        *(f"{auto / ideal_s:.3f}" for ideal_s in (max(C, T), C + T)),
        f"{record['hidden']:.2f}" + ("" if control is None else f" ({control:.2f})"),
        ", ".join(map(over, peers)) if any(peers) else "-",
        over(record["fftw_s"]),
        f"{record['gflops']:.1f}",
    )


def text(records, given):
    """The page."""
    cases, of_threads = ([one for one in records if ("threads" in one) == kind] for kind in (False, True))
    machine, reasons = report.machine(), {one["fftw_skipped"] for one in cases} - {None}
    words = [
        f"{machine['cpu']}, {machine['cores']} cores; overlap {str(report.commit())[:9]}; ms, medians of "
        f"{given.passes} passes of {given.rounds} interleaved rounds; FFTW's program after every pass.",
        markdown(HEAD, map(row, cases)),
        *reasons,
    ]
    if of_threads:
        words += ["One rank of two workers, against two threads, ms:"]
        words += [markdown("case | overlap | pyfftw | scipy.fft", map(row, of_threads))]
    return "\n\n".join(words)


PAGE = Page(__doc__, measure, row=row, text=text, here=here, ranks=None, links=(), rounds=5, quick={"rounds": 2})
PAGE.add("--passes", type=count, default=2)
PAGE.add("--only", type=count, nargs="+", help=f"cases, 1 to {len(CASES)}")

if __name__ == "__main__":
    sys.exit(PAGE.run())
