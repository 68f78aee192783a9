"""One process and two are the same training, up to the order of floating-point sums."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from safetensors.torch import load_file
from torch.testing import assert_close

from eyas.compute import ComputeParams
from eyas.drafter.objective import Objective
from tests.tiny_target import write_target
from tests.train.example import PARAMS
from tests.train.scratch import Scratch, finish

pytestmark = pytest.mark.pipeline

TWO = ComputeParams(accelerator="cpu", devices=2, pass_tokens=40, checkpoint_every_s=0.0)
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
SMOOTH = dataclasses.replace(
    PARAMS,
    epochs=1,
    batch_tokens=100,
    optimizer="muon",
    ema=0.9,
    objective=Objective(normaliser="sequence", kind_weights={"answer": 0.5}),
)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Scratch:
    root = tmp_path_factory.mktemp("alone")
    scratch = Scratch.create(root / "one", write_target(root / "target"), SMOOTH, train=12, val=3)
    scratch.run_here()
    return scratch


def assert_alike(one: Scratch, two: Scratch) -> None:
    first, second = (load_file(where.path / "models/drafter/drafter.safetensors") for where in (one, two))
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert_close(second[name], tensor, rtol=1e-3, atol=2e-5)
    assert flat(one.read("reports/train/summary.json")) == flat(two.read("reports/train/summary.json"))


def flat(summary: dict[str, Any]) -> dict[str, Any]:
    numbers = summary.pop("val")
    return summary | {name: pytest.approx(value, rel=1e-4) for name, value in numbers.items()}


def test_two_processes_that_lightning_starts(alone: Scratch, tmp_path: Path) -> None:
    scratch = alone.copy(tmp_path / "two")
    scratch.write_params(SMOOTH, TWO)
    output = scratch.run()
    assert output.count("saved models/drafter") == 1, "only the first process writes"
    assert scratch.read("reports/train/speed.json")["processes"] == 2
    assert_alike(alone, scratch)


@pytest.mark.stress
def test_two_processes_of_torchrun(alone: Scratch, tmp_path: Path) -> None:
    scratch = alone.copy(tmp_path / "two")
    scratch.write_params(SMOOTH, TWO)
    scratch.run(*TORCHRUN)
    assert scratch.read("reports/train/speed.json")["processes"] == 2
    assert_alike(alone, scratch)


@pytest.mark.stress
def test_an_error_of_all_processes_is_said(alone: Scratch, tmp_path: Path) -> None:
    scratch = alone.copy(tmp_path / "two")
    scratch.write_params(dataclasses.replace(SMOOTH, lr=1e30, clip_norm=1e30), TWO)
    process = scratch.start()
    output = finish(process)
    assert process.returncode != 0
    assert "is not finite at step" in output
    assert "train:" in output


def test_two_processes_are_killed_and_one_goes_on(alone: Scratch, tmp_path: Path) -> None:
    scratch = alone.copy(tmp_path / "two")
    scratch.write_params(SMOOTH, TWO)
    process = scratch.start()
    deadline = time.monotonic() + 60
    while scratch.saved_step() < 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait(timeout=30) == -signal.SIGKILL
    _, living = psutil.wait_procs(children, timeout=30)
    assert living == []
    process.communicate()
    scratch.write_params(SMOOTH, dataclasses.replace(TWO, devices=1))
    scratch.run()
    assert scratch.read("reports/train/speed.json")["resumed"] == 1
    assert_alike(alone, scratch)
