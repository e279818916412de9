"""HDF5 files that are changed wholly or not at all, with a disk that fails at any place."""

import errno
import fcntl
import os

import h5py
import numpy as np
import pytest

from overlap.output.hdf5_file import changing, undo, undo_path

FORMAT = ("v110", "v110")


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "run.h5"
    with h5py.File(path, "w", libver=FORMAT) as file:
        file.create_dataset("u", data=np.ones((1, 300)), maxshape=(None, 300), chunks=(1, 300))
    return path


def append(path, value):
    with changing(path) as disk, h5py.File(disk, "r+", libver=FORMAT) as file:
        file["u"].resize(len(file["u"]) + 1, 0)
        file["u"][-1] = value


def rows(path):
    with h5py.File(path) as file:
        return file["u"][:, 0].tolist()


def test_what_is_appended_is_there(path):
    for value in range(20):
        append(path, value)
    assert rows(path) == [1, *range(20)] and os.listdir(path.parent) == ["run.h5"]


def test_an_exception_leaves_the_old_file(path):
    before = path.read_bytes()
    with pytest.raises(ZeroDivisionError), changing(path) as disk, h5py.File(disk, "r+", libver=FORMAT) as file:
        file["v"] = np.arange(10000)
        raise ZeroDivisionError
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["pwrite", "ftruncate", "fsync", "replace", "remove"])
def test_a_disk_that_fails_leaves_one_of_both(path, name, monkeypatch):
    before, original = path.read_bytes(), getattr(os, name)
    for good in range(6):
        left = [good]

        def failing(*args, **kwargs):
            left[0] -= 1
            if left[0] == -1:
                raise OSError(errno.EIO, "Input/output error")
            return original(*args, **kwargs)

        monkeypatch.setattr(os, name, failing)
        try:
            append(path, 2)
        except OSError:
            monkeypatch.setattr(os, name, original)
            undone = undo(path)
            assert path.read_bytes() == before if undone else rows(path) in ([1], [1, 2])
            assert not undo(path)
        monkeypatch.setattr(os, name, original)
        append(path, 3)
        assert rows(path) in ([1, 3], [1, 2, 3])
        path.write_bytes(before)


def test_what_a_dead_process_has_left_behind_the_end_is_written_over(path):
    size = path.stat().st_size
    with open(path, "ab") as file:
        file.write(b"x" * 100000)
    append(path, 2)
    assert rows(path) == [1, 2] and path.stat().st_size < size + 50000


def left_in_the_middle(path, monkeypatch):
    """Change a file by a process that ends in between."""
    with monkeypatch.context() as patched:
        patched.setattr(os, "remove", lambda path: (_ for _ in ()).throw(OSError("gone")))
        with pytest.raises(OSError, match="gone"):
            append(path, 2)
    assert undo_path(path).exists()


def test_what_was_is_not_brought_back_from_a_damaged_file(path, monkeypatch):
    left_in_the_middle(path, monkeypatch)
    beside = undo_path(path)
    *rest, last = beside.read_bytes()
    beside.write_bytes(bytes([*rest, last ^ 1]))
    with pytest.raises(OSError, match="is damaged"):
        undo(path)


def test_nothing_is_undone_while_somebody_changes_the_file(path, monkeypatch):
    left_in_the_middle(path, monkeypatch)
    with open(path) as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        with pytest.raises(OSError, match="another process"):
            undo(path)
    assert undo(path) and rows(path) == [1]


def test_without_the_file_there_is_nothing_to_undo(path, monkeypatch):
    left_in_the_middle(path, monkeypatch)
    path.unlink()
    assert not undo(path) and os.listdir(path.parent) == []
