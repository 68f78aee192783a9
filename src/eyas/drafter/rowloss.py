"""The loss of every row, and its gradient, made in chunks of labelled positions.

The target's distribution at a labelled position is the same for every draft step that is judged there, so a chunk holds
some positions with all their draft steps: one softmax of the target, one matrix product of the draft's head. Losses have
closed gradients, so the forward pass leaves d loss / d logits in place of the logits, and the backward pass is two
matrix products.

Shapes: P anchors, L labelled positions, C of a chunk, S draft steps, H hidden size, Vd draft vocab.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from eyas.drafter.batch import DraftBatch
from eyas.drafter.divergence import Divergence, diverge
from eyas.drafter.objective import Objective
from eyas.drafter.vocab import VocabMap
from eyas.gemm import linear

CHUNK_ELEMENTS = {"cpu": 2**21, "cuda": 2**26}
"""Logits of a chunk: on a CPU few enough that passes over them stay in cache."""
KEPT_BYTES = 2**31
"""Gradients of logits that may be kept from the forward to the backward pass; beyond, they are computed again there."""


@dataclass(frozen=True)
class DraftTargets:
    """What the target says at each labelled position, in terms of the draft vocabulary."""

    normed: Tensor
    """[L, H]: last hidden state after the final norm."""
    head_rows: Tensor
    """[Vd, H]: the rows of the target's head that the draft vocabulary keeps."""
    argmax: Tensor
    """int64 [L]: draft id of the target's most likely token; -1 where the draft vocabulary lacks it."""
    logsumexp: Tensor
    """[L]: of the target's logits over its whole vocabulary."""

    @classmethod
    def of(
        cls, normed: Tensor, head_rows: Tensor, argmax: Tensor, vocab: VocabMap, logsumexp: Tensor
    ) -> DraftTargets:
        """From target ids argmax [L]; the others as they are."""
        return cls(normed, head_rows, vocab.to_draft(argmax), logsumexp)


@dataclass(frozen=True)
class RowScores:
    """Each [L, S]; what no anchor reaches is meaningless."""

    losses: Tensor
    """With gradient."""
    hits: Tensor
    """bool: the draft's most likely token is the target's."""
    alpha: Tensor | None
    """sum of min(P, q), P not renormalised."""


def row_scores(
    normed: Sequence[Tensor],
    head: Tensor,
    batch: DraftBatch,
    targets: DraftTargets,
    objective: Objective,
    *,
    measure: bool,
) -> RowScores:
    """Scores of all rows from S normed outputs [P, H] and the drafter's head [Vd, H]."""
    rows = _Rows(batch, targets, objective, measure or objective.needs_acceptance)
    losses, hits, alpha = _RowLoss.apply(rows, head, *normed)  # type: ignore[no-untyped-call]
    return RowScores(losses, hits, alpha if rows.accept else None)


@dataclass(frozen=True)
class _Rows:
    """What the loss reads beside the draft's outputs."""

    batch: DraftBatch
    targets: DraftTargets
    objective: Objective
    accept: bool

    def chunks(self, vocab_size: int) -> list[slice]:
        """Runs of labelled positions."""
        elements = CHUNK_ELEMENTS.get(self.targets.normed.device.type, CHUNK_ELEMENTS["cpu"])
        count = max(1, elements // (vocab_size * self.batch.steps))
        labels = len(self.targets.normed)
        return [slice(start, min(start + count, labels)) for start in range(0, labels, count)]

    def inputs(self, outputs: Tensor, labels: slice) -> Tensor:
        """The draft's normed outputs that are judged at a chunk's labels, [C * S, H], from [S * P, H]."""
        anchors = self.batch.label_anchors[labels].clamp(min=0)  # [C, S]
        steps = torch.arange(self.batch.steps, device=anchors.device) * len(self.batch.anchors)
        return outputs[(anchors + steps).flatten()]


class _RowLoss(torch.autograd.Function):
    """(rows, head, outputs of S steps) -> losses, hits, alpha, each [L, S]."""

    @staticmethod
    def forward(ctx: Any, rows: _Rows, head: Tensor, *normed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        dtype = _product_type(head)
        outputs = torch.cat(normed).to(dtype)  # [S * P, H]
        weight, target_head = head.to(dtype), rows.targets.head_rows.to(dtype)
        chunks = rows.chunks(len(head))
        size = len(rows.targets.normed) * rows.batch.steps * len(head) * outputs.element_size()
        keep = any(ctx.needs_input_grad) and size <= KEPT_BYTES
        kept, found = [], []
        with torch.autocast(head.device.type, enabled=False):
            for labels in chunks:
                scored = _score(rows, labels, rows.inputs(outputs, labels), weight, target_head)
                kept.append(scored.gradient.flatten(0, 1).to(dtype) if keep else None)
                found.append(scored)
        ctx.rows, ctx.chunks, ctx.kept = rows, chunks, kept
        ctx.save_for_backward(outputs, weight, target_head)
        ctx.head_type, ctx.output_type = head.dtype, normed[0].dtype
        best = torch.cat([scored.best for scored in found])
        hits = best == rows.targets.argmax.unsqueeze(1)  # [L, S]
        losses = torch.cat([scored.losses for scored in found])
        alpha = [scored.alpha for scored in found if scored.alpha is not None]
        accepted = torch.cat(alpha) if alpha else losses.new_empty(0)
        ctx.mark_non_differentiable(hits, accepted)
        return losses, hits, accepted

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        outputs, weight, target_head = ctx.saved_tensors
        rows: _Rows = ctx.rows
        batch = rows.batch
        upstream = torch.where(batch.label_anchors >= 0, upstream, 0)  # [L, S]
        # added up over chunks in the type of the master weights
        head_gradient = torch.zeros_like(weight, dtype=ctx.head_type) if ctx.needs_input_grad[1] else None
        found = outputs.new_empty(len(upstream), batch.steps, outputs.shape[1])  # [L, S, H]
        for labels, kept in zip(ctx.chunks, ctx.kept, strict=True):
            inputs = rows.inputs(outputs, labels)  # [R, H]
            gradient = kept
            if gradient is None:
                scored = _score(rows, labels, inputs, weight, target_head)
                gradient = scored.gradient.flatten(0, 1).to(weight.dtype)
            scale = upstream[labels].reshape(-1, 1).to(inputs.dtype)  # [R, 1]
            found[labels] = (linear(gradient, weight.T) * scale).view(-1, batch.steps, outputs.shape[1])
            if head_gradient is not None:
                head_gradient += linear(gradient.T, inputs.mul_(scale).T)
        steps = [
            torch.where(valid.unsqueeze(1), found[labels, step], 0).to(ctx.output_type)  # [P, H]
            for step, (valid, labels) in enumerate(zip(batch.step_valid.T, batch.step_labels.T, strict=True))
        ]
        return (None, head_gradient, *steps)


def _product_type(head: Tensor) -> torch.dtype:
    """The type of matrix products: autocast's, if it is on."""
    device = head.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else head.dtype


def _score(rows: _Rows, labels: slice, inputs: Tensor, head: Tensor, target_head: Tensor) -> Divergence:
    """Losses and gradients of a chunk from the draft's normed outputs [C * S, H]."""
    targets = rows.targets
    wide = torch.promote_types(head.dtype, torch.float32)
    logits = linear(inputs, head).to(wide)  # [C * S, Vd]
    target_logits = linear(targets.normed[labels].to(head.dtype), target_head).to(wide)  # [C, Vd]
    return diverge(
        logits.unflatten(0, (-1, rows.batch.steps)),
        target_logits,
        targets.logsumexp[labels].to(wide),
        rows.objective,
        accept=rows.accept,
    )
