from __future__ import annotations

import io
import logging
import time

import pytest
from rich.console import Console

from eyas.train.module import StepOutcome
from eyas.train.record import Record, Validation
from eyas.train.view import View


def record_of(*lengths: float) -> Record:
    found = [
        Validation(10 * place, place, {"acceptance_length": length}) for place, length in enumerate(lengths)
    ]
    return Record(step=120, tokens=1000, labels=400, untrained=found[0], validations=found[1:])


def view_of(record: Record) -> View:
    return View(record, steps=490, tokens=11_000, epochs=5, started=time.monotonic() - 10)


def test_a_line_has_loss_acceptance_rates_and_time_left() -> None:
    record = record_of(1.0, 1.7, 1.6)
    view = view_of(record)
    record.step, record.tokens, record.labels = 121, 2000, 900  # this run has done 1,000 tokens in 10 s
    view.step(StepOutcome(120, 3.1, [1.5, 1.6], 0.3, 1e-3, 1000, 500))
    assert view.line() == (
        "step 121/490  loss 3.100 (1.50 1.60)  acceptance length 1.600 (best 1.700)  "
        "100 tokens/s (50 trained), 1:30 left"
    )


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [((1.01,), "acceptance length 1.010 untrained"), ((1.0, 1.5), "acceptance length 1.500  ")],
)
def test_what_is_known_of_acceptance(lengths: tuple[float, ...], expected: str) -> None:
    assert expected in view_of(record_of(*lengths)).line() + "  "


def test_plain_lines_are_rare(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "eyas.train")
    view = view_of(record_of(1.0))
    for _ in range(5):
        view.step(StepOutcome(120, 3.1, [1.5], 0.3, 1e-3, 1000, 500))
    assert caplog.records == []
    view._shown -= 31
    view.step(StepOutcome(121, 3.1, [1.5], 0.3, 1e-3, 1000, 500))
    assert len(caplog.records) == 1


def test_a_narrow_terminal_shows_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    shown = io.StringIO()
    console = Console(file=shown, width=60, force_terminal=True)
    monkeypatch.setattr("eyas.train.view.Console", lambda **_: console)
    record = record_of(1.0, 1.7)
    view = view_of(record)
    record.tokens += 1000
    view.step(StepOutcome(120, 3.1, [1.5, 1.6], 0.3, 1e-3, 1000, 500))
    view.show()
    view.close()
    text = " ".join(shown.getvalue().split())
    assert "1:30 left" in text
    assert "\u2026" not in text
