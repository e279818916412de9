"""What is printed of records of times, and what `dir` shows of the package; objects on ranks: test_generated.py."""

import overlap
from overlap.runtime import Load
from overlap.runtime.trace import Span, Trace
from overlap.tools import timeline


def test_a_load_says_its_calls_and_times():
    load = Load()
    load.add(0.5, 0.75, 2)
    load.add(1.5, 1.25, 2)
    for text in (repr(load), str(load)):
        assert "2 call(s) in 2 s" in text and "2 s of 4 s" in text and "waits 50 %" in text


def test_a_summary_says_its_rank_and_times():
    spans = [
        Span(3, "worker 0", "compute", "slice 1", 0.0, 1.0),
        Span(3, "communicator", "communicate", "slice 0", 0.5, 2.25),
    ]
    (of_rank,) = timeline.summary(spans)
    for text in (repr(of_rank), str(of_rank)):
        assert [number in text for number in ("3", "2.25", "1.75", "0.5")] == [True] * 4


def test_a_trace_says_how_much_it_holds():
    trace = Trace()
    for thread in ("worker 0", "worker 1"):
        trace.add(thread, "compute", "slice 1", 0.0, 1.0)
    assert repr(trace) == "<Trace: 2 span(s) of 2 thread(s)>"


def test_dir_shows_public_names_alone():
    assert dir(overlap) == sorted([*overlap.__all__, "__version__"])
    assert all(getattr(overlap, name) is not None for name in dir(overlap))
