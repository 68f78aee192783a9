"""What a run shows."""

from __future__ import annotations

import logging
import sys
import time

import pytest

from eyas.generate.failure import permanent
from eyas.generate.gate import Outcome
from eyas.generate.progress import Counts, Display
from eyas.generate.record import read_answer
from eyas.generate.request import build
from tests.generate.example import generate_params, profile
from tests.generate.scripted import completion

REQUEST = build("a:1", [{"role": "user", "content": "p"}], profile(), generate_params(), "f")


def counts(monkeypatch: pytest.MonkeyPatch) -> Counts:
    """10 of 100 rows kept; in 20 s two answers (one cut, one with reasoning) and two failures."""
    counts = Counts(total=100, kept=10, started=1000.0)
    monkeypatch.setattr(time, "monotonic", lambda: 1020.0)
    for reply in (completion("p", finish_reason="length"), completion("p", message={"reasoning": "R"})):
        counts.add(Outcome(REQUEST, read_answer(reply, 3), None))
    for reason in ("http_400", "http_400"):
        counts.add(Outcome(REQUEST, None, permanent(reason, "x")))
    return counts


def test_the_line_has_rate_time_left_and_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    assert counts(monkeypatch).line() == (
        "0.20 rows/s, 0 tokens/s, ETA 7:10, truncated 50%, reasoning 50%, failed 2 (http_400 2)"
    )


def test_nothing_is_made_up_before_the_first_row() -> None:
    line = Counts(total=5, kept=0).line()
    assert "ETA unknown, truncated unknown, reasoning unknown, failed 0" in line


def test_a_plain_line_every_30_seconds_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shown = counts(monkeypatch)
    now = 1020.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with caplog.at_level(logging.INFO), Display("a", shown) as display:
        for second in range(1, 65):
            now = 1020.0 + second
            display.refresh()
        assert len(caplog.messages) == 2
    assert len(caplog.messages) == 3
    assert caplog.messages[-1].startswith("a: 12 of 100 rows, ")


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    shown = Counts(total=5, kept=3)
    with Display("a", shown) as display:
        shown.failures["http_400"] += 1
        display.refresh()
    screen = capsys.readouterr().err
    assert "3/5" in screen
    assert "failed 1 (http_400 1)" in " ".join(screen.split())
