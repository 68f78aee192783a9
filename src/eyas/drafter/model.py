"""The EAGLE-3 drafter, in plain torch. Parameter names are those of the checkpoint that the engines load.

Shapes: N slots or rows, A aux layers, H hidden size, Vd draft vocab; heads and kv heads as in the config.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from eyas.drafter.config import DrafterConfig
from eyas.drafter.norm import RMSNorm, unit_rms
from eyas.gemm import linear


@dataclass(frozen=True)
class Rotation:
    """Cosines and sines of rope for some positions, each [N, head_dim]."""

    cos: Tensor
    sin: Tensor

    def __call__(self, heads: Tensor) -> Tensor:
        """Rotate [N, heads, head_dim], halves paired (Llama style)."""
        first, second = heads.chunk(2, dim=-1)
        turned = torch.cat((-second, first), dim=-1)
        return (heads * self.cos.unsqueeze(1) + turned * self.sin.unsqueeze(1)).to(heads.dtype)

    def __getitem__(self, rows: Tensor) -> Rotation:
        return Rotation(self.cos[rows], self.sin[rows])


class Attention(nn.Module):
    """The four projections; attending is done where the layout of slots is known (drafter.unroll)."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        query_width = config.num_attention_heads * config.head_dim
        value_width = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(2 * config.hidden_size, query_width, bias=False)
        self.k_proj = nn.Linear(2 * config.hidden_size, value_width, bias=False)
        self.v_proj = nn.Linear(2 * config.hidden_size, value_width, bias=False)
        self.o_proj = nn.Linear(query_width, config.hidden_size, bias=False)


class MLP(nn.Module):
    """Llama's gated MLP."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        gate, up = linear(hidden, self.gate_proj.weight), linear(hidden, self.up_proj.weight)
        return linear(functional.silu(gate) * up, self.down_proj.weight)


class DrafterLayer(nn.Module):
    """The one layer: attention over [embedding ; feature] (2H wide), then the MLP."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def projections(self) -> Projections:
        """The three input projections as one matrix, cut where the embedding ends and the feature begins.

        The weight of input_layernorm is part of the embedding's half: see `unit_rms`.
        """
        weights = [
            getattr(self.self_attn, f"{name}_proj").weight for name in ("q", "k", "v")
        ]  # [width, 2H] each
        token, feature = torch.cat(weights).chunk(2, dim=-1)  # the embedding comes first
        return Projections(token * self.input_layernorm.weight, feature, [len(weight) for weight in weights])

    def output(self, feature: Tensor, normed: Tensor, attended: Tensor) -> Tensor:
        """Layer output g [N, H] from the step's feature and its hidden_norm [N, H], attention result [N, heads * D]."""
        residual = normed if self.config.norm_before_residual else feature
        hidden = residual + linear(attended, self.self_attn.o_proj.weight)
        result: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return result


@dataclass(frozen=True)
class Projections:
    """Matrices of queries, keys and values, one below the other; W rows in all."""

    token: Tensor
    """[W, H]: what the embedding, at a root mean square of 1, is multiplied with."""
    feature: Tensor
    """[W, H]: what the normed feature is multiplied with."""
    widths: list[int]
    """Rows of queries, keys, values."""

    def of_feature(self, normed: Tensor) -> Tensor:
        """The feature's half, [N, W], from normed features [N, H]."""
        return linear(normed, self.feature)


class Drafter(nn.Module):
    """EAGLE-3 drafter without an embedding: it reads the target's, which is passed in as vectors."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        fused_width = config.num_aux_layers * config.target_hidden_size
        self.fc = nn.Linear(fused_width, config.hidden_size, bias=False)
        if config.norm_before_fc:
            self.input_norm = RMSNorm(fused_width, config.rms_norm_eps)
        if config.fc_norm:
            norms = [
                RMSNorm(config.target_hidden_size, config.rms_norm_eps) for _ in range(config.num_aux_layers)
            ]
            self.fc_norm = nn.ModuleList(norms)
        self.midlayer = DrafterLayer(config)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        self.rotary = LlamaRotaryEmbedding(_rotary_config(config))

    def fuse(self, aux: Tensor) -> Tensor:
        """Feature of the first draft step, [N, H], from concatenated aux hidden states [N, A * H], which are constants."""
        config = self.config
        weight, aux = self.fc.weight, aux.to(self.fc.weight.dtype)
        if config.norm_before_fc:
            weight, aux = weight * self.input_norm.weight, unit_rms(aux, config.rms_norm_eps)
        if config.fc_norm:
            weights: list[Any] = [norm.weight for norm in self.fc_norm]
            weight = weight * torch.cat(weights)
            aux = unit_rms(aux.unflatten(-1, (config.num_aux_layers, -1)), config.rms_norm_eps).flatten(-2)
        return linear(aux, weight)

    def logits(self, output: Tensor) -> Tensor:
        """Draft logits [N, Vd] from the layer output [N, H]."""
        return linear(self.norm(output), self.lm_head.weight)

    def rotation(self, positions: Tensor) -> Rotation:
        """Rope for integer positions [N]."""
        like = self.fc.weight  # only its dtype and device are read
        cos, sin = self.rotary(like, positions.unsqueeze(0))
        return Rotation(cos.squeeze(0), sin.squeeze(0))


def _rotary_config(config: DrafterConfig) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=config.num_attention_heads * config.head_dim,
        num_attention_heads=config.num_attention_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_position_embeddings,
        rope_parameters=config.rope_parameters,
    )
