"""Forward and backward transforms of a field on shared memory and links, beside C, T and mpi4py-fft.

    python bench/directions.py [--n 256] [--links shm 4gbit 2gbit] [--dtypes c16 f8] [--rounds N] [--json FILE]

Starts its own ranks, each pinned to a core. Each of forward and backward in turns: without overlap (`off`), as the plan
settles by itself (`auto`), its computing and its exchanges alone (C and T, of these settings), and mpi4py-fft's
transform with its fastest of a few settings, where it is installed. Medians over the rounds of the slowest rank.
``t_over`` is ``auto`` over C + T on shared memory and over max(C, T) on links; ``gain`` is ``off`` over ``auto``,
``peer_gain`` mpi4py-fft over ``auto``.
"""

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from time import perf_counter

from recording import Recording

from overlap.tools import launch

SETTLED = 70  # calls in which a plan has found its settings, at most
PEERS = (
    {"backend": "fftw"},
    {"backend": "fftw", "slab": True},
    {"backend": "fftw", "grid": (-1,)},
    {"backend": "numpy"},
)


# ---- on the ranks --------------------------------------------------------------------------------


def peer(comm, shape, dtype, forward):
    """mpi4py-fft's fastest call, unscaled, or None."""
    import numpy as np

    try:
        from mpi4py_fft import PFFT
    except ImportError:
        return None
    calls = []
    for options in PEERS:
        extra = {"planner_effort": "FFTW_MEASURE"} if options["backend"] == "fftw" else {}
        plan = PFFT(comm, shape, dtype=np.dtype(dtype), **options, **extra)
        transform = plan.forward if forward else plan.backward
        transform.input_array[...] = 0
        calls.append((min(timed(comm, lambda: transform(normalize=False)) for _ in range(3)), len(calls), transform))
    _, _, best = min(calls)
    return lambda: best(normalize=False)


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
        for _ in range(SETTLED):
            auto(given, out=out)
            if auto.refinement is None:
                break
        off, *arrays = transform_of(wait="off")
        columns = {
            "auto_s": lambda: auto(given, out=out),
            "off_s": lambda: off(arrays[0], out=arrays[1]),
            "C_s": lambda: auto.compute(given, out=out),
            "T_s": lambda: auto.communicate(given, out=out),
        }
        other = peer(comm, shape, dtype, forward)
        if other is not None:
            columns["mpi4py_fft_s"] = other
        seconds = {name: [] for name in columns}
        for number in range(rounds + 1):
            for name, call in columns.items():
                value = timed(comm, call)
                if number:
                    seconds[name].append(value)
        found = {name: median(values) for name, values in seconds.items()}
        record = {
            "case": f"FFT3 {shape[0]}^3 {dtype} {'forward' if forward else 'backward'}",
            "link": link,
            "ranks": comm.size,
            "dtype": dtype,
            "direction": "forward" if forward else "backward",
            "settings": str(auto.settings),
            **found,
        }
    ideal_s = found["C_s"] + found["T_s"] if link == "shm" else max(found["C_s"], found["T_s"])
    record |= {"t_over": found["auto_s"] / ideal_s, "gain": found["off_s"] / found["auto_s"]}
    if other is not None:
        record["peer_gain"] = found["mpi4py_fft_s"] / found["auto_s"]
    return record


def on_ranks(options):
    """Measure all cases of a link."""
    import mpi4py

    mpi4py.rc.thread_level = "serialized"
    from mpi4py import MPI

    for dtype in options.dtypes:
        for forward in (True, False):
            record = measure(MPI.COMM_WORLD, (options.n,) * 3, dtype, forward, options.rounds, options.on)
            if MPI.COMM_WORLD.rank == 0:
                launch.tell(record)


# ---- here ----------------------------------------------------------------------------------------


def line(record):
    """A record as a line of text."""
    ideal = "C + T" if record["link"] == "shm" else "max(C, T)"
    times = ", ".join(f"{name} {1e3 * record[f'{name}_s']:.1f}" for name in ("C", "T", "off", "auto"))
    peer_gain = (
        f", mpi4py-fft {1e3 * record['mpi4py_fft_s']:.1f}: {record['peer_gain']:.2f}x" if "peer_gain" in record else ""
    )
    return (
        f"{record['case']:24} {record['link']:6} ms: {times}: {record['t_over']:.2f} {ideal}, gain "
        f"{record['gain']:.2f}x{peer_gain}; {record['settings']}"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=256)
    parser.add_argument("--links", nargs="+", default=["shm", "4gbit", "2gbit"], help="shm, or rates")
    parser.add_argument("--dtypes", nargs="+", default=["c16", "f8"])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", metavar="FILE", type=Path)
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
    return 0


if __name__ == "__main__":
    sys.exit(main())
