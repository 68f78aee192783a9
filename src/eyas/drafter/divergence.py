"""How far a draft distribution is from the target's, row by row, with the gradient by the draft's logits in closed form.

Losses are those of eyas.drafter.objective. With q = softmax(l), every one of their gradients is

    d loss / d l = a (q - P~) + c q (b - sum b q),    b = 1 where q < p else 0,    p = P~ x mass = P

since d soft_ce / d l = q - P~ and d alpha / d l = q (b - sum b q). a and c are numbers of the row.

Shapes: C labelled positions, S draft steps that are judged at each, Vd draft vocab.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from eyas.drafter.objective import Objective


@dataclass(frozen=True)
class Divergence:
    """Losses of C x S rows."""

    losses: Tensor
    """[C, S]"""
    best: Tensor
    """int64 [C, S]: the draft's most likely token, a draft id."""
    alpha: Tensor | None
    """[C, S]: sum of min(P, q), P not renormalised; None if not asked for."""
    gradient: Tensor
    """[C, S, Vd]: of each row's loss by its logits."""


def diverge(
    logits: Tensor, target_logits: Tensor, target_logsumexp: Tensor, objective: Objective, *, accept: bool
) -> Divergence:
    """Losses and gradients of a chunk of rows.

    Args:
        logits: the draft's, [C, S, Vd].
        target_logits: the target's for the draft vocabulary, [C, Vd].
        target_logsumexp: of the target's logits over its whole vocabulary, [C].
        accept: alpha is wanted, or part of the loss.
    """
    target = torch.softmax(target_logits, dim=-1)  # P~ [C, Vd]
    draft = torch.softmax(logits, dim=-1)  # q [C, S, Vd]
    top, best = draft.max(dim=-1)
    # Log-sum-exp of the logits, read off the likeliest token: no second pass of exponentials.
    spread = logits.gather(-1, best.unsqueeze(-1)).squeeze(-1) - torch.log(top)  # [C, S]
    # With the one row on the left the product is ten times as fast as with the one column on the right.
    cross = spread - torch.bmm(target.unsqueeze(1), logits.transpose(1, 2)).squeeze(1)  # -sum P~ log q
    kl = cross
    if objective.loss in ("kl", "lk_hybrid"):
        # -H(P~) = sum P~ log P~, per label
        expected = torch.bmm(target_logits.unsqueeze(1), target.unsqueeze(2)).view(-1, 1)  # [C, 1]
        kl = cross + expected - torch.logsumexp(target_logits, dim=-1, keepdim=True)
    if not accept:
        return Divergence(kl, best, None, draft.sub_(target.unsqueeze(1)))
    mass = torch.exp(torch.logsumexp(target_logits, dim=-1) - target_logsumexp).clamp(max=1)  # [C]
    overlap = _Overlap.of(draft, target * mass.unsqueeze(-1))
    blend = _blend(objective, cross, kl, overlap.alpha)
    gradient = overlap.gradient(draft).mul_(blend.of_alpha.unsqueeze(-1))
    gradient += draft.sub_(target.unsqueeze(1)).mul_(blend.of_kl.unsqueeze(-1))
    return Divergence(blend.losses, best, overlap.alpha, gradient)


@dataclass(frozen=True)
class _Overlap:
    """What two distributions share."""

    alpha: Tensor  # [C, S]: sum min(p, q)
    below: Tensor  # bool [C, S, Vd]: q < p

    @classmethod
    def of(cls, draft: Tensor, target: Tensor) -> _Overlap:
        target = target.unsqueeze(1)  # [C, 1, Vd]
        return cls(torch.minimum(draft, target).sum(dim=-1), draft < target)

    def gradient(self, draft: Tensor) -> Tensor:
        """d alpha / d l = q (b - sum b q), [C, S, Vd]."""
        inside = draft * self.below
        return inside.sub_(draft * inside.sum(dim=-1, keepdim=True))


@dataclass(frozen=True)
class _Blend:
    """A loss of cross-entropy (or KL) and alpha, and its derivatives by both; each [C, S]."""

    losses: Tensor
    of_kl: Tensor
    of_alpha: Tensor


def _blend(objective: Objective, cross: Tensor, kl: Tensor, alpha: Tensor) -> _Blend:
    zero, one = torch.zeros_like(alpha), torch.ones_like(alpha)
    # Where the target has no mass on the draft vocabulary alpha is 0, and so is its gradient.
    floored = alpha.clamp(min=torch.finfo(alpha.dtype).tiny)
    match objective.loss:
        case "tv":
            return _Blend(1 - alpha, zero, -one)
        case "lk":
            return _Blend(-torch.log(floored), zero, -1 / floored)
        case "lk_hybrid":
            weight = torch.exp(-objective.lk_eta * alpha)
            return _Blend(weight * kl + (1 - weight) * (1 - alpha), weight, weight - 1)
        case "mixture":
            share = objective.mixture_weight
            losses = (1 - share) * cross - share * torch.log(floored)
            return _Blend(losses, one * (1 - share), -share / floored)
        case _:  # soft_ce, kl
            return _Blend(kl, one, zero)
