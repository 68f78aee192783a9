from __future__ import annotations

import json
import logging
import time
from pathlib import Path

import pytest
import torch

from eyas.extract import progress as progress_module
from eyas.extract.progress import Progress, State, Total, clock
from eyas.extract.ranks import Alone

TOTAL = Total(tokens=1000, bytes=4_000_000_000, sequences=10)


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


def alone(rank: int = 0) -> Alone:
    return Alone(torch.device("cpu"), rank=rank)


def test_a_state_in_words() -> None:
    state = State(TOTAL, computed=300, resumed=200, written=2_000_000_000, tokens_per_s=50.0)
    assert str(state) == (
        "500 of 1,000 tokens (50.0%), 200 of them resumed, 2.00 of 4.00 GB written, 50 tokens/s, 0:10 left"
    )
    assert str(State(TOTAL, 0, 0, 0, None)) == "0 of 1,000 tokens (0.0%), 0.00 of 4.00 GB written"
    assert str(State(Total(0, 0, 0), 0, 0, 0, None)) == "0 of 0 tokens (100.0%), 0.00 of 0.00 GB written"


def test_resumed_tokens_are_no_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    time_of = Clock(monkeypatch)
    progress = Progress(TOTAL, alone())
    with progress:
        progress.resumed(400, 1000)
        time_of.now += 10
        progress.computed(200)
        state = progress.state()
    assert state.tokens_per_s == 20.0
    assert state.eta_s == 20.0
    assert state.written == 1000


def test_the_speed_is_that_of_late(monkeypatch: pytest.MonkeyPatch) -> None:
    time_of = Clock(monkeypatch)
    progress = Progress(TOTAL, alone())
    with progress:
        time_of.now += 1000  # the first shard was slow
        progress.computed(10)
        progress.state()
        time_of.now += 100
        progress.computed(500)
        assert progress.state().tokens_per_s == pytest.approx(5.0)


def test_a_line_every_30_s(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    time_of = Clock(monkeypatch)
    caplog.set_level(logging.INFO)
    with Progress(TOTAL, alone()) as progress:
        for _ in range(10):
            time_of.now += 9
            progress.computed(100)
    lines = [record.message for record in caplog.records]
    assert [line.split(" tokens")[0] for line in lines] == [
        "400 of 1,000",
        "800 of 1,000",
        "done after 1:30: 1,000 of 1,000",
    ]


def test_other_ranks_are_silent(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    caplog.set_level(logging.INFO)
    with Progress(TOTAL, alone(rank=1), tmp_path) as progress:
        progress.computed(5)
    assert caplog.records == []
    assert list(tmp_path.iterdir()) == []


def test_the_status_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def status() -> dict[str, object]:
        values: dict[str, object] = json.loads((tmp_path / "status.json").read_bytes())
        return values

    time_of = Clock(monkeypatch)
    with Progress(TOTAL, alone(), tmp_path) as progress:
        assert status()["state"] == "running"
        progress.computed(100)
        assert status()["tokens"] == {"total": 1000, "computed": 0, "resumed": 0}, "not at every batch"
        time_of.now += progress_module.STATUS_S
        progress.computed(100)
        assert status()["tokens"] == {"total": 1000, "computed": 200, "resumed": 0}
    assert status()["state"] == "finished"
    with pytest.raises(KeyboardInterrupt), Progress(TOTAL, alone(), tmp_path):
        raise KeyboardInterrupt
    assert status()["state"] == "stopped"


def test_clock() -> None:
    assert [clock(seconds) for seconds in (0, 61.4, 3661)] == ["0:00", "1:01", "1:01:01"]
