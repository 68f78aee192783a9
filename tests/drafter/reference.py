"""The drafter once more, written plainly from the equations: one draft at a time, whole sequences, no packing.

Shares no code with eyas.drafter beyond reading weights by their checkpoint names.
"""

from __future__ import annotations

import math
from collections.abc import Callable
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


@dataclass
class FullReference:
    """The training loss over whole sequences, padded, as other trainers compute it: every position through every step,
    scores of all positions with all positions, masks instead of anchors. Differentiable by `weights`.

    B sequences, T tokens of the longest, S steps, U = T - 1 slots.
    """

    config: DrafterConfig
    weights: dict[str, Tensor]
    embedding: Tensor  # [V, H]
    head: Tensor  # [V, H], the target's
    kept: Tensor  # int64 [Vd], target ids of the draft vocabulary

    def outputs(self, tokens: Tensor, aux: Tensor, steps: int) -> list[Tensor]:
        """Layer outputs [B, U, H] of each step. tokens [B, T], aux [B, T, A, H]."""
        slots = tokens.shape[1] - 1
        feature = self.fused(aux[:, :-1])
        causal = torch.ones(slots, slots).tril().bool()
        keys: list[Tensor] = []
        values: list[Tensor] = []
        outputs = []
        for step in range(steps):
            read = torch.zeros(len(tokens), slots, dtype=torch.int64)
            read[:, : max(slots - step, 0)] = tokens[:, 1 + step :]
            positions = torch.arange(slots) + step
            output = self.layer(self.embedding[read], feature, positions, keys, values, causal)
            outputs.append(output)
            feature = self.norm(output, "norm") if self.config.norm_output else output
        return outputs

    def fused(self, aux: Tensor) -> Tensor:
        if self.config.fc_norm:
            parts = [self.norm(aux[:, :, i], f"fc_norm.{i}") for i in range(aux.shape[2])]
            aux = torch.stack(parts, dim=2)
        flat = aux.reshape(*aux.shape[:2], -1)
        if self.config.norm_before_fc:
            flat = self.norm(flat, "input_norm")
        return flat @ self.weights["fc.weight"].T

    def norm(self, x: Tensor, name: str) -> Tensor:
        return rms(x, self.weights[name + ".weight"], self.config.rms_norm_eps)

    def layer(
        self,
        embedded: Tensor,
        feature: Tensor,
        positions: Tensor,
        keys: list[Tensor],
        values: list[Tensor],
        causal: Tensor,
    ) -> Tensor:
        config, weights = self.config, self.weights
        normed = self.norm(feature, "midlayer.hidden_norm")
        both = torch.cat((self.norm(embedded, "midlayer.input_layernorm"), normed), dim=-1)
        q, k, v = (
            (both @ weights[f"midlayer.self_attn.{name}_proj.weight"].T)
            .reshape(*both.shape[:2], -1, config.head_dim)
            .transpose(1, 2)
            for name in ("q", "k", "v")
        )
        group = config.num_attention_heads // config.num_key_value_heads
        k, v = (x.repeat_interleave(group, dim=1) for x in (self.turned(k, positions), v))  # [B, Q, U, D]
        keys.append(k)
        values.append(v)
        q = self.turned(q, positions) / math.sqrt(config.head_dim)
        scores = [(q @ keys[0].transpose(2, 3)).masked_fill(~causal, -math.inf)]
        diagonal = torch.eye(len(causal), dtype=torch.bool)
        scores += [(q @ key.transpose(2, 3)).masked_fill(~diagonal, -math.inf) for key in keys[1:]]
        attention = torch.softmax(torch.cat(scores, dim=-1), dim=-1) @ torch.cat(values, dim=2)
        attended = attention.transpose(1, 2).flatten(2) @ weights["midlayer.self_attn.o_proj.weight"].T
        residual = (normed if config.norm_before_residual else feature) + attended
        x = self.norm(residual, "midlayer.post_attention_layernorm")
        gate, up = (x @ weights[f"midlayer.mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        return residual + (gate * torch.sigmoid(gate) * up) @ weights["midlayer.mlp.down_proj.weight"].T

    def turned(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rope as complex multiplication; x [B, heads, U, D]. Angles in float32, as everywhere."""
        half = x.shape[-1] // 2
        rates = 1.0 / self.config.rope_theta ** (torch.arange(half, dtype=torch.float32) / half)
        angles = positions.unsqueeze(1).float() * rates
        turn = torch.complex(angles.cos().double(), angles.sin().double())
        turned = torch.complex(x[..., :half], x[..., half:]) * turn
        return torch.cat((turned.real, turned.imag), dim=-1)

    def log_draft(self, output: Tensor) -> Tensor:
        return torch.log_softmax(self.norm(output, "norm") @ self.weights["lm_head.weight"].T, dim=-1)


@dataclass
class FullSequence:
    """One sequence for FullReference: everything is there at every position."""

    tokens: Tensor  # int64 [T]
    kinds: Tensor  # [T], 0 = prompt
    aux: Tensor  # [T, A, H]
    last: Tensor  # [T, H], after the final norm
    weight: float


@dataclass
class StepSums:
    """What a step's loss is made of."""

    loss: Tensor
    weight: float
    rows: int
    hits: int
    alpha: float


def full_scores(
    reference: FullReference,
    sequences: list[FullSequence],
    steps: int,
    row_loss: Callable[[Tensor, Tensor], Tensor],
    row_weight: Callable[[int, bool], float],
    *,
    per_sequence: bool,
) -> list[StepSums]:
    """Losses of each step.

    row_loss(P [.., Vd] not renormalised, log q [.., Vd]) -> [..]; row_weight(kind of the label, whether the target's
    argmax is in the draft vocabulary).
    """
    longest = max(len(sequence.tokens) for sequence in sequences)

    def padded(name: str) -> Tensor:
        parts = [getattr(sequence, name) for sequence in sequences]
        return torch.stack([torch.cat((p, p.new_zeros(longest - len(p), *p.shape[1:]))) for p in parts])

    target = torch.softmax(padded("last") @ reference.head.T, dim=-1)  # [B, T, V]
    best = target.argmax(dim=-1)
    kinds = padded("kinds")
    sums = []
    for k, output in enumerate(reference.outputs(padded("tokens"), padded("aux"), steps)):
        log_draft = reference.log_draft(output)
        draft = log_draft.detach().exp()
        total, weight, rows, hits, alpha = torch.zeros((), dtype=torch.float64), 0.0, 0, 0, 0.0
        for b, sequence in enumerate(sequences):
            losses, weights = [], []
            for p in range(len(sequence.tokens) - 2 - k):
                if any(int(kinds[b, p + 1 + j]) == 0 for j in range(k + 2)):
                    continue
                at = p + 1 + k
                kept_target = target[b, at, reference.kept]
                in_vocab = bool((reference.kept == best[b, at]).any())
                hits += int(reference.kept[log_draft[b, p].argmax()] == best[b, at])
                alpha += float(torch.minimum(kept_target, draft[b, p]).sum())
                losses.append(row_loss(kept_target, log_draft[b, p]))
                weights.append(row_weight(int(kinds[b, at + 1]), in_vocab))
            own = sum(weights)
            if own == 0:
                continue
            scale = sequence.weight / own if per_sequence else sequence.weight
            total = total + scale * sum(w * loss for w, loss in zip(weights, losses, strict=True))
            weight += scale * own
            rows += sum(w > 0 for w in weights)
        sums.append(StepSums(total, weight, rows, hits, alpha))
    return sums
