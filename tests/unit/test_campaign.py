"""The campaign's harness: it goes on where it ended, and reports what failed with its seed."""

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import commands
import pytest
from campaign import harness
from campaign.harness import Campaign, Part, longest_pause, problem_of

CAMPAIGN = Path(harness.__file__).parent


class Tried:
    """A part whose trials are counted, and fail at some seeds."""

    def __init__(self, target=6, bad=(), defect="put in", takes_s=0.0):
        self.seeds, self.bad, self.text, self.takes_s = [], bad, defect, takes_s
        self.part = Part("tried", "counted trials", target, self.run, self.defect, "put in", trials=2)

    def run(self, seed):
        self.seeds.append(seed)
        time.sleep(self.takes_s)
        if seed in self.bad:
            raise AssertionError(f"seed {seed} is bad\nsecond line")

    def defect(self):
        if self.text:
            raise AssertionError(self.text)


def campaign(path, tried, said=None):
    return Campaign([tried.part], path, (said if said is not None else []).append)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "reliability.json"


def test_it_ends_at_its_number_and_says_so(path):
    tried = Tried()
    assert campaign(path, tried).run()
    assert tried.seeds == [0, 1, 2]  # two trials each
    text = path.with_suffix(".md").read_text()
    assert "| tried | counted trials | 6 | 6 | 0 | 0 | yes |" in text and "every part has reached its number" in text


def test_it_goes_on_where_it_ended(path):
    first, second = Tried(target=4), Tried(target=10)
    campaign(path, first).run()
    campaign(path, second).run()
    assert first.seeds == [0, 1] and second.seeds == [2, 3, 4]
    assert json.loads(path.read_text())["parts"]["tried"]["seed"] == 5


def test_without_time_nothing_is_tried_and_the_report_says_that_it_is_not_all(path):
    tried = Tried()
    assert campaign(path, tried).run(minutes=0)
    assert tried.seeds == []
    assert "the full campaign has not been run yet" in path.with_suffix(".md").read_text()


def test_a_seed_that_would_not_end_in_time_is_not_begun(path):
    tried = Tried(takes_s=0.6)
    assert campaign(path, tried).run(minutes=1 / 60)
    assert tried.seeds == [0]


def test_a_seed_that_is_cut_off_is_noted_and_is_the_next_one(path):
    cut = Part("tried", "counted trials", 6, _interrupted, Tried().defect, "put in", trials=2)
    with pytest.raises(KeyboardInterrupt):
        Campaign([cut], path, lambda line: None).run()
    assert campaign(path, tried := Tried()).run() and tried.seeds == [0, 1, 2]
    assert "* tried, seed 0: after 0 s (commit" in path.with_suffix(".md").read_text()


def test_a_failure_is_reported_with_its_seed_and_the_rest_is_tried(path):
    tried, said = Tried(bad=(1,)), []
    assert not campaign(path, tried, said).run()
    assert tried.seeds == [0, 1, 2]
    (failure,) = json.loads(path.read_text())["parts"]["tried"]["failures"]
    assert failure["seed"] == 1 and "second line" in failure["problem"]
    assert any("seed 1: failed" in line for line in said)
    assert "* tried, seed 1: AssertionError: seed 1 is bad (commit" in path.with_suffix(".md").read_text()
    campaign(path, Tried(target=8)).run()  # what has failed once stays in the report
    assert "seed 1 is bad" in path.with_suffix(".md").read_text()


def test_a_seed_that_has_failed_is_run_again_and_stays_in_the_report(path, monkeypatch):
    def on(commit, tried):
        monkeypatch.setattr(harness.report, "commit", lambda: commit)
        return campaign(path, tried)

    on("before", Tried(bad=(1,))).run()
    assert "| 6 | 6 | 1 | 0 | yes |" in path.with_suffix(".md").read_text()
    mended = Tried(bad=())
    later = on("mended", mended)
    assert later.run_again(times=2) and later.run_again(times=3)  # three in all
    assert mended.seeds == [1, 1, 1]
    text = path.with_suffix(".md").read_text()
    assert "| 6 | 6 | 1 | 1 | yes |" in text and "seed 1 is bad (commit before); on mended 3 of 3 passed" in text
    assert not on("broken", Tried(bad=(1,))).run_again(times=1)
    text = path.with_suffix(".md").read_text()
    assert "| 6 | 6 | 1 | 0 | yes |" in text
    assert "; on mended 3 of 3 passed; on broken 0 of 1 passed (AssertionError: seed 1 is bad)" in text


def test_a_failure_while_all_stood_still_does_not_count(path, monkeypatch):
    pauses = [60.0, 0.1]

    @contextmanager
    def pausing():
        yield [pauses.pop(0)]

    monkeypatch.setattr(harness, "longest_pause", pausing)
    tried, said = Tried(target=2, bad=(0,)), []
    assert not campaign(path, tried, said).run()
    assert tried.seeds == [0, 0] and "stood still for 60 s" in said[1]
    assert len(json.loads(path.read_text())["parts"]["tried"]["failures"]) == 1


def test_a_process_that_is_stopped_is_seen_to_stand_still():
    stopper = (
        "import os, signal, sys, time; os.kill(int(sys.argv[1]), signal.SIGSTOP); time.sleep(1); "
        "os.kill(int(sys.argv[1]), signal.SIGCONT)"
    )
    with longest_pause() as pause:
        subprocess.run([sys.executable, "-c", stopper, str(os.getpid())], check=True)
    assert pause[0] > 0.5


def test_the_report_names_the_commits_that_were_run(path, monkeypatch):
    for commit, target in ("1234567890", 2), ("abcdefghij+changes", 4):
        monkeypatch.setattr(harness.report, "commit", lambda: commit)
        campaign(path, Tried(target=target)).run()
    assert "| 1234567, abcdefg+ |" in path.with_suffix(".md").read_text()


@pytest.mark.parametrize("text", [None, "another error"])
def test_a_part_whose_defect_is_not_found_proves_nothing(path, text):
    tried = Tried(defect=text)
    assert not campaign(path, tried).run() and not tried.seeds
    assert "| **no** |" in path.with_suffix(".md").read_text()


def test_a_part_that_cannot_be_run_here_is_named(path):
    tried = Tried()
    part = Part("tried", "counted", 6, tried.run, tried.defect, "put in", unavailable=lambda: "no links")
    assert Campaign([part], path, lambda line: None).run()
    assert not tried.seeds and "not run: no links" in path.with_suffix(".md").read_text()


def test_what_a_trial_raises():
    assert problem_of(lambda: 3) is None
    assert problem_of(int, "x").startswith("ValueError")
    with pytest.raises(KeyboardInterrupt):
        problem_of(_interrupted)


def test_what_the_parts_take_from_the_tests_is_there():
    modules = [f"campaign.{path.stem}" for path in CAMPAIGN.glob("[!_]*.py")]
    program = (
        f"import sys; sys.path[:0] = {[str(CAMPAIGN.parent), str(CAMPAIGN.parent / 'mpi')]}\n"
        f"import mpi4py; mpi4py.rc.initialize = False; import conftest, {', '.join(modules)}"
    )
    done = commands.run(sys.executable, "-c", program)
    assert done.returncode == 0, done.stderr


def _interrupted(seed=None):
    raise KeyboardInterrupt
