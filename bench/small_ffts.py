"""Small transforms beside other libraries: a field of 16^3 to 128^3, one plane of 32^2 to 512^2.

    python bench/small_ffts.py [--ranks 1 2] [--rounds N] [--only WORD ...] [--install] [--json FILE] [--quick]

Starts its own ranks, each pinned to a core, with one thread each. c2c and r2c, forward and backward, of one field or
plane, from one array to another, each library in turns with the others: the median over the rounds of the slowest
rank's time per call. Nobody scales. Of this library, the plans as they come (`--effort`) and settle in their first
calls, a function of `overlap.fft` ("function", with a new result each time), and the drop-in for mpi4py-fft
("drop_in"). Beside them:

* mpi4py-fft, on arrays of its own, the fastest of its settings (backend, collapse, slab or its default grid),
  FFTW_MEASURE;
* on one rank `scipy.fft` with one thread, and pyfftw: one plan of all axes, FFTW_MEASURE, executed on its own arrays.

``ratio`` is the fastest other library's time over ours: above 1 ours is faster. Results are compared with NumPy's
first. What is timed are zeros: a transform to real numbers may destroy its input, and unscaled ones would
overflow.
"""

import argparse
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from pathlib import Path
from statistics import median
from time import perf_counter

from peers import install
from recording import Recording

from overlap.tools import launch

FIELDS = (16, 24, 32, 48, 64, 96, 128)
PLANES = (32, 64, 128, 256, 512)
ROUND_S = 4e-3  # about, of the calls of one library in a round
SETTLED = 200  # calls after which every side has made its plans
OURS = ("ours", "function", "drop_in")
PEERS = {  # settings of mpi4py-fft, for fields and for planes
    3: (
        {"backend": "fftw"},
        {"backend": "fftw", "slab": True},
        {"backend": "fftw", "collapse": True},
        {"backend": "fftw", "slab": True, "collapse": True},
        {"backend": "numpy"},
    ),
    2: ({"backend": "fftw"}, {"backend": "fftw", "collapse": True}, {"backend": "numpy"}),
}


@dataclass(frozen=True)
class Case:
    """One transform: "c2c" or "r2c", of a grid of so many points."""

    shape: tuple[int, ...]
    kind: str
    forward: bool

    @property
    def dtype(self):
        return "c16" if self.kind == "c2c" else "f8"

    @property
    def function(self):
        """Its name in `scipy.fft` and `overlap.fft`."""
        return {"c2c": "fftn" if self.forward else "ifftn", "r2c": "rfftn" if self.forward else "irfftn"}[self.kind]

    def __str__(self):
        plan = "FFT3" if len(self.shape) == 3 else "FFT2"
        return f"{plan} {self.shape[0]}^{len(self.shape)} {self.kind} {'forward' if self.forward else 'backward'}"


CASES = [
    Case((n,) * dimensions, kind, forward)
    for dimensions, lengths in ((3, FIELDS), (2, PLANES))
    for n in lengths
    for kind in ("c2c", "r2c")
    for forward in (True, False)
]


# ---- on the ranks --------------------------------------------------------------------------------


class Side:
    """One library's transform of a case: arrays of this rank, where they lie, and the call."""

    def __init__(self, given, result, places, call, close=None):
        self.given, self.result, self.places, self.call = given, result, places, call
        self.close = close or (lambda: None)

    def error(self, case, data, expected):
        """The largest error relative to the largest value, and zeros from then on."""
        import numpy as np

        self.given[...] = data[self.places[0]]
        found = self.call()
        worst = np.abs((self.result if found is None else found) - expected[self.places[1]]).max(initial=0.0)
        self.given[...] = 0
        return worst / np.abs(expected).max()


def ours(comm, case, stack, effort):
    """This library's, {name: Side}, when the first calls have found the settings."""
    import overlap
    import overlap.fft
    from overlap.compat import mpi4py_fft

    runtime = stack.enter_context(overlap.Runtime(comm))
    norm = "backward" if case.forward else "forward"
    plan = stack.enter_context(
        (overlap.FFT3 if len(case.shape) == 3 else overlap.FFT2)(
            runtime, case.shape, case.dtype, norm=norm, settings={"effort": effort}
        )
    )
    sides = [plan.real, plan.spectrum][:: 1 if case.forward else -1]
    transform = plan.forward if case.forward else plan.backward
    given, result = (side.empty() for side in sides)
    places = [side.local_slice for side in sides]
    function = getattr(overlap.fft, case.function)
    copied = given.copy()
    drop_in = mpi4py_fft.PFFT(comm, case.shape, dtype=case.dtype)
    arrays = [
        mpi4py_fft.newDistArray(drop_in, forward_output=spectral) for spectral in (not case.forward, case.forward)
    ]
    their_places = [drop_in.local_slice(spectral) for spectral in (not case.forward, case.forward)]
    theirs = drop_in.forward if case.forward else drop_in.backward
    given[...] = copied[...] = 0
    found = {
        "ours": Side(given, result, places, lambda: transform(given, out=result)),
        "function": Side(copied, None, places, lambda: function(copied, norm=norm), overlap.fft.close_plans),
        "drop_in": Side(*arrays, their_places, lambda: theirs(*arrays, normalize=False), drop_in.destroy),
    }
    transform.settle(given, out=result)
    for side in found.values():
        for _ in range(SETTLED):
            side.call()
    return found


def peers(comm, case):
    """The other libraries', {name: Side}."""
    import numpy as np

    found = {}
    axes = tuple(range(len(case.shape)))
    if comm.size == 1:
        import pyfftw
        import scipy.fft

        modes = case.shape if case.kind == "c2c" else (*case.shape[:-1], case.shape[-1] // 2 + 1)
        shapes = [(case.shape, np.dtype(case.dtype)), (modes, np.dtype("c16"))][:: 1 if case.forward else -1]
        whole = [slice(None)] * 2
        given, result = (pyfftw.zeros_aligned(*one) for one in shapes)
        function, norm = getattr(scipy.fft, case.function), "backward" if case.forward else "forward"
        found["scipy"] = Side(
            given,
            result,
            whole,
            (lambda: function(given, norm=norm))
            if case.function != "irfftn"
            else (lambda: function(given, case.shape, norm=norm)),
        )
        source, target = (pyfftw.zeros_aligned(*one) for one in shapes)
        plan = pyfftw.FFTW(
            source,
            target,
            axes=axes,
            flags=("FFTW_MEASURE",),
            direction="FFTW_FORWARD" if case.forward else "FFTW_BACKWARD",
        )
        found["pyfftw"] = Side(source, target, whole, plan.execute)
    try:
        from mpi4py_fft import PFFT
    except ImportError:
        return found
    for number, options in enumerate(PEERS[len(case.shape)]):
        extra = {} if options["backend"] == "numpy" else {"planner_effort": "FFTW_MEASURE"}
        try:
            plan = PFFT(comm, case.shape, dtype=np.dtype(case.dtype), **options, **extra)
        except Exception as error:  # whatever a backend raises, the others may work
            print(f"{case}: mpi4py-fft {options}: {error}", file=sys.stderr)
            continue
        transform, places = (
            plan.forward if case.forward else plan.backward,
            [plan.local_slice(False), plan.local_slice(True)],
        )
        found[f"mpi4py-fft {number}"] = Side(
            transform.input_array,
            transform.output_array,
            places[:: 1 if case.forward else -1],
            lambda transform=transform: transform(normalize=False),
            plan.destroy,
        )
    return found


def truth(case):
    """What goes in and what comes out, globally, by NumPy."""
    import numpy as np

    rng = np.random.default_rng(1)
    u = rng.standard_normal(case.shape)
    if case.kind == "c2c":
        u = u + 1j * rng.standard_normal(case.shape)
    modes = (np.fft.fftn if case.kind == "c2c" else np.fft.rfftn)(u)
    return (u, modes) if case.forward else (modes, u * prod(case.shape))


def measure(comm, case, rounds, effort):
    """Seconds per call of every library, {name: median}, the slowest rank's."""
    data, expected = truth(case)
    with ExitStack() as stack:
        sides = ours(comm, case, stack, effort) | peers(comm, case)
        calls = {}
        for name, side in sides.items():
            worst = comm.allreduce(side.error(case, data, expected), max)
            if not worst < 1e-13:
                raise RuntimeError(f"{case}, {name}: expected NumPy's result, received an error of {worst:.1e}")
            calls[name] = max(1, int(ROUND_S / timed(comm, side.call, 3)))
        seconds = {name: [] for name in sides}
        for number in range(rounds):
            names = list(sides)
            for name in names[number % len(names) :] + names[: number % len(names)]:
                seconds[name].append(timed(comm, sides[name].call, calls[name]))
        for side in sides.values():
            side.close()
    return {name: median(values) for name, values in seconds.items()}


def timed(comm, call, calls):
    """Seconds per call of the slowest rank."""
    call()
    comm.Barrier()
    started_s = perf_counter()
    for _ in range(calls):
        call()
    return comm.allreduce(perf_counter() - started_s, max) / calls


def on_ranks(options):
    """Measure all cases, and hand the records over."""
    import mpi4py

    mpi4py.rc.thread_level = "serialized"
    from mpi4py import MPI

    comm = MPI.COMM_WORLD.Dup()
    for case in CASES:
        if not any(word in str(case) for word in options.only):
            continue
        found = measure(comm, case, options.rounds, options.effort)
        mine = {name: found.pop(name) for name in OURS}
        mpi4py_fft = [name for name in found if name.startswith("mpi4py-fft")]
        others = {name: value for name, value in found.items() if name not in mpi4py_fft}
        if mpi4py_fft:
            others["mpi4py_fft"] = min(found[name] for name in mpi4py_fft)
        if comm.rank == 0:
            launch.tell(
                {
                    "case": str(case),
                    "shape": case.shape,
                    "kind": case.kind,
                    "ranks": comm.size,
                    "direction": "forward" if case.forward else "backward",
                    **{f"{name}_us": 1e6 * value for name, value in (mine | others).items()},
                    "ratio": min(others.values()) / mine["ours"] if others else None,
                }
            )
    comm.Free()


# ---- here ----------------------------------------------------------------------------------------


def line(record):
    """A record as a line of text."""
    cells = [
        f"{name[:-3]} {record[name]:9.1f}"
        for name in (*(f"{name}_us" for name in OURS), "mpi4py_fft_us", "pyfftw_us", "scipy_us")
        if name in record
    ]
    ratio = "-" if record["ratio"] is None else f"{record['ratio']:.2f}"
    return f"{record['case']:26} {record['ranks']} rank(s), us: {', '.join(cells)}; ratio {ratio}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument(
        "--only", nargs="*", default=[""], metavar="WORD", help="only cases whose name contains one of these words"
    )
    parser.add_argument(
        "--effort", choices=("estimate", "measure", "patient"), help="of this library's plans; default: as they come"
    )
    parser.add_argument("--install", action="store_true", help="pip-install mpi4py-fft if missing")
    parser.add_argument("--json", metavar="FILE", type=Path)
    parser.add_argument("--quick", action="store_true", help="only to see it work")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.only = 1, ["16^3", "32^2"]
    if launch.under_mpi():
        on_ranks(options)
        return 0
    if options.install:
        install()
    recording = Recording(line)
    for ranks in options.ranks:
        if status := recording.run(ranks=ranks):
            return status
    recording.write(options.json, options.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
