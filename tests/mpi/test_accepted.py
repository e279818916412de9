"""Which arrays are taken as input."""

import warnings
from pathlib import Path

import numpy as np
from everywhere import raises_everywhere, same_everywhere
from marks import exhaustive, on_ranks

import overlap
import overlap.fft
from overlap import Blocks, Halo, InputError
from overlap.compat.mpi4py_fft import PFFT
from overlap.sparse import Matrix, cg, gmres

PAGE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "inputs.md"
SHAPE, QUICK = (6, 6, 8), {"effort": "estimate", "wait": "off"}
TYPES = ("f2", "f4", "f8", "g", "c8", "c16", "G", "i4", "u8", "?", "O", "U4", ">f4", ">f8", ">c16")
MADE = {
    "every second element": lambda array: np.repeat(array, 2, -1)[..., ::2],
    "in Fortran's order": np.asfortranarray,
    "read-only": lambda array: [array := array.copy(), array.setflags(write=False)][0],
    "masked": np.ma.masked_array,
    "a list": np.ndarray.tolist,
}
ROWS = {**{f"`{kind}`": lambda array, kind=kind: typed(array, kind) for kind in TYPES}, **MADE}


def typed(array, kind):
    return array.astype(int).astype(kind) if kind == "U4" else array.astype(kind)


def outcome(call, given, right, computed=lambda dtype: dtype):
    """What becomes of an array: "as it is", the type that it is converted to, or "refused"."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", np.exceptions.ComplexWarning)
        try:
            found = np.asarray(call(given))
        except InputError:
            return "refused"
    np.testing.assert_allclose(found, right, rtol=2e-3, atol=2e-3)
    dtype = computed(found.dtype)
    if isinstance(given, np.ndarray) and given.dtype == dtype:
        return "as it is"
    return f"`{dtype.kind}{dtype.itemsize}`" + ", with a warning" * bool(warned)


def real_like(given):
    """Compare types of spectra with real arrays: those of their real parts."""
    kind = np.asarray(given).dtype.kind
    return lambda dtype: dtype if kind == "c" else np.empty(0, dtype).real.dtype


def one_of(outcomes):
    """The outcome of several calls that do the same."""
    assert len(set(outcomes)) == 1, outcomes
    return outcomes[0]


class Calls:
    """Everything that takes arrays, by the table's columns: ``call(make)`` gives an outcome."""

    def __init__(self, comm):
        self.comm = comm
        whole = self.whole = np.random.default_rng(0).integers(0, 2, SHAPE).astype(float)
        self.plans = [
            overlap.FFT2(comm, SHAPE, "f8", settings=QUICK),
            overlap.FFT3(comm, SHAPE, "f8", settings=QUICK),
            overlap.FFTN(comm, SHAPE, "f8", axes=(0, 1, 2), settings=QUICK),
        ]
        self.drop_in = PFFT(comm, SHAPE, dtype="d", planner_effort="FFTW_ESTIMATE", wait="off")
        self.blocks = Blocks((6, 8), (comm.size, 1))
        self.halo = Halo(comm, self.blocks)
        self.dense = 4 * np.eye(6) - np.eye(6, k=1) - np.eye(6, k=-1)
        self.part = slice(comm.rank * 6 // comm.size, (comm.rank + 1) * 6 // comm.size)
        self.x = whole[0, :, 0]
        self.matrix = self.made(self.entries()[2])

    def entries(self):
        rows, columns = (self.dense[self.part] != 0).nonzero()
        return rows + self.part.start, columns, self.dense[self.part][rows, columns]

    def made(self, values):
        return Matrix(self.comm, *self.entries()[:2], values, self.part.stop - self.part.start)

    def end(self):
        self.matrix.free()
        self.halo.free()
        self.drop_in.destroy()
        for plan in self.plans:
            plan.close()
        overlap.fft.close_plans()

    def plan(self, make):
        outcomes = []
        for plan in self.plans:
            local = np.ascontiguousarray(self.whole[plan.real.local_slice])
            right = np.array(plan.forward(local))
            given = make(local)
            outcomes.append(outcome(plan.forward, given, right, real_like(given)))
            if make not in MADE.values() and given.dtype.kind == "c":
                back = outcome(plan.backward, make(right), local, lambda _: np.dtype("c16"))
                assert back == ("as it is" if given.dtype == np.dtype("c16") else "refused"), (given.dtype, back)
        return one_of(outcomes)

    def function(self, make):
        given = make(self.whole[self.part])
        where = overlap.fft.fftn(self.whole[self.part], self.comm).local_slice
        return outcome(
            lambda x: overlap.fft.fftn(x, self.comm), given, np.fft.fftn(self.whole)[where], real_like(given)
        )

    def mpi4py_fft(self, make):
        local = self.whole[self.drop_in.local_slice(False)]
        right = np.array(self.drop_in.forward(local))
        return outcome(self.drop_in.forward, make(local), right, lambda dtype: np.empty(0, dtype).real.dtype)

    def ghosts(self, make):
        local = np.zeros(self.blocks.local_shape(self.comm.rank))
        return outcome(lambda x: [self.halo.exchange(x), x][1], make(local), local)

    def values(self, make):
        def product(values):
            with self.made(values) as A:
                return A @ self.x[self.part].astype(A.dtype)

        given = make(np.abs(self.entries()[2]))
        right = (np.abs(self.dense) @ self.x)[self.part]
        if isinstance(given, np.ndarray) and given.dtype.kind == "b":
            right = ((self.dense != 0) @ self.x)[self.part]
        return outcome(product, given, right)

    def product(self, make):
        return outcome(lambda x: self.matrix @ x, make(self.x[self.part]), (self.dense @ self.x)[self.part])

    def solver(self, make):
        right = np.linalg.solve(self.dense, self.x)[self.part]
        b = self.x[self.part]
        outcomes = [outcome(lambda b: solve(self.matrix, b).x, make(b), right) for solve in (cg, gmres)]
        return one_of([*outcomes, outcome(lambda x0: cg(self.matrix, b, x0).x, make(b), right)])

    def filled(self, make):
        outcomes = []
        for plan in self.plans:
            local = self.whole[plan.real.local_slice]
            outcomes.append(outcome(plan.real.scatter, make(self.whole), local))
            outcomes.append(outcome(lambda given: plan.real.from_function(lambda *_: given), make(local), local))
        return one_of(outcomes)


def table():
    """The rows of the page's table: outcomes by what is given."""
    text = PAGE.read_text().split("## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("| ")][1:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {name: outcomes for name, *outcomes in cells}


@on_ranks(1, 2, exhaustive(3), exhaustive("openmpi-2"))
def test_as_the_page_says(comm):
    """Every combination gives what the table says, on all ranks."""
    calls = Calls(comm)
    columns = (
        calls.plan,
        calls.function,
        calls.mpi4py_fft,
        calls.ghosts,
        calls.values,
        calls.product,
        calls.solver,
        calls.filled,
    )
    found = {name: [one(make) for one in columns] for name, make in ROWS.items()}
    same_everywhere(comm, found)
    calls.end()
    lines = "\n".join(f"| {' | '.join([name, *cells])} |" for name, cells in found.items())
    assert found == table(), f"the page has another table than\n{lines}"


@on_ranks(1, 2, exhaustive(3), exhaustive("openmpi-2"))
def test_refused_alike(comm):
    """Objects and masks are one error on all ranks wherever arrays are sent or reduced."""
    where = overlap.arrays.Distribution((6, 4), (0,), ()).split_along((0,), (comm.size,), comm.rank)

    def made(kind):
        return overlap.DistArray(np.ones(where.shape).astype(kind), comm, (6, 4), (0,), where.local_slice)

    for kind in ("O", "U4"):
        u = made(kind)
        calls = [u.global_sum, u.global_mean, u.global_max, u.global_norm, lambda: u.global_vdot(u)]
        if kind == "O":
            calls += [lambda: u.redistribute(1), lambda: u.save("never.h5"), lambda: overlap.Protected(u, copies=0)]
        for call in calls:
            raises_everywhere(comm, InputError, "", call)
    v = made("U4").redistribute(1)
    assert (np.asarray(v) == "1.0").all()
