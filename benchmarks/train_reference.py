"""A plain EAGLE-3 training step, as other trainers take it: the baseline of benchmarks/train.py.

What it does and they do (SafeAILab/EAGLE traineagle3, sgl-project/SpecForge, lightseekorg/TorchSpec):

* a batch in random order, padded to its longest sequence;
* every position through every draft step, prompt and padding included, with a mask in the loss;
* explicit scores of all positions with all positions, one more column per draft step;
* the target's distribution over the draft vocabulary at every position, from its last hidden states, in every epoch;
* Llama modules written out in eager operations.

Where they differ it takes the cheaper way: the target's head has the draft vocabulary's rows only (EAGLE and SpecForge
multiply with the whole head: see `full_head`), the target's distribution is made once per batch and sliced per step, and
scores of steps above 0 are columns, no matrices.

Letters: B sequences, T tokens of the longest, U = T - 1 slots, H hidden size, Q query heads, D head size, Vd draft vocab.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from eyas.drafter.config import DrafterConfig
from eyas.shards import SequenceStates


@dataclass(frozen=True)
class PaddedBatch:
    """What a padding collator gives."""

    tokens: Tensor  # int64 [B, T]
    mask: Tensor  # bool [B, T], generated
    aux: Tensor  # [B, T, A * H]
    last: Tensor  # [B, T, H], final-normed


def padded(sequences: Sequence[SequenceStates], last: Sequence[Tensor]) -> PaddedBatch:
    """Pad to the longest; `last` [T, H] of each sequence, since these trainers store it at every position."""
    pad = torch.nn.utils.rnn.pad_sequence
    return PaddedBatch(
        tokens=pad([states.token_ids.long() for states in sequences], batch_first=True),
        mask=pad([states.loss_mask for states in sequences], batch_first=True),
        aux=pad([states.aux.flatten(1) for states in sequences], batch_first=True),
        last=pad(list(last), batch_first=True),
    )


class PlainNorm(nn.Module):
    """Llama's RMSNorm."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, hidden: Tensor) -> Tensor:
        variance = hidden.float().pow(2).mean(-1, keepdim=True)
        scaled: Tensor = self.weight * (hidden.float() * torch.rsqrt(variance + self.eps)).to(hidden.dtype)
        return scaled


class PlainDrafter(nn.Module):
    """The drafter with every flag off."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        hidden, size = config.hidden_size, config.head_dim
        self.fc = nn.Linear(config.num_aux_layers * config.target_hidden_size, hidden, bias=False)
        self.q_proj = nn.Linear(2 * hidden, config.num_attention_heads * size, bias=False)
        self.k_proj = nn.Linear(2 * hidden, config.num_key_value_heads * size, bias=False)
        self.v_proj = nn.Linear(2 * hidden, config.num_key_value_heads * size, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * size, hidden, bias=False)
        self.gate_proj = nn.Linear(hidden, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, hidden, bias=False)
        self.lm_head = nn.Linear(hidden, config.draft_vocab_size, bias=False)
        names = ("embedding_norm", "feature_norm", "mlp_norm", "final_norm")
        self.norms = nn.ModuleDict({name: PlainNorm(hidden, config.rms_norm_eps) for name in names})
        rates = config.rope_theta ** (-torch.arange(0, size, 2).float() / size)
        self.rates = rates

    def step(
        self,
        embedded: Tensor,
        feature: Tensor,
        step: int,
        keys: list[Tensor],
        values: list[Tensor],
        mask: Tensor,
    ) -> Tensor:
        """Layer output [B, U, H] of a draft step; appends its keys and values [B, Q, U, D]. mask [B, 1, U, U] is added."""
        both = torch.cat((self.norms["embedding_norm"](embedded), self.norms["feature_norm"](feature)), -1)
        group = self.config.num_attention_heads // self.config.num_key_value_heads
        queries = self.rotated(self.heads(self.q_proj(both)), step)
        keys.append(self.rotated(self.heads(self.k_proj(both)), step).repeat_interleave(group, dim=1))
        values.append(self.heads(self.v_proj(both)).repeat_interleave(group, dim=1))
        scale = self.config.head_dim**-0.5
        scores = queries @ keys[0].transpose(2, 3) * scale + mask  # [B, Q, U, U]
        for own in keys[1:]:
            scores = torch.cat((scores, (queries * own).sum(-1, keepdim=True) * scale), dim=-1)
        weights = torch.softmax(scores.float(), dim=-1).to(queries.dtype)
        slots = embedded.shape[1]
        attended = weights[..., :slots] @ values[0]
        for place, value in enumerate(values[1:]):
            attended = attended + weights[..., slots + place, None] * value
        hidden = feature + self.o_proj(attended.transpose(1, 2).flatten(2))
        normed = self.norms["mlp_norm"](hidden)
        gated = functional.silu(self.gate_proj(normed)) * self.up_proj(normed)
        output: Tensor = hidden + self.down_proj(gated)
        return output

    def heads(self, projected: Tensor) -> Tensor:
        """[B, U, heads * D] -> [B, heads, U, D]"""
        return projected.view(*projected.shape[:2], -1, self.config.head_dim).transpose(1, 2)

    def rotated(self, heads: Tensor, step: int) -> Tensor:
        """Rope at positions step, step + 1, ..."""
        positions = torch.arange(heads.shape[2], device=heads.device) + step
        angles = torch.cat([positions.unsqueeze(1) * self.rates] * 2, dim=-1)  # [U, D]
        first, second = heads.chunk(2, dim=-1)
        return heads * angles.cos() + torch.cat((-second, first), dim=-1) * angles.sin()


@dataclass(frozen=True)
class PlainTrainer:
    """Loss of a padded batch."""

    drafter: PlainDrafter
    embedding: Tensor
    """[V, H]"""
    head: Tensor
    """[V, H] or [Vd, H], the target's."""
    kept: Tensor
    """int64 [Vd]: rows of `head` that are the draft vocabulary."""

    def loss(self, batch: PaddedBatch, steps: int) -> Tensor:
        """Soft cross-entropy of all steps, masked mean per step, as scalar."""
        target, best = self.targets(batch.last)
        slots = batch.tokens.shape[1] - 1
        feature = self.drafter.fc(batch.aux[:, :-1])  # [B, U, H]
        mask = causal_mask(batch.tokens.new_tensor([slots] * len(batch.tokens)), slots)
        keys: list[Tensor] = []
        values: list[Tensor] = []
        total: Tensor = feature.new_zeros(())
        for step in range(steps):
            read = functional.pad(batch.tokens[:, 1 + step :], (0, step))
            feature = self.drafter.step(self.embedding[read], feature, step, keys, values, mask)
            logits = self.drafter.lm_head(self.drafter.norms["final_norm"](feature)).float()  # [B, U, Vd]
            judged = slots - step
            supervised = batch.mask[:, 1 + step :]  # [B, judged]
            logs = torch.log_softmax(logits[:, :judged], dim=-1)
            losses = -(target[:, 1 + step :] * logs).sum(-1)
            with torch.no_grad():  # the accuracy that is logged
                ((logits[:, :judged].argmax(-1) == best[:, 1 + step :]) & supervised).sum()
            total = total + (losses * supervised).sum() / (supervised.sum() + 1e-5)
        return total

    @torch.no_grad()
    def targets(self, last: Tensor) -> tuple[Tensor, Tensor]:
        """P~ [B, T, Vd] and its argmax [B, T], at every position."""
        logits = last @ self.head.T
        if len(self.head) != len(self.kept):
            logits = logits[..., self.kept]
        target = torch.softmax(logits.float(), dim=-1)
        return target, target.argmax(-1)


def causal_mask(lengths: Tensor, slots: int) -> Tensor:
    """Additive, [B, 1, U, U]: no later slot and no padding."""
    places = torch.arange(slots)
    visible = (places <= places.unsqueeze(1)) & (places < lengths.view(-1, 1, 1))
    return torch.zeros(visible.shape).masked_fill(~visible, torch.finfo(torch.float32).min).unsqueeze(1)
