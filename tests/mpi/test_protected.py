"""Fields in other ranks' memory, under Open MPI with fault tolerance."""

import jobs
import numpy as np
import pytest
from marks import exhaustive, on_ranks
from test_losses import NOTICED_S, QUICK, SHAPE, Killing, field

import overlap
from overlap import DataLost, InputError, Protected, RankLost, Runtime
from overlap.protected import _Part, _shifts


def values(step, part=()):
    return field(SHAPE, part, seed=step)


def restored(comm, folder, copies=1, victims=(1,), kind="FFT2", in_a_save=False, lost=(), damage=None):
    """Fields are saved, written to, and come back over the ranks left; or, if parts are `lost`, all hear it."""
    rt = Runtime(comm, on_loss="raise")
    plan = getattr(overlap, kind)(rt, SHAPE, dtype="f8", settings=QUICK | {"wait": "off"})
    u, v = plan.real.empty(), plan.spectrum.empty()
    protected = Protected([u, v], copies)
    killing = Killing(comm, folder)
    for _ in range(2):  # all is compiled
        plan.forward(u)
    with pytest.raises(InputError, match="expected a save before, received none"):
        protected.restore(rt)
    for step in (10, 20):
        u[...], v[...] = values(step, u.local_slice), 1j * step
        protected.save(step) if step == 10 else protected.start(step)
        u[...] = v[...] = -1  # what is kept is what was there
    step, (x, y) = protected.restore(rt)
    assert step == 20 and (np.asarray(x) == values(20, x.local_slice)).all() and (np.asarray(y) == 20j).all()
    if damage:
        for parts in protected._parts:
            for part in parts[1:]:
                part.memory[0] ^= 1
    if damage == "unnoticed":  # a defect
        _Part._found = lambda part: part.words[1]
    victim = comm.rank in victims  # not of `rt`, which is soon another one with other ranks
    if in_a_save:
        original = _Part.fill

        def fill(part, fields, step):
            if victim:
                killing.now()
            original(part, fields, step)

        _Part.fill = fill
    elif victim:
        killing.now()
    with pytest.raises(RankLost) as caught:
        while True:
            protected.save(30) if in_a_save else plan.forward(u)
            in_a_save = False
    assert killing.passed_s() < NOTICED_S
    rt = caught.value.survivors()
    if lost:
        with pytest.raises(DataLost, match=rf"step 20 without those of ranks \[{', '.join(map(str, lost))}\]"):
            protected.restore(rt)
        rt.close()
        return
    after = plan.on(rt)
    step, (x, y) = protected.restore(rt)
    assert step == 20 and x.comm.size == comm.size - len(victims)
    good = (np.asarray(x) == values(20, x.local_slice)).all() and (np.asarray(y) == 20j).all()
    assert rt.coordinator.minimum(int(good)), "restored wrong fields"
    step, (x, _) = protected.restore(rt, like=[after.real, after.spectrum])
    assert x.local_slice == after.real.local_slice and (np.asarray(x) == values(20, x.local_slice)).all()
    assert after.forward.settings == plan.forward.settings
    axes = (-2, -1) if kind == "FFT2" else (-3, -2, -1)
    right = np.fft.rfftn(values(20), axes=axes)[after.spectrum.local_slice]
    np.testing.assert_allclose(np.asarray(after.forward(x)), right, atol=1e-9)
    if rt.comm.size > 1:  # and once more
        with Protected(x) as again:
            again.save(21)
            assert again.restore(rt).step == 21
    protected.free()
    after.close()
    rt.close()


@on_ranks("ulfm-3", fresh=True)
def test_bad_input(comm):
    """What is wrong on one rank or all is one error on all ranks."""
    with Runtime(comm, on_loss="raise") as rt, Runtime(comm) as other:
        u = overlap.DistArray(
            np.zeros((1, 4)), rt.comm.source, (comm.size, 4), (0,), (slice(comm.rank, comm.rank + 1), slice(0, 4))
        )
        foreign = overlap.DistArray(np.zeros((1, 4)), comm.Split(comm.rank), (1, 4), (0,), (slice(0, 1), slice(0, 4)))
        for copies in (-1, comm.size, None, True, 1.5):
            with pytest.raises(InputError, match="expected copies to be a number from 0 to"):
                Protected(u, copies)
        with pytest.raises(InputError, match="copies: expected the same on all ranks"):
            Protected(u, 1 + (comm.rank == 0))
        with pytest.raises(InputError, match="over the ranks of one communicator"):
            Protected([u, foreign] if comm.rank else [u, u])
        with pytest.raises(InputError, match="expected a DistArray"):
            Protected([])
        with Protected(u) as protected:
            with pytest.raises(InputError, match="step: expected the same on all ranks"):
                protected.save(comm.rank)
            with pytest.raises(InputError, match="expected step to be an integer"):
                protected.save("first" if comm.rank else 1)
            protected.save(1)
            u.__dict__["_where"] = overlap.arrays.Distribution((comm.size, 4), (0, 1), u.local_slice)
            with pytest.raises(InputError, match="expected field 0 of"):
                protected.save(2)
            assert protected.restore(other).step == 1
            with pytest.raises(InputError, match="expected like to be"):
                protected.restore(rt, like=[3] if comm.rank else [u])
            assert f"{2 * 2} parts" not in protected.describe() and "2 saves of 2 parts" in protected.describe()
        for use in (lambda: protected.save(3), protected.wait, lambda: protected.restore(other)):
            with pytest.raises(overlap.ClosedError):
                use()
        hole = (
            u[:, :]
            if comm.rank
            else overlap.DistArray(np.zeros((0, 4)), u.comm, u.global_shape, (0,), (slice(0, 0), slice(0, 4)))
        )
        with pytest.raises(InputError, match="make up the global array"):
            Protected(hole)
        u[...] = 1
        with Protected(u) as one, Protected(2 * u) as two, Protected([u, u]) as both:
            for each in (one, two, both):
                each.save(1)
            for others in (two, both):
                with pytest.raises(InputError, match="protected: expected the same on all ranks"):
                    (others if comm.rank else one).restore(other)
            assert [each.restore(other).fields[0].global_max() for each in (one, two)] == [1, 2]
        foreign.comm.Free()


def test_copies_go_to_other_nodes_where_there_are_some():
    assert _shifts(["a", "a", "b", "b"], 1) == [2]
    assert _shifts(["a", "b", "a", "b"], 2) == [1, 3]
    assert _shifts(["a"] * 3, 2) == [1, 2]


@pytest.mark.parametrize(
    "ranks, args",
    [
        exhaustive(3, {}),
        (2, {"in_a_save": True}),
        (4, {"copies": 2, "victims": [1, 2], "kind": "FFT3"}),
        exhaustive(4, {"victims": [0, 2]}),
        exhaustive(4, {"victims": [1, 2], "lost": [1]}),
        (2, {"damage": "noticed", "lost": [1]}),
    ],
)
def test_fields_come_back(ranks, args, tmp_path):
    lost = len(args.get("victims", (1,)))
    jobs.run_job("test_protected:restored", ranks, mpi="ulfm", lost=lost, args={"folder": str(tmp_path), **args})
