"""The drafter once more, written plainly from the equations: one draft at a time, whole sequences, no packing.

Shares no code with eyas.drafter beyond reading weights by their checkpoint names.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from eyas.drafter.config import DrafterConfig


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def rope(x: Tensor, position: int, theta: float) -> Tensor:
    """Rotate one head vector [D]: component i is paired with i + D/2."""
    half = x.shape[-1] // 2
    out = x.clone()
    for i in range(half):
        angle = position * theta ** (-2 * i / x.shape[-1])
        a, b = x[..., i], x[..., i + half]
        out[..., i] = a * math.cos(angle) - b * math.sin(angle)
        out[..., i + half] = b * math.cos(angle) + a * math.sin(angle)
    return out


@dataclass
class Reference:
    """Sequential drafting for one sequence."""

    config: DrafterConfig
    weights: dict[str, Tensor]
    embedding: Tensor  # [V, H]

    def fuse(self, aux: Tensor) -> Tensor:
        """aux [A, H] of one position."""
        config, weights = self.config, self.weights
        if config.fc_norm:
            aux = torch.stack(
                [rms(part, weights[f"fc_norm.{i}.weight"], config.rms_norm_eps) for i, part in enumerate(aux)]
            )
        flat = aux.reshape(-1)
        if config.norm_before_fc:
            flat = rms(flat, weights["input_norm.weight"], config.rms_norm_eps)
        return weights["fc.weight"] @ flat

    def slot(
        self, token: int, feature: Tensor, position: int, keys: list[Tensor], values: list[Tensor]
    ) -> Tensor:
        """One slot's layer output g [H]; appends its key and value first, so that it sees itself."""
        config, weights = self.config, self.weights
        name = "midlayer."
        eps = config.rms_norm_eps
        normed = rms(feature, weights[name + "hidden_norm.weight"], eps)
        u = torch.cat((rms(self.embedding[token], weights[name + "input_layernorm.weight"], eps), normed))
        heads, kv_heads, size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        q = (weights[name + "self_attn.q_proj.weight"] @ u).reshape(heads, size)
        k = (weights[name + "self_attn.k_proj.weight"] @ u).reshape(kv_heads, size)
        v = (weights[name + "self_attn.v_proj.weight"] @ u).reshape(kv_heads, size)
        keys.append(rope(k, position, config.rope_theta))
        values.append(v)
        q = rope(q, position, config.rope_theta)
        rows = []
        for head in range(heads):
            kv = head // (heads // kv_heads)
            scores = torch.stack([q[head] @ key[kv] / math.sqrt(size) for key in keys])
            probabilities = torch.softmax(scores, 0)
            rows.append(sum(p * value[kv] for p, value in zip(probabilities, values, strict=True)))
        attended = weights[name + "self_attn.o_proj.weight"] @ torch.cat(rows)
        residual = (normed if config.norm_before_residual else feature) + attended
        x = rms(residual, weights[name + "post_attention_layernorm.weight"], eps)
        gate = weights[name + "mlp.gate_proj.weight"] @ x
        up = weights[name + "mlp.up_proj.weight"] @ x
        return residual + weights[name + "mlp.down_proj.weight"] @ (gate * torch.sigmoid(gate) * up)

    def logits(self, output: Tensor) -> Tensor:
        return self.weights["lm_head.weight"] @ rms(
            output, self.weights["norm.weight"], self.config.rms_norm_eps
        )

    def draft(
        self, tokens: list[int], aux: Tensor, anchor: int, steps: int, *, own: list[int] | None = None
    ) -> list[Tensor]:
        """Outputs g of `steps` draft steps from slot `anchor`, as an engine runs them.

        tokens: the whole sequence; aux [T, A, H]. Step k >= 1 is fed tokens[anchor+1+k], or own[k-1] if given.
        """
        keys: list[Tensor] = []
        values: list[Tensor] = []
        output = self.embedding[0]
        for p in range(anchor + 1):
            output = self.slot(tokens[p + 1], self.fuse(aux[p]), p, keys, values)
        outputs = [output]
        for k in range(1, steps):
            norm = self.weights["norm.weight"]
            feature = rms(output, norm, self.config.rms_norm_eps) if self.config.norm_output else output
            token = own[k - 1] if own is not None else tokens[anchor + 1 + k]
            output = self.slot(token, feature, anchor + k, keys, values)
            outputs.append(output)
        return outputs
