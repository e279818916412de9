"""Timelines: intervals, tracks, Chrome files and pictures."""

import json
import random
import sys
from itertools import pairwise
from pathlib import Path

import commands
import pytest

from overlap import files
from overlap.errors import InputError
from overlap.runtime.trace import KINDS, Span
from overlap.tools import timeline
from overlap.tools.timeline import RankSummary


def compute(start_s, end_s, rank=0, thread="worker 0", label="slice 0"):
    return Span(rank, thread, "compute", label, start_s, end_s)


def exchange(start_s, end_s, rank=0, thread="communicator", label="slice 0"):
    return Span(rank, thread, "communicate", label, start_s, end_s)


# --- summary ------------------------------------------------------------------------------------


def test_summary_of_hand_made_intervals():
    spans = [
        # Rank 0 computes in [0, 4] and [6, 8], communicates in [1, 2] and [3, 7].
        compute(0, 3),
        compute(2, 4, thread="worker 1"),
        compute(6, 8),
        exchange(1, 2),
        exchange(3, 6),
        exchange(4, 7),
        exchange(5, 5),
        # Rank 1: nothing at once.
        compute(10, 11, rank=1),
        exchange(11, 14, rank=1),
    ]
    random.Random(0).shuffle(spans)
    assert timeline.summary(spans) == [
        RankSummary(0, 8.0, 6.0, 5.0, 3.0, 1 - 7 / 16),
        RankSummary(1, 4.0, 1.0, 3.0, 0.0, 0.75),
    ]
    assert timeline.summary([]) == []


def test_what_lies_between_calls_is_no_waiting():
    calls = [Span(0, "calls", "call", f"f: {way}, depth 2", at, at + 4.0) for way, at in (("off", 0.0), ("poll", 10.0))]
    (record,) = timeline.summary([*calls, compute(0, 3), compute(10, 13), exchange(3, 4)])
    assert (record.wall_s, record.compute_s, record.waiting) == (8.0, 6.0, 0.25)


def test_summary_agrees_with_counting():
    pick = random.Random(3)
    for _ in range(50):
        spans = [
            Span(0, "t", pick.choice(KINDS), "", start, start + pick.randrange(6))
            for start in (pick.randrange(30) for _ in range(12))
        ]
        cells = {
            kind: {cell for span in spans if span.kind == kind for cell in range(span.start_s, span.end_s)}
            for kind in KINDS
        }
        (record,) = timeline.summary(spans)
        assert record.compute_s == len(cells["compute"])
        assert record.communicate_s == len(cells["communicate"])
        assert record.both_s == len(cells["compute"] & cells["communicate"])


@pytest.mark.parametrize(
    "bad, words",
    [
        (Span(0, "worker 0", "sleep", "", 0.0, 1.0), "kind: expected one of .* received 'sleep'"),
        (compute(2.0, 1.0), "start <= end, received 2.0 to 1.0"),
        (compute(0.0, float("nan")), "finite times"),
    ],
)
@pytest.mark.parametrize(
    "use",
    [
        timeline.summary,
        lambda spans: timeline.write_chrome(spans, "never"),
        lambda spans: timeline.draw(spans, "never.png"),
    ],
)
def test_bad_spans_are_refused(bad, words, use, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=words):
        use([bad])
    assert list(tmp_path.iterdir()) == []


# --- Chrome trace -------------------------------------------------------------------------------

SPANS = [
    compute(100.0, 100.5, thread="worker 2"),
    compute(100.5, 101.0, thread="worker 2"),
    compute(100.25, 100.75, thread="worker 10", label='a "quoted" slice, \u03c0'),
    exchange(100.25, 100.75),
    exchange(100.5, 101.0),
    exchange(100.75, 101.25),
    compute(100.125, 100.25, rank=1, thread="worker 2"),
    exchange(100.5, 101.5, rank=1),
]


def test_chrome_trace_structure(tmp_path):
    path = tmp_path / "timeline.json"
    timeline.write_chrome(reversed(SPANS), path)
    assert list(tmp_path.iterdir()) == [path]  # no partial file is left
    events = json.loads(path.read_text())["traceEvents"]
    complete = [event for event in events if event["ph"] == "X"]
    metadata = [event for event in events if event["ph"] == "M"]
    assert len(complete) + len(metadata) == len(events)
    assert len(complete) == len(SPANS)
    for event in complete:
        assert event["cat"] in KINDS and event["cname"] and isinstance(event["name"], str)
        assert event["ts"] >= 0 and event["dur"] >= 0
    assert min(event["ts"] for event in complete) == 0
    first = next(event for event in complete if "quoted" in event["name"])
    assert (first["pid"], first["ts"], first["dur"]) == (0, 250_000, 500_000)

    names = {event["pid"]: event["args"]["name"] for event in metadata if event["name"] == "process_name"}
    assert names == {0: "rank 0", 1: "rank 1"}
    assert {event["pid"]: event["args"]["labels"] for event in metadata if event["name"] == "process_labels"} == {
        0: "waits 40 % of the time",
        1: "waits 91 % of the time",
    }
    tracks = [(event["pid"], event["args"]["name"]) for event in metadata if event["name"] == "thread_name"]
    assert tracks == [
        (0, "worker 2"),
        (0, "worker 10"),
        (0, "communicator"),
        (0, "communicator, in flight 2"),
        (1, "worker 2"),
        (1, "communicator"),
    ]
    tids = [event["tid"] for event in metadata if event["name"] == "thread_name"]
    assert len(set(tids)) == len(tids)
    # No two spans of one track overlap.
    for tid in tids:
        times = sorted((event["ts"], event["ts"] + event["dur"]) for event in complete if event["tid"] == tid)
        assert times and all(a[1] <= b[0] for a, b in pairwise(times))


def test_chrome_trace_round_trip(tmp_path):
    path = tmp_path / "timeline.json"
    timeline.write_chrome(SPANS, path)
    back = timeline.read_chrome(path)
    assert back == [Span(s.rank, s.thread, s.kind, s.label, s.start_s - 100, s.end_s - 100) for s in SPANS]
    assert timeline.summary(back) == timeline.summary(SPANS)
    timeline.write_chrome([], path)
    assert timeline.read_chrome(path) == []


def test_a_file_cut_off_or_changed_anywhere_is_refused(tmp_path):
    path = tmp_path / "timeline.json"
    timeline.write_chrome(SPANS, path)
    whole = path.read_bytes().rstrip()
    changed = (whole[:n] + bytes([whole[n] ^ 1]) + whole[n + 1 :] for n in range(0, len(whole), 7))
    for content in (*(whole[:length] for length in range(len(whole))), *changed):
        path.write_bytes(content)
        with pytest.raises(InputError, match="cannot read the trace .*timeline.json"):
            timeline.read_chrome(path)
    path.write_bytes(whole[:-40])
    with pytest.raises(InputError, match="cut off or damaged"):
        timeline.read_chrome(path)


@pytest.mark.parametrize(
    "content, words",
    [
        (b"", "received something else"),
        (b"\x89PNG\r\n\x1a\n\xff", "received something else"),
        (b"[]", "received other JSON"),
        (b"3", "received other JSON"),
        (b'{"traceEvents": []}', "received other JSON"),
        (b'{"otherData": {"format": "overlap-trace-99"}}', "received format 'overlap-trace-99'"),
        (b'{"otherData": {"format": "overlap-trace-1"}, "traceEvents": []}', "received format 'overlap-trace-1'"),
        (b'{"otherData": {"format": "overlap-trace-2"}, "traceEvents": []}', "damaged: its content"),
    ],
)
def test_foreign_files_are_refused(content, words, tmp_path):
    path = tmp_path / "other.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=words):
        timeline.read_chrome(path)


@pytest.mark.parametrize("rest", ["", ', "traceEvents": [3]', ', "traceEvents": [{"ph": "X"}]'])
def test_nonsense_with_a_right_digest_is_refused(rest, tmp_path):
    path = tmp_path / "other.json"
    path.write_text(files.sealed('{"otherData": {"format": "overlap-trace-2", "digest": ""}' + rest + "}"))
    with pytest.raises(InputError, match="damaged"):
        timeline.read_chrome(path)


def test_a_missing_file_stays_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        timeline.read_chrome(tmp_path / "none.json")


# --- picture ------------------------------------------------------------------------------------


def test_draw_makes_a_picture_with_both_colours(tmp_path):
    image = pytest.importorskip("matplotlib.image")
    path = tmp_path / "timeline.png"
    calls = [Span(rank, "calls", "call", "f: poll, depth 2", 100.0, 101.5) for rank in (0, 1)]
    timeline.draw([*SPANS, *calls], path, title="two ranks, $5 a slice")
    pixels = image.imread(path)[..., :3]
    for colour in timeline._COLOURS.values():
        wanted = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        share = (abs(pixels - wanted).max(axis=2) < 0.01).mean()
        assert share > 0.03, colour


def test_draw_has_one_row_per_thread(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "timeline.svg"
    timeline.draw(SPANS, path)
    text = path.read_text()
    for name in (
        "rank 0 worker 2",
        "rank 0 worker 10",
        "rank 0 communicator",
        "rank 1 worker 2",
        "rank 1 communicator",
        "computing",
        "communicating",
        "time (ms)",
    ):
        assert f"<!-- {name} -->" in text
    # Rank 0's communicator is busy for 1 s of 1.5 s, however many exchanges are in flight.
    assert text.count("<!-- 67% -->") == 3


def test_draw_many_spans_and_one_instant(tmp_path):
    pytest.importorskip("matplotlib")
    many = [compute(k * 1e-4, k * 1e-4 + 9e-5, thread=f"worker {k % 4}") for k in range(20_000)]
    timeline.draw(many, tmp_path / "many.png")
    timeline.draw([compute(1.0, 1.0)], tmp_path / "instant.png")
    with pytest.raises(ValueError, match="at least one span"):
        timeline.draw([], tmp_path / "none.png")


def test_import_needs_neither_mpi_nor_matplotlib():
    # Only the module's own imports count, not those of the packages around it.
    root = Path(timeline.__file__).parents[1]
    code = (
        "import sys, types\nfor name, folder in (('overlap', ''), ('overlap.runtime', '/runtime'), ('overlap.tools', "
        "'/tools')):\n    sys.modules[name] = types.ModuleType(name)\n"
        f"    sys.modules[name].__path__ = [{str(root)!r} + folder]\n"
        "import overlap.tools.timeline\nprint([m for m in ('mpi4py', 'matplotlib', 'numpy') if m in sys.modules])"
    )
    done = commands.run(sys.executable, "-c", code, check=True)
    assert done.stdout.strip() == "[]"
