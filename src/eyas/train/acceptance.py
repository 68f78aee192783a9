"""Simulated acceptance on the val split while training.

S draft steps, P anchors.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from eyas.drafter.loss import StepScores


class AcceptanceSums:
    """Greedy acceptance over all anchors, each counted once, as sums that add up over processes.

    An engine visits only some anchors, so its numbers differ a little; eyas.evaluate walks as the engine does.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.anchors = 0
        self.by_step = torch.zeros(6, steps, dtype=torch.float64)
        """Of each draft step: drafts whose steps up to this one all hit; hits; reachable rows; sum of min(p, q);
        loss; its weight."""

    def add(self, scores: Sequence[StepScores]) -> None:
        """Count one batch; needs scores with alpha."""
        hits = torch.stack([score.hits for score in scores], dim=1)  # [P, S]
        valid = torch.stack([score.valid for score in scores], dim=1)
        overlap = torch.stack([_alpha(score) for score in scores], dim=1) * valid
        losses = torch.stack([score.loss_sum.detach() for score in scores])
        weights = torch.stack([score.weight_sum for score in scores])
        rows = [hits.long().cumprod(dim=1).sum(dim=0), hits.sum(dim=0), valid.sum(dim=0), overlap.sum(dim=0)]
        self.anchors += len(hits)
        self.by_step += torch.stack([row.cpu().double() for row in (*rows, losses, weights)])

    @property
    def vector(self) -> Tensor:
        """Everything as one float64 tensor, to be added over processes."""
        return torch.cat((torch.tensor([self.anchors], dtype=torch.float64), self.by_step.flatten()))

    @classmethod
    def of_vector(cls, vector: Tensor) -> AcceptanceSums:
        """Back from a vector, or a sum of vectors."""
        sums = cls((len(vector) - 1) // 6)
        sums.anchors = int(vector[0])
        sums.by_step = vector[1:].view(6, -1).cpu()
        return sums

    def result(self) -> dict[str, float]:
        """The numbers of a validation.

        acceptance_length: 1 + accepted / drafts, the bonus token included. Of draft step k, from 1: acceptance_at_k: share
        of drafts whose first k tokens were accepted; accuracy_step_k: share of reachable rows whose most likely token is
        the target's; overlap_step_k: mean sum of min(p, q) over the full vocabulary, the acceptance of lossless sampling at
        temperature 1. loss: the first step's mean.
        """
        anchors = max(self.anchors, 1)
        accepted, hits, rows, overlap, losses, weights = self.by_step
        result = {"acceptance_length": 1 + float(accepted.sum()) / anchors}
        for step in range(self.steps):
            reachable = max(float(rows[step]), 1.0)
            result[f"acceptance_at_{step + 1}"] = float(accepted[step]) / anchors
            result[f"accuracy_step_{step + 1}"] = float(hits[step]) / reachable
            result[f"overlap_step_{step + 1}"] = float(overlap[step]) / reachable
        result["loss"] = float(losses[0]) / max(float(weights[0]), 1e-30)
        return dict(sorted(result.items()))  # as JSON gives it back after a restart


def _alpha(score: StepScores) -> Tensor:
    assert score.alpha is not None, "scored without measure=True"
    return score.alpha.detach()
