"""`overlap scale report`: merging, the table, the figures' data, the page; files it refuses."""

import base64
import json
import re

import pytest
from records import without, written

from overlap import files
from overlap.errors import InputError
from overlap.tools import cli
from overlap.tools.bench.jobs import Case
from overlap.tools.bench.record import case_record, pooled
from overlap.tools.scale import commands, scaling_report

MODES = ("off", "block", "poll", "auto")


def record(ranks, *, C=0.120, T=0.080, workers=4, link="2gbit", rounds=3, modes=MODES, **work):
    """A point at which every mode takes exactly what the model says."""
    times = {
        "off": C + T,
        "block": max(C + T / workers, T),
        "poll": max(C, T),
        "auto": max(C, T),
        "C": C,
        "T": T,
        "control": C + T,
        "control_C": C,
        "control_T": T,
    }
    seconds = {
        name: [value * factor for factor in (1.0, 0.9, 1.1)[:rounds]]
        for name, value in times.items()
        if name not in MODES or name in modes
    }
    case = Case(**{"workload": "operation", "workers": workers, "link": link, "modes": modes} | work)
    return case_record(
        case,
        {
            "seconds": seconds,
            "ranks": ranks,
            "hosts": ranks,
            "max_rel_error": 1e-15,
            "auto_choice": {"wait": "poll", "depth": 16, "chunk": 1, "in_flight": 8},
            "nbytes_in_flight": 1 << 20,
            "bare_fft_s": 0.05,
            "binding": [{"host": f"n{rank}", "cores": list(range(4, 4 + workers))} for rank in range(ranks)],
        },
    )


# ---- merging ---------------------------------------------------------------------------------


def test_rounds_of_one_point_are_pooled(tmp_path):
    a = written(tmp_path / "a.json", record(2, C=0.1), record(4))
    b = written(tmp_path / "b.json", record(2, C=0.2), record(1))
    records, notes, sources = scaling_report.merge([a, b])
    assert [found["ranks"] for found in records] == [1, 2, 4] and notes == []
    both = records[1]
    assert both["rounds"] == 6 and both["seconds"]["C"][:3] == pytest.approx([0.1, 0.09, 0.11])
    assert both["C_s"] == pytest.approx((0.11 + 0.18) / 2)  # median of .09 .1 .11 .18 .2 .22
    assert both["spread"]["C"] == pytest.approx([0.09, 0.22])
    assert both["model_poll_s"] == pytest.approx(both["C_s"])
    assert [source["file"] for source in sources] == [str(a), str(b)]


def test_one_record_pooled_is_itself():
    one = record(2)
    assert pooled([one]) == one


def test_links_and_threads_are_not_mixed():
    records = scaling_report.pool([record(2), record(2, workers=2), record(2, link="shm"), record(1)])
    assert [(found["link"], found["workers"], found["ranks"]) for found in records] == [
        ("shm", 4, 2),
        ("2gbit", 2, 2),
        ("2gbit", 4, 1),
        ("2gbit", 4, 2),
    ]
    assert [len(panel) for panel in scaling_report.panels(records)] == [1, 1, 2]


def test_a_part_and_differences_are_said(tmp_path):
    a = written(tmp_path / "a.json", record(2), complete=False)
    b = written(tmp_path / "b.json", record(4), commit="abc", notes=["no links of 9gbit"])
    notes = scaling_report.merge([a, b])[1]
    assert notes[0] == f"{a} is incomplete: its run did not end"
    assert notes[1] == "no links of 9gbit" and "several commits: " in notes[2]


# ---- refused ---------------------------------------------------------------------------------


def cut_off(path):
    path.write_text(written(path, record(2)).read_text()[:-40])


def other_version(path):
    written(path, record(2), schema=1)


def first_version(path):
    path.write_text('{"format": "overlap-report-1", "cases": []}')


def other_json(path):
    path.write_text("[1, 2]")


def without_cases(path):
    written(path)


def without_machine(path):
    content = json.loads(written(path, record(2)).read_text())
    del content["machine"]
    path.write_text(files.sealed(json.dumps(content | {"digest": ""})))


def changed(path):
    path.write_text(written(path, record(2)).read_text().replace("1", "2", 1))


@pytest.mark.parametrize(
    "spoil, complaint",
    [
        (cut_off, "cut off or no JSON"),
        (other_version, "received schema 1: measure again"),
        (first_version, "received schema 1"),
        (other_json, "received other JSON"),
        (without_machine, "without machine"),
        (changed, "does not match its digest"),
        (without_cases, "received none"),
        (lambda path: None, "No such file"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_clear_error(spoil, complaint, tmp_path, capsys):
    path = tmp_path / "spoilt.json"
    spoil(path)
    assert cli.main(["scale", "report", str(path), "--out", str(tmp_path / "out")]) == 1
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith("overlap: error: ") and complaint in error and str(path) in error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("work", [{"workload": "fft2"}, {"slices": 32}, {"shape": (512, 256)}, {"dtype": "f4"}])
def test_other_work_is_refused(work, tmp_path):
    a = written(tmp_path / "a.json", record(2))
    b = written(tmp_path / "b.json", record(4, **work))
    with pytest.raises(InputError, match="expected reports of the same work, received .*b.json"):
        scaling_report.merge([a, b])


def test_missing_matplotlib_is_said(tmp_path, monkeypatch, capsys):
    path = written(tmp_path / "a.json", record(2))
    without(monkeypatch, "matplotlib")
    assert cli.main(["scale", "report", str(path), "--out", str(tmp_path / "out")]) == 1
    assert "pip install 'overlap-mpi[demo]'" in capsys.readouterr().err


# ---- what is shown ---------------------------------------------------------------------------


def curves(name, panel):
    """The curves of a figure's panel, {label: values}."""
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    ranks = [found["ranks"] for found in panel]
    scaling_report.FIGURES[name](axes, panel, ranks, [mode for mode in MODES if panel[0][f"{mode}_s"]])
    handles, labels = axes.get_legend_handles_labels()
    return {label: list(getattr(handle, "lines", [handle])[0].get_ydata()) for handle, label in zip(handles, labels)}


def test_figures_hold_the_measured_and_the_closed_forms():
    """C = 120/P, T = 80 ms, N = 4: C + T/N = 120/P + 20, and T from P = 2 on (60 + 20 = 80)."""
    panel = [record(ranks, C=0.120 / ranks) for ranks in (1, 2, 4)]
    time = curves("time", panel)
    assert time["no overlap"] == time["C + T"] == pytest.approx([200, 140, 110])
    assert time["blocking calls"] == time["C + T/N, or T"] == pytest.approx([140, 80, 80])
    assert time["polling"] == time["max(C, T)"] == pytest.approx([120, 80, 80])
    acceleration = curves("acceleration", panel)
    assert acceleration["no overlap"] == pytest.approx([1, 200 / 140, 200 / 110])
    assert acceleration["polling"] == pytest.approx([200 / 120, 200 / 80, 200 / 80])
    assert acceleration["ideal"] == [1, 2, 4]
    gain = curves("gain", panel)
    assert "no overlap" not in gain
    assert gain["blocking calls"] == pytest.approx([200 / 140, 140 / 80, 110 / 80])
    assert gain["automatic"] == gain["(C + T)/max(C, T)"] == pytest.approx([5 / 3, 1.75, 1.375])


def test_modes_left_out_are_not_shown(tmp_path):
    panel = [record(ranks, modes=("off", "poll")) for ranks in (1, 2)]
    assert set(curves("gain", panel)) == {"polling", "(C + T)/(C + T/N, or T)", "(C + T)/max(C, T)"}
    head, *_ = scaling_report.rows(panel)
    assert "polling" in head and "blocking" not in head and "automatic" not in head
    assert panel[0]["gain"] == pytest.approx(200 / 120)
    assert cli.main(["predict", str(written(tmp_path / "r.json", *panel))]) == 0


def test_report_writes_pictures_and_a_page_that_needs_nothing_else(tmp_path, capsys):
    path = written(
        tmp_path / "a.json", record(1), record(2), record(2, workers=2), job={"scheduler": "slurm", "id": "4<2"}
    )
    out = tmp_path / "made" / "here"
    assert cli.main(["scale", "report", str(path), "--out", str(out)]) == 0
    pictures = [(out / f"{name}.png").read_bytes() for name in ("time", "acceleration", "gain")]
    assert all(picture.startswith(b"\x89PNG") for picture in pictures)
    page = (out / "report.html").read_text()
    embedded = re.findall(r'src="data:image/png;base64,([^"]*)"', page)
    assert [base64.b64decode(text) for text in embedded] == pictures
    assert len(re.findall(r"src=", page)) == 3
    assert not re.search(r"<script|<link|href=|https?://|@import|url\(", page)
    for words in (
        "slurm 4&lt;2",
        "links of 2gbit",
        "<td>200 (180-220)</td>",
        "<td>n1</td>",
        "<td>4-7</td>",
        "64 spectral operations",
    ):
        assert words in page, words
    printed = capsys.readouterr().out
    assert "N = 2 worker" in printed and "N = 4 worker" in printed and "200 (180-220)" in printed


def test_threads_that_outnumber_cores_are_said():
    one = record(2)
    assert not [line for line in scaling_report.warnings([one]) if "more workers" in line]
    for place in one["binding"]:
        place["host"] = "same"
    crowded = [line for line in scaling_report.warnings([one]) if "more workers than cores" in line]
    assert len(crowded) == 1 and "on same" in crowded[0] and "[2 ranks of 4" in crowded[0]


def test_schedulers_are_recognised():
    assert commands.scheduler_job({}) is None
    assert commands.scheduler_job({"PJM_JOBID": "7"}) == {"scheduler": "pjm", "id": "7"}
    assert commands.scheduler_job({"SLURM_JOB_ID": "8"}) == {"scheduler": "slurm", "id": "8"}
