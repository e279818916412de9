"""What drives the parts of the campaign: seeds, time, what is kept of it, and the report. Knows no MPI."""

from __future__ import annotations

import json
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import processes

from overlap import files
from overlap.tools.bench import report

MOST_FAILURES = 5  # of a part in one run: whoever reads them has enough
STILL_S = 5.0  # without running: the process was stopped or the machine asleep, but deadlines went on


@dataclass(frozen=True)
class Part:
    """One kind of trial.

    Parameters
    ----------
    name : str
    what : str
        What is tried, and what must hold.
    target : int
        How many trials the whole campaign makes.
    run : callable
        Called with a seed, which determines all that is drawn; raises what is wrong.
    defect : callable
        Puts a defect in and makes a trial that finds it: raises, too, or the part proves nothing.
    finds : str
        Words of what `defect` raises: anything else that goes wrong is no proof.
    trials : int
        How many trials a seed stands for.
    unavailable : callable, optional
        Says why the part cannot be run here, or None.
    """

    name: str
    what: str
    target: int
    run: Callable[[int], object]
    defect: Callable[[], object]
    finds: str
    trials: int = 1
    unavailable: Callable[[], str | None] = lambda: None


@dataclass
class Record:
    """What is known of a part: its next seed, failures, the time spent, commits, machines, and what found its defect.

    The latter is None until it is tried, and empty where it was not found.

    A failure is a dict of its seed, commit and problem, and stays. Under "again" it lists the later runs of the same
    seed, each a commit and how many trials passed and failed on it. A seed that was ended from outside is among `cut`,
    with its commit and seconds, and is the next one all the same.
    """

    seed: int = 0
    commits: list[str] = field(default_factory=list)
    machines: list[str] = field(default_factory=list)
    failures: list[dict[str, Any]] = field(default_factory=list)
    cut: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    defect: str | None = None
    skipped: str | None = None


def problem_of(function: Callable[..., object], *args: object) -> str | None:
    """What a trial raises, as text; None where all is well."""
    try:
        function(*args)
    except Exception as error:
        text = "".join(traceback.format_exception_only(error)).strip() or type(error).__name__
        return text.replace(f"{processes.REPOSITORY}/", "").replace(f"{sys.base_prefix}/", "")  # reports go elsewhere
    return None


@contextmanager
def longest_pause() -> Iterator[list[float]]:
    """Watch whether this process runs: seconds between the two moments farthest apart, in a list of one.

    Deadlines are of the wall clock, so a trial during which everything was stopped says nothing.
    """
    found, ended = [0.0], threading.Event()

    def watch() -> None:
        last = time.monotonic()
        while not ended.wait(0.1):
            now = time.monotonic()
            found[0], last = max(found[0], now - last), now

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield found
    finally:
        ended.set()
        watcher.join()


class Campaign:
    """Parts and their records, which are kept in a JSON file after every seed, with a table beside it.

    Parameters
    ----------
    parts : sequence of Part
        All that there are: the table has a line for each.
    path : path
        The JSON file; what an earlier run left there is gone on with.
    say : callable
        Called with a line of text for each seed.
    """

    def __init__(self, parts: Sequence[Part], path: str | Path, say: Callable[[str], object] = print) -> None:
        self.parts, self.path, self.say = parts, Path(path), say
        known = json.loads(self.path.read_text())["parts"] if self.path.exists() else {}
        self._about = {
            "machine": report.machine(),
            "packages": report.packages(),
            "commit": report.commit() or "no checkout",
        }
        self.records = {part.name: Record(**known.get(part.name, {})) for part in parts}

    def run(self, names: Sequence[str] = (), minutes: float = 1.0) -> bool:
        """Give each part an equal share of the time, or what it needs to reach its target; True if nothing failed.

        A seed is begun if the longest until then would end in time.
        """
        chosen = [part for part in self.parts if not names or part.name in names]
        return all([self._run_part(part, 60 * minutes / len(chosen)) for part in chosen])  # noqa: C419 (all run, whatever fails)

    def run_again(self, names: Sequence[str] = (), minutes: float = 1.0, times: int = 3) -> bool:
        """Run the seeds that have failed again, so often on this commit in all; True if none fails now."""
        end, chosen = time.monotonic() + 60 * minutes, [part for part in self.parts if not names or part.name in names]
        for part in chosen:
            for failure in self.records[part.name].failures:
                while sum(self._on_this_commit(failure)) < times and time.monotonic() < end:
                    problem = self._trial(part, failure["seed"])
                    self._note_again(failure, problem)
                    self.keep()
        return not any(
            self._on_this_commit(failure)[1] for part in chosen for failure in self.records[part.name].failures
        )

    def _on_this_commit(self, failure):
        """How many runs of a failed seed have passed and failed on this commit."""
        last = failure.get("again", [{"commit": None}])[-1]
        return (last["passed"], last["failed"]) if last["commit"] == self._about["commit"] else (0, 0)

    def _note_again(self, failure, problem):
        again = failure.setdefault("again", [])
        if not again or again[-1]["commit"] != self._about["commit"]:
            again.append({"commit": self._about["commit"], "passed": 0, "failed": 0})
        again[-1]["failed" if problem else "passed"] += 1
        if problem:
            again[-1]["problem"] = problem

    def _trial(self, part, seed):
        """What is wrong with a seed, or None; it is run once more where it failed while everything stood still."""
        while True:
            with longest_pause() as pause:
                problem = problem_of(part.run, seed)
            if not problem or pause[0] <= STILL_S:
                self.say(f"{part.name}: seed {seed}: {'failed: ' + problem if problem else 'passed'}")
                return problem
            self.say(f"{part.name}: seed {seed}: again, for all stood still for {pause[0]:.0f} s: {problem}")

    def _run_part(self, part, budget_s):
        record, start = self.records[part.name], time.monotonic()
        record.skipped = part.unavailable()
        if record.skipped:
            self.say(f"{part.name}: not run here: {record.skipped}")
            self.keep()
            return True
        found = problem_of(part.defect)
        record.defect = part.finds if found and part.finds in found else ""
        self.say(f"{part.name}: its defect is {'found' if record.defect else f'NOT FOUND: {found}'}")
        if not record.defect:  # nothing that it tries proves anything
            self.keep()
            return False
        failed, longest_s = 0, 0.0
        while (
            record.seed * part.trials < part.target
            and time.monotonic() - start + longest_s < budget_s
            and failed < MOST_FAILURES
        ):
            began = time.monotonic()
            try:
                problem = self._trial(part, record.seed)
            except BaseException:
                record.cut.append({"seed": record.seed, "commit": self._about["commit"], "s": time.monotonic() - began})
                self.keep()
                raise
            took_s = time.monotonic() - began
            record.seconds, longest_s = record.seconds + took_s, max(longest_s, took_s)
            for known, value in ((record.commits, self._about["commit"]), (record.machines, self._machine())):
                if value not in known:
                    known.append(value)
            if problem:
                failed += 1
                record.failures.append({"seed": record.seed, "commit": self._about["commit"], "problem": problem})
            record.seed += 1
            self.keep()
        self.keep()
        return not failed

    def keep(self) -> None:
        """Write the records and the table."""
        content = {"about": self._about, "parts": {name: asdict(record) for name, record in self.records.items()}}
        files.write(self.path, json.dumps(content, indent=1) + "\n")
        files.write(self.path.with_suffix(".md"), self.table())

    def _machine(self):
        """This machine and its packages, in words."""
        machine = self._about["machine"]
        versions = (f"{name} {version}" for name, version in self._about["packages"].items())
        return ", ".join(
            (machine["cpu"], f"{machine['cores']} cores", machine["system"], f"Python {machine['python']}", *versions)
        )

    def table(self) -> str:
        """The report in Markdown."""
        machines = list(dict.fromkeys(name for record in self.records.values() for name in record.machines))
        rows = [self._row(part, self.records[part.name], machines) for part in self.parts]
        whole = all(self.records[part.name].seed * part.trials >= part.target for part in self.parts)
        failures = [
            f"* {name}, seed {one['seed']}: {one['problem'].splitlines()[0]} (commit {_short(one['commit'])})"
            + "".join(map(_once_more, one.get("again", ())))
            for name, record in self.records.items()
            for one in record.failures
        ]
        cut = [
            f"* {name}, seed {one['seed']}: after {one['s']:.0f} s (commit {_short(one['commit'])})"
            for name, record in self.records.items()
            for one in record.cut
        ]
        return "\n".join(
            [
                "# Reliability: how much of the campaign has been run",
                "",
                "`python -m tests.campaign`: "
                + (
                    "every part has reached its number."
                    if whole
                    else "**the full campaign has not been run yet.** Trials made so far, beside "
                    "those that it asks for:"
                ),
                "",
                "| part | what is tried, and must hold | asked for | made | failed | of them pass now | its defect is "
                "found | s | commits | machines |",
                "|---|---|---|---|---|---|---|---|---|---|",
                *rows,
                "",
                "Ranks, mode and MPI library are drawn from the seed; one worker per rank unless drawn. Machines:",
                "",
                *(f"{number}. {name}" for number, name in enumerate(machines, 1)),
                "",
                "Failures, each with its seed (`python -m tests.campaign --part NAME --seed N` runs it again). A "
                "failure stays in this list; of its seed's later runs (`python -m tests.campaign --again`) the "
                "commit and the number that passed stand behind it, and it counts as passing now if the last commit "
                "that ran it passed every time:"
                if failures
                else "No trial has failed.",
                *failures,
                "",
                *[
                    "Seeds that the end of the time given has cut off; each was run again from its beginning, or is "
                    "the next one:",
                    *cut,
                    "",
                ]
                * bool(cut),
            ]
        )

    def _row(self, part, record, machines):
        made = part.trials * record.seed
        defect = (record.skipped and f"not run: {record.skipped}") or (
            "not tried yet" if record.defect is None else "yes" if record.defect else "**no**"
        )
        return (
            f"| {part.name} | {part.what} | {part.target:,} | {made:,} | {len(record.failures)} | "
            f"{sum(map(_passes_now, record.failures))} | {defect} | "
            f"{record.seconds:.0f} | {', '.join(map(_short, record.commits))} | "
            f"{', '.join(str(1 + machines.index(name)) for name in record.machines)} |"
        )


def _passes_now(failure):
    """Whether the last commit that ran a failed seed again passed each time."""
    return "again" in failure and not failure["again"][-1]["failed"]


def _once_more(again):
    """One commit's runs of a seed that had failed, in words."""
    count = again["passed"] + again["failed"]
    return f"; on {_short(again['commit'])} {again['passed']} of {count} passed" + (
        f" ({again['problem'].splitlines()[0]})" if again["failed"] else ""
    )


def _short(commit):
    """A commit as the table shows it, with + where files differed from it."""
    return commit[:7] + "+" * commit.endswith("+changes")
