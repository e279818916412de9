"""Runs a benchmark's own ranks, and keeps the records that they tell."""

import json
import os
import sys

from overlap.tools import launch


class Recording:
    """The records of a benchmark's runs, each printed as soon as it is there.

    Parameters
    ----------
    line : callable
        ``line(record)`` gives a record as text.

    Attributes
    ----------
    records : list of dict
    """

    def __init__(self, line):
        self._line, self.records = line, []

    def run(self, *arguments, ranks, link=None):
        """Run the benchmark's own file on ranks, with its arguments and some more; returns the exit status."""
        return launch.run_ranks(
            [sys.executable, os.path.abspath(sys.argv[0]), *sys.argv[1:], *arguments],
            ranks=ranks,
            link=link,
            on_line=launch.listening(self._show),
        )

    def _show(self, record):
        self.records.append(record)
        print(self._line(record), flush=True)

    def write(self, path, rounds):
        """Write all records to a JSON file, if one is named."""
        if path:
            path.write_text(json.dumps({"cases": self.records, "rounds": rounds}, indent=1) + "\n")
