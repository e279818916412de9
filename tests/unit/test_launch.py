"""Starting ranks: cores, events, what is left in shared memory, signals."""

import mmap
import os
import signal
import threading
import uuid

import pytest

from overlap.tools import cli, dead_segments, launch, signals


@pytest.mark.parametrize(
    "ranks, workers, available, expected",
    [
        (2, 1, [0, 1], [[0], [1]]),
        (2, 2, [0, 1], [[0], [1]]),  # the workers of a rank share its core
        (2, 2, [4, 5, 6, 7, 8], [[4, 5], [6, 7]]),
        (3, 1, [0, 1], []),  # nothing is pinned
    ],
)
def test_core_sets(ranks, workers, available, expected):
    assert launch.core_sets(ranks, workers, available) == expected


def test_events_are_told_from_other_output(capsys):
    for event in ({"progress": ["planning", 1, 5]}, [[512, 64], [0.5]]):
        launch.tell(event)
    lines = ["a warning", *capsys.readouterr().out.splitlines(), "@overlapping"]
    found = []
    on_line = launch.listening(found.append)
    for line in lines:
        on_line(line)
    assert found == [{"progress": ["planning", 1, 5]}, [[512, 64], [0.5]]]
    assert capsys.readouterr().err == "a warning\n@overlapping\n"


# --- shared memory --------------------------------------------------------------------------------


@pytest.fixture
def segment(monkeypatch):
    """Makes segments named as an MPI library's; returns an open file.

    The library is one that only this test has: whoever starts a real job meanwhile would remove
    what nobody holds.
    """
    made = []
    library = f"library_{uuid.uuid4().hex}_"
    monkeypatch.setattr(dead_segments, "NAMES", (library,))

    def make(prefix=library):
        file = open(f"/dev/shm/{prefix}{uuid.uuid4().hex}", "w+b")
        file.truncate(4096)
        made.append(file)
        return file

    yield make
    for file in made:
        file.close()
        if os.path.exists(file.name):
            os.remove(file.name)


def exists(file):
    return os.path.exists(file.name)


def test_segments_that_nobody_holds_are_removed(segment):
    before, foreign = segment(), None
    before.close()
    with dead_segments.removing_segments():
        left, opened, mapped, foreign = segment(), segment(), segment(), segment("my_own_")
        left.close()
        foreign.close()
        memory = mmap.mmap(mapped.fileno(), 4096)
        mapped.close()
    with memory:
        assert [exists(file) for file in (before, left, opened, mapped, foreign)] == [True, False, True, True, True]


def test_segments_are_removed_after_an_exception_too(segment):
    with pytest.raises(KeyboardInterrupt), dead_segments.removing_segments():
        left = segment()
        left.close()
        raise KeyboardInterrupt
    assert not exists(left)


def test_what_dead_jobs_left_is_told_and_removed(segment, capsys):
    held, left, foreign = segment(), segment(), segment("my_own_")
    left.close()
    foreign.close()
    name = os.path.basename(left.name)
    assert dead_segments.abandoned() == {name: 4096}
    assert cli.main(["info", "--clean"]) == 0
    assert capsys.readouterr().out == f"{left.name}  4 KiB\n1 segment(s) of dead jobs removed, 4 KiB\n"
    assert [exists(file) for file in (held, left, foreign)] == [True, False, True]
    assert cli.main(["info", "--clean"]) == 0
    assert capsys.readouterr().out == "no segments of dead jobs in /dev/shm\n"


def test_what_another_user_has_left_is_not_ours(segment, monkeypatch):
    segment().close()
    monkeypatch.setattr(os, "getuid", lambda: 4242)
    assert dead_segments.existing() == set()


def test_a_rank_that_is_about_to_remove_its_own_may(segment, monkeypatch):
    left = segment()
    left.close()
    monkeypatch.setattr(dead_segments.time, "sleep", lambda seconds: os.remove(left.name))
    assert dead_segments.abandoned() == {}


# --- signals --------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_raise_once(number):
    with pytest.raises(SystemExit) as caught, signals.ending_by_exception():
        try:
            signal.raise_signal(number)
        finally:
            signal.raise_signal(number)  # told twice: what ends now is not disturbed
    assert caught.value.code == 128 + number
    assert signal.getsignal(number) == signal.SIG_DFL


def test_what_is_ignored_or_handled_stays_so():
    seen = []
    previous = {
        signal.SIGHUP: signal.signal(signal.SIGHUP, signal.SIG_IGN),
        signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: seen.append("handled")),
    }
    try:
        with signals.ending_by_exception():
            signal.raise_signal(signal.SIGHUP)
            signal.raise_signal(signal.SIGTERM)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    assert seen == ["handled"]


def test_other_threads_leave_signals_alone():
    found = []

    def run():
        with signals.ending_by_exception():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [signal.SIG_DFL]
