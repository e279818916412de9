"""What `overlap advise` predicts for programs, beside what the same programs reach with `overlap`.

    python bench/advise.py [--cases NAME ...] [--links shm 2gbit 4gbit] [--rounds 3] [--quick] [--out FILE.md]

Each of `CASES` is written twice: with mpi4py alone, and as a slice program or a plan. The first runs under the command,
which is told the number of slices. Then both are timed, in turns. On shaped links the command gets the description of
`bench/machines`. The two ways give equal results.
"""

import json
import sys
import tempfile
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
from mpi4py import MPI

import overlap
from overlap.tools.bench.pages import Page
from overlap.tools.bench.rounds import turns
from overlap.tools.bench.table import place

MACHINES = Path(__file__).resolve().parent / "machines"
SETTLING = {"mpi4py_fft": 40}  # steps before, in which runtimes (12 steps) and plans compare their settings
SLICES = {"mpi4py_fft": 64, "spectral": 32}  # of the others: 16


def allreduce(comm, rt, n):
    """16 sums over all ranks of what each rank has computed, 256 KiB each."""
    slices = 16
    x = np.random.default_rng(comm.rank).random((slices, n * n // 2))
    a, b = np.empty_like(x), np.empty_like(x)

    def work(source, target):
        np.sin(source, out=target)
        for _ in range(3):
            np.exp(target, out=target)
            np.sin(target, out=target)

    if rt is None:

        def step():
            for i in range(slices):
                work(x[i], a[i])
                comm.Allreduce(a[i], b[i])
                b[i] /= comm.size
    else:

        @rt.pipelined
        async def one(i):
            work(x[i], a[i])
            await rt.comm.Allreduce(a[i], b[i])
            b[i] /= comm.size

        def step():
            one(range(slices))

    return step, b, slices


def halo(comm, rt, n):
    """16 fields, each split over the ranks, of which every step of diffusion needs one row from either neighbour."""
    slices = 16
    u = np.random.default_rng(comm.rank).random((slices, 34, 16 * n))
    below, above = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size

    def scratch():
        return np.empty((32, 16 * n))  # made once: memory that is mapped anew in each step takes longer than the step

    def diffuse(f, change):
        np.multiply(f[1:-1], -2, out=change)
        change += f[:-2]
        change += f[2:]
        change *= 0.1
        f[1:-1] += change

    if rt is None:
        own = scratch()

        def step():
            for f in u:
                comm.Sendrecv(f[-2], above, 0, f[0], below, 0)
                comm.Sendrecv(f[1], below, 1, f[-1], above, 1)
                diffuse(f, own)
    else:

        @rt.pipelined(buffers=scratch)
        async def one(i, own):
            f = u[i]
            await rt.comm.Sendrecv(f[-2], above, 0, f[0], below, 0)
            await rt.comm.Sendrecv(f[1], below, 1, f[-1], above, 1)
            diffuse(f, own)

        def step():
            one(range(slices))

    return step, u, slices


def gradients(comm, rt, n):
    """5 iterations of conjugate gradients for each of 16 right sides, with a Laplacian split over the ranks."""
    slices = 16
    right = np.random.default_rng(comm.rank).random((slices, 24, 8 * n))
    x = np.zeros_like(right)
    below, above = (rank if 0 <= rank < comm.size else MPI.PROC_NULL for rank in (comm.rank - 1, comm.rank + 1))

    def product(p, q):
        q[...] = 4.01 * p[1:-1]
        q -= p[:-2]
        q -= p[2:]
        q[:, 1:] -= p[1:-1, :-1]
        q[:, :-1] -= p[1:-1, 1:]

    def state():
        return np.zeros((26, 8 * n)), np.empty((24, 8 * n)), np.empty((24, 8 * n)), np.empty(1), np.empty(1)

    if rt is None:
        p, q, r, here, there = state()

        def dot(a, b):
            here[0] = np.vdot(a, b)
            comm.Allreduce(here, there)
            return there[0]

        def step():
            for i in range(slices):
                x[i] = 0
                r[...] = p[1:-1] = right[i]
                rr = dot(r, r)
                for _ in range(5):
                    comm.Sendrecv(p[-2], above, 0, p[0], below, 0)
                    comm.Sendrecv(p[1], below, 1, p[-1], above, 1)
                    product(p, q)
                    alpha = rr / dot(p[1:-1], q)
                    x[i] += alpha * p[1:-1]
                    r[...] -= alpha * q
                    before, rr = rr, dot(r, r)
                    p[1:-1] *= rr / before
                    p[1:-1] += r
    else:

        @rt.pipelined(buffers=state)
        async def one(i, own):
            p, q, r, here, there = own
            x[i] = 0
            r[...] = p[1:-1] = right[i]
            here[0] = np.vdot(r, r)
            await rt.comm.Allreduce(here, there)
            rr = there[0]
            for _ in range(5):
                await rt.comm.Sendrecv(p[-2], above, 0, p[0], below, 0)
                await rt.comm.Sendrecv(p[1], below, 1, p[-1], above, 1)
                product(p, q)
                here[0] = np.vdot(p[1:-1], q)
                await rt.comm.Allreduce(here, there)
                alpha = rr / there[0]
                x[i] += alpha * p[1:-1]
                r[...] -= alpha * q
                here[0] = np.vdot(r, r)
                await rt.comm.Allreduce(here, there)
                before, rr = rr, there[0]
                p[1:-1] *= rr / before
                p[1:-1] += r

        def step():
            one(range(slices))

    return step, x, slices


def spectral(comm, rt, n):
    """One product of two fields in real space for each of 32 planes, as in spectral_dns: three transforms each."""
    from scipy import fft

    slices, rows = 32, n // comm.size
    a, b = np.random.default_rng(comm.rank).random((2, slices, n, rows)) + 0j  # spectra, split over columns
    c = np.empty((slices, n, rows), "c16")

    def buffers():
        return np.empty((2, comm.size, rows, rows), "c16"), np.empty((2, comm.size, rows, rows), "c16")

    def to_rows(i, k, send):
        send[k] = fft.ifft((a, b)[k][i], axis=0).reshape(comm.size, rows, rows)

    def product(send, receive):
        """Multiply both fields in real space; transform along x."""
        u, v = (fft.ifft(np.concatenate(blocks, axis=1), axis=1) for blocks in receive)
        spectrum = fft.fft(u * v, axis=1)
        send[0] = spectrum.reshape(rows, comm.size, rows).transpose(1, 0, 2)

    def to_columns(i, receive):
        c[i] = fft.fft(receive[0].reshape(n, rows), axis=0)

    if rt is None:
        send, receive = buffers()

        def step():
            for i in range(slices):
                for k in range(2):
                    to_rows(i, k, send)
                    comm.Alltoall(send[k], receive[k])
                product(send, receive)
                comm.Alltoall(send[0], receive[0])
                to_columns(i, receive)
    else:

        @rt.pipelined(buffers=buffers)
        async def one(i, own):
            send, receive = own
            for k in range(2):
                to_rows(i, k, send)
                await rt.comm.Alltoall(send[k], receive[k])
            product(send, receive)
            await rt.comm.Alltoall(send[0], receive[0])
            to_columns(i, receive)

        def step():
            one(range(slices))

    return step, c, slices


def mpi4py_fft(comm, rt, n):
    """A forward and a backward transform of 64 planes by mpi4py-fft, and by the drop-in."""
    if rt is None:
        import mpi4py_fft as library
    else:
        from overlap.compat import mpi4py_fft as library

    slices = 64
    plan = library.PFFT(comm, (slices, n, n), axes=(1, 2), grid=(1, -1), dtype="D")
    u, uh = library.newDistArray(plan, False), library.newDistArray(plan, True)
    u[...] = np.random.default_rng(comm.rank).random(u.shape)

    def step():
        plan.forward(u, uh)
        plan.backward(uh, u)

    return step, u, slices


CASES = {case.__name__: case for case in (mpi4py_fft, spectral, halo, gradients, allreduce)}


def local_s(step):
    """Seconds of a step on this rank: no barrier keeps the ranks together, as none does in a program."""
    started = perf_counter()
    step()
    return perf_counter() - started


def measure(comm, given):
    """The median times per step of a case in one way, or in both by turns, with the same results."""
    case, ways = json.loads(given.part)
    size, steps = (64, 3) if given.quick else (256, 15)
    with nullcontext() if ways == "plain" else overlap.Runtime(comm) as rt:
        runs = {"plain": CASES[case](comm, None, size)}
        if rt is not None:
            runs["hidden"] = CASES[case](comm, rt, size)
        timed = {way: partial(local_s, step) for way, (step, _, _) in runs.items()}
        seconds = turns(timed, steps, warm=SETTLING.get(case, 12))
    for _, result, _ in runs.values():
        assert np.allclose(result, runs["plain"][1], rtol=1e-10)
    yield {way: max(comm.allgather(median(of_way))) for way, of_way in seconds.items()}


def here(given):
    """The records of all cases, each predicted and measured on each of the links."""
    for link in given.links:
        for case in given.cases:
            with tempfile.TemporaryDirectory() as folder:
                report, machine = Path(folder) / "advice.json", MACHINES / f"links-{link}.toml"
                described = ["--machine", str(machine)] if machine.exists() else []
                asked = ["-m", "overlap.advise", "--slices", str(SLICES.get(case, 16)), *described]
                part = "--part", json.dumps([case, "plain"])
                PAGE.ask(*part, ranks=2, link=link, before=[*asked, "--json", str(report)])
                advice = json.loads(report.read_text())
            told = []
            for _ in range(given.rounds):
                told += PAGE.ask("--part", json.dumps([case, "both"]), ranks=2, link=link)
            plain_s, hidden_s = (median(each[way] for each in told) for way in ("plain", "hidden"))
            (estimate,) = advice["estimates"]
            yield {
                "case": case,
                "link": link,
                **{name: max(one[name] for one in advice["ranks"]) for name in ("computing_s", "transferring_s")},
                "at_most": advice["gain_at_most"],
                "predicted": estimate["gain"],
                "plain_s": plain_s,
                "hidden_s": hidden_s,
                "reached": plain_s / hidden_s,
            }


def row(record):
    """A record as a row of the table."""
    return (
        record["case"],
        place(record),
        f"{record['transferring_s'] / record['computing_s']:.2f}",
        *(f"{1e3 * record[name]:.1f}" for name in ("plain_s", "hidden_s")),
        *(f"{record[name]:.2f}x" for name in ("at_most", "predicted", "reached")),
        f"{record['predicted'] / record['reached'] - 1:+.0%}",
    )


HEAD = "program | between the ranks | T/C | mpi4py, ms | overlap, ms | at most | predicted | reached | off by"
PAGE = Page(
    __doc__,
    measure,
    row=row,
    head=HEAD,
    here=here,
    ranks=None,
    links=("shm", "2gbit", "4gbit"),
    rounds=3,
    quick={},
    deadline_s=300,
)
PAGE.add("--cases", nargs="+", choices=tuple(CASES), default=tuple(CASES))

if __name__ == "__main__":
    sys.exit(PAGE.run())
