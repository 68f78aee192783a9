"""Strict checks of a plain checkpoint. Engines report neither a missing tensor nor a wrong number, so we do.

vLLM 0.32 leaves a missing projection uninitialised and a missing norm at ones, drops `input_norm` when its flag
is not set, and takes absent layer ids for its default ones; each of these only shows as low acceptance.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from eyas.drafter.vocab import VocabMap
from eyas.errors import ArtifactError
from eyas.export.plain import ARCHITECTURE, CONFIG, WEIGHTS
from eyas.target.spec import TargetProfile

NORM_FLAGS = ("norm_before_fc", "fc_norm", "norm_before_residual", "norm_output")
SIZES = (
    "hidden_size",
    "target_hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "draft_vocab_size",
    "num_aux_hidden_states",
)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint folder as it lies on disk."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]

    @classmethod
    def read(cls, directory: Path) -> Checkpoint:
        """Read config.json and model.safetensors.

        Raises:
            ArtifactError: a file is missing or damaged.
        """
        try:
            config = json.loads((directory / CONFIG).read_text())
            return cls(config=config, tensors=load_file(directory / WEIGHTS))
        except (OSError, ValueError, SafetensorError) as error:
            raise ArtifactError(
                f"can't read the exported drafter: {error}",
                where=str(directory),
                hint="run `dvc repro export`",
            ) from error


def check_plain(directory: Path, profile: TargetProfile) -> None:
    """Check a written folder against itself and against its target.

    Raises:
        ArtifactError: naming every problem found.
    """
    problems = find_problems(Checkpoint.read(directory), profile)
    if problems:
        raise ArtifactError(
            "the exported drafter would not be what was trained:\n"
            + "\n".join(f"  - {each}" for each in problems),
            where=str(directory),
            hint="an engine would serve it without complaint; train and export again for this target",
        )


def find_problems(checkpoint: Checkpoint, profile: TargetProfile) -> list[str]:
    """Everything wrong with a checkpoint, one sentence each; empty if it is sound."""
    missing = [
        f"config: `{key}` must be a positive number"
        for key in SIZES
        if not _is_size(checkpoint.config.get(key))
    ]
    missing += [
        f"config: `{key}` must be true or false, is {checkpoint.config.get(key)!r}"
        for key in NORM_FLAGS
        if not isinstance(checkpoint.config.get(key), bool)
    ]
    if missing:  # nothing else can be judged without sizes and flags
        return missing
    return [
        *_config_problems(checkpoint.config),
        *_layer_id_problems(checkpoint.config, profile),
        *_target_problems(checkpoint.config, profile),
        *_tensor_problems(checkpoint),
        *_vocab_problems(checkpoint, profile),
    ]


def expected_shapes(config: dict[str, Any]) -> dict[str, list[int]]:
    """Name and shape of every tensor that this config calls for; no others may be in the file."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    values = config["num_key_value_heads"] * config["head_dim"]
    fused = config["num_aux_hidden_states"] * config["target_hidden_size"]
    shapes = {
        "fc.weight": [hidden, fused],
        "midlayer.self_attn.q_proj.weight": [queries, 2 * hidden],
        "midlayer.self_attn.k_proj.weight": [values, 2 * hidden],
        "midlayer.self_attn.v_proj.weight": [values, 2 * hidden],
        "midlayer.self_attn.o_proj.weight": [hidden, queries],
        "midlayer.mlp.gate_proj.weight": [inner, hidden],
        "midlayer.mlp.up_proj.weight": [inner, hidden],
        "midlayer.mlp.down_proj.weight": [hidden, inner],
        "midlayer.input_layernorm.weight": [hidden],
        "midlayer.hidden_norm.weight": [hidden],
        "midlayer.post_attention_layernorm.weight": [hidden],
        "norm.weight": [hidden],
        "lm_head.weight": [config["draft_vocab_size"], hidden],
        "d2t": [config["draft_vocab_size"]],
        "t2d": [config["vocab_size"]],
    }
    if config["norm_before_fc"]:
        shapes["input_norm.weight"] = [fused]
    if config["fc_norm"]:
        names = [f"fc_norm.{layer}.weight" for layer in range(config["num_aux_hidden_states"])]
        shapes |= {key: [config["target_hidden_size"]] for key in names}
    return shapes


def _config_problems(config: dict[str, Any]) -> list[str]:
    nested = config.get("eagle_config") or {}
    fused = config["num_aux_hidden_states"] * config["target_hidden_size"]
    must = {
        "architectures": [ARCHITECTURE],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
    }
    problems = [
        f"config: `{key}` must be {value!r}, is {config.get(key)!r}"
        for key, value in must.items()
        if config.get(key) != value
    ]
    if nested.get("norm_before_fc", config["norm_before_fc"]) != config["norm_before_fc"]:
        problems.append("config: `eagle_config.norm_before_fc`, which wins, differs from `norm_before_fc`")
    if not nested.get("use_aux_hidden_state", True):
        problems.append("config: `eagle_config.use_aux_hidden_state` is off: engines would skip fc")
    if config["norm_before_fc"] and config["fc_norm"]:
        problems.append("config: `norm_before_fc` and `fc_norm` exclude each other")
    if fused == config["hidden_size"]:
        problems.append("config: the fused width equals `hidden_size`; SGLang tells draft steps apart by it")
    if config["num_attention_heads"] % config["num_key_value_heads"]:
        problems.append("config: `num_attention_heads` is not a multiple of `num_key_value_heads`")
    return problems


def _layer_id_problems(config: dict[str, Any], profile: TargetProfile) -> list[str]:
    ids = config.get("eagle_aux_hidden_state_layer_ids")
    problems = []
    if ids != profile.aux_layer_ids:
        problems.append(
            f"config: `eagle_aux_hidden_state_layer_ids` must be {profile.aux_layer_ids}, "
            f"the layers that were captured, at the top level; is {ids}"
        )
    if config["num_aux_hidden_states"] != len(profile.aux_layer_ids):
        problems.append(
            f"config: `num_aux_hidden_states` is {config['num_aux_hidden_states']}, "
            f"but {len(profile.aux_layer_ids)} layers were captured"
        )
    if "eagle_aux_hidden_state_layer_ids" in (config.get("eagle_config") or {}):
        problems.append("config: nested layer ids: vLLM's two runners read them differently")
    return problems


def _target_problems(config: dict[str, Any], profile: TargetProfile) -> list[str]:
    scaling = profile.rope_scaling or None
    rope = {"rope_type": "default", "rope_theta": profile.rope_theta, **(scaling or {})}
    must = {
        "vocab_size": profile.vocab_size,
        "target_hidden_size": profile.hidden_size,
        "hidden_size": profile.hidden_size,
        "max_position_embeddings": profile.max_position_embeddings,
        "rope_theta": profile.rope_theta,
        "rope_scaling": scaling,
        "rope_parameters": rope,
    }
    return [
        f"config: `{key}` is {config.get(key)!r}, but the target calls for {value!r}"
        for key, value in must.items()
        if config.get(key) != value
    ]


def _tensor_problems(checkpoint: Checkpoint) -> list[str]:
    expected = expected_shapes(checkpoint.config)
    tensors = checkpoint.tensors
    problems = [f"tensor `{name}` is missing" for name in expected if name not in tensors]
    problems += [
        f"tensor `{name}` does not belong to this config" for name in tensors if name not in expected
    ]
    dtype = checkpoint.config.get("torch_dtype")
    if checkpoint.config.get("dtype") != dtype:
        problems.append(
            f"config: `dtype` {checkpoint.config.get('dtype')!r} differs from `torch_dtype` {dtype!r}"
        )
    for name, tensor in tensors.items():
        if name in expected and list(tensor.shape) != expected[name]:
            problems.append(
                f"tensor `{name}` has shape {list(tensor.shape)}, the config calls for {expected[name]}"
            )
        if name in ("d2t", "t2d"):
            continue
        if str(tensor.dtype) != f"torch.{dtype}":
            problems.append(f"tensor `{name}` is {tensor.dtype}, the config says {dtype}")
        if not torch.isfinite(tensor).all():
            problems.append(f"tensor `{name}` holds NaN or infinity")
    return problems


def _vocab_problems(checkpoint: Checkpoint, profile: TargetProfile) -> list[str]:
    if not {"d2t", "t2d"} <= set(checkpoint.tensors):
        return []  # named among the missing tensors
    vocab = VocabMap(d2t=checkpoint.tensors["d2t"], t2d=checkpoint.tensors["t2d"])
    try:
        vocab.check("model.safetensors")
    except ArtifactError as error:
        return [error.what]
    if len(vocab.t2d) != profile.vocab_size:
        return []  # its shape is named already
    wanted = [*profile.end_of_turn_ids, *sorted(profile.think.marker_ids if profile.think else ())]
    return [
        f"the draft vocabulary lacks token {token}, an end of turn or think marker"
        for token in wanted
        if not vocab.t2d[token]
    ]


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
