"""Forward and backward transforms of a field on shared memory and links, beside C, T, mpi4py-fft and dtFFT.

    python bench/directions.py [--n 256] [--links shm 4gbit 2gbit] [--dtypes c16 f8] [--rounds N] [--json FILE]
        [--out FILE.md]

Starts its own ranks, each pinned to a core. Each of forward and backward in turns: without overlap (`off`), as the plan
settles by itself (`auto`), its computing and its exchanges alone (C and T, of these settings), and the transforms of
mpi4py-fft and dtFFT, each with its fastest of some settings, where they are installed. Medians over the rounds of the
slowest rank. ``t_over`` is ``auto`` over C + T on shared memory and over max(C, T) on links; ``gain`` is ``off`` over
``auto``, ``mpi4py_fft_gain`` and ``dtfft_gain`` their times over ``auto``.

dtFFT (PyPI: dtfft-fftw-mpich) is linked to MPICH's Fortran library, which the wheel mpich lacks, and to FFTW: both must
be on LD_LIBRARY_PATH. Its spectra lie in transposed order, ours in natural order.
"""

import argparse
import sys
from contextlib import ExitStack
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from time import perf_counter

from recording import Recording

from overlap import files
from overlap.tools import launch
from overlap.tools.bench.table import markdown

TRIALS = 3  # calls by which the fastest of a peer's settings is found
MPI4PY_FFT = (
    {"backend": "fftw"},
    {"backend": "fftw", "slab": True},
    {"backend": "fftw", "grid": (-1,)},
    {"backend": "numpy"},
)
DTFFT = (  # ways to exchange; those by remote memory access are slower over TCP, and not all MPI libraries have them
    "MPI_DATATYPE",
    "MPI_P2P",
    "MPI_P2P_PIPELINED",
    "MPI_P2P_SCHEDULED",
    "MPI_P2P_FUSED",
    "MPI_A2A",
)


# ---- on the ranks --------------------------------------------------------------------------------


def mpi4py_fft(comm, shape, dtype, forward):
    """Calls of mpi4py-fft, unscaled, one for each of its settings, or none."""
    import numpy as np

    try:
        from mpi4py_fft import PFFT
    except ImportError:
        return
    for options in MPI4PY_FFT:
        extra = {"planner_effort": "FFTW_MEASURE"} if options["backend"] == "fftw" else {}
        plan = PFFT(comm, shape, dtype=np.dtype(dtype), **options, **extra)
        transform = plan.forward if forward else plan.backward
        transform.input_array[...] = 0
        yield partial(transform, normalize=False)


def dtfft(comm, shape, dtype, forward):
    """Calls of dtFFT, one for each of its settings, or none."""
    try:
        import dtfft
    except ImportError:
        return
    kind = dtfft.PlanC2C if dtype == "c16" else dtfft.PlanR2C
    for name in DTFFT:
        config = dtfft.Config(backend=getattr(dtfft.Backend, name))
        plan = kind(list(shape[::-1]), comm=comm, executor=dtfft.Executor.FFTW3, config=config)
        field, spectrum, aux = (plan.get_ndarray(size) for size in (plan.alloc_size,) * 2 + (max(1, plan.aux_size),))
        check(comm, plan, field, spectrum, shape, dtype, dtfft.Execute.FORWARD)
        field[...] = spectrum[...] = 0
        arrays = (field, spectrum) if forward else (spectrum, field)
        way = dtfft.Execute.FORWARD if forward else dtfft.Execute.BACKWARD
        yield partial(plan.execute, *arrays, way, aux)


def check(comm, plan, field, spectrum, shape, dtype, forward):
    """Transform a cosine with dtFFT, which has one mode, and of complex data its opposite."""
    import numpy as np

    starts, counts, _, counts_of_modes, _ = plan.local_sizes  # from the fastest axis on
    axes = [np.arange(start, start + count) for start, count in zip(starts, counts)][::-1]
    phases = [mode * axis / points for mode, axis, points in zip((3, 2, 1), axes, shape)]
    wave = np.cos(2 * np.pi * sum(np.ix_(*phases)))
    field[...] = 0
    field[: wave.size] = wave.reshape(-1)
    plan.execute(field, spectrum, forward)
    modes = np.abs(spectrum.view(complex)[: np.prod(counts_of_modes)])
    one = np.prod(shape) / 2
    total = comm.allreduce(modes.sum()) / one
    largest = comm.allreduce(modes.max(initial=0.0), max) / one
    expected = 2 if dtype == "c16" else 1
    if not (abs(total - expected) < 1e-6 and abs(largest - 1) < 1e-12):
        raise RuntimeError(f"dtFFT: expected {expected} mode(s) of 1, received {total} in all, the largest {largest}")


def fastest(comm, calls):
    """The fastest of some calls, or None."""
    seconds = [(min(timed(comm, call) for _ in range(TRIALS)), number, call) for number, call in enumerate(calls)]
    return min(seconds)[2] if seconds else None


def timed(comm, call):
    """Seconds of a call, the slowest rank's."""
    comm.Barrier()
    started_s = perf_counter()
    call()
    return comm.allreduce(perf_counter() - started_s, max)


def measure(comm, shape, dtype, forward, rounds, link):
    """The record of one direction."""
    import overlap

    with ExitStack() as stack:
        runtime = stack.enter_context(overlap.Runtime(comm))

        def transform_of(**settings):
            plan = stack.enter_context(overlap.FFT3(runtime, shape, dtype, settings=settings))
            sides = [plan.real, plan.spectrum][:: 1 if forward else -1]
            given, out = (side.empty() for side in sides)
            given[...] = 0
            return plan.forward if forward else plan.backward, given, out

        auto, given, out = transform_of()
        auto.settle(given, out=out)
        off, *arrays = transform_of(wait="off")
        columns = {
            "auto_s": lambda: auto(given, out=out),
            "off_s": lambda: off(arrays[0], out=arrays[1]),
            "C_s": lambda: auto.compute(given, out=out),
            "T_s": lambda: auto.communicate(given, out=out),
        }
        for peer in PEERS:
            call = fastest(comm, peer(comm, shape, dtype, forward))
            if call is not None:
                columns[f"{peer.__name__}_s"] = call
        seconds = {name: [] for name in columns}
        for number in range(rounds + 1):
            for name, call in columns.items():
                value = timed(comm, call)
                if number:
                    seconds[name].append(value)
        found = {name: median(values) for name, values in seconds.items()}
        record = {
            "case": f"FFT3 {shape[0]}^3 {dtype} {'forward' if forward else 'backward'}",
            "n": shape[0],
            "link": link,
            "ranks": comm.size,
            "dtype": dtype,
            "direction": "forward" if forward else "backward",
            "settings": str(auto.settings),
            **found,
        }
    ideal_s = found["C_s"] + found["T_s"] if link == "shm" else max(found["C_s"], found["T_s"])
    record |= {"t_over": found["auto_s"] / ideal_s, "gain": found["off_s"] / found["auto_s"]}
    for peer in PEERS:
        if (seconds_of := found.get(f"{peer.__name__}_s")) is not None:
            record[f"{peer.__name__}_gain"] = seconds_of / found["auto_s"]
    return record


PEERS = mpi4py_fft, dtfft


def on_ranks(options):
    """Measure all cases of a link."""
    import mpi4py

    mpi4py.rc.thread_level = "serialized"
    from mpi4py import MPI

    for n, dtype, forward in product(options.n, options.dtypes, (True, False)):
        record = measure(MPI.COMM_WORLD, (n,) * 3, dtype, forward, options.rounds, options.on)
        if MPI.COMM_WORLD.rank == 0:
            launch.tell(record)


# ---- here ----------------------------------------------------------------------------------------


def line(record):
    """A record as a line of text."""
    ideal = "C + T" if record["link"] == "shm" else "max(C, T)"
    times = ", ".join(f"{name} {1e3 * record[f'{name}_s']:.1f}" for name in ("C", "T", "off", "auto"))
    gains = "".join(
        f", {words} {1e3 * record[f'{name}_s']:.1f}: {record[f'{name}_gain']:.2f}x"
        for name, words in (("mpi4py_fft", "mpi4py-fft"), ("dtfft", "dtFFT"))
        if f"{name}_s" in record
    )
    return (
        f"{record['case']:24} {record['link']:6} ms: {times}: {record['t_over']:.2f} {ideal}, gain "
        f"{record['gain']:.2f}x{gains}; {record['settings']}"
    )


HEAD = "", "between the ranks", "C", "T", "no overlap", "overlap", "overlap / ideal", "mpi4py-fft", "dtFFT"


def row(record):
    """A record as a row of a table: ms, and other libraries' times over ours."""

    def ms(name):
        seconds = record.get(f"{name}_s")
        return "" if seconds is None else f"{1e3 * seconds:.3g}"

    kind = {"c16": "complex", "f8": "real"}[record["dtype"]]
    return (
        f"{record['n']}^3 {kind}, {record['direction']}",
        "shared memory" if record["link"] == "shm" else record["link"].replace("gbit", " Gbit/s"),
        *map(ms, ("C", "T", "off", "auto")),
        f"{record['t_over']:.2f}",
        *(f"{ms(name)}: {record[f'{name}_gain']:.2f}x" if ms(name) else "" for name in ("mpi4py_fft", "dtfft")),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, nargs="+", default=[256], help="points along each axis, one or several")
    parser.add_argument("--links", nargs="+", default=["shm", "4gbit", "2gbit"], help="shm, or rates")
    parser.add_argument("--dtypes", nargs="+", default=["c16", "f8"])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", metavar="FILE", type=Path)
    parser.add_argument("--out", metavar="FILE.md", help="write the records as a table, too")
    parser.add_argument("--on", default="shm", help=argparse.SUPPRESS)  # the link that the ranks are on
    options = parser.parse_args()
    if launch.under_mpi():
        on_ranks(options)
        return 0
    recording = Recording(line)
    for link in options.links:
        if status := recording.run("--on", link, ranks=options.ranks, link=None if link == "shm" else link):
            return status
    recording.write(options.json, options.rounds)
    if options.out:
        columns = zip(HEAD, *map(row, recording.records))
        head, *rows = zip(*(column for column in columns if any(column[1:])))
        files.write(options.out, markdown(head, rows) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
