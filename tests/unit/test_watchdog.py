"""The deadline: what counts, on a clock of the test's own."""

import pytest

from overlap.ranks import watchdog


class Clock:
    """Stands in for the clock and for the event that ends the watchdog, which asks it to wait."""

    def __init__(self, steps, then):
        self.now, self.steps, self.then = 100.0, iter(steps), then

    def __call__(self):
        return self.now

    def wait(self, interval_s):
        step = next(self.steps, None)
        if step is None:
            return True
        self.now += step
        self.then(self.now)
        return False


@pytest.fixture
def aborted(monkeypatch):
    said = []
    monkeypatch.setattr(watchdog, "abort", lambda reason, others_s: said.append(reason))
    return said


def watch(monkeypatch, limit_s, steps, then=lambda now: None, watched=None):
    clock = Clock(steps, then)
    monkeypatch.setattr(watchdog, "perf_counter", clock)
    watchdog._watch([("deadline_s", limit_s, {"work": clock.now} if watched is None else watched)], clock)


def test_what_takes_too_long_ends_the_job(monkeypatch, aborted):
    watch(monkeypatch, 5.0, [1.0] * 5)
    assert not aborted
    watch(monkeypatch, 5.0, [1.0] * 6)
    assert aborted == ["work has not completed in 6.0 s (deadline_s=5): some rank does not take part"]


@pytest.mark.parametrize("steps", [[60.0], [1.0, 1.0, 60.0, 1.0], [30.0, 1.0, 1.0, 600.0, 1.0]])
def test_time_in_which_the_process_was_stopped_does_not_count(monkeypatch, aborted, steps):
    watch(monkeypatch, 5.0, steps)
    assert not aborted


def test_after_a_pause_the_deadline_holds(monkeypatch, aborted):
    watch(monkeypatch, 5.0, [1.0, 60.0, *[1.0] * 4])
    assert [text.split(" (")[0] for text in aborted] == ["work has not completed in 6.0 s"]


def test_a_pause_before_its_start_excuses_nothing(monkeypatch, aborted):
    watched = {}
    watch(
        monkeypatch,
        5.0,
        [60.0, *[1.0] * 7],
        watched=watched,
        then=lambda now: watched.setdefault("work", now) if now > 160 else None,
    )
    assert [text.split(" (")[0] for text in aborted] == ["work has not completed in 6.0 s"]


def test_waking_a_little_late_is_no_pause(monkeypatch, aborted):
    watch(monkeypatch, 5.0, [1.9] * 3)
    assert len(aborted) == 1


class Told:
    """A call that tells by itself what it waits for."""

    def __init__(self, state):
        self._state = state

    def under_way(self):
        return self._state


def test_calls_that_tell_by_themselves():
    """Each is among the entries or what is outstanding, while it waits and as long as somebody holds it."""
    found = watchdog.Watchdog(None)
    calls = [Told((True, "a header", 1.0)), Told((False, "an exchange", 2.0)), Told(None)]
    for call in calls:
        found.watch(call)
    found.outstanding["another"] = 3.0
    assert list(found.entries.items()) == [("a header", 1.0)]
    assert list(found.outstanding.items()) == [("another", 3.0), ("an exchange", 2.0)]
    del call, calls
    assert list(found.entries.items()) == [] and list(found.outstanding.items()) == [("another", 3.0)]
