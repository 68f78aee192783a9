"""Which tensors a drafter consists of."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from eyas.drafter.config import DrafterConfig

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def expected_shapes(config: DrafterConfig) -> dict[str, list[int]]:
    """Name among `Drafter`'s parameters and shape of every weight that this config calls for; there are no others."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries = config.num_attention_heads * config.head_dim
    values = config.num_key_value_heads * config.head_dim
    fused = config.num_aux_layers * config.target_hidden_size
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
        "lm_head.weight": [config.draft_vocab_size, hidden],
    }
    if config.norm_before_fc:
        shapes["input_norm.weight"] = [fused]
    if config.fc_norm:
        names = [f"fc_norm.{layer}.weight" for layer in range(config.num_aux_layers)]
        shapes |= {name: [config.target_hidden_size] for name in names}
    return shapes


def weight_problems(state: Mapping[str, Tensor], config: DrafterConfig) -> list[str]:
    """Missing and unknown weights, wrong shapes, kinds of numbers, and numbers that are none; one sentence each."""
    expected = expected_shapes(config)
    problems = [f"tensor `{name}` is missing" for name in expected if name not in state]
    problems += [
        f"tensor `{name}` does not belong to this config{_why(name)}"
        for name in state
        if name not in expected
    ]
    for name, tensor in state.items():
        if name not in expected:
            continue
        if list(tensor.shape) != expected[name]:
            problems.append(
                f"tensor `{name}` has shape {list(tensor.shape)}, the config calls for {expected[name]}"
            )
        if tensor.dtype not in DTYPES:
            problems.append(
                f"tensor `{name}` is {tensor.dtype}; quantised weights can't be trained or exported"
            )
        elif not torch.isfinite(tensor).all():
            problems.append(f"tensor `{name}` holds NaN or infinity")
    return problems


REASONS = {
    ".q_norm.": "norms of queries and keys are not computed here",
    ".k_norm.": "norms of queries and keys are not computed here",
    ".bias": "projections have no bias here",
    "input_norm.": "`norm_before_fc` is not set, and vLLM would drop it without a word",
    "fc_norm.": "`fc_norm` is not set",
    "mask_hidden": "it drafts in parallel (P-EAGLE)",
    "layers.": "one layer only, since engines differ in what they do above it",
}


def _why(name: str) -> str:
    return next((f": {reason}" for part, reason in REASONS.items() if part in name), "")
