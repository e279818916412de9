"""The kinds of files that the library writes and reads again, each in two versions. No MPI."""

import hashlib
import json

from overlap import files
from overlap.compiled import _CodeFiles
from overlap.fft.planning import tuning_file
from overlap.fft.planning.settings import Settings, Tuned
from overlap.runtime.trace import Span
from overlap.tools import timeline
from overlap.tools.bench import report


class Tuning:
    """A tuning file, which is the cache's format, too."""

    def __init__(self, drawn):
        text = drawn.bytes(3000).hex()
        self.versions = [
            [
                {
                    "plan": {"shape": [n, 4]},
                    "machine": {"mpi": "any"},
                    "wisdom": text[: 1000 * version],
                    "transforms": {
                        "forward": tuning_file.record(
                            Settings("poll", 4, 2, 4, late=0.5, effort="estimate"), Tuned("", 1.5, 7)
                        )
                    },
                }
                for n in range(1, 4)
            ]
            for version in (1, 3)
        ]

    def write(self, path, version):
        files.write(path, tuning_file.text_of(self.versions[version]))

    def read(self, path):
        return self.versions.index(tuning_file.read(str(path)))


class Trace:
    """A trace of a run."""

    def __init__(self, drawn):
        self.versions = [
            [Span(rank, "worker 0", "compute", f"step {rank}", 0.5 * rank, 1.0 + rank) for rank in range(count)]
            for count in (4, 40)
        ]

    def write(self, path, version):
        timeline.write_chrome(self.versions[version], path)

    def read(self, path):
        return self.versions.index(timeline.read_chrome(path))


class Report:
    """A report of measurements."""

    def __init__(self, drawn):
        self.versions = [
            report.new_report(["overlap", "bench"]) | {"notes": [drawn.bytes(20).hex()] * count, "complete": True}
            for count in (1, 100)
        ]

    def write(self, path, version):
        report.write(dict(self.versions[version]), path)

    def read(self, path):
        return self.versions.index(report.read(path))


class Code:
    """Compiled code in the cache: as it was saved, or none, which means compiling again."""

    key = ("signature",)

    def __init__(self, drawn):
        self.versions = [{"code": drawn.bytes(size)} for size in (500, 5000)]

    def write(self, path, version):
        self._files(path).save(self.key, self.versions[version])

    def read(self, path):
        found = self._files(path).load(self.key)
        return None if found is None else self.versions.index(found)

    def _files(self, path):
        kept = _CodeFiles(path.parent, "none", Code, [])
        kept._path = lambda key: path
        return kept


class Plain:
    """What all files are written and read with, beside a digest as its callers have them."""

    def __init__(self, drawn):
        self.versions = [drawn.bytes(size) for size in (300, 3000)]

    def write(self, path, version):
        content = self.versions[version]
        files.write(path, hashlib.sha256(content).digest() + content)

    def read(self, path):
        content = files.read(path, 10_000)
        if hashlib.sha256(content[32:]).digest() != content[:32]:
            raise OSError("damaged")
        return self.versions.index(content[32:])


KINDS = (Tuning, Trace, Report, Code, Plain)


def reworded(drawn, content):
    """A tuning file with another value somewhere, under the right digest."""
    entries = json.loads(content)["entries"]
    place, name = _leaf(drawn, entries)
    place[name] = drawn.pick([None, True, -1, 0, 2**70, 1.5, "", "poll", "x" * 100, [], {}, [[]], {"forward": 1}])
    return tuning_file.text_of(entries).encode(), entries


def _leaf(drawn, tree):
    """A random place in nested lists and dicts: what holds it, and its name there."""
    while True:
        name = drawn.pick(list(tree) if isinstance(tree, dict) else range(len(tree)))
        if not isinstance(tree[name], (dict, list)) or not tree[name] or drawn.random() < 0.2:
            return tree, name
        tree = tree[name]
