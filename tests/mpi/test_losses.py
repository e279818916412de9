"""Ranks that are lost, under Open MPI with fault tolerance: who notices, and how the others go on.

What is under way is one of `DOINGS`: a function of a runtime and a way to wait that gives a call, to be made again and
again, and what is to be closed. Each call checks its result.
"""

import importlib
import os
import signal
import sys
import threading
import time
from pathlib import Path

import jobs
import numpy as np
import pytest
from marks import exhaustive, on_ranks
from mpi4py import MPI

import overlap
from overlap import ClosedError, RankLost, Runtime
from overlap.collectives import Collectives
from overlap.ranks.losses import DetectingLoss, Guard
from overlap.sparse import Matrix, cg, pipecg

# What is under way, and how it waits, in a job that loses ranks one by one: of four one is left.
IN_TURN = """planned auto, planned off, planned block
planned poll, fft3 poll, bracket poll
slices off, slices block, slices poll
halo auto, halo_messages auto, halo_slices poll
collectives auto, awaited_collectives poll, solver auto
pipelined_solver auto, planning poll, making poll
coordinator auto, arrays auto, functions auto
drop_in auto, saving poll"""
BY_DEFAULT = 0, 2, 3


def lose(case, tmp_path, ranks=3, lost=1, **args):
    return jobs.run_job(f"test_losses:{case}", ranks, mpi="ulfm", lost=lost, args={"folder": str(tmp_path), **args})


sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))


SHAPE = (4, 12, 16)
NOTICED_S = 5.0  # on a machine that has other work
QUICK = {"effort": "estimate"}


def field(shape, part=(), seed=0):
    """This rank's part of an array that all ranks know."""
    return np.random.default_rng(seed).standard_normal(shape)[part]


# ---- what is under way -------------------------------------------------------------------------

DOINGS = {}


def doing(function):
    DOINGS[function.__name__] = function
    return function


@doing
def planned(rt, wait, kind=overlap.FFT2, shape=SHAPE, **options):
    plan = kind(rt, shape, dtype="f8", settings=QUICK | {"wait": wait}, **options)
    u = plan.real.empty()
    u[...] = field(shape, plan.real.local_slice)
    axes = (-2, -1) if kind is overlap.FFT2 else (-3, -2, -1)
    right = np.fft.rfftn(field(shape), axes=axes)[plan.spectrum.local_slice]

    def call():
        spectrum = plan.forward(u)
        np.testing.assert_allclose(np.asarray(spectrum), right, atol=1e-9)
        np.testing.assert_allclose(np.asarray(plan.backward(spectrum)), np.asarray(u), atol=1e-12)

    return call, [plan]


@doing
def fft3(rt, wait):
    return planned(rt, wait, overlap.FFT3, layout={"grid": (rt.comm.size, 1)})


@doing
def bracket(rt, wait):
    """The bracket of a field with itself, which vanishes."""
    plan = overlap.Bracket(rt, (4, 2, 5, 9), settings={"wait": wait, "depth": 2})
    f = plan.spectrum.empty()
    f[...] = field(f.global_shape, f.local_slice) * (np.arange(5) > 0)[plan.rows, None]
    plan.advect(np.ascontiguousarray(f[0]))

    def call():
        np.testing.assert_allclose(np.asarray(plan(f))[0], 0, atol=1e-11)

    return call, [plan]


@doing
def slices(rt, wait):
    """Collectives, and messages round a ring: whoever waits for a survivor hears of the loss too."""
    comm, size, rank = rt.comm, rt.comm.size, rt.comm.rank
    send, received, sums, came = np.zeros((4, 6, size))

    @rt.pipelined(wait=wait)
    async def program(z):
        send[z] = 100 * z + 10 * rank + np.arange(size)
        await comm.Alltoall(send[z], received[z])
        pending = await comm.Irecv(came[z], (rank - 1) % size, 3)
        await comm.Send(send[z], (rank + 1) % size, 3)
        await comm.Allreduce(received[z], sums[z])
        await pending

    def call():
        program(range(6))
        for z in range(6):
            assert (received[z] == 100 * z + 10 * np.arange(size) + rank).all()
            assert (came[z] == 100 * z + 10 * ((rank - 1) % size) + np.arange(size)).all()
            assert (sums[z] == size * (100 * z + 10 * np.arange(size)) + sum(range(size))).all()

    return call, []


@doing
def halo(rt, wait, transport="auto"):
    size, rank = rt.comm.size, rt.comm.rank
    blocks = overlap.Blocks((4 * size, 6), (size, 1), width=1, periodic=True)
    ghosts = overlap.Halo(rt.comm, blocks, transport=transport)
    (u,) = ghosts.empty()
    own = blocks.own(rank)

    def call():
        u[...] = -1
        u[own] = rank
        pending = ghosts.start(u)
        while not pending.test():
            time.sleep(0)
        pending.wait()
        assert (u[0, 1:-1] == (rank - 1) % size).all() and (u[-1, 1:-1] == (rank + 1) % size).all()
        ghosts.exchange(u)

    return call, [ghosts]


@doing
def halo_messages(rt, wait):
    return halo(rt, wait, "messages")


@doing
def halo_slices(rt, wait):
    size, rank = rt.comm.size, rt.comm.rank
    blocks = overlap.Blocks((4 * size, 6), (size, 1), width=1, periodic=True)
    ghosts = overlap.Halo(rt.comm, blocks)
    (u,) = ghosts.empty()

    @rt.pipelined(wait=wait)
    async def program(z):
        await ghosts(u)

    def call():
        u[...] = -1
        u[blocks.own(rank)] = rank
        program([0])
        assert (u[0, 1:-1] == (rank - 1) % size).all() and (u[-1, 1:-1] == (rank + 1) % size).all()

    return call, [ghosts]


@doing
def collectives(rt, wait):
    size, rank = rt.comm.size, rt.comm.rank
    fast = Collectives(rt.comm.source)
    one, every = np.arange(3.0) + rank, np.zeros((size, 3))

    def call():
        fast.Allgather(one, every)
        assert (every == np.arange(3) + np.arange(size)[:, None]).all()
        assert fast.allreduce(float(rank)) == sum(range(size))
        fast.Bcast(every, root=size - 1)
        fast.Barrier()

    return call, [fast]


@doing
def awaited_collectives(rt, wait):
    size, fast = rt.comm.size, rt.collectives()
    total = np.zeros(6)

    @rt.pipelined(wait=wait)
    async def program(z):
        total[z] = await fast.allreduce(float(z))

    def call():
        program(range(6))
        assert (total == size * np.arange(6)).all()

    return call, []


@doing
def solver(rt, wait, solve=cg):
    n = 8 * rt.comm.size
    A = Matrix.from_stencil(rt.comm.source, (n,), [(0,), (-1,), (1,)], [4.0, -1.0, -1.0])
    x = field((n,), A.halo.coordinator.rank * A.count + np.arange(A.count))

    def call():
        np.testing.assert_allclose(solve(A, A @ x, rtol=1e-12).x, x, atol=1e-9)

    return call, [A]


@doing
def pipelined_solver(rt, wait):
    return solver(rt, wait, pipecg)


@doing
def planning(rt, wait):
    def call():
        doing, closed = planned(rt, wait)
        doing()
        closed[0].close()

    return call, []


@doing
def making(rt, wait):
    """Runtimes and halos that are made and closed."""

    def call():
        with Runtime(rt.comm.source, wait=wait) as inner, inner.wrap(rt.comm.source) and inner:
            doing, closed = halo(inner, wait)
            doing()
            for one in closed:
                one.free()
            doing, _ = slices(inner, wait)
            doing()

    return call, []


@doing
def coordinator(rt, wait):
    def call():
        assert rt.coordinator.allgather(rt.comm.rank) == list(range(rt.comm.size))
        assert rt.coordinator.maximum(rt.comm.rank) == rt.comm.size - 1
        rt.preflight(alike=3)

    return call, []


@doing
def arrays(rt, wait):
    with overlap.FFT2(rt, SHAPE, dtype="f8", settings=QUICK | {"wait": wait}) as plan:
        u = plan.real.empty()
    u[...] = field(SHAPE, u.local_slice)

    def call():
        moved = u.redistribute(2)
        assert (np.asarray(moved) == field(SHAPE, moved.local_slice)).all()
        whole = moved.gather()
        assert whole is None or (whole == field(SHAPE)).all()

    return call, []


@doing
def functions(rt, wait):
    u = overlap.DistArray(
        field(SHAPE, (slice(None), *_rows(rt))), rt.comm.source, SHAPE, (1,), (slice(0, 4), *_rows(rt), slice(0, 16))
    )

    def call():
        from overlap import fft

        np.testing.assert_allclose(np.asarray(fft.irfft2(fft.rfft2(u), s=SHAPE[-2:])), np.asarray(u), atol=1e-12)

    return call, []


@doing
def drop_in(rt, wait):
    """The drop-in for mpi4py-fft, on the runtime's communicator."""
    from overlap.compat.mpi4py_fft import PFFT, newDistArray

    fft = PFFT(rt.comm.source, SHAPE, axes=(0, 1, 2), dtype=float)
    u = newDistArray(fft, False)
    u[...] = field(SHAPE, u.local_slice())
    spectrum, again = newDistArray(fft, True), newDistArray(fft, False)
    right = np.fft.rfftn(field(SHAPE), axes=(0, 1, 2))[spectrum.local_slice()] / np.prod(SHAPE)

    def call():
        np.testing.assert_allclose(np.asarray(fft.forward(u, spectrum)), right, atol=1e-12)
        np.testing.assert_allclose(np.asarray(fft.backward(spectrum, again)), np.asarray(u), atol=1e-12)

    return call, []


def _rows(rt):
    from overlap.arrays import block

    return (block(SHAPE[1], rt.comm.size)[rt.comm.rank],)


@doing
def saving(rt, wait):
    with overlap.FFT2(rt, SHAPE, dtype="f8", settings=QUICK | {"wait": wait}) as plan:
        u = plan.real.empty()
    u[...] = field(SHAPE, u.local_slice)
    protected, step = overlap.Protected(u, copies=min(1, rt.comm.size - 1)), [0]

    def call():
        step[0] += 1
        protected.start(step[0])
        while step[0] % 2 and not protected.test():
            time.sleep(0)

    return call, [protected]


# ---- losing a rank -----------------------------------------------------------------------------


class Killing:
    """Kills this process, and writes down when.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        All ranks.
    folder : str
    """

    def __init__(self, comm, folder):
        self._file = Path(folder, "killed")
        self._rank = comm.rank

    def now(self):
        with open(self._file, "w") as file:
            file.write(repr(time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)

    def after(self, delay_s):
        timer = threading.Timer(delay_s, self.now)
        timer.daemon = True
        timer.start()

    def passed_s(self):
        """How long ago it was, on any rank."""
        return time.monotonic() - float(self._file.read_text())


def repeat(call, rank, victims, die):
    """Make calls until a rank is lost; the victims do `die` before the third one."""
    count = 0
    while True:
        count += 1
        if count == 3 and rank in victims:
            die()
        call()


def survive(comm, folder, doings, workers=1, victims=(1,)):
    """Lose ranks while something is under way, one after the other; those that are left notice it, and go on.

    Each of `doings` is what is under way and how it waits, and may have, too, who is lost, and after how many seconds;
    otherwise the victims die between two calls.
    """
    rt = Runtime(comm, workers=workers, on_loss="raise")
    for doing, wait, *drawn in doings:
        rt = lose_some(comm, folder, rt, doing, wait, *(drawn or (victims, None)))
    rt.close()


def lose_some(comm, folder, rt, doing, wait, victims, delay_s, warm=2):
    """Lose ranks; the others notice it in time, close all there is, and have another runtime, which is returned."""
    before = rt.comm.size
    call, closed = DOINGS[doing](rt, wait)
    for _ in range(warm):
        call()
    rt.coordinator.barrier()
    killing = Killing(comm, folder)
    if rt.comm.rank in victims and delay_s is not None:
        killing.after(delay_s)
    with pytest.raises(RankLost) as caught:
        repeat(call, rt.comm.rank, victims if delay_s is None else (), killing.now)
    noticed_s = killing.passed_s()
    assert noticed_s < NOTICED_S, f"rank {comm.rank}: noticed after {noticed_s:.2f} s in {caught.value.what}"
    assert set(caught.value.ranks) <= set(victims), caught.value
    print(f"noticed {noticed_s:.4f} {doing} {wait}", flush=True)
    with pytest.raises(ClosedError, match="lost"):
        rt.preflight()
    if doing not in ("planning", "making"):
        with pytest.raises(ClosedError):
            call()
    started = time.monotonic()
    for one in closed[::-1] if comm.rank % 2 else closed:
        getattr(one, "close", None) and one.close()
        getattr(one, "free", None) and one.free()
    rt.close()
    assert time.monotonic() - started < NOTICED_S
    rt = caught.value.survivors()
    assert rt.comm.size == before - len(victims)
    call, closed = DOINGS[doing](rt, wait)
    call()
    for one in closed:
        (getattr(one, "close", None) or one.free)()
    return rt


def navier_stokes(comm, folder, deaths):
    """The example loses ranks, `deaths` of them, each after so many evaluations of its right-hand side; it goes on.

    Its fields at the end are those of a run without losses, on the ranks that are left.
    """
    example = importlib.import_module("navier_stokes_2d")
    killing, count, noticed = Killing(comm, folder), [0], []
    nonlinear, step, recovered = example.NavierStokes.nonlinear, example.NavierStokes.step, example.recovered

    def dying(self, w):
        count[0] += 1
        if count[0] == dict(deaths).get(comm.rank):
            killing.now()
        return nonlinear(self, w)

    def timed(self, w, dt):
        found = step(self, w, dt)
        if noticed:
            print(f"next step {killing.passed_s():.4f}", flush=True)
            noticed.clear()
        return found

    def counted(*args):
        assert killing.passed_s() < NOTICED_S
        noticed.append(True)
        return recovered(*args)

    rt = Runtime(comm, on_loss="raise")
    plan = overlap.FFT2(rt, (3, 32, 32), dtype="f8", norm="forward", settings=QUICK | {"wait": "off"})
    given = 2e-3, np.linspace(4, 8, 3), 0.02, 30
    example.turbulence(plan, *given)  # all is compiled
    example.NavierStokes.nonlinear, example.NavierStokes.step, example.recovered = dying, timed, counted
    _, after, spectra, kept, plan = example.turbulence(plan, *given, survive=True)
    assert plan.comm.size == comm.size - len(deaths)
    example.NavierStokes.nonlinear = nonlinear
    _, right, right_spectra, right_kept, _ = example.turbulence(plan, *given)
    np.testing.assert_allclose(np.asarray(after), np.asarray(right), rtol=0, atol=1e-12)
    np.testing.assert_allclose(spectra, right_spectra, rtol=0, atol=1e-12)
    np.testing.assert_allclose(kept, right_kept, rtol=0, atol=1e-12)
    plan.close()
    plan.runtime.close()


def flux_tube(comm, folder, death, **ranks):
    """The gyrokinetic example loses a rank, in the given step and stage; it goes on, and all it has found is right."""
    cases, run = importlib.import_module("test_gkv"), importlib.import_module("run")
    killing, solver = Killing(comm, folder), run.Solver
    time = {"end": 0.3, "sample_every": 2, "checkpoint_every": 5}
    config = cases.configured(grid=cases.BOX | {"nmu": 5}, time=time, parallel=ranks)
    right = run_of(run, config, folder, comm)
    rhs, count = solver.rhs, [0]

    def dying(self, f, out):
        count[0] += 1
        if [comm.rank, count[0]] == death:
            killing.now()
        rhs(self, f, out)

    solver.rhs = dying
    found = run_of(run, config, folder, comm, survive=True)
    assert found.pop("ranks") == comm.size - 1 and right.pop("ranks") == comm.size
    assert found.keys() == right.keys()
    for name, values in right.items():
        np.testing.assert_allclose(found[name], values, rtol=0, atol=1e-12 * abs(np.array(values)).max(), err_msg=name)


def run_of(run, config, folder, comm, **options):
    """The samples of a whole run, its state at the end, and the ranks that it ended with."""
    found, output = {}, run.output.write

    def written(path, solver, history):
        state = solver.state
        every = solver.comm.gather((state.where, state.f))
        whole = np.zeros(state.global_shape, complex)
        for where, f in every or ():
            whole[where] = f
        found.update(history, f=solver.comm.bcast(whole), ranks=solver.comm.size)
        output(path, solver, history)

    run.output.write = written
    run.run(comm, "turbulence", config, Path(folder, "run"), **options)
    run.output.write = output
    return found


def in_a_step(comm, folder, wait, workers):
    """A rank dies in a step of a slice, on a worker, while others wait in MPI and compute."""
    rt = Runtime(comm, workers=workers, wait=wait, on_loss="raise")
    send, received = np.zeros((2, 8, comm.size))
    killing = Killing(comm, folder)

    @rt.pipelined
    async def program(z, last):
        if last and z == 5 and comm.rank == 1:
            killing.now()
        await rt.comm.Alltoall(send[z], received[z])
        await rt.comm.Alltoall(send[z], received[z])

    program(range(8), False)
    with pytest.raises(RankLost) as caught:
        program(range(8), True)
    assert killing.passed_s() < NOTICED_S
    rt = rt.shrink()
    assert rt.comm.size == comm.size - 1 and rt.workers == workers
    with pytest.raises(overlap.InputError, match="received one with all of them"):
        rt.shrink()
    assert caught.value.ranks in ((1,), ())
    rt.close()


def while_made(comm, folder, after):
    """A rank dies while the first runtime is made: the others go on from the user's communicator."""
    if comm.rank == 1:
        control_of = overlap.ranks.coordinator.Coordinator
        original, count, killing = control_of.synchronize_here, [0], Killing(comm, folder)

        def counted(self, *args, **kwargs):
            count[0] += 1
            if count[0] == after:
                killing.now()
            return original(self, *args, **kwargs)

        control_of.synchronize_here = counted
    with pytest.raises(RankLost) as caught:
        Runtime(comm, on_loss="raise")
    assert Killing(comm, folder).passed_s() < NOTICED_S
    with caught.value.survivors() as rt:
        assert rt.coordinator.allgather(comm.rank) == [0, 2]
    assert not comm.Is_revoked()


def blocks(comm, folder):
    """`with` blocks are left by the exception, in any order of ends; the next runtime is made inside of none."""
    killing, lost = Killing(comm, folder), None
    try:
        with (
            Runtime(comm, on_loss="raise") as rt,
            overlap.FFT2(rt, SHAPE, settings=QUICK) as plan,
            overlap.Halo(rt.comm, overlap.Blocks((4 * comm.size, 6), (comm.size, 1), width=1)) as ghosts,
            Collectives(rt.comm.source) as fast,
            Matrix.from_stencil(rt.comm.source, (8 * comm.size,), [(0,), (-1,), (1,)], [4.0, -1.0, -1.0]) as A,
        ):
            u = plan.real.empty()
            u[...] = 1
            repeat(lambda: plan.forward(u), comm.rank, (1,), killing.now)
    except RankLost as found:
        lost = found
    assert killing.passed_s() < NOTICED_S
    for use in (lambda: plan.forward(u), lambda: ghosts.empty(), fast.Barrier, lambda: A @ np.ones(A.count)):
        with pytest.raises(ClosedError):
            use()
    lost.survivors().close()


def exceptions_on_survivors(comm, folder):
    """After a loss an exception ends a block on all ranks that are left: each has its own, and they can go on."""
    with pytest.raises(RankLost) as caught, Runtime(comm, on_loss="raise", deadline_s=60) as rt:
        repeat(rt.coordinator.barrier, comm.rank, (1,), Killing(comm, folder).now)
    kept = []
    for _ in range(2):
        left = caught.value.survivors()
        plan = overlap.FFT2(left, SHAPE, dtype="f8", settings=QUICK)
        u = plan.real.from_function(lambda y, x: 1 + 0 * x)
        assert np.isclose(u.global_norm() ** 2, np.prod(SHAPE))  # the door of the communicator of those that are left
        kept.append(plan)
        with pytest.raises(ValueError, match="in a block"), left:
            raise ValueError("in a block")
    with caught.value.survivors() as left:
        assert left.coordinator.allgather(comm.rank) == [0, 2]


@on_ranks(2, "openmpi-2")
def test_without_fault_tolerance(comm):
    """Without fault tolerance, all ranks are told what to start."""
    with pytest.raises(overlap.InputError, match="mpiexec --with-ft ulfm"):
        Runtime(comm, on_loss="raise")
    with pytest.raises(overlap.InputError, match="expected on_loss"):
        Runtime(comm, on_loss="restart")


@on_ranks("ulfm-2", fresh=True)
def test_it_is_the_same_on_all_ranks(comm):
    """It is the same on all ranks, or is refused."""
    with pytest.raises(overlap.InputError, match="on_loss: expected the same on all ranks"):
        Runtime(comm, on_loss="raise" if comm.rank else None)
    with Runtime(comm, on_loss="raise") as rt, pytest.raises(overlap.InputError, match="with all of them"):
        rt.shrink()
    assert MPI.COMM_WORLD.Get_errhandler() == MPI.ERRORS_RETURN


@on_ranks("ulfm-2", fresh=True)
def test_a_loss_that_another_rank_has_noticed(comm):
    """If several requests fail at once, MPI only reports that one of them has failed."""
    own = comm.Dup()
    guard = Guard(own, Runtime)
    guard.add(own)
    if comm.rank:
        guard.lose("a test")
        return
    requests = [own.Irecv(np.empty(1), 1, tag) for tag in range(2)]
    with pytest.raises(RankLost), DetectingLoss(guard, "a test"):
        while not MPI.Request.Testall(requests):
            pass


@pytest.mark.parametrize(
    "doings", [one if number in BY_DEFAULT else exhaustive(one) for number, one in enumerate(IN_TURN.splitlines())]
)
def test_ranks_lost_between_calls(doings, tmp_path):
    several = [doing.split() for doing in doings.split(", ")]
    lose("survive", tmp_path, ranks=len(several) + 1, lost=len(several), doings=several)


@pytest.mark.parametrize("wait, workers", [exhaustive("off", 1), exhaustive("block", 2), ("poll", 2)])
def test_a_rank_lost_in_a_step(wait, workers, tmp_path):
    lose("in_a_step", tmp_path, wait=wait, workers=workers)


@pytest.mark.parametrize("after", [exhaustive(1), 2, exhaustive(3)])
def test_a_rank_lost_while_a_runtime_is_made(after, tmp_path):
    lose("while_made", tmp_path, after=after)


@pytest.mark.exhaustive
def test_two_ranks_lost_at_once(tmp_path):
    lose("survive", tmp_path, ranks=4, lost=2, doings=[("planned", "poll")], victims=[1, 3])


@pytest.mark.parametrize("ranks, deaths", [(2, [(0, 70)]), exhaustive(3, [(1, 50), (2, 62)])])
def test_a_solver_goes_on(ranks, deaths, tmp_path):
    lose("navier_stokes", tmp_path, ranks=ranks, lost=len(deaths), deaths=deaths)


@pytest.mark.exhaustive  # as what goes on in a solver of two dimensions, in more calls
@pytest.mark.parametrize("ranks, death, split", [(2, [1, 22], {}), (3, [0, 18], {"z": 1})])
def test_a_flux_tube_goes_on(ranks, death, split, tmp_path):
    lose("flux_tube", tmp_path, ranks=ranks, death=death, **split)


def test_blocks_are_left(tmp_path):
    lose("blocks", tmp_path)


def test_exceptions_after_a_loss(tmp_path):
    lose("exceptions_on_survivors", tmp_path)
