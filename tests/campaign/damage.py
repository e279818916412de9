"""Files that are damaged or no files: used whole, or refused by name. What rank 0 reads is read here, without MPI."""

import tempfile
from pathlib import Path

import jobs
import numpy as np
from no_files import NO_FILES

from overlap import InputError, files
from overlap.compiled import _CodeFiles
from overlap.fft.planning import tuning_file
from overlap.fft.planning.settings import Settings, Tuned
from overlap.runtime.trace import Span
from overlap.tools import timeline

from .draw import Drawn
from .harness import Part
from .spoil import spoilt

DAMAGES = 50        # of a seed


def _tuning(drawn, path):
    """A tuning file, which is the cache's format, too."""
    entries = [{"plan": {"shape": [n, 4]}, "machine": {"mpi": "any"}, "wisdom": "(fftw)", "transforms": {
        "forward": tuning_file.record(Settings("poll", 4, 2, 4, polls=2, late=0.5, effort="estimate"), Tuned("", 1.5, 7))}}
        for n in range(1, 4)]
    path.write_text(tuning_file.text_of(entries))
    return path.read_bytes(), lambda: tuning_file.read(str(path)) == entries


def _trace(drawn, path):
    """A trace, which has no digest: what can be read must be spans."""
    spans = [Span(rank, "worker 0", "compute", f"step {rank}", 0.5 * rank, 1.0 + rank) for rank in range(4)]
    timeline.write_chrome(spans, path)
    return path.read_bytes(), lambda: all(isinstance(one, Span) for one in timeline.read_chrome(path))


def _code(drawn, path):
    """Compiled code in the cache: as it was saved, or none, which means compiling again."""
    kept = _CodeFiles(path.parent, path.name, _code, [])
    key, value = ("signature",), {"code": drawn.bytes(500)}
    kept.save(key, value)
    file, = path.parent.glob("*.nbc")
    content = file.read_bytes()
    file.rename(path)
    kept._path = lambda key: path
    return content, lambda: kept.load(key) in (value, None)


def _files(drawn, path):
    """The reader of all files: the content, or an error."""
    path.write_bytes(drawn.bytes(300))
    return path.read_bytes(), lambda: isinstance(files.read(path, 1000), bytes)


SUBJECTS = (_tuning, _trace, _code, _files)


def _damage(subject, drawn):
    """Damage a file many times; each time it is read as it was, or refused with an error that names it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kept.json")
        content, used_whole = subject(drawn, path)
        assert used_whole(), "the file as it was written is not read"
        for _ in range(DAMAGES - len(NO_FILES)):
            path.write_bytes(spoilt(drawn, content))
            _used_or_refused(used_whole, path)
    for name, make in NO_FILES.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "kept.json")
            _, used_whole = subject(drawn, path)
            path.unlink()
            if name in (("folder", "loop") if subject is _trace else ("folder", "pipe", "loop")):
                make(path)  # a trace may come through a pipe, which the command waits for
                _used_or_refused(used_whole, path)


def _used_or_refused(used_whole, path):
    try:
        assert used_whole(), f"damaged, and used all the same: {path.read_bytes()!r}"
    except InputError as error:
        assert path.name in str(error), f"the error does not name the file: {error}"
    except OSError:     # of the reader below them, which its callers name
        pass


def run(seed):
    """One kind of file, damaged in many ways; the solver's checkpoints on ranks."""
    drawn = Drawn(seed)
    number = seed % (len(SUBJECTS) + 1)
    if number < len(SUBJECTS):
        _damage(SUBJECTS[number], drawn)
    else:
        with tempfile.TemporaryDirectory() as folder:
            jobs.run_job("campaign.damage_cases:damaged", drawn.ranks(1, 2), args={
                "folder": folder, "seed": seed, "count": DAMAGES}, deadline_s=300)


def defect():
    """A reader that does not look at the digest is found."""
    digest = tuning_file._digest
    tuning_file._digest = lambda data: "0" * 64
    try:
        for seed in range(20):
            _damage(_tuning, np.random.default_rng(seed))
    finally:
        tuning_file._digest = digest


PART = Part("files", "tuning files (the cache's, too), traces, compiled code, checkpoints: flipped, cut off, overwritten, a "
            "folder, a pipe (traces: none), a link to itself: used whole, or refused by name (traces have no digest: "
            "spans, or refused)",
            10_000, run, defect, "used all the same", DAMAGES)
