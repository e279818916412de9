"""The commands without ranks: arguments, records, tables, reports, predictions."""

import argparse
import builtins
import errno
import json
import os
from dataclasses import replace
from importlib import metadata

import numpy as np
import pytest

import overlap
from overlap.fft.planning import memory, tuning_file
from overlap.fft.planning.settings import Settings, Tuned
from overlap.runtime.trace import Span
from overlap.timing import model
from overlap.tools import cli, launch, timeline
from overlap.tools.bench import demo, jobs, reference, report, table
from overlap.tools.bench.cases import Case
from overlap.tools.bench.record import case_record, warnings
from overlap.tools.bench.session import Session


def measured(**changes):
    """What `measure` returns for C = 60 ms, T = 100 ms, on links."""
    seconds = {"off": [0.161, 0.160, 0.170], "block": [0.159, 0.160, 0.161],
               "poll": [0.105, 0.104, 0.103], "auto": [0.102, 0.103, 0.104],
               "C": [0.060, 0.059, 0.061], "T": [0.100, 0.100, 0.101],
               "control": [0.158, 0.160, 0.159], "control_C": [0.060] * 3,
               "control_T": [0.100] * 3}
    for name in changes.pop("without", ()):
        del seconds[name]
    seconds |= changes.pop("seconds", {})
    return {"seconds": seconds, "ranks": 2, "hosts": 2, "max_rel_error": 1e-15,
            "choice": {"wait": "poll", "depth": 16, "chunk": 1, "in_flight": 8},
            "nbytes_in_flight": 1 << 20, "bare_fft_s": 0.05, "peer_setting": None,
            "peer_skipped": None,
            "binding": [{"host": f"h{rank}", "cores": [rank]} for rank in range(2)]} | changes


def record(case=None, **changes):
    return case_record(case or Case(rounds=3, link="2gbit"), measured(**changes))


# ---- arguments -------------------------------------------------------------------------------

@pytest.mark.parametrize("argv, complaint", [
    ([], "COMMAND"),
    (["fly"], "invalid choice"),
    (["bench"], "workload"),
    (["bench", "fft4"], "invalid choice"),
    (["bench", "fft2", "--slices", "0"], "expected an integer >= 1, received 0"),
    (["bench", "fft2", "--shape", "512"], "shape: expected (ny, nx), got (512,)"),
    (["bench", "fft3", "--shape", "8", "8"], "shape: expected (nz, ny, nx), got (8, 8)"),
    (["bench", "fft2", "--grid", "1", "2"], "grid: expected workload fft3, got fft2"),
    (["bench", "fft3", "--slices", "2", "--peer", "mpi4py-fft"], "got 2 of fft3 in natural order"),
    (["bench", "fft2", "--order", "transposed", "--peer", "mpi4py-fft"], "in transposed order"),
    (["bench", "nonlinear", "--shape", "4", "3", "6"], "expected an odd nkx, got (4, 3, 6)"),
    (["bench", "nonlinear", "--chunk", "2"], "expected none with workload nonlinear, got 2, None"),
    (["tune", "fft3"], "invalid choice"),
    (["tune", "nonlinear"], "invalid choice"),
    (["bench", "fft2", "--link", "fast"], "expected a rate above 0"),
    (["bench", "fft2", "--dtype", "i4"], "expected one of c16, c8, f8, f4"),
    (["bench", "operation", "--dtype", "c16"], "expected one of f8, f4"),
    (["bench", "operation", "--peer", "mpi4py-fft"], "expected workload fft2"),
    (["bench", "fft2", "--deadline", "inf"], "expected seconds > 0"),
    (["bench", "fft2", "--", "ls"], "only `overlap links` takes a command"),
    (["bench", "spmv", "--shape", "8", "8"], "--shape: expected three numbers >= 3"),
    (["demo", "--rates", "0gbit"], "expected a rate above 0"),
    (["links", "--hosts", "2"], "expected a command"),
    (["links", "--hosts", "2", "--"], "expected a command"),
    (["links", "--hosts", "2", "--ranks", "3", "--", "ls"], "multiple of hosts"),
    (["links", "--slow", "2:0.5", "--", "ls"], "expected ranks from 0 to 1"),
    (["links", "--slow", "1:0", "--", "ls"], "shares from 0.05 to 1 of their cores, received rank 1 with 0"),
    (["links", "--slow", "1", "--", "ls"], "invalid slow_rank value: '1'"),
    (["links", "--speeds", "7", "4", "1", "--", "ls"], "--speeds: expected 2 speeds"),
    (["links", "--speeds", "7", "0", "--", "ls"], "expected a speed > 0, received 0"),
    (["predict"], "expected either"),
    (["predict", "--compute-s", "1"], "expected either"),
    (["predict", "report.json", "--compute-s", "1", "--communication-s", "1"], "expected either"),
    (["predict", "--compute-s", "-1", "--communication-s", "1"], "finite time >= 0"),
    (["trace"], "FILE.json"),
    (["tune"], "workload"),
    (["tune", "fft2", "--budget", "0"], "expected seconds > 0"),
    (["tune", "operation", "--dtype", "c16"], "expected one of f8, f4"),
    (["bench", "fft2", "--dtype", "q8"], "expected one of c16, c8, f8, f4"),
    (["predict", "--workload", "fft2", "--dtype", "q8"], "received 'q8'"),
    (["bench", "fft2", "--json", "no/such/folder.json"], "cannot write no/such/folder.json: its folder"),
    (["predict", "--compute-s", "1", "--communication-s", "1", "--png", "no/where.png"], "its folder does not"),
    (["scale", "run", "fft2", "--json", "/dev/full"], "cannot write /dev/full"),
    (["info", "--measure", "no/where.toml"], "cannot write no/where.toml"),
])
def test_arguments_that_make_no_sense(argv, complaint, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(argv)
    assert stop.value.code == 2
    assert complaint in capsys.readouterr().err


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert stop.value.code == 0 and capsys.readouterr().out == f"overlap {overlap.__version__}\n"
    assert overlap.__version__ == metadata.version("overlap-mpi")


def test_every_option_has_a_help_text():
    def without(parser, path=""):
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for name, command in action.choices.items():
                    yield from without(command, f"{path} {name}")
            elif not action.help:
                yield path, action.option_strings or action.dest
    assert list(without(cli.make_parser())) == []


@pytest.mark.parametrize("measured", [False, True])
def test_predictions_of_every_form_are_written_and_drawn(measured, tmp_path, capsys):
    argv = ["predict", "--compute-s", "2", "--communication-s", "1"]
    if measured:
        content = report.new_report(["overlap"])
        content["cases"] = [record()]
        report.write(content, tmp_path / "report.json")
        argv = ["predict", str(tmp_path / "report.json")]
    assert cli.main([*argv, "--json", str(tmp_path / "out.json"), "--png", str(tmp_path / "out.png")]) == 0
    assert "max(C, T)" in capsys.readouterr().out
    (case,) = json.loads((tmp_path / "out.json").read_text())
    assert case["off_s"] == case["compute_s"] + case["communication_s"]
    assert (case["measured_s"] != {}) == measured
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_the_c_program_is_found_in_the_checkout_that_one_is_in(tmp_path, monkeypatch):
    monkeypatch.setattr(reference, "__file__", str(tmp_path / "site-packages/overlap/tools/bench/reference.py"))
    monkeypatch.chdir(tmp_path)
    assert reference.find_program() is None
    found = reference.reference(Case(workload="fft2", dtype="c16"), 2, None)
    assert "no bench/reference/scan.py" in found["reference_skipped"]
    program = tmp_path / reference.PROGRAM
    program.parent.mkdir(parents=True)
    program.touch()
    assert reference.find_program() == program


def test_a_commands_own_dashes_stay_its_own():
    assert cli._split_command(["links", "--", "sh", "--", "-c"]) == (["links"], ["sh", "--", "-c"])


@pytest.mark.parametrize("argv", [
    ["trace", "missing.json"], ["trace", "no.json"], ["predict", "missing.json"],
    ["predict", "no.json"]])
def test_files_that_cannot_be_read(argv, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "no.json").write_text("[1, 2]")
    assert cli.main(argv) == 1
    error = capsys.readouterr().err
    assert error.startswith("overlap: error: ") and argv[1] in error and "Traceback" not in error


@pytest.mark.parametrize("missing, argv", [
    ("rich", ["demo"]), ("matplotlib", ["demo"]), ("rich", ["bench", "fft2"])])
def test_missing_extra_is_one_clear_line(missing, argv, monkeypatch, capsys):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.partition(".")[0] == missing:
            raise ImportError(f"No module named {name!r}")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    assert cli.main(argv) == 1
    error = capsys.readouterr().err
    assert "pip install 'overlap-mpi[demo]'" in error and len(error.splitlines()) == 1


def test_missing_mpiexec_is_one_clear_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(launch.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cli.main(["bench", "fft2"]) == 1
    assert "pip install 'overlap-mpi[demo]'" in capsys.readouterr().err.splitlines()[-1]


# ---- launching -------------------------------------------------------------------------------

@pytest.mark.parametrize("name", ["PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"])
def test_under_mpi(name):
    assert launch.under_mpi({name: "0"}) and not launch.under_mpi({"PATH": ""})


# ---- cases -----------------------------------------------------------------------------------

def test_case_survives_json():
    case = Case(workload="operation", dtype="f4", shape=[8, 6], chunk=2)
    assert Case.from_dict(json.loads(json.dumps(case.as_dict() | {"task": "case"}))) == case


def test_dtype_by_any_name():
    assert Case(dtype="complex64").dtype == "c8"


@pytest.mark.parametrize("changes", [
    {"workload": "fft4"}, {"order": "odd"}, {"calls": 0}, {"shape": (4,)}, {"shape": (0, 4)}, {"chunk": 0}, {"wait": "on"},
    {"dtype": "nonsense"}])
def test_case_refuses(changes):
    with pytest.raises(ValueError, match="expected"):
        Case(**changes)


def test_plane_waves_bracket_is_what_the_pseudo_spectral_formula_gives():
    case = Case(workload="operation", dtype="f8", shape=(16, 12))
    job = jobs.Brackets.__new__(jobs.Brackets)
    job._case = case
    closed_form = job.truth(0)
    job._waves = lambda z: True

    class Numerically(jobs.Brackets):
        def __init__(self):
            self._case = case

        def _waves(self, z):
            return False

        def _field(self, z, which):
            return np.sin(jobs._phase(case.shape, (jobs._P, jobs._R)[which]))

    np.testing.assert_allclose(Numerically().truth(0), closed_form, atol=1e-11)
    assert np.abs(closed_form).max() > 1


# ---- records ---------------------------------------------------------------------------------

def test_record_holds_the_model_and_the_share_hidden():
    found = record()
    assert (found["C_s"], found["T_s"]) == (0.060, 0.100)
    assert found["T_over_C"] == pytest.approx(5 / 3)
    assert found["model_block_s"] == model.block_s(0.06, 0.1, 1)
    assert found["model_poll_s"] == 0.1
    assert found["auto_s"] == 0.103
    assert found["hidden"] == pytest.approx((0.16 - 0.103) / 0.06)
    assert found["gain"] == pytest.approx(0.161 / 0.103)
    assert found["gain_bound"] == pytest.approx(1.6) and found["gain_bound_block"] == 1
    assert found["spread"]["off"] == [0.160, 0.170]
    assert "peer_mpi4py_fft_s" not in found


def test_nothing_to_hide_is_null_and_valid_json(tmp_path):
    found = record(seconds={"T": [0.0] * 3, "control_T": [0.0] * 3})
    assert found["hidden"] is None and found["control_hidden"] is None and found["control_ok"]
    content = report.new_report(["overlap", "bench"])
    content["cases"].append(found)
    report.write(content, tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_text())["cases"][0]["hidden"] is None
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]
    table.table([found])


def test_control_that_fails_is_said():
    good = record()
    assert good["control_ok"] and good["control_hidden"] == pytest.approx(0.001 / 0.06)
    assert warnings(good) == []
    bad = record(seconds={"control": [0.130] * 3})
    assert bad["control_ok"] is False
    assert "warning: 2gbit" in warnings(bad)[0] and "0.50" in warnings(bad)[0]


def test_busy_machine_is_said():
    bad = record(seconds={"C": [0.06, 0.06, 0.09]})
    assert "something else ran" in warnings(bad)[0]


def test_no_control_in_shared_memory():
    found = record(without=("control", "control_C", "control_T"), hosts=1)
    assert found["control_hidden"] is found["control_ok"] is None
    assert warnings(found) == []


def test_peer_in_the_record_or_why_not():
    case = Case(rounds=3, peer=True)
    found = record(case, peer_setting="numpy", seconds={
        "peer_mpi4py_fft": [0.5] * 3, "peer_mpi4py_fft_default": [0.9] * 3})
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
    for words in ("links of 2gbit", "shared memory", "103 (102-104)", "1.67", "poll, depth 16",
                  "1.56x", "0.95", "1.0e-15"):
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
        content = report.new_report(["overlap"])
        content["cases"] = [record()]
        report.write(content, tmp_path / "report.json")
        argv = ["predict", str(tmp_path / "report.json")]
    shown = []
    for columns in (40, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert cli.main(argv) == 0
        shown.append(capsys.readouterr().out)
    lines = shown[0].splitlines()[1 if measured else 0:]  # the first one of a report is its title
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


def test_sentence_trusts_only_what_the_control_allows():
    assert "links of 2gbit" in demo._sentence([record()])
    assert "95 %" in demo._sentence([record()])
    assert "see the warnings" in demo._sentence([record(seconds={"control": [0.13] * 3})])
    assert "see the warnings" in demo._sentence([record(seconds={"C": [0.06, 0.06, 0.1]})])
    assert "little to hide" in demo._sentence([record(without=("control",), hosts=1)])


def test_timeline_shown_is_of_links_and_balanced():
    shared = record(Case(rounds=3), without=("control",), hosts=1)
    slow = record(seconds={"T": [0.5] * 3})
    picked = min([(shared, 0), (slow, 1), (record(), 2)], key=demo._interest)
    assert picked[1] == 2


def test_quick_keeps_large_planes():
    assert demo.quick(Case(slices=64, rounds=9)) == replace(Case(), slices=12, rounds=3)


# ---- predict and trace -----------------------------------------------------------------------

def test_predict_of_times(capsys):
    assert cli.main(["predict", "--compute-s", "0.12", "--communication-s", "0.08",
                     "--workers", "4", "--slices", "64"]) == 0
    out = capsys.readouterr().out
    for value in (0.2, 0.14, 0.12, model.block_s(0.12, 0.08, 4, slices=64)):
        assert f"{1e3 * value:.2f} ms" in out
    assert "1.67 x" in out and "1.75 x" in out and "at T = 160.00 ms" in out


def test_predict_of_a_report(tmp_path, capsys):
    content = report.new_report(["overlap"])
    content["cases"] += [record(), record(Case(rounds=3))]
    report.write(content, tmp_path / "report.json")
    assert cli.main(["predict", str(tmp_path / "report.json")]) == 0
    out = capsys.readouterr().out
    assert "links of 2gbit" in out and "measured     104.00 ms" in out


def test_trace_summarises_and_draws(tmp_path, capsys):
    spans = [Span(0, "worker 0", "compute", "slice 0", 0.0, 0.06),
             Span(0, "communicator", "communicate", "Alltoall", 0.02, 0.1)]
    timeline.write_chrome(spans, tmp_path / "t.json")
    assert cli.main(["trace", str(tmp_path / "t.json"), "--png", str(tmp_path / "t.png")]) == 0
    numbers = capsys.readouterr().out.splitlines()[2].split()
    assert numbers == ["0", "100.00", "60.00", "80.00", "40.00"]
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")


def test_trace_without_spans_draws_nothing(tmp_path, capsys):
    timeline.write_chrome([], tmp_path / "t.json")
    assert cli.main(["trace", str(tmp_path / "t.json"), "--png", str(tmp_path / "t.png")]) == 1
    assert "at least one span" in capsys.readouterr().err
    assert not (tmp_path / "t.png").exists()


def test_cache_is_shown_and_cleared(capsys, monkeypatch, tmp_path):
    machine = {"hosts": 1, "ranks_per_host": 2, "mpi": "an MPI"}
    entry = {"plan": {"kind": "FFT3", "shape": [8, 8, 8], "dtype": "f8"}, "machine": machine, "wisdom": "(a\n)",
             "transforms": {"forward": tuning_file.record(Settings("poll", 2, 1, 2, 8, None, 0.0),
                                                          Tuned("", 1.0, 3))}}
    monkeypatch.setenv(memory.VARIABLE, str(tmp_path))
    tuning_file.write(str(tmp_path / "a.plan.json"), entry)
    (tmp_path / "b.plan.json").write_text("{")
    (tmp_path / "mine.txt").write_text("of the user")
    assert cli.main(["cache", "show"]) == 0
    shown = capsys.readouterr().out
    assert "FFT3 [8, 8, 8] f8: 1 host(s), 2 rank(s) each, an MPI" in shown and "b.plan.json: damaged" in shown
    assert "forward: poll, depth 2" in shown
    assert cli.main(["cache", "clear"]) == 0
    assert capsys.readouterr().out == "2 file(s) removed\n"
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    monkeypatch.setenv(memory.VARIABLE, "")
    assert cli.main(["cache", "show"]) == 0 and "nothing is kept" in capsys.readouterr().out
