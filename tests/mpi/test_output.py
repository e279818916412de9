"""`Output`: steps of fields in one file."""

import builtins
import contextlib
import os
import shutil
import signal

import jobs
import numpy as np
import pytest
from everywhere import raises_everywhere
from marks import exhaustive, on_ranks
from mpi4py import MPI
from test_distarray import folder, made, splits, values
from truth import random

import overlap
from overlap import InputError, Output, RankError, RankLost, Runtime, SliceError
from overlap.arrays import pieces
from overlap.output.output import FieldPieces


@on_ranks(1, exhaustive(2), 3, exhaustive(4), "openmpi-2")
def test_written(comm):
    """h5py alone finds what was written, step by step, whatever the splits and types; and so does xarray."""
    import h5py
    import xarray

    shapes = {
        "u": ((4, 6, 6), "f8"),
        "w": ((4, 6, 6), "c16"),
        "s": ((7, 5), ">f4"),
        "n": ((3,), "i4"),
        "b": ((3,), "?"),
    }
    x = np.linspace(0, 1, 6)
    with folder(comm) as place, Runtime(comm) as rt:
        for number, (axes, grid) in enumerate(splits(comm)):
            path = place / f"run{number}.h5"
            with Output(
                rt,
                path,
                "w",
                attrs={"viscosity": 0.01, "title": "a run"},
                dims={"u": ("z", "y", "x"), "w": ("z", "y", "kx")},
                coords={"x": x},
            ) as output:
                assert output.steps == [] and not path.exists()
                for step in (0, 3, 10):
                    arrays = {
                        name: made(
                            comm,
                            random(step, shape, dtype),
                            axes if len(shape) == 3 else (0,),
                            grid if len(shape) == 3 else (comm.size,),
                        )
                        for name, (shape, dtype) in shapes.items()
                    }
                    output.write({**arrays, "energy": 0.5 * step}, step=step, time=0.1 * step)
                assert output.steps == [0, 3, 10] and "3 step(s) of u" in repr(output)
            comm.Barrier()
            if comm.rank == 0:
                with h5py.File(path) as file:
                    assert file["step"][:].tolist() == [0, 3, 10] and file["energy"][:].tolist() == [0, 1.5, 5]
                    assert file.attrs["viscosity"] == 0.01 and file.attrs["title"] == "a run"
                    for name, (shape, dtype) in shapes.items():
                        for index, step in enumerate((0, 3, 10)):
                            assert np.array_equal(file[name][index], random(step, shape, dtype)), (name, step)
                with xarray.open_dataset(path, engine="h5netcdf", drop_variables=["w", "b"]) as file:
                    assert file["u"].dims == ("time", "z", "y", "x") and np.array_equal(file["x"], x)
                    assert np.array_equal(file["time"], [0.0, 0.1 * 3, 1.0])
                    assert np.array_equal(file["u"].sel(time=1.0), random(10, (4, 6, 6), "f8"))
                assert sorted(os.listdir(place)) == sorted({f"run{one}.h5" for one in range(number + 1)})
            comm.Barrier()


def gone_on(comm, path, ranks):
    """A job of its own number of ranks reads every step in any distribution, and appends one.

    Each job finds the steps of those before it.
    """
    whole = {step: random(step, (4, 6, 6), "f8") for step in range(ranks)}
    with Output(comm, path, "a", attrs={"seed": 7}) as output:
        assert output.steps == list(range(ranks - 1)), output.steps
        for axes, grid in splits(comm):
            u = made(comm, np.zeros((4, 6, 6)), axes, grid)
            for step in output.steps:
                assert output.read({"u": u}, step) == {"step": step, "time": step / 2, "count": step}
                assert np.array_equal(np.asarray(u), whole[step][u.local_slice])
            if output.steps:
                assert output.read({"u": u})["step"] == ranks - 2
        output.write(
            {"u": made(comm, whole[ranks - 1], *list(splits(comm))[-1]), "count": ranks - 1},
            step=ranks - 1,
            time=(ranks - 1) / 2,
        )
        assert output.read({"u": u})["step"] == ranks - 1
    with Output(comm, path) as output:
        assert output.steps == list(range(ranks)) and output.attrs["seed"] == 7
        c = made(comm, np.zeros((4, 6, 6), "c16"), (1,), (comm.size,))
        output.read({"u": c}, 0)
        assert np.array_equal(np.asarray(c), whole[0][c.local_slice])


def test_jobs_go_on_where_others_have_stopped(tmp_path):
    for ranks in (1, 2, 3):
        jobs.run_job("test_output:gone_on", ranks, args={"path": tmp_path / "run.h5", "ranks": ranks})


@on_ranks(1, exhaustive(2), 3, exhaustive(4), exhaustive("openmpi-2"))
def test_in_small_pieces(comm):
    """A field of many pieces, of which each is one of several ranks', is written right, and in singles if asked for."""
    import h5py

    before, pieces.PIECE_NBYTES = pieces.PIECE_NBYTES, 200
    try:
        with folder(comm) as place, Runtime(comm, workers=2) as rt:
            for exchange in (None, "f4"):
                for axes, grid in splits(comm):
                    whole = {name: random(1, (4, 6, 7), dtype) for name, dtype in (("u", "f8"), ("w", "c16"))}
                    with Output(rt, place / "run.h5", "w", exchange=exchange) as output:
                        arrays = {name: made(comm, one, axes, grid) for name, one in whole.items()}
                        output.write(arrays, step=1, time=0)
                        output.write(arrays, step=2, time=1)
                        with h5py.File(place / "run.h5") as file:
                            for name, one in whole.items():
                                found = one if exchange is None else one.astype("f4" if name == "u" else "c8")
                                assert file[name].dtype == found.dtype and np.array_equal(file[name][1], found)
                                assert file[name].attrs.get("exchange") == exchange and len(file[name].chunks) == 4
                            assert file["u"].chunks[0] == 1 and np.prod(file["u"].chunks) * 4 <= 200
                        output.read(arrays)
                        assert np.array_equal(np.asarray(arrays["u"]), found_of(whole["u"], exchange, arrays["u"]))
                        comm.Barrier()
    finally:
        pieces.PIECE_NBYTES = before


def found_of(whole, exchange, array):
    return (whole if exchange is None else whole.astype("f4").astype("f8"))[array.local_slice]


@on_ranks(1, exhaustive(2), 3, exhaustive(4))
def test_bad_input(comm):
    """One error on all ranks, and the file as it was; the next good step is written."""
    with folder(comm) as place, Runtime(comm) as rt:
        u, path = made(comm, values(), (1,), (comm.size,)), place / "run.h5"
        other = made(MPI.COMM_SELF, values(), (1,), (1,))
        for error, words, args, options in (
            (RankError, "no.h5", (place / "no.h5",), {}),
            (RankError, "cannot write", (place / "no" / "run.h5", "w"), {}),
            (InputError, "mode", (path, "x"), {}),
            (InputError, "file's name", (3,), {}),
            (InputError, "attrs", (path, "w"), {"attrs": 3}),
            (InputError, "attrs without", (path, "w"), {"attrs": {"overlap_output": 1}}),
            (InputError, "dims['u']", (path, "w"), {"dims": {"u": "zyx"}}),
            (InputError, "coords", (path, "w"), {"coords": {"x": "text"}}),
            (InputError, "exchange", (path, "w"), {"exchange": "f2"}),
        ):
            raises_everywhere(comm, error, words, Output, rt, *args, **options)
        if comm.size > 1:
            raises_everywhere(comm, InputError, "mode", Output, rt, path, "w" if comm.rank else "a")
        with Output(rt, path, "w") as output:
            raises_everywhere(comm, InputError, "no steps", output.read, {"u": u})
            raises_everywhere(comm, InputError, "names", output.write, {"time": u}, step=0, time=0)
            raises_everywhere(comm, InputError, "names", output.write, {}, step=0, time=0)
            raises_everywhere(comm, InputError, "expected name to be a text", output.write, {"a/b": u}, step=0, time=0)
            assert not path.exists()
            output.write({"u": u, "e": 1}, step=5, time=0)
            before = path.read_bytes()
            cases = [
                ("after 5", ({"u": u, "e": 1},), {"step": 5, "time": 1}),
                ("expected the fields", ({"u": u},), {"step": 6, "time": 1}),
                ("expected the fields", ({"u": u.T, "e": 1},), {"step": 6, "time": 1}),
                ("expected the fields", ({"u": u.astype("f4"), "e": 1},), {"step": 6, "time": 1}),
                ("expected the fields", ({"u": u, "e": 1.5},), {"step": 6, "time": 1}),
                ("DistArray of numbers", ({"u": np.asarray(u), "e": 1},), {"step": 6, "time": 1}),
                ("DistArray of numbers", ({"u": u.astype(object), "e": 1},), {"step": 6, "time": 1}),
                ("fields by name", ([u],), {"step": 6, "time": 1}),
                ("step to be an integer", ({"u": u, "e": 1},), {"step": 6.5, "time": 1}),
                ("finite number", ({"u": u, "e": 1},), {"step": 6, "time": np.nan}),
            ]
            if comm.size > 1:
                cases += [
                    ("over the ranks", ({"u": other if comm.rank else u, "e": 1},), {"step": 6, "time": 1}),
                    ("step", ({"u": u, "e": 1},), {"step": 6 + comm.rank, "time": 1}),
                    ("numbers", ({"u": u, "e": comm.rank},), {"step": 6, "time": 1}),
                    ("expected the fields", ({"u": u.T if comm.rank else u, "e": 1},), {"step": 6, "time": 1}),
                ]
                hole = overlap.DistArray(
                    np.zeros((4, 0, 6)), comm, (4, 6, 6), (1,), (slice(0, 4), slice(0, 0), slice(0, 6))
                )
                cases.append(("make up the global array", ({"u": hole, "e": 1},), {"step": 6, "time": 1}))
            for words, args, options in cases:
                raises_everywhere(comm, InputError, words, output.write, *args, **options)
            for words, args in (
                ("has steps 5 to 5", ({"u": u}, 6)),
                ("received 'v'", ({"v": u},)),
                ("received 'e'", ({"e": u},)),
                ("global shape", ({"u": u.T},)),
                ("type that fits", ({"u": u.astype("i4")},)),
            ):
                raises_everywhere(comm, InputError, words, output.read, *args)
            fixed = made(comm, values(), (1,), (comm.size,))
            fixed.flags.writeable = False
            raises_everywhere(comm, InputError, "read-only", output.read, {"u": fixed})
            assert path.read_bytes() == before and os.listdir(place) == ["run.h5"]
            output.write({"u": u, "e": 2}, step=6, time=1)
            raises_everywhere(comm, InputError, "keeps one of", output.truncate, 4)
            output.write({"u": 2 * u, "e": 3}, step=8, time=2)
            output.truncate(7)
            output.write({"u": 3 * u, "e": 4}, step=7, time=3)
        with Output(rt, path) as output:
            assert (output.steps, output.times) == ([5, 6, 7], [0, 1, 3]) and output.read({"u": u})["e"] == 4
            assert np.array_equal(np.asarray(u), 3 * values()[u.local_slice])
            raises_everywhere(comm, InputError, "mode 'r'", output.write, {"u": u, "e": 1}, step=9, time=1)
            raises_everywhere(comm, InputError, "mode 'r'", output.truncate, 5)
        with pytest.raises(overlap.ClosedError, match="Output"):
            output.read({"u": u})
        u.save(place / "other.h5")
        raises_everywhere(comm, RankError, "expected a file that an Output", Output, rt, place / "other.h5")
        with Output(rt, place / "large.h5", "w", exchange="f4") as output:
            raises_everywhere(
                comm, SliceError, "single precision", output.write, {"u": 1e300 * (1 + u)}, step=0, time=0
            )
            assert not (place / "large.h5").exists()
        comm.Barrier()


@on_ranks(1, exhaustive(2), 3, exhaustive(4))
def test_different_outputs(comm):
    """Ranks that write to different files, read them or cut them: one error on all, and both files as before."""
    last = comm.rank == comm.size - 1
    u = made(comm, values(), (1,), (comm.size,))
    with folder(comm) as place, Output(comm, place / "a.h5", "w") as a, Output(a.runtime, place / "b.h5", "w") as b:
        for step in (1, 2):
            for call in (
                lambda output: output.write({"u": u}, step=step, time=0),
                lambda output: output.read({"u": u}, step=1),
                lambda output: output.truncate(1),
            ):
                if comm.size > 1:  # without a step there is nothing to read
                    raises_everywhere(comm, InputError, "path: " if a.steps else "expected", call, b if last else a)
            for factor, output in enumerate((a, b), 1):
                output.write({"u": factor * u}, step=step, time=0)
                assert output.steps == list(range(1, step + 1))
        for factor, output in enumerate((a, b), 1):
            read = made(comm, 0 * values(), (2,), (comm.size,))
            assert output.read({"u": read}, step=1)["step"] == 1
            assert np.array_equal(read, factor * values()[read.local_slice])


@on_ranks(1, 3)
def test_working_directories(comm):
    """A relative path means rank 0's folder when the output is made: other ranks are in other ones, all change it."""
    u = made(comm, values(), (1,), (comm.size,))
    with folder(comm) as place, Runtime(comm) as rt, contextlib.chdir(place):
        others = place / f"of rank {comm.rank}"
        others.mkdir()
        os.chdir(others)
        with Output(rt, "run.h5", "w") as output:
            output.write({"u": u}, step=0, time=0)
            if comm.rank == 0:
                shutil.copy("run.h5", place)
                old = (place / "run.h5").read_bytes()
            comm.Barrier()
            os.chdir(place)
            output.write({"u": 2 * u}, step=1, time=1)
            output.truncate(1)
            read = made(comm, 0 * values(), (2,), (comm.size,))
            output.read({"u": read}, step=1)
            assert np.array_equal(read, 2 * values()[read.local_slice])
            assert output.path == place / "of rank 0" / "run.h5" and output.path.is_file()
            assert comm.rank or (place / "run.h5").read_bytes() == old


@on_ranks(1, 3)
def test_two_outputs_of_a_file(comm):
    """What another `Output` has changed is never overwritten or taken for something else."""
    u = made(comm, values(), (1,), (comm.size,))
    with folder(comm) as place, Runtime(comm) as rt:

        def written(output, *steps):
            for step in steps:
                output.write({"u": step * u}, step=step, time=step)
            return output

        early = Output(rt, place / "a.h5", "a")
        first = written(Output(rt, place / "a.h5", "w"), 1, 2, 3)
        raises_everywhere(comm, RankError, "received one with some: another Output", written, early, 1)
        second = written(Output(rt, place / "a.h5", "a"), 4)
        raises_everywhere(comm, RankError, "3 steps, received one with 4", written, first, 5)
        raises_everywhere(comm, RankError, "3 steps, received one with 4", first.truncate, 1)
        reader = Output(rt, place / "a.h5")
        written(second, 5)
        read = made(comm, 0 * values(), (2,), (comm.size,))
        assert reader.read({"u": read}, step=2)["step"] == 2 and reader.steps == [1, 2, 3, 4]
        second.truncate(1)
        written(second, 10, 11, 12)
        words = "step 4 in place 3, received one with 12"
        raises_everywhere(comm, RankError, words, reader.read, {"u": read})
        written(Output(rt, place / "a.h5", "w"), 1)
        raises_everywhere(comm, RankError, "received one with none", reader.read, {"u": read})
        with Output(rt, place / "a.h5") as output:
            assert output.steps == [1]


@on_ranks(1, exhaustive(2), 3, exhaustive(4))
def test_without_h5py(comm):
    """One clear error on all ranks."""
    original = builtins.__import__

    def refused(name, *args, **kwargs):
        if name == "h5py" and comm.rank == 0:
            raise ModuleNotFoundError(name)
        return original(name, *args, **kwargs)

    u = made(comm, values(), (1,), (comm.size,))
    builtins.__import__ = refused
    try:
        with Runtime(comm) as rt:
            for call in (lambda: Output(rt, "run.h5", "w"), lambda: u.save("u.h5"), lambda: u.load("u.h5")):
                raises_everywhere(comm, InputError, "pip install 'overlap-mpi[files]'", call)
    finally:
        builtins.__import__ = original


@on_ranks(2, fresh=True)
def test_full_disk(comm):
    """The disk refuses to take more at any place: all ranks hear it, and the file has the steps that it had."""
    import resource

    import h5py

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    with folder(comm) as place, Runtime(comm) as rt:
        u, path = made(comm, random(1, (4, 40, 41), "f8"), (1,), (comm.size,)), place / "run.h5"

        def limited(nbytes, function):
            if comm.rank == 0:
                resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, unlimited[1]))
            try:
                return str(raises_everywhere(comm, RankError, "", function))
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)

        with Output(rt, path, "a") as output:
            for nbytes in (0, 1000, 30000):
                text = limited(nbytes, lambda: output.write({"u": u}, step=0, time=0))
                assert "failed on rank 0" in text and str(path) in text
                assert os.listdir(place) == []
            output.write({"u": u}, step=0, time=0)
            before = path.read_bytes()
            for more in (1, 1000, 30000):
                text = limited(len(before) + more, lambda: output.write({"u": u}, step=1, time=0))
                assert "failed on rank 0" in text and str(path) in text
                assert path.read_bytes() == before and os.listdir(place) == ["run.h5"]
            output.write({"u": 2 * u}, step=1, time=1)
            if comm.rank == 0:
                with h5py.File(path) as file:
                    assert np.array_equal(file["u"][1], 2 * random(1, (4, 40, 41), "f8"))
                (place / "cut.h5").write_bytes(before[: len(before) // 2])
        comm.Barrier()
        for call in (lambda: Output(rt, place / "cut.h5"), lambda: u.load(place / "cut.h5")):
            raises_everywhere(comm, RankError, str(place / "cut.h5"), call)


def writer_dies(comm, path, calls):
    """The process of the writer is killed at its `calls`th change of the disk while the second step is written."""
    u = made(comm, random(1, (4, 40, 41), "f8"), (1,), (comm.size,))
    with Output(comm, path, "a") as output:
        if not output.steps:
            output.write({"u": u}, step=0, time=0)
        left = [calls]

        def counted(name):
            original = getattr(os, name)

            def call(*args, **kwargs):
                left[0] -= 1
                if left[0] < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return original(*args, **kwargs)

            return call

        if comm.rank == 0:
            for name in ("pwrite", "ftruncate", "replace", "remove", "fsync"):
                setattr(os, name, counted(name))
        output.write({"u": 2 * u}, step=1, time=1)
        comm.Barrier()
        if comm.rank == 0:
            with open(path + ".left", "w") as file:
                file.write(str(left[0]))


def what_is_left(comm, path):
    """The old step is whole, and the new one is whole or not there."""
    import h5py

    u = made(comm, np.zeros((4, 40, 41)), (0,), (comm.size,))
    with Output(comm, path, "a") as output:
        assert output.steps in ([0], [0, 1]), output.steps
        for step in output.steps:
            output.read({"u": u}, step)
            assert np.array_equal(np.asarray(u), (1 + step) * random(1, (4, 40, 41), "f8")[u.local_slice])
        output.write({"u": u}, step=2, time=2)
        if comm.rank == 0:
            with h5py.File(path) as file:
                assert np.array_equal(file["u"][0], random(1, (4, 40, 41), "f8")) and file["step"][-1] == 2
    comm.Barrier()


@on_ranks("ulfm-3", lost=1)
@pytest.mark.parametrize("victim", [0, exhaustive(2)])
def test_a_rank_is_lost(comm, victim, tmp_path):
    """A rank is killed while a step is written: the file has the steps before, and the ranks that are left go on."""
    path = tmp_path / "run.h5"
    rt = Runtime(comm, on_loss="raise")

    def values_of(comm, step):
        return made(comm, random(step, (4, 40, 41), "f8"), (1,), (comm.size,))

    output = Output(rt, path, "w")
    output.write({"u": values_of(rt.comm.source, 0)}, step=0, time=0)
    if comm.rank == victim:

        def pack(*args):
            os.kill(os.getpid(), signal.SIGKILL)

        FieldPieces.pack = pack
    with pytest.raises(RankLost) as caught:
        while True:
            output.write({"u": values_of(rt.comm.source, 1)}, step=1, time=1)
    rt = caught.value.survivors()
    with Output(rt, path, "a") as output:
        assert output.steps == [0]
        u = values_of(rt.comm.source, 2)
        output.write({"u": u}, step=2, time=2)
        output.read({"u": u}, 0)
        assert np.array_equal(np.asarray(u), random(0, (4, 40, 41), "f8")[u.local_slice])
    rt.close()


@pytest.mark.parametrize("calls", [2, 7, *map(exhaustive, (0, 1, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13))])
def test_the_writer_is_killed(calls, tmp_path):
    path = str(tmp_path / "run.h5")
    jobs.run_job("test_output:writer_dies", 1, args={"path": path, "calls": calls}, expect_failure=True)
    jobs.run_job("test_output:what_is_left", 2, args={"path": path})
