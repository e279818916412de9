"""The cache of choices: bounded, whoever writes to it at once."""

import multiprocessing
import os

import pytest
from test_tuning import entry

from overlap.fft.planning import tuning_file as store
from overlap.files import CACHE_VARIABLE, user_folder


@pytest.fixture(autouse=True)
def few(monkeypatch, tmp_path):
    monkeypatch.setattr(store, "KEPT", 5)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))


def kept(number):
    """A file of the cache, as a plan with this number would write it."""
    path = user_folder() / f"{number:032}.plan.json"
    store.write_cached(path, entry(plan={"kind": "FFT2", "shape": [number, 8, 8]}))
    return path


def test_the_choices_used_last_are_kept(tmp_path):
    paths = [kept(number) for number in range(5)]
    for age, path in enumerate(reversed(paths)):  # the first one was used last
        os.utime(path, ns=(age + 1, age + 1))
    stale = tmp_path / f".{paths[0].name[:40]}.abc.partial"
    stale.touch()
    (tmp_path / "mine.txt").touch()
    (tmp_path / ".mine.partial").touch()
    new = kept(5)
    assert {*tmp_path.iterdir()} == {*paths[:4], new, tmp_path / "mine.txt", tmp_path / ".mine.partial"}
    os.utime(paths[3], ns=(10, 10))  # as if a plan had found it
    os.utime(new, ns=(9, 9))
    kept(3)  # written again: nothing makes room
    assert new.exists() and len(store.cached()) == 5
    stale.touch()
    assert store.clear() == 5
    assert sorted(path.name for path in tmp_path.iterdir()) == [".mine.partial", "mine.txt"]


def _fill(first):
    for number in range(first, first + 10):
        path = kept(number % 15)  # some are written by both
        try:
            store.read(str(path))
        except Exception as error:
            return repr(error)
    return None


def test_jobs_that_write_at_once_leave_whole_files(tmp_path):
    """What another job has dropped meanwhile is missing, never damaged."""
    with multiprocessing.get_context("fork").Pool(4) as pool:
        assert pool.map(_fill, [0, 7, 14, 21], chunksize=1) == [None] * 4
    found = store.cached()
    assert len(found) == 5 and all(content is not None for _, content in found)
    assert len(list(tmp_path.iterdir())) == 5
