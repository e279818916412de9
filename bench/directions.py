"""Forward and backward transforms of a field on shared memory and links, beside C, T, mpi4py-fft and dtFFT.

    python bench/directions.py [--n 256] [--links shm 4gbit 2gbit] [--dtypes c16 f8] [--rounds N] [--json FILE]
        [--out FILE.md]

Each of forward and backward in turns: without overlap (`off`), as the plan settles by itself (`auto`), its computing
and its exchanges alone (C and T, of these settings), and the transforms of mpi4py-fft and dtFFT, each with its fastest
of some settings, where they are installed. Medians over the rounds of the slowest rank. ``t_over`` is ``auto`` over
C + T on shared memory and over max(C, T) on links; ``gain`` is ``off`` over ``auto``, ``mpi4py_fft_gain`` and
``dtfft_gain`` their times over ``auto``.

dtFFT (PyPI: dtfft-fftw-mpich) is linked to MPICH's Fortran library, which the wheel mpich lacks, and to FFTW: both must
be on LD_LIBRARY_PATH. Its spectra lie in transposed order, ours in natural order.
"""

import sys
from contextlib import ExitStack
from functools import partial
from itertools import product

import numpy as np

import overlap
from overlap.tools.bench import peer
from overlap.tools.bench.pages import Page
from overlap.tools.bench.rounds import fastest, medians, seconds_of
from overlap.tools.bench.table import markdown, place

# Ways to exchange; those by remote memory access are slower over TCP, and not all MPI libraries have them.
DTFFT = ("DATATYPE", "P2P", "P2P_PIPELINED", "P2P_SCHEDULED", "P2P_FUSED", "A2A")


def mpi4py_fft(comm, shape, dtype, forward):
    """Calls of mpi4py-fft, unscaled, one for each of its settings, or none."""
    try:
        from mpi4py_fft import PFFT
    except ImportError:
        return
    for options in peer.SETTINGS["fft3"].values():
        plan = PFFT(comm, shape, dtype=np.dtype(dtype), **options)
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
        config = dtfft.Config(backend=getattr(dtfft.Backend, f"MPI_{name}"))
        plan = kind(list(shape[::-1]), comm=comm, executor=dtfft.Executor.FFTW3, config=config)
        field, spectrum, aux = (plan.get_ndarray(size) for size in (plan.alloc_size,) * 2 + (max(1, plan.aux_size),))
        check(comm, plan, field, spectrum, shape, dtype, dtfft.Execute.FORWARD)
        field[...] = spectrum[...] = 0
        arrays = (field, spectrum) if forward else (spectrum, field)
        yield partial(plan.execute, *arrays, dtfft.Execute.FORWARD if forward else dtfft.Execute.BACKWARD, aux)


def check(comm, plan, field, spectrum, shape, dtype, forward):
    """Transform a cosine with dtFFT, which has one mode, and of complex data its opposite."""
    starts, counts, _, counts_of_modes, _ = plan.local_sizes  # from the fastest axis on
    axes = [np.arange(start, start + count) for start, count in zip(starts, counts)][::-1]
    phases = [mode * axis / points for mode, axis, points in zip((3, 2, 1), axes, shape)]
    wave = np.cos(2 * np.pi * sum(np.ix_(*phases)))
    field[...] = 0
    field[: wave.size] = wave.reshape(-1)
    plan.execute(field, spectrum, forward)
    modes = np.abs(spectrum.view(complex)[: np.prod(counts_of_modes)]) / (np.prod(shape) / 2)
    total, largest = comm.allreduce(modes.sum()), comm.allreduce(modes.max(initial=0.0), max)
    expected = 2 if dtype == "c16" else 1
    if not (abs(total - expected) < 1e-6 and abs(largest - 1) < 1e-12):
        raise RuntimeError(f"dtFFT: expected {expected} mode(s) of 1, received {total} in all, the largest {largest}")


PEERS = {"mpi4py_fft": mpi4py_fft, "dtfft": dtfft}


def measure(comm, given):
    """The records of all fields and directions."""
    for n, dtype, forward in product(given.n, given.dtypes, (True, False)):
        shape = (n,) * 3
        with ExitStack() as stack:
            runtime = stack.enter_context(overlap.Runtime(comm))
            sides = []
            for settings in ({}, {"wait": "off"}):
                plan = stack.enter_context(overlap.FFT3(runtime, shape, dtype, settings=settings))
                arrays = [side.empty() for side in (plan.real, plan.spectrum)][:: 1 if forward else -1]
                arrays[0][...] = 0
                sides.append((plan.forward if forward else plan.backward, *arrays))
            (auto, u, out), (off, *others) = sides
            auto.settle(u, out=out)
            columns = {
                "auto_s": partial(auto, u, out=out),
                "off_s": partial(off, others[0], out=others[1]),
                "C_s": partial(auto.compute, u, out=out),
                "T_s": partial(auto.communicate, u, out=out),
            }
            for name, calls_of in PEERS.items():
                if calls := dict(enumerate(calls_of(comm, shape, dtype, forward))):
                    columns[f"{name}_s"] = calls[fastest(comm, calls)]
            found = medians(seconds_of(comm, columns, given.rounds))
            direction, settings = "forward" if forward else "backward", str(auto.settings)
        ideal_s = found["C_s"] + found["T_s"] if given.on == "shm" else max(found["C_s"], found["T_s"])
        names = {"n": n, "dtype": dtype, "direction": direction, "settings": settings}
        over = {f"{name}_gain": found[f"{name}_s"] / found["auto_s"] for name in PEERS if f"{name}_s" in found}
        yield {
            "case": f"FFT3 {n}^3 {dtype} {direction}",
            **names,
            **found,
            "t_over": found["auto_s"] / ideal_s,
            "gain": found["off_s"] / found["auto_s"],
            **over,
        }


def row(record):
    """A record as a row of the table: ms, and other libraries' times over ours."""

    def ms(name):
        seconds = record.get(f"{name}_s")
        return "" if seconds is None else f"{1e3 * seconds:.3g}"

    return (
        f"{record['n']}^3 {'complex' if record['dtype'] == 'c16' else 'real'}, {record['direction']}",
        place(record),
        *map(ms, ("C", "T", "off", "auto")),
        f"{record['t_over']:.2f}",
        *(f"{ms(name)}: {record[f'{name}_gain']:.2f}x" if ms(name) else "" for name in PEERS),
    )


def text(records, given):
    """The table, without columns of libraries that are not there."""
    names = "", "between the ranks", "C", "T", "no overlap", "overlap", "overlap / ideal", "mpi4py-fft", "dtFFT"
    head, *rows = zip(*(column for column in zip(names, *map(row, records)) if any(column[1:])))
    return markdown(head, rows)


PAGE = Page(__doc__, measure, row=row, text=text, links=("shm", "4gbit", "2gbit"), rounds=5)
PAGE.add("--n", type=int, nargs="+", default=[256], help="points along each axis, one or several")
PAGE.add("--dtypes", nargs="+", default=["c16", "f8"])

if __name__ == "__main__":
    sys.exit(PAGE.run())
