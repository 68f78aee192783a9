"""Training that begins with a drafter from elsewhere, and with none of it left out, ends with the same drafter."""

from __future__ import annotations

import dataclasses
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from eyas.config import build
from eyas.drafter.formats.serving import Serving
from eyas.drafter.formats.writing import FORMATS
from eyas.drafter.model import Drafter
from eyas.drafter.vocab import VocabMap
from eyas.errors import ConfigError, InputError
from eyas.export.writing import Trained, export_drafter
from eyas.train.fit import FitInputs
from eyas.train.initial import drafter_config, origin
from eyas.train.params import TrainParams
from eyas.train.report import write_validations

from .example import PARAMS, train

FLAGS = dataclasses.replace(PARAMS.drafter, norm_before_fc=True, norm_output=True)
UNTRAINED = dataclasses.replace(PARAMS, epochs=0, init_from="a folder")


def exported(directory: Path, name: str, inputs: FitInputs, dtype: str, **changes: Any) -> Path:
    """A drafter with random weights and its own rope, as another project might have published it."""
    directory.mkdir(parents=True)
    config = drafter_config(inputs.profile, inputs.vocab, dataclasses.replace(PARAMS, drafter=FLAGS))
    config = dataclasses.replace(config, rope_theta=123456.0, **changes)
    torch.manual_seed(5)
    drafter = Drafter(config)
    for parameter in drafter.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    drafter = drafter.to(getattr(torch, dtype)).float()
    serving = Serving(inputs.profile, dtype, draft_tokens=3)
    export_drafter(directory, name, Trained(drafter, inputs.vocab, imported=True), serving)
    return directory


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_no_steps_change_no_byte(inputs: FitInputs, tmp_path: Path, name: str, dtype: str) -> None:
    before = exported(tmp_path / "before", name, inputs, dtype)
    result = train(inputs, dataclasses.replace(UNTRAINED, init_from=str(before)), tmp_path / "journal")
    (tmp_path / "after").mkdir()
    serving = Serving(inputs.profile, dtype, draft_tokens=3)
    export_drafter(tmp_path / "after", name, Trained(result.drafter, inputs.vocab, imported=True), serving)
    for file in ("config.json", "model.safetensors"):
        assert (before / file).read_bytes() == (tmp_path / "after" / file).read_bytes()
    config = json.loads((before / "config.json").read_text())
    assert config.get("transformer_layer_config", config)["rope_theta"] == 123456.0


def test_an_untrained_run_reports_the_drafter_as_it_came(inputs: FitInputs, tmp_path: Path) -> None:
    before = exported(tmp_path / "before", "vllm", inputs, "float32")
    result = train(inputs, dataclasses.replace(UNTRAINED, init_from=str(before)), tmp_path / "journal")
    summary = result.summary
    assert (summary["steps"], summary["epochs"], summary["tokens_seen"]) == (0, 0, 0)
    assert summary["acceptance_length"] == summary["untrained_acceptance_length"] >= 1.0
    assert result.speed["tokens_per_s"] is None
    write_validations(tmp_path / "validations.tsv", result.record)
    assert len((tmp_path / "validations.tsv").read_text().splitlines()) == 2
    trained = dataclasses.replace(PARAMS, epochs=1, init_from=str(before))
    assert (
        train(inputs, trained, tmp_path / "journal").summary["untrained_acceptance_length"]
        == summary["acceptance_length"]
    )


def test_shapes_flags_and_rope_are_the_imported_ones(
    inputs: FitInputs, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="eyas.train")
    before = exported(tmp_path / "before", "speculators", inputs, "float32", intermediate_size=24)
    params = dataclasses.replace(PARAMS, epochs=1, init_from=str(before))  # PARAMS has no flags
    config = train(inputs, params, tmp_path / "journal").drafter.config
    assert (config.intermediate_size, config.rope_theta) == (24, 123456.0)
    assert config.norm_before_fc
    assert config.norm_output
    kept = next(record.message for record in caplog.records if record.message.startswith("kept from"))
    assert "intermediate_size 24, rope_theta 123456.0, norm_before_fc True, norm_output True" in kept


def test_what_was_assumed_is_said_and_recorded(
    inputs: FitInputs, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = exported(tmp_path / "before", "vllm", inputs, "bfloat16")
    config = json.loads((before / "config.json").read_text())
    del config["norm_before_residual"]
    (before / "config.json").write_text(json.dumps(config))
    params = dataclasses.replace(UNTRAINED, init_from=str(before))
    train(inputs, params, tmp_path / "journal")
    said = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert any("`norm_before_residual` is false: the config does not say" in message for message in said)
    known = origin(params, inputs.profile, inputs.head)
    assert known is not None
    assert (known["format"], known["dtypes"]) == ("vllm", ["bfloat16"])
    assert len(known["assumptions"]) == 1
    assert origin(PARAMS, inputs.profile, inputs.head) is None


def test_another_draft_vocabulary_is_refused_with_what_to_set(inputs: FitInputs, tmp_path: Path) -> None:
    before = exported(tmp_path / "before", "vllm", inputs, "float32")
    ids = inputs.vocab.draft_ids.tolist()
    other = next(token for token in range(inputs.profile.vocab_size) if token not in ids)
    vocab = VocabMap.of_ids(torch.tensor(sorted({other, *ids[1:]})), inputs.profile.vocab_size)
    with pytest.raises(ConfigError, match=f"token {min(other, ids[0])} is only in") as caught:
        train(
            dataclasses.replace(inputs, vocab=vocab),
            dataclasses.replace(UNTRAINED, init_from=str(before)),
            tmp_path / "journal",
        )
    assert f"set vocab.map_from to {before} and vocab.draft_vocab_size to {len(ids)}" in str(
        caught.value.hint
    )


def test_other_layers_are_refused_with_what_to_set(inputs: FitInputs, tmp_path: Path) -> None:
    before = exported(tmp_path / "before", "vllm", inputs, "float32")
    config = json.loads((before / "config.json").read_text())
    config["eagle_aux_hidden_state_layer_ids"] = [1, 3, 6]
    (before / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"reads layers \[1, 3, 6\], extracted are") as caught:
        train(inputs, dataclasses.replace(UNTRAINED, init_from=str(before)), tmp_path / "journal")
    assert "set target.aux_layer_ids to [1, 3, 6]" in str(caught.value.hint)


def test_a_drafter_of_another_target_is_refused(inputs: FitInputs, tmp_path: Path) -> None:
    before = exported(tmp_path / "before", "vllm", inputs, "float32")
    other = dataclasses.replace(inputs.profile, hidden_size=64, name="other")
    with pytest.raises(InputError, match="`hidden_size` is 32, the target other calls for 64"):
        train(
            dataclasses.replace(inputs, profile=other),
            dataclasses.replace(UNTRAINED, init_from=str(before)),
            tmp_path / "journal",
        )


def test_no_epochs_need_a_drafter() -> None:
    values = {**dataclasses.asdict(PARAMS), "epochs": 0}
    with pytest.raises(
        ConfigError, match=r"`train.epochs`: 0 is below 1, and only with init_from may it be 0"
    ):
        build("train", TrainParams, values)
    assert build("train", TrainParams, {**values, "init_from": "somewhere"}).epochs == 0
