"""Files that are damaged or no files, and disks that take no more: used whole, or refused by name."""

import sys
import tempfile
from pathlib import Path

import commands
import jobs
from no_files import NO_FILES

from overlap import InputError, files
from overlap.fft.planning import tuning_file

from .draw import Drawn
from .harness import Part
from .kinds_of_files import KINDS, Code, Trace, Tuning, reworded
from .spoil import spoilt

DAMAGES = 50  # of a seed
AT_THE_PLACE = ("folder", "pipe", "loop")  # of NO_FILES: what can be there instead of the file
CASES = (
    "campaign.damage_cases:damaged",
    "test_gkv_files:test_checkpoints_full_of_nonsense",
    "test_gkv_files:test_a_full_disk",
)


def damage(kind, drawn):
    """Damage a file many times; each time it is read as it was, or refused with an error that names it."""
    with tempfile.TemporaryDirectory() as folder:
        path, one = Path(folder, "kept.json"), kind(drawn)
        one.write(path, 0)
        content = path.read_bytes()
        assert one.read(path) == 0, "the file as it was written is not read"
        for _ in range(DAMAGES - len(AT_THE_PLACE)):
            path.write_bytes(spoilt(drawn, content))
            _used_or_refused(one, path)
        for name in AT_THE_PLACE:
            if (kind, name) != (Trace, "pipe"):  # through which a trace may come: the command waits for it
                path.unlink()
                NO_FILES[name](path)
                _used_or_refused(one, path)
                path.rmdir() if name == "folder" else path.unlink()
                path.write_bytes(b"")
        path.unlink()
        Path(folder, "elsewhere").write_bytes(content)
        path.symlink_to("elsewhere")  # a link is followed, and stays
        assert one.read(path) == 0
        one.write(path, 1)
        assert path.is_symlink() and one.read(path) == 1


def _used_or_refused(one, path):
    try:
        version = one.read(path)
    except InputError as error:
        assert path.name in str(error), f"the error does not name the file: {error}"
    except OSError:  # of the reader below them, which its callers name
        pass
    except ValueError:  # `index`
        raise AssertionError(f"damaged, and used all the same: {path.read_bytes()!r}") from None
    else:
        assert version == 0 or (isinstance(one, Code) and version is None), version


def other_content(drawn):
    """Tuning files with other content under a right digest: refused, or as good as any."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kept.json")
        Tuning(drawn).write(path, 0)
        content = path.read_bytes()
        for _ in range(DAMAGES):
            data, entries = reworded(drawn, content)
            path.write_bytes(data)
            try:
                read = tuning_file.read(str(path))
                assert read == [entry | {"plan": tuning_file.stated(entry["plan"])} for entry in entries]
                for entry in entries:  # whoever uses it finds settings that can be used
                    for values in entry["transforms"].values():
                        tuning_file.settings_of(values)
            except InputError as error:
                assert path.name in str(error), f"the error does not name the file: {error}"


def take_no_more(seed):
    """A disk that is full or read-only, in a mount namespace of its own."""
    alone = "unshare", "--map-root-user", "--mount", sys.executable, "-m", "campaign.full_disk"
    done = commands.run(*alone, seed, DAMAGES, cwd=Path(__file__).parents[1])
    assert done.returncode == 0, done.stderr


def checkpoints(seed):
    """The solver's checkpoints, on ranks: damaged, wrong under a right digest, not to be written."""
    case, drawn = CASES[seed // 8 % len(CASES)], Drawn(seed)
    with tempfile.TemporaryDirectory() as folder:
        args = {"tmp_path": Path(folder)}
        if case == CASES[0]:
            args = {"folder": folder, "seed": seed, "count": DAMAGES}
        jobs.run_job(case, drawn.ranks(1, 2), args=args, deadline_s=300)


def run(seed):
    """One kind of file and of trouble; eight take turns."""
    number = seed % 8
    if number < len(KINDS):
        damage(KINDS[number], Drawn(seed))
    else:
        (lambda: other_content(Drawn(seed)), lambda: take_no_more(seed), lambda: checkpoints(seed))[
            number - len(KINDS)
        ]()


def defect():
    """A reader that does not look at the digest is found."""
    is_sealed = files.is_sealed
    files.is_sealed = lambda content, digest: True
    try:
        for seed in range(20):
            damage(Tuning, Drawn(seed))
    finally:
        files.is_sealed = is_sealed


PART = Part(
    "files",
    "tuning files (the cache's, too), traces, reports, compiled code, checkpoints: flipped, cut off, overwritten, a "
    "folder, a pipe (traces: none), links; tuning files and checkpoints with other content and a right digest; a disk "
    "that is full or read-only: used whole, or refused by name, the version before stays, and the disk is given back",
    10_000,
    run,
    defect,
    "used all the same",
    DAMAGES,
)
