"""What `overlap advise` predicts for programs, beside what the same programs reach with `overlap`.

    python bench/advise.py [--cases NAME ...] [--links shm 2gbit 4gbit] [--rounds 3] [--quick] [--out FILE.md]

Each of `CASES` is written twice: with mpi4py alone, and as a slice program or a plan. The first runs under the command,
which is told the number of slices. Then both are timed, in turns. On shaped links the command gets the description of
`bench/machines`. The two ways give equal results.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

from overlap import files
from overlap.tools import launch
from overlap.tools.bench.table import markdown

HERE = Path(__file__).resolve()
LINKS = "shm", "2gbit", "4gbit"
RANKS = 2
STEPS = 15
SETTLING = {"mpi4py_fft": 40}  # steps before, in which runtimes (12 steps) and plans compare their settings


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

    def diffuse(f):
        f[1:-1] += 0.1 * (f[:-2] - 2 * f[1:-1] + f[2:])

    if rt is None:

        def step():
            for f in u:
                comm.Sendrecv(f[-2], above, 0, f[0], below, 0)
                comm.Sendrecv(f[1], below, 1, f[-1], above, 1)
                diffuse(f)
    else:

        @rt.pipelined
        async def one(i):
            f = u[i]
            await rt.comm.Sendrecv(f[-2], above, 0, f[0], below, 0)
            await rt.comm.Sendrecv(f[1], below, 1, f[-1], above, 1)
            diffuse(f)

        def step():
            one(range(slices))

    return step, u, slices


def gradients(comm, rt, n):
    """5 iterations of conjugate gradients for each of 16 right sides, with a Laplacian split over the ranks."""
    from mpi4py import MPI

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


def measure(case, ways, size, steps):
    """Run a case on this rank in one way, or in both by turns; tell its median time per step, and check the results."""
    import mpi4py

    mpi4py.rc.thread_level = "serialized"
    from contextlib import nullcontext

    from mpi4py import MPI

    import overlap

    comm = MPI.COMM_WORLD
    with nullcontext() if ways == "plain" else overlap.Runtime(comm) as rt:
        runs = {"plain": CASES[case](comm, None, size)}
        if rt is not None:
            runs["hidden"] = CASES[case](comm, rt, size)
        seconds = {way: [] for way in runs}
        for number in range(-SETTLING.get(case, 12), steps):
            for way, (step, _, _) in runs.items():
                started = time.perf_counter()
                step()
                if number >= 0:
                    seconds[way].append(time.perf_counter() - started)
    for _, result, _ in runs.values():
        assert np.allclose(result, runs["plain"][1], rtol=1e-10)
    told = {way: max(comm.allgather(median(of_way))) for way, of_way in seconds.items()}
    if comm.rank == 0:
        launch.tell(told)


def run(command, link):
    """Run a command on ranks; what it tells."""
    told = []
    if launch.run_ranks(command, ranks=RANKS, link=None if link == "shm" else link, deadline_s=300,
                        on_line=launch.listening(told.append)):  # fmt: skip
        raise SystemExit(f"failed: {command}")
    return told


def compared(case, link, options):
    """Predict and measure one case on one link; the row of the table."""
    own = [str(HERE), "--size", str(64 if options.quick else 256), "--steps", str(3 if options.quick else STEPS)]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "advice.json"
        machine = HERE.parent / "machines" / f"links-{link}.toml"
        described = ["--machine", str(machine)] if machine.exists() else []
        asked = ["-m", "overlap.advise", "--slices", str(slices_of(case)), *described, "--json", str(report)]
        run([sys.executable, *asked, *own, "--rank", case, "plain"], link)
        advice = json.loads(report.read_text())
    told = [run([sys.executable, *own, "--rank", case, "both"], link)[0] for _ in range(options.rounds)]
    (row,) = advice["estimates"]
    plain, hidden = (median(each[way] for each in told) for way in ("plain", "hidden"))
    compute_s, transfer_s, waiting_s = (
        max(one[name] for one in advice["ranks"]) for name in ("computing_s", "transferring_s", "waiting_s")
    )
    return {
        "case": case, "link": link, "compute_s": compute_s, "transfer_s": transfer_s, "waiting_s": waiting_s,
        "at_most": advice["gain_at_most"], "predicted": row["gain"], "plain_s": plain, "hidden_s": hidden,
        "reached": plain / hidden,
    }  # fmt: skip


def slices_of(case):
    return {"mpi4py_fft": 64, "spectral": 32}.get(case, 16)


def cells(row):
    ratio = row["predicted"] / row["reached"] - 1
    return (
        row["case"], "shared memory" if row["link"] == "shm" else row["link"],
        f"{row['transfer_s'] / row['compute_s']:.2f}", f"{1e3 * row['plain_s']:.1f}", f"{1e3 * row['hidden_s']:.1f}",
        f"{row['at_most']:.2f}x", f"{row['predicted']:.2f}x", f"{row['reached']:.2f}x", f"{ratio:+.0%}",
    )  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="+", choices=tuple(CASES), default=tuple(CASES))
    parser.add_argument("--links", nargs="+", default=LINKS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="small: only to see it work")
    parser.add_argument("--out", metavar="FILE.md", help="default: print it")
    parser.add_argument("--rank", nargs=2, metavar=("CASE", "WAY"), help=argparse.SUPPRESS)
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        measure(*options.rank, options.size, options.steps)
        return
    rows = []
    for link in options.links:
        for case in options.cases:
            rows.append(cells(compared(case, link, options)))
            print(*rows[-1], sep=" | ", flush=True)
    head = (
        "program",
        "between the ranks",
        "T/C",
        "mpi4py, ms",
        "overlap, ms",
        "at most",
        "predicted",
        "reached",
        "off by",
    )
    text = markdown(head, rows) + "\n"
    if options.out:
        files.write(options.out, text)
    print(text)


if __name__ == "__main__":
    main()
