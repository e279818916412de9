"""Cases of the benchmark, their records, and the tables made of them."""

import errno
import json
import os
import sys

import numpy as np
import pytest
from records import record, written

from overlap.timing import model
from overlap.tools import cli
from overlap.tools.bench import commands, demo, jobs, report, table
from overlap.tools.bench.jobs import Case
from overlap.tools.bench.record import warnings
from overlap.tools.bench.session import Session

# ---- cases -----------------------------------------------------------------------------------


def test_case_survives_json():
    case = Case(workload="operation", dtype="f4", shape=[8, 6], chunk=2)
    assert Case.from_dict(json.loads(json.dumps(case.as_dict() | {"task": "case"}))) == case


def test_dtype_by_any_name():
    assert Case(dtype="complex64").dtype == "c8"


@pytest.mark.parametrize(
    "changes",
    [
        {"workload": "fft4"},
        {"order": "odd"},
        {"calls": 0},
        {"shape": (4,)},
        {"shape": (0, 4)},
        {"chunk": 0},
        {"wait": "on"},
        {"dtype": "nonsense"},
        {"exchange": "f2"},
        {"exchange": "f4", "dtype": "c8"},
    ],
)
def test_case_refuses(changes):
    with pytest.raises(ValueError, match="expected"):
        Case(**changes)


def test_the_truth_of_plane_waves_is_the_closed_form():
    """{sin p.x, sin r.x} = (p x r) (cos (p+r).x + cos (p-r).x)/2."""
    case = Case(workload="operation", dtype="f8", shape=(16, 12))
    y, x = np.ix_(*(2 * np.pi * np.arange(n) / n for n in case.shape))
    p, r = 1 * x + 2 * y, 3 * x - 1 * y

    class Waves(jobs.Brackets):
        def __init__(self):
            self._case = case

        def field(self, z, which):
            return np.sin((p, r)[which])

    expected = np.fft.rfft2((1 * -1 - 2 * 3) * (np.cos(p + r) + np.cos(p - r)) / 2)
    np.testing.assert_allclose(Waves().truth(0), expected, atol=1e-11)
    assert np.abs(expected).max() > 1


def test_rounded_exchanges_are_named_and_less_exact():
    plain, rounded = (Case(rounds=3, exchange=exchange) for exchange in (None, "f4"))
    assert "exchanged as f4" in table.title(record(rounded)) and "exchanged" not in table.title(record(plain))
    assert jobs.error_limit(plain) < 1e-13 and 1e-6 < jobs.error_limit(rounded) < 1e-5


# ---- records ---------------------------------------------------------------------------------


def test_record_holds_the_model_and_the_share_hidden():
    found = record()
    assert (found["C_s"], found["T_s"]) == (0.060, 0.100)
    assert found["T_over_C"] == pytest.approx(5 / 3)
    assert found["model_block_s"] == model.block_s(0.06, 0.1, 1)
    assert found["model_poll_s"] == 0.1
    assert found["core_s"] is found["model_cores_s"] is None  # as of an older version
    assert record(core_s=0.05)["model_cores_s"] == pytest.approx(0.11)  # one worker: C + K
    assert found["auto_s"] == 0.103
    assert found["hidden"] == pytest.approx((0.16 - 0.103) / 0.06)
    assert found["gain"] == pytest.approx(0.161 / 0.103)
    assert found["gain_bound"] == pytest.approx(1.6) and found["gain_bound_block"] == 1
    assert found["spread"]["off"] == [0.160, 0.170]
    assert "peer_mpi4py_fft_s" not in found


def test_nothing_to_hide_is_null_and_valid_json(tmp_path):
    found = record(seconds={"T": [0.0] * 3, "control_T": [0.0] * 3})
    assert found["hidden"] is None and found["control_hidden"] is None and found["control_ok"]
    assert json.loads(written(tmp_path / "report.json", found).read_text())["cases"][0]["hidden"] is None
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]
    table.table([found])


def test_control_that_fails_is_said():
    good = record()
    assert good["control_ok"] and good["control_hidden"] == pytest.approx(0.001 / 0.06)
    assert warnings(good) == []
    bad = record(seconds={"control": [0.130] * 3})
    assert bad["control_ok"] is False
    assert "warning: 2gbit" in warnings(bad)[0] and "0.50" in warnings(bad)[0]


@pytest.mark.parametrize("spread, warned", [(None, False), (0.1, False), (0.8, True)])
def test_a_gain_of_tuning_on_a_busy_machine_is_doubted(spread, warned, capsys):
    """In the words that a measurement has for it."""
    words = "other programs ran on these cores, and "
    assert words in warnings(record(seconds={"C": [0.06, 0.06, 0.1]}))[0]
    one = {"default": "off", "chosen": "poll", "gain": 2.79, "tried": 1, "spread": spread, "trials": []}
    commands._show_trials({"forward": one}, "tuning.json")
    said = " ".join(capsys.readouterr().out.split())
    assert ("warning: forward: times of the same settings differed by 80 %: " + words in said) == warned


def test_unequal_ranks_are_said():
    assert warnings(record(waiting=[0.38, 0.05])) == [
        "2gbit: rank 0 waits 38 % of the time, rank 1 5 %: the ranks are not equally fast, and `balance` can give each "
        "its share"
    ]
    assert warnings(record(waiting=None)) == []


def test_no_control_in_shared_memory():
    found = record(without=("control", "control_C", "control_T"), hosts=1)
    assert found["control_hidden"] is found["control_ok"] is None
    assert warnings(found) == []


def test_peer_in_the_record_or_why_not():
    case = Case(rounds=3, peer=True)
    found = record(
        case,
        peer_mpi4py_fft_setting="numpy",
        peer_skipped=None,
        seconds={"peer_mpi4py_fft": [0.5] * 3, "peer_mpi4py_fft_default": [0.9] * 3},
    )
    assert (found["peer_mpi4py_fft_s"], found["peer_mpi4py_fft_default_s"]) == (0.5, 0.9)
    skipped = record(case, peer_skipped="mpi4py-fft is not installed")
    assert skipped["peer_mpi4py_fft_s"] is None
    assert "not installed" in warnings(skipped)[0]


def test_report_says_where_it_was_made():
    made = report.new_report(["overlap", "bench", "a b"])
    assert (made["format"], made["schema"]) == (report.FORMAT, report.SCHEMA)
    assert made["command"] == "overlap bench 'a b'"
    assert made["machine"]["cores"] >= 1 and made["packages"]["numpy"] == np.__version__


def test_table_shows_every_number():
    from rich.console import Console

    console = Console(width=100, record=True, file=open("/dev/null", "w"))
    with console.file:
        console.print(table.table([record(), record(Case(rounds=3, link="shm"))]))
    text = console.export_text()
    for words in (
        "links of 2gbit",
        "shared memory",
        "103 (102-104)",
        "1.67",
        "poll, depth 16",
        "1.56x",
        "0.95",
        "1.0e-15",
    ):
        assert words in text, words
    assert "mpi4py-fft" not in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("width, count", [(40, 2), (57, 2), (58, 1), (100, 1)])
def test_tables_fit_narrow_terminals(width, count):
    """Nothing is cut, and no number is broken apart."""
    from rich.console import Console

    records = [record(), record(Case(rounds=3, link="shm"))]
    parts = table.tables(records, width)
    assert len(parts) == count
    with open(os.devnull, "w") as nowhere:
        console = Console(width=width, record=True, file=nowhere)
        for part in parts:
            console.print(part)
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width and "…" not in text
    for number in ("103 (102-104)", "1.56x", "1.0e-15", "60.0 (59.0-61.0)"):
        assert text.count(number) == 2, number


@pytest.mark.parametrize("measured", [False, True])
def test_predictions_fit_narrow_terminals(measured, monkeypatch, tmp_path, capsys):
    argv = ["predict", "--compute-s", "2", "--communication-s", "1", "--slices", "64"]
    if measured:
        argv = ["predict", str(written(tmp_path / "report.json", record()))]
    shown = []
    for columns in (40, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert cli.main(argv) == 0
        shown.append(capsys.readouterr().out)
    lines = shown[0].splitlines()[1 if measured else 0 :]  # the first one of a report is its title
    assert max(map(len, lines)) <= 40
    assert shown[0].split() == shown[1].split()


def test_a_full_disk_costs_no_table(tmp_path, monkeypatch, capsys):
    """What was measured is shown, and the error names the file that could not be written."""

    def measure(self, case, link, ranks):
        self.report["cases"].append(record())

    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Session, "measure", measure)
    monkeypatch.setattr(os, "fsync", full)
    path = tmp_path / "report.json"
    assert cli.main(["bench", "fft2", "--json", str(path)]) == 1
    shown = capsys.readouterr()
    assert "103 (102-104)" in shown.out
    assert "No space left on device" in shown.err and str(path) in shown.err and not path.exists()


def test_the_verdict_trusts_no_disturbed_times():
    measured = record()
    gain = f"gains {measured['gain']:.2f}x of at most {measured['gain_bound']:.2f}x on links of 2gbit"
    assert gain in demo.verdict([measured])
    for seconds in ({"control": [0.13] * 3}, {"C": [0.06, 0.06, 0.1]}, {"auto": [0.05] * 3}, {"auto": [0.5] * 3}):
        disturbed = record(seconds=seconds)
        assert "try again" in demo.verdict([disturbed]) and "no verdict" in demo._line(disturbed), seconds
    assert "little to hide" in demo.verdict([record(without=("control",), hosts=1)])


def test_where_nothing_can_be_gained_the_line_says_so():
    shared = record(Case(rounds=3), without=("control",), hosts=1)
    assert "nothing to gain" in demo._line(shared | {"gain": 0.94})
    assert "nothing to gain" in demo._line(record() | {"auto_choice": {"wait": "off"}})


def test_the_demo_finds_the_links_on_which_communicating_takes_as_long_as_computing():
    def linked(link, communicating_s):  # computing takes 0.1 s
        return record(Case(rounds=3, link=link), seconds={"C": [0.1] * 3, "T": [communicating_s] * 3})

    shared = record(Case(rounds=3), without=("control",), hosts=1)
    rate, why = demo.balanced([shared, linked("2gbit", 0.04 + 0.6), linked("4gbit", 0.04 + 0.3)])
    assert rate == "20gbit" and "40 ms of T" in why
    assert demo.balanced([shared, linked("2gbit", 0.8), linked("4gbit", 0.5)])[0] is None  # 0.2 s at any rate
    assert demo.balanced([shared, linked("2gbit", 0.2), linked("4gbit", 0.1)])[0] is None  # it was measured
    assert demo.balanced([shared, linked("2gbit", 0.2)])[0] is None


def test_the_demo_tells_measuring_from_the_rest():
    took_s = [
        {"planning": 1.0, "choosing settings": 2.0, "rounds": 3.0, "start and end": 1.0},
        {"planning": 4.0, "rounds": 5.0, "bare FFTs, timeline": 0.4},
    ]
    assert demo._took([{"took_s": each} for each in took_s]).startswith("16 s, of which 10 s of measuring")


def test_timeline_shown_is_of_links_and_balanced():
    shared = record(Case(rounds=3), without=("control",), hosts=1)
    slow = record(seconds={"T": [0.5] * 3})
    picked = min([(shared, 0), (slow, 1), (record(), 2)], key=demo._interest)
    assert picked[1] == 2


def test_a_demo_needs_no_scipy(monkeypatch):
    """Results are checked by numpy alone, but for kinds that it does not have."""
    monkeypatch.setitem(sys.modules, "scipy", None)
    field = np.random.default_rng(1).random((6, 8))
    np.testing.assert_allclose(jobs._spectrum(field), np.fft.rfft2(field), rtol=0, atol=1e-13)
    with pytest.raises(ValueError, match="kinds: expected scipy, with which"):
        Case(workload="fft3", shape=(8, 8, 8), dtype="f8", kinds=("dct2", "c2c", "r2c"))
