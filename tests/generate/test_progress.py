"""What a run counts, shows and leaves behind."""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from eyas.errors import GateError, Interrupted
from eyas.generate.failure import content, permanent, transient
from eyas.generate.progress import Counts, Display, Failure
from eyas.generate.record import Usage
from eyas.generate.summary import NAME, read_summary
from eyas.generate.view import plain_line
from eyas.journal import Journal
from tests.generate.counted import THINK, answer, failed, outcome

SERVERS = [
    {"url": "http://a/v1", "state": "up", "in_flight": 5, "window": 8},
    {"url": "http://b/v1", "state": "down", "in_flight": 0, "window": 0, "problem": "refused"},
]


class Clock:
    """time.monotonic as the test says."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


@pytest.fixture
def counts(clock: Clock) -> Counts:
    """10 of 100 rows kept; in 20 s two answers (one cut, one that thought 3 tokens) and three failures."""
    counts = Counts(total=100, kept=10, think=THINK, started=clock.now)
    clock.now += 20
    counts.add(outcome(answer([1, 2], finish_reason="length")), "http://a/v1")
    counts.add(outcome(answer([901, 1, 2, 3, 902, 9], reasoning="R", flags=["lossy_text"])), "http://b/v1")
    for failure in (permanent("http_400", "x"), permanent("http_400", "y"), content("token_count", "z")):
        counts.add(outcome(None, failure), "http://a/v1")
    counts.add_fault(transient("http_503", "x"), "http://b/v1")
    counts.add_fault(transient("http_503", "x"), "http://b/v1")
    counts.add_fault(transient("timeout", "x"), "http://a/v1")
    counts.mark()
    return counts


def test_counts_of_rows_failures_and_servers(counts: Counts) -> None:
    counts.endpoints = lambda: SERVERS
    summary = counts.to_json()
    assert summary["rows"] == {
        "total": 100, "done": 12, "kept": 10, "waiting": 0, "failed": 3, "refused": 0, "left": 85, "unasked": 0, "in_flight": 5,
    }  # fmt: skip
    assert summary["failures"] == [
        {"kind": "permanent", "reason": "http_400", "count": 2},
        {"kind": "content", "reason": "token_count", "count": 1},
    ]
    assert summary["faults"] == [
        {"kind": "transient", "reason": "http_503", "count": 2},
        {"kind": "transient", "reason": "timeout", "count": 1},
    ]
    assert summary["endpoints"] == [
        SERVERS[0] | {"answered": 1, "faults": 1},
        SERVERS[1] | {"answered": 1, "faults": 2},
    ]
    assert counts.failures[Failure("permanent", "http_400")] == 2


def test_speed_and_time_left(counts: Counts) -> None:
    rate = counts.to_json()["rate"]
    assert rate["recent"] == {"rows_per_s": 0.25, "tokens_per_s": 0.4, "window_s": 20.0}
    assert rate["mean"] == rate["recent"]
    assert rate["eta_s"] == pytest.approx(85 / 0.25)


def test_the_time_left_follows_the_recent_speed(clock: Clock) -> None:
    counts = Counts(total=1000, kept=0, started=clock.now)
    for second in range(400):
        clock.now += 1
        for _ in range(10 if second < 10 else 1 if second % 10 == 0 else 0):
            counts.add(outcome(answer()))
        counts.mark()
    rate = counts.to_json()["rate"]
    assert rate["recent"]["rows_per_s"] == pytest.approx(0.1, rel=0.1)
    assert rate["mean"]["rows_per_s"] == pytest.approx(139 / 400)
    assert rate["eta_s"] == pytest.approx((1000 - 139) / rate["recent"]["rows_per_s"])


def test_tokens_that_nobody_counts_have_no_speed(clock: Clock) -> None:
    counts = Counts(total=5, kept=0, started=clock.now)
    clock.now += 2
    counts.add(outcome(answer(None, usage=Usage(None, None, None))))
    counts.mark()
    summary = counts.to_json()
    assert summary["rate"]["recent"] == {"rows_per_s": 0.5, "tokens_per_s": None, "window_s": 2.0}
    assert ", 0.5 rows/s, ETA" in plain_line(summary)


def test_the_plain_line(counts: Counts) -> None:
    assert plain_line(counts.to_json()) == (
        "12 of 100 rows, 0 in flight, 0.25 rows/s, 0.4 tokens/s, ETA 5:40, reasoning 50% (median 3 tokens), "
        "truncated 50%, failed 3 (http_400 2, token_count 1), tried again 3 (http_503 2, timeout 1)"
    )


def test_the_plain_line_of_a_run_whose_rows_share_requests() -> None:
    counts = Counts(total=5, kept=3)
    counts.all_asked = True
    assert plain_line(counts.to_json()).endswith("failed 0, 2 like another row or behind a failed turn")


def test_nothing_is_made_up_before_the_first_row() -> None:
    line = plain_line(Counts(total=5, kept=0).to_json())
    assert line == (
        "0 of 5 rows, 0 in flight, unknown rows/s, ETA unknown, reasoning unknown, truncated unknown, failed 0"
    )


def test_a_plain_line_every_30_seconds_without_a_terminal(
    counts: Counts, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO), Display("a", counts) as display:
        for _ in range(64):
            clock.now += 1
            display.refresh()
        assert len(caplog.messages) == 2
    assert len(caplog.messages) == 3
    assert caplog.messages[-1].startswith("a: 12 of 100 rows, ")


def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What stderr shows from now on. No fixture: capturing would put its own stderr in place before the test."""

    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    return screen


def test_a_terminal_shows_everything(counts: Counts, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = terminal(monkeypatch)
    counts.endpoints = lambda: SERVERS
    with Display("some-set", counts) as display:
        display.refresh()
    screen = " ".join(shown.getvalue().split())
    for part in (
        "some-set",
        "12 of 100 done (12%), 10 of them before this run, 3 failed, 85 left, 5 in flight",
        "0.25 rows/s, 0.4 tokens/s, ETA 5:40",
        "50% of 2 answers, tokens: median 3, mean 3, 90 % up to 3, 3 to 3",
        "length 50%",
        "(1 cut by max_tokens or the context)",
        "lossy_text 1",
        "http_400 2 (permanent), token_count 1 (content)",
        "http_503 2 (transient)",
        "down: refused",
    ):
        assert part in screen


def test_log_lines_do_not_run_through_the_live_display(
    counts: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = terminal(monkeypatch)
    handler = logging.StreamHandler(shown)
    elsewhere = logging.StreamHandler(io.StringIO())
    root = logging.getLogger()
    for added in (handler, elsewhere):
        root.addHandler(added)
    try:
        stream = elsewhere.stream
        with Display("a", counts):
            assert handler.stream is not shown
            assert elsewhere.stream is stream
            logging.getLogger("x").warning("a server is down")
        assert handler.stream is shown
    finally:
        for added in (handler, elsewhere):
            root.removeHandler(added)
    assert "a server is down" in shown.getvalue()


@pytest.mark.parametrize(
    ("error", "state", "message"),
    [
        (None, "finished", None),
        (Interrupted(signal.SIGTERM), "stopped", "stopped by signal 15"),
        (
            GateError("none of the first 8 answers reasons", hint="use a parser"),
            "failed",
            "none of the first 8",
        ),
        (KeyError("bug"), "failed", "bug"),
    ],
)
def test_the_summary_says_how_a_run_ended(
    tmp_path: Path, counts: Counts, error: BaseException | None, state: str, message: str | None
) -> None:
    def run() -> None:
        with Journal(tmp_path, {}) as journal, Display("a", counts, journal):
            running = read_summary(tmp_path)
            assert running is not None
            assert (running["state"], running["pid"], running["dataset"]) == ("running", os.getpid(), "a")
            assert abs(running["written_at"] - time.time()) < 60
            if error is not None:
                raise error

    if error is None:
        run()
    else:
        with pytest.raises(type(error)):
            run()
    ended = read_summary(tmp_path)
    assert ended is not None
    assert ended["state"] == state
    assert (message in ended["message"]) if message else ended["message"] is None


def test_a_summary_that_can_not_be_written_stops_nothing(
    tmp_path: Path, counts: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    with Journal(tmp_path, {}) as journal:
        monkeypatch.setattr(Path, "write_bytes", full)
        with Display("a", counts, journal) as display:
            display.refresh()
        monkeypatch.undo()
    assert not (tmp_path / NAME).exists()


def test_a_failed_row_counts_as_done_work_but_not_as_an_answer(clock: Clock) -> None:
    counts = Counts(total=3, kept=1)
    counts.add(failed("http_400"))
    assert (counts.answered, counts.failed, counts.done, counts.left) == (0, 1, 1, 1)
