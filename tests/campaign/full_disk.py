"""Run in a mount namespace of its own: files on a small disk that fills up, and on one that is read-only.

What is there is the old version or the new one, whole; nothing is left beside it; and the space is given back.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from .draw import Drawn
from .kinds_of_files import KINDS

SIZE = 256 << 10


def mount(*arguments):
    subprocess.run(["mount", *arguments], check=True)


def free(folder):
    found = os.statvfs(folder)
    return found.f_bfree * found.f_frsize


def replace(one, path):
    """Whether the new version could be written; if not, the error names the file."""
    try:
        one.write(path, 1)
    except OSError as error:
        assert path.name in str(error), f"the error does not name the file: {error}"
        return False
    return True


def fill(kind, drawn, folder):
    """The disk has room for a part of the new version."""
    one, path, filler = kind(drawn), folder / "kept.json", folder / "filler"
    one.write(path, 0)
    before = path.read_bytes()
    filler.write_bytes(bytes(free(folder) - 4096 * int(drawn.integers(3))))
    left = free(folder)
    done = replace(one, path)
    assert one.read(path) == int(done), "neither the old version nor the new one"
    assert done or (path.read_bytes() == before and free(folder) == left), "the disk is not given back"
    assert sorted(entry.name for entry in folder.iterdir()) == ["filler", "kept.json"], list(folder.iterdir())
    filler.unlink()
    assert replace(one, path) and one.read(path) == 1
    path.unlink()


def read_only(kind, drawn, folder):
    """Nothing can be written, and the old version is read."""
    one, path = kind(drawn), folder / "kept.json"
    one.write(path, 0)
    mount("-o", "remount,ro", str(folder))
    assert not replace(one, path) and one.read(path) == 0
    mount("-o", "remount,rw", str(folder))
    path.unlink()


if __name__ == "__main__":
    seed, count = map(int, sys.argv[1:])
    random = Drawn(seed)
    with tempfile.TemporaryDirectory() as name:
        mount("-t", "tmpfs", "-o", f"size={SIZE}", "none", name)
        try:
            for number in range(count):
                (read_only if number % 5 == 4 else fill)(random.pick(KINDS), random, Path(name))
        finally:
            subprocess.run(["umount", name], check=True)
