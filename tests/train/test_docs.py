"""docs/training.md has every key with the value of params.yaml, and every message that training stops with."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import yaml

from eyas.compute import ComputeParams
from eyas.config import build
from eyas.train.params import TrainParams
from eyas.vocab.params import VocabParams

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/training.md").read_text()
ROW = re.compile(r"^\| `([a-z_.]+)` \| ([^|]+) \|", re.MULTILINE)
WRITTEN = yaml.safe_load((ROOT / "params.yaml").read_text())
PARAMS = build("train", TrainParams, WRITTEN["train"])
VOCAB = build("vocab", VocabParams, WRITTEN["vocab"])
COMPUTE = build("compute", ComputeParams, WRITTEN["compute"])


def keys(params: Any, prefix: str = "") -> dict[str, Any]:
    """Every key in full, with its value."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(params):
        value = getattr(params, field.name)
        if dataclasses.is_dataclass(value):
            found |= keys(value, f"{prefix}{field.name}.")
        else:
            found[prefix + field.name] = value
    return found


def test_the_table_has_every_key_and_its_value() -> None:
    rows = ROW.findall(TEXT.split("## Every key")[1].split("\n## ")[0])
    expected = keys(PARAMS) | keys(VOCAB, "vocab.") | keys(COMPUTE, "compute.")
    assert len(rows) == len(expected), "a key stands in the table twice"
    assert {key: yaml.safe_load(value) for key, value in rows} == expected


def test_every_row_of_the_table_is_whole() -> None:
    """Key, default, what it does, who uses what, measured."""
    rows = re.findall(r"^\| `.*$", TEXT.split("## Every key")[1].split("\n## ")[0], re.MULTILINE)
    assert rows
    assert {len(re.split(r"(?<!\\)\|", row)) for row in rows} == {7}


def test_params_yaml_names_every_key() -> None:
    written = WRITTEN["train"]
    assert set(written) == {field.name for field in dataclasses.fields(TrainParams)}
    for section in ("objective", "drafter"):
        assert set(written[section]) == {field.name for field in dataclasses.fields(getattr(PARAMS, section))}


def test_every_message_is_in_the_table() -> None:
    files = [*(ROOT / "src/eyas/train").glob("*.py"), ROOT / "src/eyas/filelock.py"]
    sources = "".join(path.read_text() for path in files)
    table = TEXT.split("## When it stops")[1]
    for message in re.findall(r"^\| (`[^|]+) \|", table, re.MULTILINE):
        for quoted in re.findall(r"`([^`]+)`", message):
            for part in re.split(r"\.\.\.|N", quoted):
                words = re.sub(r"^the (loss|gradient) ", "", part.strip())
                assert words in sources or words.startswith("rises_above"), (
                    f"nothing in the code says {words!r}"
                )
