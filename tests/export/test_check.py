from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from eyas.errors import ArtifactError
from eyas.target.spec import TargetProfile, ThinkFormat
from tests.export.plain import check_plain, write_plain

from .conftest import make_drafter, make_vocab, replaced

Tensors = dict[str, torch.Tensor]
Config = dict[str, Any]
Sabotage = Callable[[Config, Tensors], Any]


def export_with(folder: Path, profile: TargetProfile, sabotage: Sabotage, **flags: bool) -> None:
    write_plain(folder, make_drafter(**flags), make_vocab(), profile, "float32")
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    sabotage(config, tensors)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")


def test_a_sound_export_passes(tmp_path: Path, profile: TargetProfile, flags: dict[str, Any]) -> None:
    write_plain(tmp_path, make_drafter(**flags), make_vocab(), profile, "float32")
    check_plain(tmp_path, profile)


def set_(key: str, value: Any) -> Sabotage:
    return lambda config, tensors: config.update({key: value})


def nest(key: str, value: Any) -> Sabotage:
    return lambda config, tensors: config["eagle_config"].update({key: value})


def drop(name: str) -> Sabotage:
    return lambda config, tensors: tensors.pop(name)


def put(name: str, value: Callable[[Tensors], torch.Tensor]) -> Sabotage:
    return lambda config, tensors: tensors.update({name: value(tensors)})


IDS = "eagle_aux_hidden_state_layer_ids"
CASES: dict[str, tuple[Sabotage, str]] = {
    "norm missing": (drop("midlayer.hidden_norm.weight"), "`midlayer.hidden_norm.weight` is missing"),
    "projection missing": (drop("midlayer.self_attn.q_proj.weight"), "q_proj.weight` is missing"),
    "head missing": (drop("lm_head.weight"), "`lm_head.weight` is missing"),
    "map missing": (drop("d2t"), "`d2t` is missing"),
    "embedding shipped": (
        put("embed_tokens.weight", lambda tensors: torch.zeros(60, 16)),
        "`embed_tokens.weight` does not belong",
    ),
    "norm without its flag": (
        put("input_norm.weight", lambda tensors: torch.ones(48)),
        "`input_norm.weight` does not belong",
    ),
    "flag without its norm": (set_("fc_norm", True), "`fc_norm.0.weight` is missing"),
    "flag absent": (set_("norm_output", None), "`norm_output` must be true or false, is None"),
    "nested flag differs": (nest("norm_before_fc", True), "`eagle_config.norm_before_fc`, which wins"),
    "both fusing norms": (
        lambda config, tensors: config.update(norm_before_fc=True, fc_norm=True),
        "exclude each other",
    ),
    "absolute d2t": (put("d2t", lambda tensors: tensors["t2d"].nonzero().flatten()), "d2t and t2d disagree"),
    "zero d2t": (put("d2t", lambda tensors: torch.zeros_like(tensors["d2t"])), "d2t and t2d disagree"),
    "int32 d2t": (put("d2t", lambda tensors: tensors["d2t"].int()), "d2t must be int64"),
    "layers shifted": (set_(IDS, [1, 3, 4]), "must be [2, 4, 5]"),
    "layers absent": (lambda config, tensors: config.pop(IDS), "must be [2, 4, 5]"),
    "layers nested": (nest(IDS, [2, 4, 5]), "nested layer ids"),
    "extraction list": (set_("num_aux_hidden_states", 4), "but 3 layers were captured"),
    "draft vocab as vocab": (set_("vocab_size", 24), "`vocab_size` is 24, but the target calls for 60"),
    "head of another size": (
        put("lm_head.weight", lambda tensors: torch.zeros(60, 16)),
        "`lm_head.weight` has shape [60, 16], the config calls for [24, 16]",
    ),
    "narrow q_proj": (
        put("midlayer.self_attn.q_proj.weight", lambda tensors: torch.zeros(24, 16)),
        "q_proj.weight` has shape [24, 16]",
    ),
    "rope theta": (set_("rope_theta", 10000.0), "`rope_theta` is 10000.0, but the target calls for 5000.0"),
    "rope scaling": (
        set_("rope_scaling", {"rope_type": "yarn", "factor": 32.0}),
        "`rope_scaling` is {'rope_type': 'yarn'",
    ),
    "rope mirror": (
        set_("rope_parameters", {"rope_type": "default", "rope_theta": 1.0}),
        "`rope_parameters` is",
    ),
    "short context": (set_("max_position_embeddings", 2048), "`max_position_embeddings` is 2048"),
    "hidden size of another target": (set_("target_hidden_size", 32), "but the target calls for 16"),
    "no target hidden size": (
        set_("target_hidden_size", None),
        "`target_hidden_size` must be a positive number",
    ),
    "two layers": (set_("num_hidden_layers", 2), "`num_hidden_layers` must be 1, is 2"),
    "tied": (set_("tie_word_embeddings", True), "`tie_word_embeddings` must be False, is True"),
    "architecture": (set_("architectures", ["LlamaForCausalLM"]), "`architectures` must be"),
    "dtype": (set_("torch_dtype", "bfloat16"), "`dtype` 'float32' differs from `torch_dtype` 'bfloat16'"),
    "nan": (put("fc.weight", lambda tensors: tensors["fc.weight"] * torch.nan), "`fc.weight` holds NaN"),
}


@pytest.mark.parametrize(("sabotage", "message"), CASES.values(), ids=CASES.keys())
def test_every_sabotage_is_named(
    tmp_path: Path, profile: TargetProfile, sabotage: Sabotage, message: str
) -> None:
    export_with(tmp_path, profile, sabotage)
    with pytest.raises(ArtifactError) as caught:
        check_plain(tmp_path, profile)
    assert message in str(caught.value)


def test_a_flag_taken_back_leaves_its_norm_over(tmp_path: Path, profile: TargetProfile) -> None:
    def unset(config: Config, tensors: Tensors) -> None:
        config["norm_before_fc"] = config["eagle_config"]["norm_before_fc"] = False

    export_with(tmp_path, profile, unset, norm_before_fc=True)
    with pytest.raises(ArtifactError, match=r"`input_norm.weight` does not belong"):
        check_plain(tmp_path, profile)


def test_end_of_turn_and_think_markers_must_be_draftable(tmp_path: Path, profile: TargetProfile) -> None:
    write_plain(tmp_path, make_drafter(), make_vocab(), profile, "float32")
    missing = int((~make_vocab().t2d).nonzero()[5])
    with pytest.raises(ArtifactError, match=f"lacks token {missing}"):
        check_plain(
            tmp_path,
            replaced(
                profile, think=ThinkFormat("x", "<think>", "</think>", [missing], [missing], prefilled=False)
            ),
        )


def test_a_damaged_file_is_an_error_that_says_where(tmp_path: Path, profile: TargetProfile) -> None:
    write_plain(tmp_path, make_drafter(), make_vocab(), profile, "float32")
    (tmp_path / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(ArtifactError, match="can't read the exported drafter"):
        check_plain(tmp_path, profile)
