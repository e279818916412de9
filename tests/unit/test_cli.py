"""The commands without ranks: arguments, launching, predictions, traces, the cache."""

import argparse
import json
import os
import shlex
import subprocess
import sys
from importlib import metadata

import pytest
from records import record, without, written

import overlap
from overlap.fft.planning import tuning_file
from overlap.fft.planning.settings import Settings, Tuned
from overlap.files import CACHE_VARIABLE
from overlap.runtime.trace import Span
from overlap.timing import model
from overlap.timing.simulate import Machine
from overlap.timing.thread_scaling import ThreadScaling
from overlap.tools import cli, launch, timeline
from overlap.tools.bench import reference
from overlap.tools.bench.jobs import Case

# ---- arguments -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "argv, complaint",
    [
        ([], "COMMAND"),
        (["fly"], "invalid choice"),
        (["bench"], "workload"),
        (["bench", "fft4"], "invalid choice"),
        (["bench", "fft2", "--slices", "0"], "expected an integer >= 1, received 0"),
        (["bench", "fft2", "--shape", "512"], "shape: expected (ny, nx), received (512,)"),
        (["bench", "fft3", "--shape", "8", "8"], "shape: expected (nz, ny, nx), received (8, 8)"),
        (["bench", "fft2", "--grid", "1", "2"], "grid: expected workload fft3, received fft2"),
        (["bench", "fft3", "--slices", "2", "--peer", "mpi4py-fft"], "received 2 of fft3 in natural order"),
        (["bench", "fft2", "--order", "transposed", "--peer", "mpi4py-fft"], "in transposed order"),
        (["bench", "nonlinear", "--shape", "4", "3", "6"], "expected an odd nkx, received (4, 3, 6)"),
        (["bench", "nonlinear", "--chunk", "2"], "expected none with workload nonlinear, received 2, None"),
        (["tune", "nonlinear"], "invalid choice"),
        (["bench", "fft2", "--link", "fast"], "expected a rate above 0"),
        (["bench", "fft2", "--dtype", "i4"], "expected one of c16, c8, f8, f4"),
        (["bench", "operation", "--dtype", "c16"], "expected one of f8, f4"),
        (["bench", "operation", "--peer", "mpi4py-fft"], "expected workload fft2"),
        (["bench", "fft2", "--deadline", "inf"], "expected seconds > 0"),
        (["bench", "fft2", "--", "ls"], "only `overlap links` takes a command"),
        (["bench", "spmv", "--shape", "8", "8"], "--shape: expected three numbers >= 3"),
        (["bench", "halo", "--dtype", "c16"], "--dtype: expected a workload of fft2"),
        (["bench", "cg", "--in-flight", "2"], "--in-flight: expected a workload of fft2"),
        (["bench", "fft2", "--matrix", "rock"], "--matrix: expected a workload of halo"),
        (["bench", "fft2", "--delay", "0.1"], "--delay: expected a workload of halo"),
        (["demo", "--rates", "0gbit"], "expected a rate above 0"),
        (["demo", "--out", __file__], "is no folder that can be written to"),
        (["demo", "--out", f"{__file__}/new/report"], "is no folder that can be written to"),
        (["predict", "report.json", "--workers", "3"], "--workers: expected none with a report"),
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
        (["predict", "--compute-s", "1", "--communication-s", "1", "--ranks", "4", "16"], "--ranks: expected with"),
        (["predict", "report.json", "--in-flight", "2"], "--in-flight: expected with --workload only"),
        (["predict", "report.json", "--wait", "poll"], "--wait: expected with --workload only"),
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
    ],
)
def test_arguments_that_make_no_sense(argv, complaint, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(argv)
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert complaint in error
    if argv and complaint != "invalid choice":  # where the command itself is known
        assert error.startswith(f"usage: overlap {argv[0]} ")


def test_a_reader_that_goes_ends_the_command_in_silence():
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "overlap", "predict", "--compute-s", "1", "--communication-s", "1"],
            stdout=write,
            stderr=subprocess.PIPE,
            timeout=60,
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert stop.value.code == 0 and capsys.readouterr().out == f"overlap {overlap.__version__}\n"
    assert overlap.__version__ == metadata.version("overlap-mpi")


@pytest.mark.parametrize(
    "argv", [["--help"], ["--version"], ["info", "--help"], ["links", "--help"], ["trace", "--help"]]
)
def test_what_needs_no_plan_imports_neither_numba_nor_mpi(argv):
    program = (
        "import atexit, sys\nfrom overlap.__main__ import main\n"
        f"sys.argv[1:] = {argv}\n"
        "atexit.register(lambda: print({'numba', 'mpi4py.MPI', 'scipy', 'overlap.fft'} & {*sys.modules}))\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.stdout.splitlines()[-1], done.stderr) == ("set()", "")


def test_every_option_has_a_help_text():
    def without(parser, path=""):
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for name, command in action.choices.items():
                    yield from without(command, f"{path} {name}")
            elif not action.help:
                yield path, action.option_strings or action.dest

    assert list(without(cli.make_parser())) == []


def test_every_command_shows_examples_that_it_accepts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def commands(parser):
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for command in action.choices.values():
                    yield command
                    yield from commands(command)

    for command in commands(cli.make_parser()):
        _, *examples = command.epilog.splitlines()
        assert examples, command.prog
        for example in examples:
            words = shlex.split(example.partition(" > ")[0].partition(" -- ")[0])
            found = cli.make_parser().parse_args(words[words.index("overlap") + 1 :])
            assert found.parser.prog.startswith(command.prog)


@pytest.mark.parametrize("measured", [False, True])
def test_predictions_of_every_form_are_written_and_drawn(measured, tmp_path, capsys):
    argv = ["predict", "--compute-s", "2", "--communication-s", "1"]
    if measured:
        argv = ["predict", str(written(tmp_path / "report.json", record()))]
    assert cli.main([*argv, "--json", str(tmp_path / "out.json"), "--png", str(tmp_path / "out.png")]) == 0
    shown = capsys.readouterr().out
    assert "max(C, T)" in shown and ("links of 2gbit" in shown) == ("measured     104.00 ms" in shown) == measured
    (case,) = json.loads((tmp_path / "out.json").read_text())
    assert case["off_s"] == case["compute_s"] + case["communication_s"]
    assert (case["measured_s"] != {}) == measured
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_the_c_program_is_found_in_the_checkout_that_one_is_in(tmp_path, monkeypatch):
    monkeypatch.setattr(reference, "__file__", str(tmp_path / "site-packages/overlap/tools/bench/reference.py"))
    monkeypatch.chdir(tmp_path)
    found = reference.reference(Case(workload="fft2", dtype="c16"), 2, None)
    assert "no bench/reference/gkv_fft2.c" in found["reference_skipped"]
    program = tmp_path / reference.PROGRAM
    program.parent.mkdir(parents=True)
    program.touch()
    assert reference.find_source() == program


def test_a_commands_own_dashes_stay_its_own():
    assert cli._split_command(["links", "--", "sh", "--", "-c"]) == (["links"], ["sh", "--", "-c"])


@pytest.mark.parametrize(
    "argv", [["trace", "missing.json"], ["trace", "no.json"], ["predict", "missing.json"], ["predict", "no.json"]]
)
def test_files_that_cannot_be_read(argv, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "no.json").write_text("[1, 2]")
    assert cli.main(argv) == 1
    error = capsys.readouterr().err
    assert error.startswith("overlap: error: ") and argv[1] in error and "Traceback" not in error


@pytest.mark.parametrize("missing, argv", [("rich", ["demo"]), ("matplotlib", ["demo"]), ("rich", ["bench", "fft2"])])
def test_missing_extra_is_one_clear_line(missing, argv, monkeypatch, capsys):
    without(monkeypatch, missing)
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


# ---- predict and trace -----------------------------------------------------------------------


def test_predict_of_times(capsys):
    assert (
        cli.main(["predict", "--compute-s", "0.12", "--communication-s", "0.08", "--workers", "4", "--slices", "64"])
        == 0
    )
    out = capsys.readouterr().out
    for value in (0.2, 0.14, 0.12, model.block_s(0.12, 0.08, 4, slices=64)):
        assert f"{1e3 * value:.2f} ms" in out
    assert "1.67 x" in out and "1.75 x" in out and "at T = 160.00 ms" in out


def test_predict_warns_of_a_machine_measured_while_busy(tmp_path, capsys):
    path = tmp_path / "busy.toml"
    numbers = dict(fft_flops=4e9, copy_Bps=5e9, latency_s=1e-5, bandwidth_Bps=1e9)
    argv = ["predict", "--workload", "fft2", "--machine", str(path), "--ranks", "2", "4", "--workers", "16"]
    for jitter, speedup in ((0.57, 0.5), (0.03, 9.5)):
        threads = ThreadScaling.of_table({64: {2: 1.7, 16: speedup}})
        Machine(name="busy", jitter=jitter, threads=threads, **numbers).write(path)
        cli.main([*argv])
        warned = capsys.readouterr().err
        if speedup > 1:
            assert warned == ""
        else:
            assert f"warning: {path}: 16 threads 0.5 times as fast as one for planes of 64 x 64: such" in warned
            assert f"warning: {path}: a jitter of 0.57: such values come from cores that other programs used" in warned


def test_trace_summarises_and_draws(tmp_path, capsys):
    spans = [
        Span(0, "worker 0", "compute", "slice 0", 0.0, 0.06),
        Span(0, "communicator", "communicate", "Alltoall", 0.02, 0.1),
    ]
    timeline.write_chrome(spans, tmp_path / "t.json")
    assert cli.main(["trace", str(tmp_path / "t.json"), "--png", str(tmp_path / "t.png")]) == 0
    numbers = capsys.readouterr().out.splitlines()[2].split()
    assert numbers == ["0", "100.00", "60.00", "80.00", "40.00", "40", "%"]
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")


def test_trace_without_spans_draws_nothing(tmp_path, capsys):
    timeline.write_chrome([], tmp_path / "t.json")
    assert cli.main(["trace", str(tmp_path / "t.json"), "--png", str(tmp_path / "t.png")]) == 1
    assert "at least one span" in capsys.readouterr().err
    assert not (tmp_path / "t.png").exists()


def test_cache_is_shown_and_cleared(capsys, monkeypatch, tmp_path):
    machine = {"hosts": 1, "ranks_per_host": 2, "mpi": "an MPI"}
    entry = {
        "plan": {"kind": "FFT3", "shape": [8, 8, 8], "dtype": "f8"},
        "machine": machine,
        "wisdom": "(a\n)",
        "transforms": {"forward": tuning_file.record(Settings("poll", 2, 1, 2, None, 0.0), Tuned("", 1.0, 3))},
    }
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
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
    monkeypatch.setenv(CACHE_VARIABLE, "")
    assert cli.main(["cache", "show"]) == 0 and "nothing is kept" in capsys.readouterr().out
