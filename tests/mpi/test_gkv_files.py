"""Checkpoints of the flux-tube solver: restarts, damage, full disks, kills."""

import os
import resource
from contextlib import contextmanager
from pathlib import Path

import gkv_example  # noqa: F401
import h5py
import jobs
import numpy as np
import pytest
from fluxtube import checkpoints, files, output
from fluxtube.config import ConfigError
from fluxtube.diagnostics import Diagnostics
from fluxtube.solver import Solver
from marks import exhaustive, on_ranks
from test_gkv import BOX, configured
from test_gkv_fields import sample

# ---- files ---------------------------------------------------------------------------------------


def write_two(comm, config, folder):
    """Checkpoints of steps 1 to 3, of which two are kept; f and the time after step 4."""
    with Solver(comm, config) as solver:
        diagnostics, history = Diagnostics(solver), {}
        for step in range(4):
            sample(diagnostics, history)
            if step:
                checkpoints.write(folder, solver, history)
            solver.step()
        straight, time = solver.state.f.copy(), solver.state.time
    assert [path.name[-4:-3] for path in checkpoints.paths(folder)] == ["3", "2"]
    return straight, time


@on_ranks
@pytest.mark.parametrize("comm, parallel", [(1, {}), (2, {"v": 2}), exhaustive(4, {"ky": 2, "z": 2})])
def test_restart_bit_for_bit(comm, tmp_path, parallel):
    """Going on from a checkpoint gives the bits of going straight on; spoilt ones are passed over."""
    config = configured(grid=BOX, parallel=parallel)
    straight, time = write_two(comm, config, tmp_path)
    paths = checkpoints.paths(tmp_path)
    for spoil in (None, "flip", "cut", "empty"):
        if comm.rank == 0 and spoil:
            data = paths[0].read_bytes()
            paths[0].write_bytes(
                {
                    "flip": data[:1000] + bytes([data[1000] ^ 1]) + data[1001:],
                    "cut": data[: len(data) // 2],
                    "empty": b"",
                }[spoil]
            )
        comm.Barrier()
        with Solver(comm, config) as solver:
            kept, remarks = checkpoints.read(tmp_path, solver)
            assert solver.state.step == (2 if spoil else 3)
            assert [paths[0].name in remark for remark in remarks] == [True] * bool(spoil)
            if comm.rank == 0:
                assert len(kept["time"]) == solver.state.step + 1
            while solver.state.step < 4:
                solver.step()
            assert np.array_equal(solver.state.f, straight) and solver.state.time == time
    if comm.rank == 0:
        paths[1].write_bytes(b"x" * 3000)
    comm.Barrier()
    with Solver(comm, config) as solver, pytest.raises(files.FileError) as caught:
        checkpoints.read(tmp_path, solver)
    assert all(path.name in str(caught.value) for path in paths)


def _put(name, value):
    """Something that replaces a dataset of a file."""

    def change(file):
        new = value(file[name][()])
        del file[name]
        if new is not None:
            file[name] = new

    return change


def _set(name, value):
    return lambda file: file.attrs.__setitem__(name, value)


NONSENSE = {  # what was changed under a right digest, and what is to be said about it
    "a plane less": (_put("f", lambda f: f[1:]), "expected f of shape"),
    "real": (_put("f", lambda f: f.real), "expected f of shape"),
    "no f": (_put("f", lambda f: None), "expected an array f, received None"),
    "NaN in f": (_put("f", lambda f: np.where(f == f[-1, 0, 0, 1, 1], np.nan, f)), "expected f to be finite"),
    "step -3": (_set("step", -3), "expected a step of at least 0, received -3"),
    "step 2.5": (_set("step", 2.5), "expected a step of at least 0"),
    "steps": (_set("step", [3, 3]), "expected a step of at least 0"),
    "time NaN": (_set("time", np.nan), "expected a time of at least 0, received nan"),
    "time in words": (_set("time", "now"), "expected a time of at least 0, received now"),
    "no time": (lambda file: file.attrs.pop("time"), "time"),
    "version 7": (_set("version", 7), "expected version 1, received 7"),
    "no JSON": (_set("config", "grid"), "JSONDecodeError"),
    "list": (_set("config", "[1]"), "TypeError"),
    "no section": (_set("config", "{}"), "KeyError: 'plasma'"),
    "no history": (lambda file: file.pop("history"), "expected an array history/time, received None"),
    "no heat flux": (lambda file: file.pop("history/heat_flux"), "expected an array history/heat_flux"),
    "a sample less": (_put("history/S", lambda S: S[1:]), "expected history/S of shape (4, 4)"),
    "a mode more": (_put("history/S", lambda S: np.hstack([S, S])), "expected history/S of shape (4, 4)"),
    "real history": (_put("history/zonal", lambda phi: phi.real), "expected history/zonal of shape (4, 9)"),
    "NaN in history": (_put("history/D", lambda D: D * np.nan), "expected history/D to be finite"),
    "a number": (_put("history/time", lambda time: time[0]), "expected history/time of shape"),
    "group": (lambda file: (file.pop("f"), file.create_group("f")), "expected an array f, received <HDF5 group"),
}
NO_FILES = {
    "FIFO": (os.mkfifo, "expected a file"),
    "folder": (os.mkdir, "directory"),
    "link": (lambda path: os.symlink("nowhere", path), "No such file"),
    "itself": (lambda path: os.symlink(path, path), "Too many levels"),
}


@on_ranks(1, exhaustive(2))
def test_checkpoints_full_of_nonsense(comm, tmp_path):
    """A checkpoint that no run can have written is passed over, whatever its digest says."""
    config = configured(grid=BOX)
    write_two(comm, config, tmp_path)
    newest = checkpoints.paths(tmp_path)[0]
    good = newest.read_bytes()
    comm.Barrier()
    with Solver(comm, config) as solver:
        for name, (change, words) in (NONSENSE | NO_FILES).items():
            if comm.rank == 0:
                newest.unlink()
                if name in NO_FILES:
                    change(newest)
                else:
                    newest.write_bytes(good)
                    with h5py.File(newest, "r+") as file:
                        change(file)
                    checkpoints._seal(newest)
            comm.Barrier()
            _, remarks = checkpoints.read(tmp_path, solver)
            assert solver.state.step == 2, name
            assert len(remarks) == 1 and remarks[0].startswith(newest.name), (name, remarks)
            assert words in remarks[0], (name, remarks)
            comm.Barrier()
            if comm.rank == 0:
                newest.rmdir() if name == "folder" else newest.unlink()
                newest.write_bytes(good)
        comm.Barrier()
        assert checkpoints.read(tmp_path, solver)[1] == [] and solver.state.step == 3


def other_run(comm, folder):
    """A checkpoint of another configuration is refused by name; one that ends later goes on."""
    config = configured(grid=BOX)
    write_two(comm, config, folder)
    with (
        Solver(comm, configured(grid=BOX, plasma={"q": 2.0})) as solver,
        pytest.raises(ConfigError, match="plasma.q: expected 1.4 as of the checkpoint"),
    ):
        checkpoints.read(folder, solver)
    with Solver(comm, configured(grid=BOX, time={"end": 999.0})) as solver:
        checkpoints.read(folder, solver)
        assert solver.state.step == 3


def cannot_write(comm):
    """A checkpoint that cannot be written is one error on all ranks; the run can go on."""
    with Solver(comm, configured(grid=BOX)) as solver:
        with pytest.raises(files.FileError, match="expected to write /nowhere/checkpoint-"):
            checkpoints.write("/nowhere", solver, {})
        solver.step()


@on_ranks(exhaustive(1), 2)
def test_checkpoints_that_do_not_fit(comm, tmp_path):
    other_run(comm, folder=str(tmp_path))
    cannot_write(comm)


@on_ranks(exhaustive(1), 2)
def test_a_full_disk(comm, tmp_path):
    """Wherever the disk is full: one error on all ranks, the checkpoint before as it was, nothing else left."""
    config = configured(grid=BOX)
    write_two(comm, config, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    size = len(before["checkpoint-000000003.h5"])
    comm.Barrier()
    with Solver(comm, config) as solver:
        history, _ = checkpoints.read(tmp_path, solver)
        solver.step()
        for most in (0, 100, 600, 2000, 10_000, size // 2, size - 100):
            with at_most(most if comm.rank == 0 else None):
                with pytest.raises(files.FileError, match="expected to write .*000000004.h5: .*File too large"):
                    checkpoints.write(tmp_path, solver, history)
                if most < 10_000:
                    with pytest.raises(files.FileError, match="output.h5: .*File too large"):
                        output.write(tmp_path / "output.h5", solver, history)
            assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
            comm.Barrier()
        checkpoints.write(tmp_path, solver, history)
        assert len(checkpoints.paths(tmp_path)) == checkpoints.KEPT


@contextmanager
def at_most(size):
    """Files of this process cannot grow beyond `size` bytes: a full disk, as far as writing goes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft if size is None else size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def killed_while_writing(comm, folder):
    """Write checkpoints until the job is killed, in the middle of one (see the test)."""
    with Solver(comm, configured(grid=BOX)) as solver:
        diagnostics, history = Diagnostics(solver), {}
        solver.step()
        sample(diagnostics, history)
        checkpoints.write(folder, solver, history)
        seal = checkpoints._seal

        def die(path):
            assert path.stat().st_size > 10_000
            os.kill(os.getpid(), 9)

        checkpoints._seal = die if comm.rank == 0 else seal
        solver.step()
        checkpoints.write(folder, solver, history)


def after_kill(comm, folder):
    """What the killed job left: the checkpoint before, whole; the next one clears the rest away."""
    with Solver(comm, configured(grid=BOX)) as solver:
        history, remarks = checkpoints.read(folder, solver)
        assert solver.state.step == 1 and not remarks
        if comm.rank == 0:
            assert history["time"] == [solver.state.time]
        solver.step()
        checkpoints.write(folder, solver, history)
        comm.Barrier()
        assert sorted(path.suffix for path in Path(folder).iterdir()) == [".h5", ".h5"]


@pytest.mark.parametrize("ranks", [1, exhaustive(2)])
def test_kill_while_a_checkpoint_is_written(ranks, tmp_path):
    jobs.run_job("test_gkv_files:killed_while_writing", ranks, args={"folder": str(tmp_path)}, expect_failure=True)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".h5", ".partial"]
    jobs.run_job("test_gkv_files:after_kill", ranks, args={"folder": str(tmp_path)})
