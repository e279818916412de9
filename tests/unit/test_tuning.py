"""Tuning files: what is written is read; what is damaged is refused; the search's small parts."""

import json
import multiprocessing
import os
import random
from dataclasses import replace

import numpy as np
import pytest
from marks import exhaustive
from no_files import NO_FILES

from overlap import files
from overlap.errors import InputError
from overlap.fft import Settings, Tuned
from overlap.fft.planning import tuning_file as store

SETTINGS = Settings("poll", 8, 4, 2, effort="patient", late=0.0)
TUNED = Tuned("off, depth 1, 1 slice(s) per message", 1.25, 40)
PLAN = {"kind": "FFT2", "shape": [4, 8, 8], "dtype": "float64", "ranks": 2}
MACHINE = {"cpu": "a processor", "cores": 2, "mpi": "MPI 1.0"}


def entry(plan=PLAN, machine=MACHINE, names=("forward",), settings=SETTINGS):
    return {
        "plan": plan,
        "machine": machine,
        "wisdom": '(fftw-3.3.10 "\u00e9")',
        "transforms": {name: store.record(settings, TUNED) for name in names},
    }


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
    others = [entry(plan=PLAN | {"ranks": ranks}) for ranks in (3, 4)] + [entry(machine=MACHINE | {"cores": 64})]
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
    assert sorted(one["plan"]["ranks"] for one in store.read(path)) == [*range(10), *range(100, 110)]


def test_another_plan_or_machine_is_not_used(tmp_path):
    entries = [entry()]
    found, reason = store.find(entries, PLAN | {"ranks": 3}, MACHINE)
    assert found is None and "no entry for this plan" in reason
    found, reason = store.find(entries, PLAN, MACHINE | {"cores": 64})
    assert found is None and "another machine" in reason
    assert "cores expected 64, received 2" in reason and "cpu" not in reason
    found, reason = store.find(entries, PLAN, MACHINE | {"link": "2gbit"})
    assert found is None and "link expected '2gbit', received None" in reason


@pytest.mark.parametrize(
    "content, words",
    [
        ([], "which is no tuning file"),
        ({"format": "overlap-report-1", "cases": []}, "which is no tuning file"),
        ({"format": store.FORMAT}, "version 3"),
        ({"format": store.FORMAT, "version": 2, "entries": []}, "of version 2; tune anew"),
        ({"format": store.FORMAT, "version": 4, "entries": []}, "version 4"),
        ({"format": store.FORMAT, "version": 3}, "entries"),
        ({"format": store.FORMAT, "version": 3, "entries": []}, "digest"),
        ({"format": store.FORMAT, "version": 3, "entries": [], "digest": ""}, "digest"),
        ({"format": store.FORMAT, "version": 3, "entries": [], "digest": "0" * 64}, "digest"),
    ],
)
def test_other_files_are_refused_and_stay(tmp_path, content, words):
    path = tmp_path / "other.json"
    path.write_text(json.dumps(content))
    refused(path, words)
    with pytest.raises(InputError):
        store.write(str(path), entry())
    assert json.loads(path.read_text()) == content
    assert os.listdir(tmp_path) == ["other.json"]


def _with_the_right_digest(path, *entries):
    path.write_text(store.text_of(list(entries)))


@pytest.mark.parametrize(
    "damaged",
    [
        {},
        [],
        None,
        entry() | {"wisdom": None},
        entry() | {"more": 1},
        {name: value for name, value in entry().items() if name != "machine"},
    ],
)
def test_entries_that_are_none_are_refused(tmp_path, damaged):
    path = tmp_path / "tuning.json"
    _with_the_right_digest(path, entry(), damaged)
    refused(path, "an entry that does not consist of")


def test_plans_and_machines_hold_nothing_deep(tmp_path):
    path = tmp_path / "tuning.json"
    for part in ("plan", "machine"):
        for value in ({}, [[]], [{"a": 1}]):
            _with_the_right_digest(path, entry() | {part: {"shape": value}})
            refused(path, f"a {part} whose 'shape'")


@pytest.mark.parametrize(
    "change",
    [
        {"wait": "hope"},
        {"wait": "auto"},
        {"depth": 0},
        {"depth": None},
        {"chunk": 1.5},
        {"in_flight": True},
        {"in_flight": -8},
        {"in_flight": 10**4000},
        {"effort": "none"},
        {"effort": []},
        {"late": 2},
        {"late": 10**400},
        {"gain": "much"},
        {"gain": 0.0},
        {"gain": 10**400},
        {"default": 3},
        {"tried": None},
        {"tried": 1.5},
    ],
)
def test_settings_that_make_no_sense_are_refused(tmp_path, change):
    path = tmp_path / "tuning.json"
    damaged = entry()
    damaged["transforms"]["forward"] |= change
    _with_the_right_digest(path, damaged)
    refused(path, "make no sense")
    (name,) = change
    del damaged["transforms"]["forward"][name]
    _with_the_right_digest(path, damaged)
    refused(path, "missing or unknown fields")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400", "9" * 5000])
def test_numbers_that_are_none_are_refused(tmp_path, number):
    path = tmp_path / "tuning.json"
    text = store.text_of([entry()])
    digest = json.loads(text)["digest"]
    text = text.replace('"gain": 1.25', f'"gain": {number}')
    path.write_text(files.sealed(text.replace(digest, "")))
    refused(path)


@pytest.mark.parametrize("times", [500, exhaustive(4000)])
def test_no_damage_goes_unnoticed(times, tmp_path):
    """Whatever bytes of a file change, and wherever it ends: it is refused, and named."""
    path = tmp_path / "tuning.json"
    store.write(str(path), entry())
    store.write(str(path), entry(plan=PLAN | {"ranks": 3}, names=("forward", "backward")))
    whole = path.read_bytes()
    choice = random.Random(21)
    for _ in range(times):
        data = bytearray(whole)
        damage = choice.randrange(4)
        place = choice.randrange(len(data))
        if damage == 0:
            data[place] ^= 1 << choice.randrange(8)
        elif damage == 1:
            data[place] = (data[place] + choice.randrange(1, 256)) % 256
        elif damage == 2:
            del data[place:]
        else:
            del data[place : place + choice.randrange(1, 40)]
        path.write_bytes(data)
        refused(path)
    path.write_bytes(b"\xff\xfe\x00")  # no text at all
    refused(path)
    path.write_bytes(whole)
    assert len(store.read(str(path))) == 2


@pytest.mark.parametrize("opening, closing", [("[", "]"), ('{"a":', "}")])
def test_deep_content_is_refused(tmp_path, opening, closing):
    path = tmp_path / "tuning.json"
    for depth in (900, 10**5):
        path.write_text(opening * depth + "1" + closing * depth)
        refused(path)


def _without_end(path):
    with open(path, "wb") as file:
        file.truncate(2**40)
    return path


UNREADABLE = {kind: make for kind, make in NO_FILES.items() if kind != "no folder"} | {
    "no end": _without_end,
    "error": lambda path: "/proc/self/mem",
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_what_cannot_be_read_is_refused_at_once(tmp_path, kind):
    path = UNREADABLE[kind](tmp_path / "tuning.json")
    with pytest.raises(InputError) as refusal:
        store.read(str(path))
    assert "expected a readable tuning file, received" in str(refusal.value)
    assert repr(str(path)) in str(refusal.value)
    if kind not in ("no end", "error"):
        assert "received" in store.unwritable(str(path))
    with pytest.raises((OSError, InputError)):
        store.write(str(path), entry())


def test_where_nothing_can_be_written(tmp_path):
    assert store.unwritable(str(tmp_path / "tuning.json")) is None
    for path in (tmp_path / "missing" / "tuning.json", tmp_path):
        assert "received" in store.unwritable(str(path))


def test_settings_print_what_differs_from_the_default():
    assert str(Settings("off", 1, 4, 1)) == "off, depth 1, 4 slice(s) per message"
    assert str(SETTINGS) == ("poll, depth 8, 4 slice(s) per message, 2 in flight, effort patient")


def test_numbers_of_numpy_make_the_same_request():
    request = Settings("off", np.int64(4), np.int32(2), late=np.float32(0.5))
    assert repr(request) == repr(Settings("off", 4, 2, late=0.5))
    assert request.given() == {"wait": "off", "depth": 4, "chunk": 2, "late": 0.5}
