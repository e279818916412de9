"""Shows records in words and as tables, for the terminal and in Markdown. Uses no MPI."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .record import Record


def milliseconds(record: Record, key: str) -> str:
    """Show a time in milliseconds, to three figures, and its range in parentheses, or "-"."""
    value = record.get(f"{key}_s")
    if value is None:
        return "-"
    digits = 0 if value >= 0.1 else 1 if value >= 0.01 else 2
    text = f"{1e3 * value:.{digits}f}"
    spread = record["spread"].get(key)
    if spread is None:
        return text
    return text + " ({:.{d}f}-{:.{d}f})".format(*(1e3 * end for end in spread), d=digits)


def _ms(key: str) -> Callable[[Record], str]:
    def show(record: Record) -> str:
        return milliseconds(record, key).replace("(", "[dim](").replace(")", ")[/dim]")

    return show


def _number(key: str, digits: int = 2, unit: str = "") -> Callable[[Record], str]:
    def show(record: Record) -> str:
        value = record.get(key)
        return "-" if value is None else f"{value:.{digits}f}{unit}"

    return show


def _choice(record: Record) -> str:
    choice = record["auto_choice"]
    chunk = f"{choice['chunk']} per message"
    if choice["wait"] == "off":
        return f"off\n{chunk}"
    flying = f"\n{choice['in_flight']} in flight" if choice["wait"] == "poll" else ""
    return f"{choice['wait']}, depth {choice['depth']}\n{chunk}{flying}"


def _grid(record: Record) -> str:
    return " x ".join(map(str, record.get("grid") or "-"))


def _control(record: Record) -> str:
    if record["control_hidden"] is None:
        return "-"
    colour = "green" if record["control_ok"] else "bold red"
    return f"[{colour}]{record['control_hidden']:.2f}[/{colour}]"


# (words, function that formats the value, whether the row is left out if no case has a value)
ROWS = (
    ("C, computing alone", _ms("C"), False),
    ("   bare 1-D FFTs in it", _ms("bare_fft"), True),
    ("T, exchanging alone", _ms("T"), False),
    ("K, core time of exchanging", _ms("core"), True),
    ("T/C", _number("T_over_C"), False),
    None,
    ("no overlap", _ms("off"), False),
    ("overlap, blocking calls", _ms("block"), True),
    ("   model: C + T/N, or T", _ms("model_block"), False),
    ("overlap, polling", _ms("poll"), True),
    ("   model: max(C, T)", _ms("model_poll"), False),
    ("   and cores: max(C + K/N, T)", _ms("model_cores"), True),
    ("[bold]overlap, automatic[/bold]", _ms("auto"), True),
    ("   what it chose", _choice, False),
    ("   on a process grid of", _grid, True),
    None,
    ("[bold]gain over no overlap[/bold]", _number("gain", 2, "x"), False),
    ("   bound: (C + T)/max(C, T)", _number("gain_bound", 2, "x"), False),
    ("   blocking: 2 - 1/N", _number("gain_bound_block", 2, "x"), False),
    ("GFlop/s, of 5 N log2 N", _number("gflops", 1), False),
    ("[bold]hidden, of min(C, T)[/bold]", _number("hidden"), False),
    ("   control, no overlap", _control, True),
    ("largest relative error", lambda record: f"{record['max_rel_error']:.1e}", False),
    None,
    ("mpi4py-fft, fastest setting", _ms("peer_mpi4py_fft"), True),
    ("mpi4py-fft, as it comes", _ms("peer_mpi4py_fft_default"), True),
    ("C + OpenMP, blocking calls", _ms("reference"), True),
)

LABEL_WIDTH, COLUMN_WIDTH = 20, 19  # in characters, with borders: narrower columns would break numbers


def heading(records: Sequence[Record]) -> str:
    """Return the heading of a table."""
    first = records[0]
    calls = f" of {first['calls']} calls" if first.get("calls", 1) > 1 else ""
    return f"{title(first)}: times in ms, median of {first['rounds']} rounds{calls} (range)"


def title(record: Record) -> str:
    """Describe the measured job in words."""
    workers = "" if record["workers"] == 1 else f" of {record['workers']} workers"
    return f"{work(record)}, {record['ranks']} ranks{workers}"


def work(record: Record) -> str:
    """Describe the work of all ranks together in words."""
    from .jobs import JOBS  # imports MPI and plans

    job, count = JOBS[record["workload"]], record["slices"]
    order = "" if record.get("order", "natural") == "natural" else f", {record['order']} order"
    exchange = f", exchanged as {record['exchange']}" if record.get("exchange") else ""
    kinds = f" ({', '.join(record['kinds'])})" if record.get("kinds") else ""
    size = f"{shape(record)} {record['dtype']}{kinds}{order}{exchange}"
    return f"{count} {job.title}{'' if count == 1 else 's'}{job.detail} of {size}"


def shape(record: Record) -> str:
    """Show the shape of a slice, in words."""
    return " x ".join(map(str, record["shape"]))


def place(record: Record) -> str:
    """Return a description of the link between the ranks."""
    words = {"shm": "shared memory", "mpiexec": "mpiexec's ranks"}
    return words.get(record["link"]) or f"links of {record['link']}"


def markdown(head: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """Make a table in Markdown; headings may be one text, with " | " between them."""
    if isinstance(head, str):
        head = head.split(" | ")
    lines: list[Sequence[object]] = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def console(width: int, **settings: Any) -> Any:
    """Make a `rich.console.Console`, which has this width where the output is no terminal."""
    from rich.console import Console

    made = Console(**settings)
    return made if made.is_terminal else Console(width=width, **settings)


def tables(records: Sequence[Record], width: int) -> list[Any]:
    """Make `rich.table.Table`s of records of one job: one table, or one each if the terminal is too narrow."""
    if LABEL_WIDTH + COLUMN_WIDTH * len(records) <= width:
        return [table(records)]
    return [table([record]) for record in records]


def table(records: Sequence[Record]) -> Any:
    """Make a `rich.table.Table` of records of the same job: one column each."""
    from rich.table import Table

    table = Table()
    table.add_column("", overflow="fold")
    several = len({shape(record) for record in records}) > 1
    for record in records:
        table.add_column(
            f"{place(record)}\n{shape(record)}" if several else place(record), justify="right", overflow="fold"
        )
    for row in ROWS:
        if row is None:
            table.add_section()
            continue
        words, show, optional = row
        cells = [show(record) for record in records]
        if not optional or any(cell != "-" for cell in cells):
            table.add_row(words, *cells)
    return table


def ranges(numbers: Iterable[int]) -> str:
    """Show numbers such as [0, 1, 2, 5] as "0-2,5"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{low}" if low == high else f"{low}-{high}" for low, high in runs)
