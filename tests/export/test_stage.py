"""stages/train.py and stages/export.py, one after the other, on a drafter from elsewhere and on a new one."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import runpy
from pathlib import Path

import pytest
import torch
import yaml

from eyas.drafter.formats.reading import read_drafter
from eyas.drafter.formats.serving import Serving
from eyas.drafter.model import Drafter
from eyas.drafter.vocab import VocabMap
from eyas.errors import ArtifactError, ConfigError
from eyas.export.writing import Trained, export_drafter
from eyas.target.spec import TargetProfile
from eyas.train.initial import drafter_config
from tests.tiny_target import write_target
from tests.train.example import PARAMS
from tests.train.scratch import ROOT, Scratch

FORMATS = ["vllm", "sglang", "speculators"]
SECTIONS = {
    "export": {"formats": FORMATS, "dtype": "bfloat16"},
    "speculation": {"draft_tokens": 3, "draft_sampling": "greedy"},
}
SEQUENCES = {"splits": {"train": {"by_dataset": {"mine": 24}, "prompt_tokens": 90, "generated_tokens": 300}}}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Scratch:
    folder = write_target(tmp_path_factory.mktemp("target") / "tiny")
    scratch = Scratch.create(tmp_path_factory.mktemp("template"), folder, PARAMS, train=6, val=3)
    profile = TargetProfile.read(scratch.path / "models/profile.json")
    spoken = VocabMap.read(scratch.path / "models/vocab").draft_ids.tolist()
    dataclasses.replace(profile, end_of_turn_ids=spoken[:1]).write(scratch.path / "models/profile.json")
    return scratch


@pytest.fixture
def scratch(template: Scratch, tmp_path: Path) -> Scratch:
    return template.copy(tmp_path / "repository")


def published_head(scratch: Scratch, *, without: str | None = None, **flags: bool) -> None:
    """A drafter in heads/base, in bfloat16, whose config says nothing about one key."""
    profile = TargetProfile.read(scratch.path / "models/profile.json")
    vocab = VocabMap.read(scratch.path / "models/vocab")
    torch.manual_seed(2)
    params = dataclasses.replace(PARAMS, drafter=dataclasses.replace(PARAMS.drafter, **flags))
    drafter = Drafter(drafter_config(profile, vocab, params)).bfloat16().float()
    directory = scratch.path / "heads/base"
    directory.mkdir(parents=True)
    export_drafter(directory, "vllm", Trained(drafter, vocab, imported=True), Serving(profile, "bfloat16", 3))
    config = json.loads((directory / "config.json").read_text())
    config.pop(without or "", None)
    (directory / "config.json").write_text(json.dumps(config))


def run(scratch: Scratch, **train: object) -> None:
    """Both stages in this process."""
    sections = yaml.safe_load((scratch.path / "params.yaml").read_text())
    sections["train"].update(train)
    (scratch.path / "params.yaml").write_text(yaml.safe_dump({**sections, **SECTIONS}))
    (scratch.path / "reports").mkdir(exist_ok=True)
    (scratch.path / "reports/reassembly.json").write_text(json.dumps(SEQUENCES))
    scratch.run_here()
    with contextlib.chdir(scratch.path):
        runpy.run_path(str(ROOT / "stages/export.py"), run_name="stage")["main"]()


def test_a_published_head_goes_through_unchanged(scratch: Scratch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="eyas")
    published_head(scratch, without="norm_output", norm_before_fc=True)
    run(scratch, epochs=0, init_from="heads/base")
    profile = TargetProfile.read(scratch.path / "models/profile.json")
    base = read_drafter(scratch.path / "heads/base", profile)
    assumption = "`norm_output` is false: the config does not say, and that is the format's default"
    assert base.assumptions == [assumption]
    for name in FORMATS:
        folder = scratch.path / "models/export" / name
        read = read_drafter(folder, profile)
        assert (read.config, read.format, read.assumptions) == (base.config, name, [])
        for key, tensor in base.state.items():
            assert read.state[key].dtype == torch.bfloat16
            assert torch.equal(read.state[key], tensor)
        card = (folder / "README.md").read_text()
        assert "It began as `base`, a drafter in the format vllm" in card
        assert f"* {assumption}" in card
        assert "| `mine` | 24 |" in card
    source = (scratch.path / "heads/base/model.safetensors").read_bytes()
    assert (scratch.path / "models/export/vllm/model.safetensors").read_bytes() == source
    assert scratch.read("models/drafter/origin.json")["assumptions"] == [assumption]
    assert scratch.read("reports/train/summary.json")["steps"] == 0
    assert any(f"assumed of heads/base: {assumption}" in record.message for record in caplog.records)


def test_a_new_drafter_is_exported_with_what_its_training_came_to(scratch: Scratch) -> None:
    run(scratch, epochs=1)
    summary = scratch.read("reports/train/summary.json")
    card = (scratch.path / "models/export/sglang/README.md").read_text()
    assert f"while training: {summary['acceptance_length']:.3f} with 2 draft tokens" in card
    assert "It began as" not in card
    assert not (scratch.path / "models/drafter/origin.json").exists()


def test_an_engine_that_can_not_serve_it_stops_the_export_before_anything_is_written(
    scratch: Scratch,
) -> None:
    published_head(scratch, norm_before_residual=True)
    with pytest.raises(ConfigError, match="sglang can't serve this drafter"):
        run(scratch, epochs=0, init_from="heads/base")
    assert not (scratch.path / "models/export").exists()


def test_a_missing_report_is_named(scratch: Scratch) -> None:
    run(scratch, epochs=1)
    (scratch.path / "reports/reassembly.json").unlink()
    with contextlib.chdir(scratch.path), pytest.raises(ArtifactError, match="can't read a report") as caught:
        runpy.run_path(str(ROOT / "stages/export.py"), run_name="stage")["main"]()
    assert caught.value.where == "reports/reassembly.json"
