from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from eyas.errors import ConfigError, InputError
from eyas.vocab.given import given_vocab
from tests.export.conftest import PROFILE, replaced

IDS = np.array([1, 2, 9, 20, 39])
TARGET = replaced(PROFILE, vocab_size=40)  # layers 2, 4, 5 of 8


def drafter(directory: Path, layers: object = (2, 4, 5), **tensors: np.ndarray) -> Path:
    (directory / "config.json").write_text(json.dumps({"eagle_aux_hidden_state_layer_ids": layers}))
    save_file(
        {"lm_head.weight": np.zeros((5, 4), dtype=np.float32), **tensors}, directory / "model.safetensors"
    )
    return directory


def test_the_vocabulary_of_a_drafter(tmp_path: Path) -> None:
    vocab = given_vocab(drafter(tmp_path, d2t=IDS - np.arange(5)), 5, TARGET)
    assert vocab.draft_ids.tolist() == IDS.tolist()
    assert vocab.target_vocab_size == 40
    assert np.flatnonzero(vocab.t2d).tolist() == IDS.tolist()


def test_a_drafter_of_the_whole_vocabulary(tmp_path: Path) -> None:
    assert given_vocab(drafter(tmp_path), 5, replaced(TARGET, vocab_size=5)).draft_ids.tolist() == [
        0,
        1,
        2,
        3,
        4,
    ]


def test_the_size_to_set_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"draft_vocab_size`: 8, but .* has 5 tokens") as caught:
        given_vocab(drafter(tmp_path, d2t=IDS - np.arange(5)), 8, TARGET)
    assert caught.value.hint == "set vocab.draft_vocab_size to 5"


def test_a_wrong_map_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds target ids"):
        given_vocab(drafter(tmp_path, d2t=np.array([1, 5, 9, 20, 39])), 5, TARGET)


def test_bin_files_must_be_converted_first(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(InputError, match="safetensors only") as caught:
        given_vocab(tmp_path, 5, TARGET)
    assert "eyas convert" in str(caught.value.hint)


def test_missing_and_damaged_folders(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        given_vocab(tmp_path / "none", 5, TARGET)
    (tmp_path / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(InputError, match="can't read these weights"):
        given_vocab(tmp_path, 5, TARGET)


def test_the_output_of_training_is_no_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="output of a later stage"):
        given_vocab(Path("models/drafter"), 5, TARGET)


def test_other_layers_are_refused_before_they_are_extracted(tmp_path: Path) -> None:
    maps = {"d2t": IDS - np.arange(5)}
    with pytest.raises(
        ConfigError, match=r"is \[2, 4, 5\], the drafter of .* reads layers \[1, 3, 6\]"
    ) as caught:
        given_vocab(drafter(tmp_path, [1, 3, 6], **maps), 5, TARGET)
    assert "set target.aux_layer_ids to [1, 3, 6]" in str(caught.value.hint)
    given_vocab(drafter(tmp_path, [1, 3, 6], **maps), 5, replaced(TARGET, aux_layer_ids=[1, 3, 6]))
    wide = np.zeros((4, 3 * TARGET.hidden_size), dtype=np.float32)
    given_vocab(drafter(tmp_path, [2, 4, 5, 8], **maps, **{"fc.weight": wide}), 5, TARGET)
    (tmp_path / "config.json").write_text('{"eagle_config": {"eagle_aux_hidden_state_layer_ids": [4, 5, 6]}}')
    with pytest.raises(InputError, match=r"set target.aux_layer_ids to \[5, 6, 7\] if it counts outputs"):
        given_vocab(tmp_path, 5, TARGET)
