"""The one writer of files: what it replaces is whole, old or new, and nothing is left beside it."""

import errno
import multiprocessing
import os
import resource
import signal
import stat

import pytest
from no_files import NO_FILES

from overlap import files

OLD, NEW = b"old content", b"new content, longer than the old one"


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(OLD)
    return path


def only(path, content):
    """Assert that a folder holds one file, and what is in it."""
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    assert path.read_bytes() == content


def test_text_and_bytes(path):
    files.write(path, NEW)
    only(path, NEW)
    files.write(str(path), "\u00e9")
    only(path, b"\xc3\xa9")


def test_a_new_file_appears(tmp_path):
    path = tmp_path / "new"
    with files.replacing(path) as partial:
        assert partial.parent == tmp_path and not path.exists()
        partial.write_bytes(NEW)
    only(path, NEW)


def test_readers_see_the_old_file_until_the_end(path):
    with files.replacing(path) as partial:
        partial.write_bytes(NEW)
        assert path.read_bytes() == OLD
    only(path, NEW)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_exception_leaves_the_old_file(path, error):
    with pytest.raises(error), files.replacing(path) as partial:
        partial.write_bytes(NEW)
        raise error
    only(path, OLD)


@pytest.mark.parametrize("name", ["fsync", "chmod", "replace"])
def test_a_system_call_that_fails_leaves_the_old_file(path, name, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, name, full)
    with pytest.raises(OSError, match="No space"):
        files.write(path, NEW)
    only(path, OLD)


def _in_a_child(function, *args):
    """Run a function in a process of its own; returns its exit code."""
    child = multiprocessing.get_context("fork").Process(target=function, args=args)
    child.start()
    child.join(60)
    assert child.exitcode is not None
    return child.exitcode


def _write_too_much(path):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    try:
        files.write(path, bytes(2000))
    except OSError:
        os._exit(7)
    os._exit(1)


def test_a_file_that_finds_no_room_leaves_the_old_one(path):
    assert _in_a_child(_write_too_much, path) == 7
    only(path, OLD)


def _die_in_the_middle(path):
    with files.replacing(path) as partial:
        partial.write_bytes(NEW)
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_dies_leaves_the_old_file(path):
    assert _in_a_child(_die_in_the_middle, path) == -signal.SIGKILL
    assert path.read_bytes() == OLD
    files.write(path, NEW)  # what the dead one left is in nobody's way
    assert path.read_bytes() == NEW


def _write_often(path, byte):
    for length in range(1, 200):
        files.write(path, byte * (1000 * length))


def test_two_writers_at_once_leave_a_whole_file_of_one(path):
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write_often, args=(path, byte)) for byte in (b"a", b"b")]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        content = path.read_bytes()
        assert content == OLD or (len(set(content)) == 1 and len(content) % 1000 == 0)
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    content = path.read_bytes()
    assert len(content) == 199_000
    only(path, content)


def test_nobody_else_can_open_it_before_the_end(path):
    with files.replacing(path) as partial:
        assert stat.S_IMODE(partial.stat().st_mode) == 0o600


def test_permissions_stay_and_new_files_have_the_usual_ones(path, tmp_path):
    path.chmod(0o640)
    files.write(path, NEW)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    before = os.umask(0o027)
    try:
        files.write(tmp_path / "new", NEW)
        assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)


def test_a_link_stays_a_link(path, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(path.name)
    files.write(link, NEW)
    assert link.is_symlink() and path.read_bytes() == NEW
    assert sorted(os.listdir(tmp_path)) == ["file", "link"]
    target = tmp_path / "other"
    link.unlink()
    link.symlink_to(target)  # to nothing yet
    files.write(link, NEW)
    assert link.is_symlink() and target.read_bytes() == NEW


def test_a_name_prepared_by_somebody_else_is_not_followed(path, tmp_path):
    """The old way wrote to PATH.PID.part, whatever was there."""
    victim = tmp_path / "victim"
    victim.write_bytes(OLD)
    (tmp_path / f"file.{os.getpid()}.part").symlink_to(victim)
    files.write(path, NEW)
    assert victim.read_bytes() == OLD and path.read_bytes() == NEW


def test_the_longest_name(tmp_path):
    path = tmp_path / ("n" * 255)
    files.write(path, NEW)
    only(path, NEW)


@pytest.mark.parametrize("kind", NO_FILES)
def test_what_is_no_file_is_refused_and_stays(tmp_path, kind):
    path = NO_FILES[kind](tmp_path / "here")
    before = os.listdir(tmp_path)
    assert files.unwritable(path)
    with pytest.raises(OSError):
        files.write(path, NEW)
    with pytest.raises(OSError):
        files.read(path, 10**6)
    assert os.listdir(tmp_path) == before


def test_reading_is_bounded_and_waits_for_nobody(path):
    assert files.unwritable(path) is None
    assert files.read(path, len(OLD)) == OLD
    with pytest.raises(OSError, match="longer than 10 bytes"):
        files.read(path, 10)
    with pytest.raises(OSError, match="not a regular file"):
        files.read("/dev/zero", 10)
    with pytest.raises(OSError, match="longer than 4 bytes"):
        files.read("/proc/self/status", 4)  # it has no length of its own
    with pytest.raises(FileNotFoundError):
        files.read(path.with_name("none"), 10)


def test_files_that_were_refused_are_closed(path):
    before = len(os.listdir("/proc/self/fd"))
    for bad in (path, path.parent, "/dev/zero"):
        for _ in range(10):
            with pytest.raises(OSError):
                files.read(bad, 1)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_pipe_cannot_be_replaced():
    """/dev/stdout is a link to it, whose target has no name."""
    read, write = os.pipe()
    try:
        path = f"/dev/fd/{write}"
        assert files.unwritable(path) == "not a regular file"
        with pytest.raises(OSError, match="not a regular file"), files.replacing(path):
            pass
    finally:
        os.close(read)
        os.close(write)


def test_a_full_disk_is_told_with_the_files_name(tmp_path):
    path = tmp_path / "report.json"
    with pytest.raises(OSError, match="No space left") as caught, files.replacing(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert str(path) in str(caught.value)


def test_sealed_text_shows_every_change():
    text = files.sealed('{"digest": "", "name": "x", "digest of another": ""}')
    digest, content = text.split('"')[3], text.encode()
    assert files.is_sealed(content, digest)
    for place in range(len(content)):
        assert not files.is_sealed(content[:place], digest)
        assert not files.is_sealed(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :], digest)


@pytest.mark.parametrize("digest", [None, "", "{", 3, ["a"], "\ud800", "\u00e9", "0" * 64])
def test_what_is_no_digest_seals_nothing(digest):
    assert not files.is_sealed(b'{"digest": "?", "name": "\xc3\xa9"}', digest)
