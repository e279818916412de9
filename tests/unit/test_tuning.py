"""Tuning files: what is written is read; what is damaged is refused; the search's small parts."""

import builtins
import json
import multiprocessing
import os
import stat
from dataclasses import replace

import numpy as np
import pytest

from overlap.errors import InputError
from overlap.fft import Settings, Tuned
from overlap.fft.planning import search as tune
from overlap.fft.planning import tuning_file as store
from overlap.fft.planning.settings import settings_problem

SETTINGS = Settings("poll", 8, 4, 2, polls=16, effort="patient", rows=32)
TUNED = Tuned("off, depth 1, 1 slice(s) per message", 1.25, 40)
PLAN = {"kind": "FFT2", "shape": [4, 8, 8], "dtype": "float64", "ranks": 2}
MACHINE = {"cpu": "a processor", "cores": 2, "mpi": "MPI 1.0"}


def entry(plan=PLAN, machine=MACHINE, names=("forward",), settings=SETTINGS):
    return {"plan": plan, "machine": machine, "wisdom": "(fftw-3.3.10 \"\u00e9\")",
            "transforms": {name: store.record(settings, TUNED) for name in names}}


def refused(path, *words):
    with pytest.raises(InputError) as refusal:
        store.read(str(path))
    message = str(refusal.value)
    assert "expected" in message and "received" in message and str(path) in message
    assert all(word in message for word in words), message
    return message


def test_round_trip(tmp_path):
    path = str(tmp_path / "tuning.json")
    assert store.read(path) == []
    store.write(path, entry())
    found, reason = store.find(store.read(path), PLAN, MACHINE)
    assert reason is None and found == entry()
    assert store.settings_of(found["transforms"]["forward"]) == (SETTINGS, TUNED)
    assert os.listdir(tmp_path) == ["tuning.json"]


def test_other_entries_stay(tmp_path):
    path = tmp_path / "tuning.json"
    others = [entry(plan=PLAN | {"ranks": ranks}) for ranks in (3, 4)] + [
        entry(machine=MACHINE | {"cores": 64})]
    for one in others:
        store.write(str(path), one)
    store.write(str(path), entry(names=("forward", "pointwise")))
    faster = replace(SETTINGS, depth=2)
    store.write(str(path), entry(names=("forward",), settings=faster))
    entries = store.read(str(path))
    assert entries[:3] == others and len(entries) == 4
    assert store.settings_of(entries[3]["transforms"]["forward"])[0] == faster
    assert store.settings_of(entries[3]["transforms"]["pointwise"])[0] == SETTINGS


def _write_many(path, first):
    for number in range(first, first + 10):
        store.write(path, entry(plan=PLAN | {"ranks": number}))


def test_two_jobs_at_once_lose_nothing(tmp_path):
    path = str(tmp_path / "tuning.json")
    context = multiprocessing.get_context("fork")
    jobs = [context.Process(target=_write_many, args=(path, first)) for first in (0, 100)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join(60)
        assert job.exitcode == 0
    assert sorted(one["plan"]["ranks"] for one in store.read(path)) == [
        *range(10), *range(100, 110)]


def test_another_plan_or_machine_is_not_used(tmp_path):
    entries = [entry()]
    found, reason = store.find(entries, PLAN | {"ranks": 3}, MACHINE)
    assert found is None and "no entry for this plan" in reason
    found, reason = store.find(entries, PLAN, MACHINE | {"cores": 64})
    assert found is None and "another machine" in reason
    assert "cores expected 64, received 2" in reason and "cpu" not in reason
    found, reason = store.find(entries, PLAN, MACHINE | {"link": "2gbit"})
    assert found is None and "link expected '2gbit', received None" in reason


def test_every_shorter_file_is_refused(tmp_path):
    whole, path = tmp_path / "whole.json", tmp_path / "part.json"
    store.write(str(whole), entry())
    text = whole.read_text().rstrip()
    for length in {*range(0, len(text), 7), len(text) - 1}:
        path.write_text(text[:length])
        refused(path, "cut off")


@pytest.mark.parametrize("content, words", [
    ([], "which is none"),
    ({"format": "overlap-report-1", "cases": []}, "which is none"),
    ({"format": store.FORMAT}, "version 1"),
    ({"format": store.FORMAT, "version": 2, "entries": []}, "version 2"),
    ({"format": store.FORMAT, "version": 1}, "entries"),
    ({"format": store.FORMAT, "version": 1, "entries": [{}]}, "an entry without"),
    ({"format": store.FORMAT, "version": 1, "entries": [entry() | {"wisdom": None}]},
     "an entry without")])
def test_other_files_are_refused_and_stay(tmp_path, content, words):
    path = tmp_path / "other.json"
    path.write_text(json.dumps(content))
    refused(path, words)
    with pytest.raises(InputError):
        store.write(str(path), entry())
    assert json.loads(path.read_text()) == content
    assert os.listdir(tmp_path) == ["other.json"]


@pytest.mark.parametrize("change", [
    {"wait": "hope"}, {"depth": 0}, {"chunk": 1.5}, {"in_flight": True}, {"polls": -8},
    {"effort": "none"}, {"rows": 0}, {"rows": "all"}, {"gain": "much"}, {"default": 3},
    {"tried": None}])
def test_settings_that_make_no_sense_are_refused(tmp_path, change):
    path = tmp_path / "tuning.json"
    damaged = entry()
    damaged["transforms"]["forward"] |= change
    path.write_text(json.dumps({"format": store.FORMAT, "version": 1, "entries": [damaged]}))
    refused(path, "make no sense")
    name, = change
    del damaged["transforms"]["forward"][name]
    path.write_text(json.dumps({"format": store.FORMAT, "version": 1, "entries": [damaged]}))
    refused(path, "lack something")


def test_bytes_that_are_no_text(tmp_path):
    path = tmp_path / "tuning.json"
    path.write_bytes(b"\xff\xfe\x00")
    refused(path)
    (tmp_path / "folder").mkdir()
    refused(tmp_path / "folder")


def test_a_failure_in_mid_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "tuning.json"
    store.write(str(path), entry())
    before = path.read_bytes()

    def full(*_):
        raise OSError("no space left")

    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, full)
            with pytest.raises(OSError, match="no space left"):
                store.write(str(path), entry(plan=PLAN | {"ranks": 7}))
        assert path.read_bytes() == before
        assert os.listdir(tmp_path) == ["tuning.json"]


def test_readers_see_an_old_or_a_new_file(tmp_path, monkeypatch):
    """Nothing is ever written to the file itself."""
    path = tmp_path / "tuning.json"
    store.write(str(path), entry())
    original = builtins.open

    def watched(name, mode="r", **options):
        assert "w" not in mode or os.fspath(name) != str(path)
        return original(name, mode, **options)

    monkeypatch.setattr(builtins, "open", watched)
    store.write(str(path), entry(plan=PLAN | {"ranks": 7}))
    assert len(store.read(str(path))) == 2


def test_links_and_permissions_are_those_of_a_file_one_writes(tmp_path):
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    link.symlink_to(real)
    store.write(str(link), entry())
    assert link.is_symlink() and store.read(str(real)) == [entry()]
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(real.stat().st_mode) == 0o666 & ~umask


def test_where_nothing_can_be_written(tmp_path):
    assert store.unwritable(str(tmp_path / "tuning.json")) is None
    for path in (tmp_path / "missing" / "tuning.json", tmp_path):
        assert "received" in store.unwritable(str(path))


def test_a_simpler_candidate_wins_a_near_tie():
    assert tune._winner([1.0, 0.99, 0.985], 0.98) == 0
    assert tune._winner([1.0, 0.97, 0.96], 0.98) == 1
    assert tune._winner([1.0, 0.97, 0.9], 0.98) == 2


@pytest.mark.parametrize("budget_s, good", [(1, True), (0.5, True), (0, False), (-1, False),
                                            (float("nan"), False), (float("inf"), False),
                                            ("1", False), (True, False), (None, False)])
def test_budgets(budget_s, good):
    problem = tune.budget_problem(budget_s)
    assert problem is None if good else "expected budget_s" in problem and "received" in problem


def test_settings_print_what_differs_from_the_default():
    assert str(Settings("off", 1, 4, 1)) == "off, depth 1, 4 slice(s) per message"
    assert str(SETTINGS) == ("poll, depth 8, 4 slice(s) per message, 2 in flight, 16 polls per "
                             "exchange, effort patient")


@pytest.mark.parametrize("change, words", [
    ({"wait": "hope"}, "expected wait to be one of ('auto', 'off', 'block', 'poll')"),
    ({"wait": None}, "expected wait"), ({"wait": ["off"]}, "expected wait"),
    ({"depth": 0}, "expected depth to be a positive integer or None"), ({"chunk": 1.5}, "chunk"),
    ({"in_flight": True}, "in_flight"), ({"polls": "8"}, "polls"), ({"rows": -1}, "rows"),
    ({"effort": "none"}, "expected effort to be one of"), ({"late": 1.5}, "expected late"),
    ({"late": float("nan")}, "late"), ({"late": True}, "late"), ({"late": "half"}, "late")])
def test_bad_requests_are_named(change, words):
    problem = settings_problem(Settings(**change))
    assert words in problem and "received" in problem


def test_requests_may_leave_everything_open_and_chosen_settings_nothing():
    assert settings_problem(Settings()) is None
    assert settings_problem(Settings(), complete=True) is not None
    chosen = Settings("poll", 4, 2, 4, 8, late=0.0)
    assert settings_problem(chosen) is None and settings_problem(chosen, complete=True) is None
    for name in ("depth", "chunk", "in_flight", "polls", "late"):
        assert name in settings_problem(replace(chosen, **{name: None}), complete=True)
    assert "expected settings" in settings_problem({"wait": "off"})


def test_numbers_of_numpy_make_the_same_request():
    request = Settings("off", np.int64(4), np.int32(2), late=np.float32(0.5))
    assert repr(request) == repr(Settings("off", 4, 2, late=0.5))
    assert request.given() == {"wait": "off", "depth": 4, "chunk": 2, "late": 0.5}
