"""The training objective: cross-entropy against the target's distribution, over the draft vocabulary.

Shapes: P anchors, L labelled positions, R valid rows of a step, S draft steps, V target vocab, Vd draft vocab.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from eyas.drafter.batch import DraftBatch
from eyas.drafter.model import Drafter
from eyas.drafter.unroll import unroll
from eyas.drafter.vocab import VocabMap


@dataclass(frozen=True)
class DraftTargets:
    """What the target says at each labelled position, in terms of the draft vocabulary."""

    probabilities: Tensor
    """[L, Vd]: softmax over the kept tokens only, so each row sums to 1."""
    argmax: Tensor
    """int64 [L]: draft id of the target's most likely token; -1 where the draft vocabulary lacks it."""

    @classmethod
    def of(cls, normed: Tensor, head_rows: Tensor, argmax: Tensor, vocab: VocabMap) -> DraftTargets:
        """From final-normed last hidden states [L, H], the kept rows of the target's head [Vd, H], argmax [L]."""
        logits = (normed @ head_rows.T).float()  # [L, Vd]
        return cls(probabilities=torch.softmax(logits, dim=-1), argmax=vocab.to_draft(argmax))


@dataclass(frozen=True)
class StepScores:
    """Sums over the valid rows of one draft step."""

    loss: Tensor
    """Sum of the cross-entropy of trained rows."""
    rows: int
    """Trained rows."""
    hits: Tensor
    """bool [P]: the draft's most likely token is the target's. False where not valid."""
    valid: Tensor
    """bool [P]."""


def soft_cross_entropy(logits: Tensor, probabilities: Tensor) -> Tensor:
    """Cross-entropy -sum p log q of each row, [R], from draft logits and target probabilities [R, Vd]."""
    return torch.logsumexp(logits, dim=-1) - (probabilities * logits).sum(dim=-1)


def score_steps(
    drafter: Drafter,
    batch: DraftBatch,
    targets: DraftTargets,
    embedding: Tensor,
    steps: int,
    *,
    mask_out_of_vocab: bool,
) -> list[StepScores]:
    """Loss sums and hits of each draft step.

    With `mask_out_of_vocab`, rows whose target argmax is no draft token are not trained (EAGLE, SpecForge);
    without it they train the renormalised tail (speculators). They count as misses either way.
    """
    scores = []
    for step, output in enumerate(unroll(drafter, batch, embedding, steps)):
        rows = torch.nonzero(batch.step_valid[:, step]).flatten()  # [R]
        labels = batch.step_labels[rows, step]
        logits = drafter.logits(output[rows]).float()  # [R, Vd]
        hits = torch.zeros_like(batch.step_valid[:, step])
        hits[rows] = logits.detach().argmax(dim=-1) == targets.argmax[labels]
        trained = (
            targets.argmax[labels] >= 0 if mask_out_of_vocab else torch.ones_like(labels, dtype=torch.bool)
        )
        losses = soft_cross_entropy(logits, targets.probabilities[labels])
        scores.append(
            StepScores(
                loss=(losses * trained).sum(),
                rows=int(trained.sum()),
                hits=hits,
                valid=batch.step_valid[:, step],
            )
        )
    return scores


def total_loss(scores: list[StepScores], step_decay: float) -> Tensor:
    """Sum over steps of step_decay**k times the mean over that step's trained rows."""
    means = [score.loss / max(score.rows, 1) * step_decay**step for step, score in enumerate(scores)]
    return torch.stack(means).sum()
