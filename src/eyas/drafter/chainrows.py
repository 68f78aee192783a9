"""Which draft steps of a sequence can be trained or judged, from its token kinds alone.

A slot p of a sequence holds the aux hidden states of position p and the token x[p+1]. Draft step k of slot p
reads token x[p+1+k] and predicts x[p+2+k]. An anchor is a slot at which the engine can start a draft: x[p+1]
and x[p+2] are both generated. Prompt slots are never anchors: they lend their keys and values only.

Example, T=7, prompt x0..x2, generated x3..x6 (x6 ends the turn):

    slot          0    1    2    3    4
    token        x1   x2   x3   x4   x5
    anchor        -    -    *    *    *
    label, k=0             x4   x5   x6
    label, k=1             x5   x6    -

Shapes: T tokens, P anchors, L labelled positions, S draft steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ChainRows:
    """The draft steps of one sequence, counted from its own zero."""

    anchors: Tensor
    """int64 [P]: slots at which a draft can start, ascending."""
    inputs: Tensor
    """int64 [P, S]: position p+1+k of the token that step k reads; of the sequence's last but one where past its end."""
    valid: Tensor
    """bool [P, S]: the engine can reach step k from this anchor, and its label was generated."""
    labels: Tensor
    """int64 [P, S]: which labelled position is p+1+k; 0 where not valid."""

    @classmethod
    def of(cls, loss_mask: Tensor, label_positions: Tensor, steps: int) -> ChainRows:
        """From a loss mask bool [T] and the labelled positions int [L], ascending."""
        anchors = anchors_of(loss_mask)
        tokens = len(loss_mask)
        inputs = anchors.unsqueeze(1) + 1 + torch.arange(steps)  # [P, S]
        inside = inputs + 1 < tokens
        inputs = inputs.clamp(max=max(tokens - 2, 0))
        generated = inside & loss_mask[inputs] & loss_mask[inputs + 1]
        valid = torch.cumprod(
            generated.long(), dim=1
        ).bool()  # a draft can't jump over a position it can't reach
        label_at = torch.zeros(tokens, dtype=torch.int64)
        label_at[label_positions.long()] = torch.arange(len(label_positions))
        return cls(
            anchors=anchors, inputs=inputs, valid=valid, labels=torch.where(valid, label_at[inputs], 0)
        )


def anchors_of(loss_mask: Tensor) -> Tensor:
    """Slots p at which the engine can start a draft, int64 [P], from a loss mask bool [T]."""
    return torch.nonzero(loss_mask[1:-1] & loss_mask[2:]).flatten()
