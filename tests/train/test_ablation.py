"""recipes/ablation.sh queues experiments that params.yaml's sections take, and docs/training.md measures those by name."""

from __future__ import annotations

import copy
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from eyas.config import build
from eyas.train.params import TrainParams
from eyas.vocab.params import VocabParams

ROOT = Path(__file__).parents[2]
WRITTEN: dict[str, Any] = yaml.safe_load((ROOT / "params.yaml").read_text())
LINES = re.findall(r"^queue (\S.*)$", (ROOT / "recipes/ablation.sh").read_text(), re.MULTILINE)
EXPERIMENTS = {words[0]: words[1:] for words in map(shlex.split, LINES)}


def changed(changes: list[str]) -> dict[str, Any]:
    """params.yaml with `section.key=value` put in; a key that is not there is an error, as it is none to DVC."""
    params = copy.deepcopy(WRITTEN)
    for change in changes:
        name, value = change.split("=", 1)
        *path, key = name.split(".")
        section = params
        for part in path:
            section = section[part]
        assert key in section, name
        section[key] = yaml.safe_load(value)
    return params


def test_no_name_is_queued_twice() -> None:
    assert len(EXPERIMENTS) == len(LINES) > 1


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_is_valid_and_not_the_baseline(name: str) -> None:
    params = changed(EXPERIMENTS[name])
    build("train", TrainParams, params["train"])
    build("vocab", VocabParams, params["vocab"])
    assert (params != WRITTEN) == (name != "baseline")


def test_every_measured_experiment_can_be_queued() -> None:
    section = (ROOT / "docs/training.md").read_text().split("## Ablation")[1].split("\n## ")[0]
    measured = re.findall(r"^\| `([a-z0-9-]+)` \|", section, re.MULTILINE)
    assert measured
    assert set(measured) <= set(EXPERIMENTS)
