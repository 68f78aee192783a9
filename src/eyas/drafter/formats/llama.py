"""The Llama part of a config, which all formats share: sizes, rope, lengths, flags. Written in full, read leniently."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from eyas.drafter.config import DrafterConfig
from eyas.drafter.formats.findings import Findings
from eyas.drafter.formats.rope import Rope, read_rope, rope_keys
from eyas.target.spec import TargetProfile

FLAGS = ("norm_before_fc", "fc_norm", "norm_before_residual", "norm_output")
MUST = {
    "model_type": "llama",
    "num_hidden_layers": 1,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "bias": False,
    "quantization_config": None,
    "logit_scale": 1.0,
    "pretraining_tp": 1,
}
"""What `Drafter` computes, and what a config that does not say it means."""
MUST_NESTED = {
    "use_aux_hidden_state": True,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "parallel_draft_step": 1,
}
"""The same of `eagle_config`, whose other keys modelopt writes."""
EPS = 1e-6


def llama_keys(config: DrafterConfig, profile: TargetProfile, dtype: str) -> dict[str, Any]:
    """Every key that an engine's Llama code reads. `dtype`: a torch name such as float32."""
    return {
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
        **rope_keys(Rope(config.rope_theta, config.rope_scaling)),
        "vocab_size": config.vocab_size,
        "tie_word_embeddings": False,
        "bos_token_id": profile.bos_token_id,
        "eos_token_id": _one_or_list(profile.end_of_turn_ids),
        "pad_token_id": profile.pad_token_id,
        "torch_dtype": dtype,
        "dtype": dtype,
        "num_aux_hidden_states": config.num_aux_layers,
    }


def flag_keys(config: DrafterConfig) -> dict[str, bool]:
    """The four norm flags, all written: formats differ in what they take an absent one for."""
    return {name: getattr(config, name) for name in FLAGS}


def read_llama(
    values: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    layer_ids: list[int],
    flags: Mapping[str, bool],
    profile: TargetProfile,
    found: Findings,
) -> DrafterConfig | None:
    """The drafter's shape from a flattened config; what it does not say is taken from tensors and target.

    None, with the problems in `found`, if the sizes do not make a drafter of this target.
    """
    _check_must(values, MUST, "", found)
    sizes = _sizes(values, tensors, profile, found)
    _check_fused(values, tensors, layer_ids, sizes["target_hidden_size"], found)
    check_target(sizes, profile, found)
    eps = _eps(values, found)
    if found.problems:
        return None
    rope = read_rope(values, found)
    length = _max_length(values, rope, profile, found)
    try:
        return DrafterConfig(
            **sizes, num_aux_layers=len(layer_ids), rms_norm_eps=eps, rope_theta=rope.theta, rope_scaling=rope.scaling,
            max_position_embeddings=length, aux_layer_ids=layer_ids, **flags,
        )  # fmt: skip
    except ValueError as error:
        found.refuse(f"config: {error}")
        return None


def _sizes(
    values: Mapping[str, Any], tensors: Mapping[str, Tensor], profile: TargetProfile, found: Findings
) -> dict[str, Any]:
    """Sizes by the names of DrafterConfig; 0 where there is a problem."""
    hidden = found.size(values, "hidden_size", _length(tensors, "norm.weight"), "the length of `norm`")
    heads = found.size(values, "num_attention_heads", None)
    inner = _length(tensors, "midlayer.mlp.gate_proj.weight")
    target_hidden = {"target_hidden_size": values.get("target_hidden_size") or hidden}  # absent: the same
    return {
        "hidden_size": hidden,
        "target_hidden_size": found.size(target_hidden, "target_hidden_size", None),
        "intermediate_size": found.size(values, "intermediate_size", inner, "the rows of `gate_proj`"),
        "num_attention_heads": heads,
        "num_key_value_heads": found.size(
            values, "num_key_value_heads", heads or None, "as many as query heads"
        ),
        "head_dim": found.size(values, "head_dim", hidden // heads if heads else None, "hidden_size / heads"),
        "vocab_size": found.size(values, "vocab_size", profile.vocab_size, "the target's"),
        "draft_vocab_size": _draft_vocab(values, tensors, profile, found),
    }


def check_nested(values: Mapping[str, Any], found: Findings) -> None:
    """Refuse settings of `eagle_config` that `Drafter` does not compute."""
    _check_must(values, MUST_NESTED, "eagle_config.", found)


def _check_must(values: Mapping[str, Any], must: Mapping[str, Any], prefix: str, found: Findings) -> None:
    for key, value in must.items():
        if values.get(key) is not None and values[key] != value:
            found.refuse(f"config: `{prefix}{key}` is {values[key]!r}; only {value!r} can be computed here")
    if prefix:
        return
    if values.get("tie_word_embeddings"):
        found.assume(
            "`tie_word_embeddings` is set, but the head in the files is used, as vLLM does; SGLang would not"
        )
    if values.get("sliding_window") is not None and values.get("use_sliding_window", True):
        found.assume(
            f"`sliding_window` {values['sliding_window']} is left out, as vLLM does: every draft sees all before it"
        )


def _check_fused(
    values: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    layer_ids: list[int],
    target_hidden: int,
    found: Findings,
) -> None:
    """Compare the layers with their stated number and with what `fc` reads."""
    stated = values.get("num_aux_hidden_states")
    if stated is not None and stated != len(layer_ids):
        found.refuse(f"config: `num_aux_hidden_states` is {stated!r}, the aux layers are {layer_ids}")
    fc = tensors.get("fc.weight")
    width = int(fc.shape[1]) if fc is not None and fc.dim() == 2 else None
    if width is not None and target_hidden and width != len(layer_ids) * target_hidden:
        found.refuse(
            f"tensor `fc.weight` reads {width} numbers, {len(layer_ids)} layers {layer_ids} of width {target_hidden} "
            f"are {len(layer_ids) * target_hidden}"
        )


def _draft_vocab(
    values: Mapping[str, Any], tensors: Mapping[str, Tensor], profile: TargetProfile, found: Findings
) -> int:
    rows = _length(tensors, "lm_head.weight")
    if rows is None:
        return found.size(values, "draft_vocab_size", profile.vocab_size, "the target's vocabulary")
    return found.size(values, "draft_vocab_size", rows, "the rows of `lm_head`")


def check_target(sizes: Mapping[str, int], profile: TargetProfile, found: Findings) -> None:
    """Refuse sizes that must be the target's and are not."""
    for key, value in (
        ("vocab_size", profile.vocab_size),
        ("target_hidden_size", profile.hidden_size),
        ("hidden_size", profile.hidden_size),
    ):
        if sizes[key] and sizes[key] != value:
            found.refuse(f"config: `{key}` is {sizes[key]}, the target {profile.name} calls for {value}")


def _eps(values: Mapping[str, Any], found: Findings) -> float:
    eps = values.get("rms_norm_eps")
    if eps is None:
        found.assume(f"`rms_norm_eps` is {EPS:g}: the config does not say, and that is Llama's default")
        return EPS
    if isinstance(eps, bool) or not isinstance(eps, int | float) or not 0 < eps < 1:
        found.refuse(f"config: `rms_norm_eps` must be a small positive number, is {eps!r}")
        return EPS
    return float(eps)


def _max_length(values: Mapping[str, Any], rope: Rope, profile: TargetProfile, found: Findings) -> int:
    """Short lengths of published configs only size the engine's rope table, so they are raised to the target's."""
    target = profile.max_position_embeddings
    length = found.size(values, "max_position_embeddings", target, "the target's")
    if length == target or rope.depends_on_length or not length:
        return length
    found.assume(
        f"`max_position_embeddings` is {target}, the target's, in place of {length}: it changes no number here, and a "
        "short one breaks drafts behind it (vllm-project/vllm#48894)"
    )
    return target


def _length(tensors: Mapping[str, Tensor], name: str) -> int | None:
    return int(tensors[name].shape[0]) if name in tensors and tensors[name].dim() else None


def _one_or_list(ids: list[int]) -> int | list[int]:
    return ids[0] if len(ids) == 1 else list(ids)
