"""Kill -9 at ten random moments of a training: the published files are those of the undisturbed run, byte for byte."""

from __future__ import annotations

import dataclasses
import os
import random
import signal
import time
from pathlib import Path

import pytest

from eyas.published import is_published
from tests.nursery import Nursery, nursery
from tests.tiny_target import write_target
from tests.train.example import PARAMS
from tests.train.scratch import Scratch

pytestmark = pytest.mark.pipeline

KILLS = 10
EPOCHS = 12
EVERYTHING = dataclasses.replace(
    PARAMS,
    epochs=EPOCHS,
    optimizer="muon",
    lr=5e-3,
    batch_tokens=100,
    weight_decay=0.01,
    ema=0.9,
    early_stopping=EPOCHS,
    val_every_steps=4,
)


def kill_behind(lives: Nursery, scratch: Scratch, step: int, delay_s: float) -> int:
    """Start a life, kill it some time after it has saved a step, its first one or a later; returns the step saved."""
    step = max(step, scratch.saved_step() + 1)
    pid = lives.start(scratch.path)
    deadline = time.monotonic() + 60
    while scratch.saved_step() < step and time.monotonic() < deadline:
        time.sleep(0.002)
    time.sleep(delay_s)
    os.kill(pid, signal.SIGKILL)
    assert lives.wait() == -signal.SIGKILL, "it ended before it was killed: more steps are needed"
    return scratch.saved_step()


@pytest.mark.timeout(300)
def test_kill_9_at_random_moments(tmp_path: Path) -> None:
    undisturbed = Scratch.create(tmp_path / "undisturbed", write_target(tmp_path / "target"), EVERYTHING)
    killed = undisturbed.copy(tmp_path / "killed")
    with nursery("tests.train.lives", tmp_path / "log") as lives:
        lives.start(undisturbed.path)
        assert lives.wait() == 0, (tmp_path / "log").read_text()
        summary = undisturbed.read("reports/train/summary.json")
        chance = random.Random(20261130)
        targets = sorted(chance.sample(range(1, summary["steps"] - 6), KILLS))
        saved = [kill_behind(lives, killed, step, chance.uniform(0, 0.05)) for step in targets]
        assert len(set(saved)) > KILLS / 2, "the kills must fall at different steps"
        assert not (killed.path / "models/drafter").exists()
        lives.start(killed.path)
        assert lives.wait() == 0, (tmp_path / "log").read_text()
    assert killed.read("reports/train/speed.json")["resumed"] == KILLS
    expected, found = undisturbed.results(), killed.results()
    assert expected.keys() == found.keys()
    assert [name for name in expected if expected[name] != found[name]] == []
    assert {"models/drafter/drafter.safetensors", "reports/train/plots/loss.tsv"} <= expected.keys()
    assert [is_published(folder) for folder in (killed.path / "data/.journal/train").iterdir()] == [True]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_stop_signal_ends_at_once_and_says_what_to_do(tmp_path: Path, signum: int, code: int) -> None:
    scratch = Scratch.create(tmp_path / "run", write_target(tmp_path / "target"), EVERYTHING)
    with nursery("tests.train.lives", tmp_path / "log") as lives:
        pid = lives.start(scratch.path)
        while scratch.saved_step() < 3:
            time.sleep(0.01)
        os.kill(pid, signum)
        sent = time.monotonic()
        assert lives.wait() == code
        assert time.monotonic() - sent < 10
    assert "run `dvc repro` again; finished work is kept" in (tmp_path / "log").read_text()
    assert not (scratch.path / "models/drafter").exists()
