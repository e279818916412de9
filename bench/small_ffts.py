"""Small transforms beside other libraries: a field of 16^3 to 128^3, one plane of 32^2 to 512^2.

    python bench/small_ffts.py [--ranks 1 2] [--rounds N] [--only WORD ...] [--json FILE] [--quick]

c2c and r2c, forward and backward, of one field or plane, from one array to another, one thread a rank, each library in
turns with the others: the median over the rounds of the slowest rank's time per call. Nobody scales. Of this library,
the plans as they come (`--effort`) and settle in their first calls, a function of `overlap.fft` ("function", with a new
result each time), and the drop-in for mpi4py-fft ("drop_in"). Beside them, if installed:

* mpi4py-fft, on arrays of its own, the fastest of its settings (backend, collapse, slab or its default grid),
  FFTW_MEASURE;
* on one rank `scipy.fft` with one thread, and pyfftw: one plan of all axes, FFTW_MEASURE, executed on its own arrays.

``ratio`` is the fastest other library's time over ours: above 1 ours is faster. Results are compared with NumPy's
first. What is timed are zeros: a transform to real numbers may destroy its input, and unscaled ones would
overflow.
"""

import sys
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import prod

import numpy as np

import overlap
import overlap.fft
from overlap.compat import mpi4py_fft
from overlap.tools.bench.pages import Page
from overlap.tools.bench.rounds import medians, seconds_of, timed

FIELDS, PLANES = (16, 24, 32, 48, 64, 96, 128), (32, 64, 128, 256, 512)
ROUND_S = 4e-3  # about, of the calls of one library in a round
SETTLED = 200  # calls after which every side has made its plans
OURS = ("ours", "function", "drop_in")
FFTW = {"backend": "fftw", "planner_effort": "FFTW_MEASURE"}
PEERS = {  # settings of mpi4py-fft, for fields and for planes
    3: (FFTW, FFTW | {"slab": True}, FFTW | {"collapse": True}, FFTW | {"slab": True, "collapse": True}),
    2: (FFTW, FFTW | {"collapse": True}),
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

    def ordered(self, real, spectral):
        """What goes in, and what comes out."""
        return (real, spectral) if self.forward else (spectral, real)

    def __str__(self):
        plan = "FFT3" if len(self.shape) == 3 else "FFT2"
        return f"{plan} {self.shape[0]}^{len(self.shape)} {self.kind} {'forward' if self.forward else 'backward'}"


CASES = [
    Case((n,) * dimensions, kind, forward)
    for dimensions, lengths in ((3, FIELDS), (2, PLANES))
    for n, kind, forward in product(lengths, ("c2c", "r2c"), (True, False))
]


class Side:
    """One library's transform of a case: arrays of this rank, where they lie, and the call."""

    def __init__(self, arrays, places, call, close=lambda: None):
        self.given, self.result, self.places, self.call, self.close = *arrays, places, call, close

    def error(self, data, expected):
        """The largest error relative to the largest value, and zeros from then on."""
        self.given[...] = data[self.places[0]]
        found = self.call()
        worst = np.abs((self.result if found is None else found) - expected[self.places[1]]).max(initial=0.0)
        self.given[...] = 0
        return worst / np.abs(expected).max()


def ours(comm, case, stack, effort):
    """This library's, {name: Side}, when the first calls have found the settings."""
    runtime, norm = stack.enter_context(overlap.Runtime(comm)), "backward" if case.forward else "forward"
    make = overlap.FFT3 if len(case.shape) == 3 else overlap.FFT2
    plan = stack.enter_context(make(runtime, case.shape, case.dtype, norm=norm, settings={"effort": effort}))
    sides = case.ordered(plan.real, plan.spectrum)
    transform = plan.forward if case.forward else plan.backward
    given, result = (side.empty() for side in sides)
    places = [side.local_slice for side in sides]
    given[...] = 0
    copied = given.copy()
    function = partial(getattr(overlap.fft, case.function), copied, norm=norm)
    drop_in = mpi4py_fft.PFFT(comm, case.shape, dtype=case.dtype)
    arrays = case.ordered(*(mpi4py_fft.newDistArray(drop_in, forward_output=spectral) for spectral in (False, True)))
    found = {
        "ours": Side((given, result), places, partial(transform, given, out=result)),
        "function": Side((copied, None), places, function, overlap.fft.close_plans),
        "drop_in": of_mpi4py_fft(drop_in, case, arrays, arrays),
    }
    transform.settle(given, out=result)
    for side in found.values():
        for _ in range(SETTLED):
            side.call()
    return found


def of_mpi4py_fft(plan, case, arrays, given):
    """A side of a plan of mpi4py-fft, or of the drop-in."""
    call = partial(plan.forward if case.forward else plan.backward, *given, normalize=False)
    return Side(arrays, case.ordered(plan.local_slice(False), plan.local_slice(True)), call, plan.destroy)


def peers(comm, case):
    """The other libraries', {name: Side}."""
    found = {}
    if comm.size == 1:
        import pyfftw
        import scipy.fft

        modes = case.shape if case.kind == "c2c" else (*case.shape[:-1], case.shape[-1] // 2 + 1)
        sizes = case.ordered((case.shape, case.dtype), (modes, "c16"))
        whole, norm = [slice(None)] * 2, "backward" if case.forward else "forward"
        arrays, fftw_arrays = ([pyfftw.zeros_aligned(*one) for one in sizes] for _ in range(2))
        more = () if case.function != "irfftn" else (case.shape,)
        found["scipy"] = Side(arrays, whole, partial(getattr(scipy.fft, case.function), arrays[0], *more, norm=norm))
        found["pyfftw"] = Side(
            fftw_arrays,
            whole,
            pyfftw.FFTW(
                *fftw_arrays,
                axes=tuple(range(len(case.shape))),
                flags=("FFTW_MEASURE",),
                direction="FFTW_FORWARD" if case.forward else "FFTW_BACKWARD",
            ).execute,
        )
    try:
        from mpi4py_fft import PFFT
    except ImportError:
        return found
    for number, options in enumerate((*PEERS[len(case.shape)], {"backend": "numpy"})):
        try:
            plan = PFFT(comm, case.shape, dtype=np.dtype(case.dtype), **options)
        except Exception as error:  # whatever a backend raises, the others may work
            print(f"{case}: mpi4py-fft {options}: {error}", file=sys.stderr)
            continue
        transform = plan.forward if case.forward else plan.backward
        found[f"mpi4py-fft {number}"] = of_mpi4py_fft(plan, case, (transform.input_array, transform.output_array), ())
    return found


def truth(case):
    """What goes in and what comes out, globally, by NumPy."""
    rng = np.random.default_rng(1)
    u = rng.standard_normal(case.shape)
    if case.kind == "c2c":
        u = u + 1j * rng.standard_normal(case.shape)
    modes = (np.fft.fftn if case.kind == "c2c" else np.fft.rfftn)(u)
    return (u, modes) if case.forward else (modes, u * prod(case.shape))


def seconds(comm, case, rounds, effort):
    """Seconds per call of every library, {name: median}, the slowest rank's."""
    data, expected = truth(case)
    with ExitStack() as stack:
        sides, calls = ours(comm, case, stack, effort) | peers(comm, case), {}
        for name, side in sides.items():
            worst = comm.allreduce(side.error(data, expected), max)
            if not worst < 1e-13:
                raise RuntimeError(f"{case}, {name}: expected NumPy's result, received an error of {worst:.1e}")
            calls[name] = max(1, int(ROUND_S / timed(comm, side.call, 3)))
        found = seconds_of(comm, {name: side.call for name, side in sides.items()}, rounds, calls=calls)
        for side in sides.values():
            side.close()
    return medians(found)


def measure(world, given):
    """The records of all cases."""
    comm = world.Dup()
    for case in CASES:
        if not any(word in str(case) for word in given.only):
            continue
        found = seconds(comm, case, given.rounds, given.effort)
        mpi4py_fft = [found.pop(name) for name in list(found) if name.startswith("mpi4py-fft")]
        found |= {"mpi4py_fft": min(mpi4py_fft)} if mpi4py_fft else {}
        others = [value for name, value in found.items() if name not in OURS]
        yield {
            "case": str(case),
            "shape": case.shape,
            "kind": case.kind,
            "direction": "forward" if case.forward else "backward",
            **{f"{name}_us": 1e6 * value for name, value in found.items()},
            "ratio": min(others) / found["ours"] if others else None,
        }
    comm.Free()


PAGE = Page(__doc__, measure, ranks=(1, 2), rounds=11, quick={"rounds": 1, "only": ["16^3", "32^2"]})
PAGE.add("--only", nargs="*", default=[""], metavar="WORD", help="only cases whose name contains one of these words")
PAGE.add("--effort", choices=("estimate", "measure", "patient"), help="of this library's plans; default: as they come")

if __name__ == "__main__":
    sys.exit(PAGE.run())
