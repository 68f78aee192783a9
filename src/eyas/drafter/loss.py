"""The training objective of a batch: losses of all draft steps, weighted and summed per step.

Shapes: P anchors, L labelled positions, R rows (pairs of labelled position and draft step), S draft steps,
V target vocab, Vd draft vocab.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from eyas.drafter.batch import DraftBatch
from eyas.drafter.chainrows import ChainRows
from eyas.drafter.model import Drafter
from eyas.drafter.objective import Objective
from eyas.drafter.rowloss import DraftTargets, row_scores
from eyas.drafter.unroll import draft_steps
from eyas.drafter.vocab import VocabMap
from eyas.shards import SequenceStates

__all__ = ["DraftTargets", "StepScores", "score_steps", "total_loss", "weight_sums"]


@dataclass(frozen=True)
class StepScores:
    """One draft step over all anchors of a batch. Nothing here was copied from the device."""

    loss_sum: Tensor
    """Scalar, with gradient: sum over rows of weight x loss."""
    weight_sum: Tensor
    """Scalar: sum of the rows' weights; their mean loss is loss_sum / weight_sum."""
    rows: Tensor
    """int64 scalar: rows with a weight."""
    hits: Tensor
    """bool [P]: the draft's most likely token is the target's. False where not valid."""
    valid: Tensor
    """bool [P]: the engine can reach this step, and knows what it should have been."""
    alpha: Tensor | None
    """float [P]: probability that a token sampled from the draft is accepted; 0 where not valid. None: not asked for."""


def score_steps(
    drafter: Drafter,
    batch: DraftBatch,
    targets: DraftTargets,
    embedding: Tensor,
    objective: Objective,
    *,
    measure: bool = False,
) -> list[StepScores]:
    """Losses and hits of each draft step that the batch was packed for.

    Under autocast, matrix products run in its type; softmax, losses and sums in float32.

    Args:
        embedding: the target's, [V, H].
        measure: alpha even if the objective does without it.
    """
    normed = [step.normed for step in draft_steps(drafter, batch, embedding, batch.steps)]  # S x [P, H]
    scores = row_scores(
        normed, drafter.lm_head.weight, batch, targets, objective, measure=measure
    )  # each [L, S]
    weights = batch_weights(batch, targets.argmax, objective, scores.losses.dtype)  # [L, S]
    loss_sums = (scores.losses * weights).sum(dim=0)  # [S]
    weight_sums, rows = weights.sum(dim=0), (weights > 0).sum(dim=0)  # [S]
    hits = _by_anchor(scores.hits, batch)  # [P, S]
    alpha = None if scores.alpha is None else _by_anchor(scores.alpha, batch)
    return [
        StepScores(
            loss_sum=loss_sums[step],
            weight_sum=weight_sums[step],
            rows=rows[step],
            hits=hits[:, step],
            valid=batch.step_valid[:, step],
            alpha=None if alpha is None else alpha[:, step],
        )
        for step in range(batch.steps)
    ]


def total_loss(scores: Sequence[StepScores], weight_sums: Tensor, objective: Objective) -> Tensor:
    """Sum over steps of the step's weight x loss_sum / weight_sums; scalar.

    Additive: `weight_sums` [S] may be those of a larger batch, of which `scores` are a part. A step without rows adds 0.
    """
    loss_sums = torch.stack([score.loss_sum for score in scores])  # [S]
    step_weights = _constants(
        tuple(objective.step_weight(step) for step in range(len(scores))), loss_sums.device
    )
    divisors = weight_sums.to(loss_sums)
    return (loss_sums * torch.where(divisors > 0, step_weights.to(loss_sums) / divisors, 0)).sum()


def weight_sums(
    sequences: Iterable[SequenceStates], steps: int, vocab: VocabMap, objective: Objective
) -> Tensor:
    """What the weights of all rows of these sequences sum to, per draft step, without running the drafter.

    float64 [S]; reads kinds, argmax and weight only. Additive over any split of the sequences, and equal to the sum of
    `StepScores.weight_sum` over it.
    """
    sums = torch.zeros(steps, dtype=torch.float64)
    for states in sequences:
        labels = states.label_positions.long()
        rows = ChainRows.of(states.loss_mask, labels, steps)
        reached = torch.zeros(len(labels), steps, dtype=torch.bool)
        anchors, columns = torch.nonzero(rows.valid, as_tuple=True)
        reached[rows.labels[anchors, columns], columns] = True
        weights = label_weights(states.kinds[labels + 1], vocab.to_draft(states.argmax), objective)
        sequence = torch.zeros_like(labels)
        own = torch.tensor([states.weight], dtype=torch.float64)
        sums += row_weights(weights, reached, sequence, own, objective).sum(dim=0)
    return sums


def batch_weights(
    batch: DraftBatch, draft_argmax: Tensor, objective: Objective, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Weight of each row of a batch in its step's loss, [L, S]; 0 where no anchor reaches.

    draft_argmax int64 [L]: draft id of the target's most likely token, -1 if it has none.
    """
    weights = label_weights(batch.label_kinds, draft_argmax, objective).to(dtype)  # [L]
    reached = batch.label_anchors >= 0
    return row_weights(weights, reached, batch.label_sequence, batch.sequence_weights, objective)


def label_weights(kinds: Tensor, draft_argmax: Tensor, objective: Objective) -> Tensor:
    """Weight of each labelled position by what is predicted there, float64 [L]."""
    weights = _constants(tuple(objective.weights_by_kind()), kinds.device)[kinds.long()]
    return weights * (draft_argmax >= 0) if objective.mask_out_of_vocab else weights


def row_weights(
    label_weights: Tensor, reached: Tensor, sequence: Tensor, sequence_weights: Tensor, objective: Objective
) -> Tensor:
    """Weight of each row, [L, S], from those of labels [L] and sequences [B], and what anchors reach, bool [L, S].

    With the normaliser `sequence`, rows of one sequence and step share the sequence's weight between them.
    """
    weights = label_weights.unsqueeze(1) * reached  # [L, S]
    if objective.normaliser == "sequence":
        totals = weights.new_zeros(len(sequence_weights), weights.shape[1]).index_add_(0, sequence, weights)
        shares = totals[sequence]
        weights = torch.where(shares > 0, weights / shares, 0)
    return weights * sequence_weights.to(weights)[sequence].unsqueeze(1)


@cache
def _constants(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Kept there: each copy to a device would wait for it. float64, or float32 where a device has no other."""
    return torch.tensor(values, device=device, dtype=torch.float32 if device.type == "mps" else torch.float64)


def _by_anchor(values: Tensor, batch: DraftBatch) -> Tensor:
    """[L, S] -> [P, S], zero where not valid."""
    steps = torch.arange(batch.steps, device=values.device)
    return values[batch.step_labels, steps] * batch.step_valid
