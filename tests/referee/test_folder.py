"""The loader's rules, the silent ones above all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from eyas.errors import ArtifactError
from eyas.referee.folder import read_folder
from eyas.referee.reading import Reading
from tests.referee.hand_made import (
    DRAFT_VOCAB,
    HIDDEN,
    IDS,
    VOCAB,
    HandMade,
    make_drafter,
    plain_config,
    plain_tensors,
    write_folder,
)


class Folders:
    """Writes a folder with changes and reads it back."""

    def __init__(self, made: HandMade, directory: Path) -> None:
        self.made, self.directory = made, directory

    def read(
        self,
        *,
        engine: str = "vllm",
        flags: dict[str, bool] | None = None,
        without: tuple[str, ...] = (),
        renamed: dict[str, str] | None = None,
        more: dict[str, torch.Tensor] | None = None,
        drop: tuple[str, ...] = (),
        **config: Any,
    ) -> Reading:
        drafter = make_drafter(**(flags or {}))
        tensors = {**plain_tensors(drafter, self.made.vocab), **(more or {})}
        for name in without:
            del tensors[name]
        for old, new in (renamed or {}).items():
            tensors = {name.replace(old, new): each for name, each in tensors.items()}
        values = {**plain_config(drafter), **config}
        kept = {name: value for name, value in values.items() if name not in drop}
        return read_folder(write_folder(self.directory, kept, tensors), self.made.target, engine)


@pytest.fixture
def folders(made: HandMade, tmp_path: Path) -> Folders:
    return Folders(made, tmp_path)


def test_a_missing_norm_is_ones_and_a_missing_projection_is_unknown(folders: Folders) -> None:
    read = folders.read(without=("norm.weight", "midlayer.self_attn.o_proj.weight"))
    assert read.missing == ["o_proj", "norm"]
    assert read.weights["norm"].tolist() == [1.0] * HIDDEN
    assert np.isnan(read.weights["o_proj"]).all()


def test_without_d2t_draft_ids_are_target_ids(folders: Folders) -> None:
    read = folders.read(without=("d2t",))
    assert read.target_ids.tolist() == list(range(DRAFT_VOCAB))
    assert read.missing == ["d2t"]


def test_d2t_is_an_offset(folders: Folders, made: HandMade) -> None:
    assert folders.read().target_ids.tolist() == made.vocab.draft_ids.tolist()


def test_without_a_head_vllm_takes_the_targets_first_rows_and_sglang_what_memory_holds(
    folders: Folders, made: HandMade
) -> None:
    np.testing.assert_array_equal(
        folders.read(without=("lm_head.weight",)).head, np.asarray(made.target.head)[:DRAFT_VOCAB]
    )
    assert np.isnan(folders.read(without=("lm_head.weight",), engine="sglang").head[:]).all()


def test_input_norm_without_its_flag_is_dropped_in_silence(folders: Folders) -> None:
    read = folders.read(flags={"norm_before_fc": True}, norm_before_fc=False)
    assert read.unread == ["input_norm.weight", "t2d"]
    assert "input_norm" not in read.weights


def test_fc_norm_without_its_flag_is_an_error_in_vllm_and_skipped_in_sglang(folders: Folders) -> None:
    with pytest.raises(ArtifactError, match=r"no parameter for the tensor fc_norm\.0"):
        folders.read(flags={"fc_norm": True}, fc_norm=False)
    assert "fc_norm.0.weight" in folders.read(flags={"fc_norm": True}, fc_norm=False, engine="sglang").unread


def test_the_nested_flag_wins(folders: Folders) -> None:
    read = folders.read(
        flags={"norm_before_fc": True}, norm_before_fc=False, eagle_config={"norm_before_fc": True}
    )
    assert read.flags.norm_before_fc
    assert read.missing == []


def test_a_wrong_shape_is_refused(folders: Folders) -> None:
    with pytest.raises(
        ArtifactError, match=r"fc.weight has shape \[16, 16\], the config asks for \[16, 48\]"
    ):
        folders.read(more={"fc.weight": torch.zeros(16, 16)})


@pytest.mark.parametrize(
    ("config", "drop", "vllm", "sglang"),
    [
        ({}, (), IDS, [2, 4, 5]),
        ({}, ("eagle_aux_hidden_state_layer_ids",), [2, 4, 5], [2, 4, 5]),
        ({"eagle_aux_hidden_state_layer_ids": [6, 1, 3]}, (), [1, 3, 6], [2, 4, 5]),
        (
            {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}},
            ("eagle_aux_hidden_state_layer_ids",),
            [1, 2, 3],
            [2, 3, 4],
        ),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}}, (), IDS, [2, 4, 5]),
    ],
    ids=["top", "absent", "unsorted", "nested", "both"],
)
def test_layer_ids(
    folders: Folders, config: dict[str, Any], drop: tuple[str, ...], vllm: list[int], sglang: list[int]
) -> None:
    assert folders.read(drop=drop, **config).layer_ids == vllm
    assert folders.read(drop=drop, engine="sglang", **config).layer_ids == sglang


def test_sglang_knows_no_norm_before_residual_and_the_legacy_norms(folders: Folders) -> None:
    assert not folders.read(flags={"norm_before_residual": True}, engine="sglang").flags.norm_before_residual
    read = folders.read(
        flags={"fc_norm": True},
        fc_norm=False,
        use_aux_norm=True,
        renamed={"fc_norm.0": "aux_norm_low", "fc_norm.1": "aux_norm_mid", "fc_norm.2": "aux_norm_high"},
        engine="sglang",
    )
    assert read.flags.fc_norm
    assert read.missing == []


def test_an_embedding_of_its_own_stays_in_vllm_and_is_replaced_in_sglang(
    folders: Folders, made: HandMade
) -> None:
    own = {"embed_tokens.weight": torch.ones(VOCAB, HIDDEN)}
    assert folders.read(more=own).embedding[[3]].tolist() == [[1.0] * HIDDEN]
    np.testing.assert_array_equal(folders.read(more=own, engine="sglang").embedding[[3]], made.embedding[[3]])
    np.testing.assert_array_equal(folders.read().embedding[[3]], made.embedding[[3]])


def test_the_speculators_format_with_its_own_defaults(folders: Folders) -> None:
    plain = plain_config(make_drafter(norm_before_residual=True, norm_output=True))
    top = {
        "speculators_model_type": "eagle3",
        "draft_vocab_size": plain.pop("draft_vocab_size"),
        "norm_output": plain.pop("norm_output"),
        "eagle_aux_hidden_state_layer_ids": plain.pop("eagle_aux_hidden_state_layer_ids"),
        "transformer_layer_config": {**plain, "norm_before_residual": False},
    }
    everything = tuple(plain_config(make_drafter()))
    drop = tuple(name for name in everything if name not in top)
    read = folders.read(
        flags={"norm_before_residual": True, "norm_output": True},
        renamed={"midlayer.": "layers.0."},
        drop=drop,
        **top,
    )
    assert read.flags.norm_before_residual  # absent means true in this format
    assert read.flags.norm_output
    assert read.layer_ids == IDS
    assert read.missing == []


@pytest.mark.parametrize(
    "config",
    [{"num_hidden_layers": 2}, {"attention_bias": True}, {"architectures": ["Eagle3Qwen3ForCausalLM"]}],
)
def test_other_kinds_of_drafters_are_refused(folders: Folders, config: dict[str, Any]) -> None:
    with pytest.raises(ArtifactError, match="can't be simulated"):
        folders.read(**config)
