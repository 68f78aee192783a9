"""The plain EAGLE-3 checkpoint that vLLM serves: config.json and model.safetensors.

Every value that an engine would otherwise guess is written: layer ids, their number, the four norm flags, rope.
Written for vLLM 0.32 (model_executor/models/llama_eagle3.py). It holds no `embed_tokens`: the engine then shares
the target's, while a stale copy would be kept without a word.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from eyas.drafter.config import DrafterConfig
from eyas.drafter.model import Drafter
from eyas.drafter.vocab import VocabMap
from eyas.files import write_json
from eyas.target.spec import TargetProfile

ARCHITECTURE = "LlamaForCausalLMEagle3"
CONFIG = "config.json"
WEIGHTS = "model.safetensors"


def write_plain(
    directory: Path, drafter: Drafter, vocab: VocabMap, profile: TargetProfile, dtype: str
) -> None:
    """Write the checkpoint into an existing directory; weights in `dtype` (a torch name such as float32)."""
    write_json(directory / CONFIG, plain_config(drafter.config, profile, dtype))
    save_file(plain_tensors(drafter, vocab, dtype), directory / WEIGHTS, metadata={"format": "pt"})


def plain_config(config: DrafterConfig, profile: TargetProfile, dtype: str) -> dict[str, Any]:
    """config.json. Layer ids stand at the top level only: vLLM's two runners read nested ids differently."""
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "llama",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.rms_norm_eps,
        "attention_bias": False,
        "mlp_bias": False,
        "max_position_embeddings": config.max_position_embeddings,
        **_rope(config),
        "vocab_size": config.vocab_size,
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        "tie_word_embeddings": False,
        "bos_token_id": profile.bos_token_id,
        "eos_token_id": _one_or_list(profile.end_of_turn_ids),
        "pad_token_id": profile.pad_token_id,
        "torch_dtype": dtype,
        "dtype": dtype,
        "num_aux_hidden_states": config.num_aux_layers,
        "eagle_aux_hidden_state_layer_ids": list(config.aux_layer_ids),
        **_norm_flags(config),
        "eagle_config": {"use_aux_hidden_state": True, "norm_before_fc": config.norm_before_fc},
    }


def plain_tensors(drafter: Drafter, vocab: VocabMap, dtype: str) -> dict[str, Tensor]:
    """All tensors by name: the drafter's own (`midlayer.*`, `fc`, norms, `lm_head`), `d2t` and `t2d`."""
    kind = getattr(torch, dtype)
    weights = {
        name: tensor.detach().to("cpu", kind).contiguous() for name, tensor in drafter.state_dict().items()
    }
    return {**weights, "d2t": vocab.d2t.contiguous(), "t2d": vocab.t2d.contiguous()}


def _rope(config: DrafterConfig) -> dict[str, Any]:
    """Rope in the names of transformers 4 (rope_theta, rope_scaling) and 5 (rope_parameters), the same values."""
    return {
        "rope_theta": config.rope_theta,
        "rope_scaling": dict(config.rope_scaling) if config.rope_scaling else None,
        "rope_parameters": config.rope_parameters,
    }


def _norm_flags(config: DrafterConfig) -> dict[str, bool]:
    return {
        "norm_before_fc": config.norm_before_fc,
        "fc_norm": config.fc_norm,
        "norm_before_residual": config.norm_before_residual,
        "norm_output": config.norm_output,
    }


def _one_or_list(ids: list[int]) -> int | list[int]:
    return ids[0] if len(ids) == 1 else list(ids)
