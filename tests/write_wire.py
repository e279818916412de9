"""Write `tests/mpi/wire.json` anew: ``python tests/write_wire.py``, after a change of the wire that is meant."""

import json
import os
import sys
import tempfile
from functools import partial
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "mpi")]

import conftest  # noqa: F401  sets the environment of jobs
import jobs
import test_wire

dumps = partial(json.dumps, separators=(",", ":"))


def main() -> None:
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for ranks in range(1, 5):
            jobs.run_job("test_wire:write_down", ranks, args={"folder": folder}, fresh=True)
            found[ranks] = json.loads(Path(folder, f"{ranks}.json").read_text())
    texts: dict[str, int] = {}  # to their places
    tables = {
        f"on {ranks} ranks": {
            name: " ".join(map(test_wire.digest, everyone)) if ranks != 2 else numbered(everyone, texts)
            for name, everyone in programs.items()
        }
        for ranks, programs in found.items()
    }
    rows = [
        f'"{title}": {{\n' + ",\n".join(f"{dumps(name)}: {dumps(row)}" for name, row in table.items()) + "\n}"
        for title, table in tables.items()
    ]
    rows.append('"lines": [\n' + ",\n".join(map(dumps, texts)) + "\n]")
    test_wire.FILE.write_text("{" + ",\n".join(rows) + "}\n")


def numbered(everyone: list[list[str]], texts: dict[str, int]) -> list[list[int]]:
    """The lines of all ranks as places in a list of lines; of one rank, if all do the same."""
    rows = [[texts.setdefault(line, len(texts)) for line in lines] for lines in everyone]
    return rows[:1] if all(row == rows[0] for row in rows) else rows


if __name__ == "__main__":
    os.chdir(HERE.parent)
    main()
