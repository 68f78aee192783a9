"""Closed gradients against autograd through the formulas, and hand-made values."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from eyas.drafter.divergence import diverge
from eyas.drafter.objective import LOSSES, Objective

OBJECTIVES = [Objective(loss=loss, mixture_weight=0.3, lk_eta=2.0) for loss in LOSSES]


def formula(logits: Tensor, target_logits: Tensor, logsumexp: Tensor, objective: Objective) -> Tensor:
    """Losses [C, S] from the definitions, by autograd."""
    target = torch.exp(target_logits - logsumexp.unsqueeze(1)).unsqueeze(1)  # P
    normal = target / target.sum(-1, keepdim=True)
    log_draft = torch.log_softmax(logits, -1)
    cross, alpha = -(normal * log_draft).sum(-1), torch.minimum(target, log_draft.exp()).sum(-1)
    kl = cross + (normal * normal.log()).sum(-1)
    hybrid = torch.exp(-objective.lk_eta * alpha).detach()
    return {
        "soft_ce": cross,
        "kl": kl,
        "tv": 1 - alpha,
        "lk": -alpha.log(),
        "lk_hybrid": hybrid * kl + (1 - hybrid) * (1 - alpha),
        "mixture": 0.7 * cross - 0.3 * alpha.log(),
    }[objective.loss]


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda objective: objective.loss)
def test_losses_and_gradients_equal_autograd(objective: Objective) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(5, 3, 11, generator=generator, dtype=torch.float64).mul_(3).requires_grad_()
    target_logits = torch.randn(5, 11, generator=generator, dtype=torch.float64) * 3
    logsumexp = torch.logsumexp(target_logits, -1) + torch.rand(5, generator=generator)
    want = formula(logits, target_logits, logsumexp, objective)
    got = diverge(logits.detach().clone(), target_logits, logsumexp, objective, accept=True)
    torch.testing.assert_close(got.losses, want)
    torch.testing.assert_close(got.gradient, torch.autograd.grad(want.sum(), logits)[0])
    assert torch.equal(got.best, logits.argmax(-1))


def test_cross_entropy_and_alpha_by_hand() -> None:
    logits = torch.tensor([[[0.0, math.log(3.0)]]])  # q = 1/4, 3/4
    target_logits = torch.zeros(1, 2)  # P~ = 1/2, 1/2
    logsumexp = torch.tensor([math.log(2.5)])  # a fifth of P lies outside: P = 2/5, 2/5
    got = diverge(logits, target_logits, logsumexp, Objective(), accept=True)
    assert got.losses.item() == pytest.approx(-(0.5 * math.log(0.25) + 0.5 * math.log(0.75)), rel=1e-6)
    assert got.alpha is not None
    assert got.alpha.item() == pytest.approx(0.25 + 0.4, rel=1e-6)


@pytest.mark.parametrize("loss", ["kl", "tv"])
def test_a_perfect_draft_has_no_loss(loss: str) -> None:
    target_logits = torch.randn(4, 9)
    got = diverge(
        target_logits.unsqueeze(1).clone(),
        target_logits,
        torch.logsumexp(target_logits, -1),
        Objective(loss=loss),
        accept=True,
    )
    torch.testing.assert_close(got.losses, torch.zeros(4, 1), atol=1e-5, rtol=0)


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda objective: objective.loss)
def test_extreme_logits_stay_finite(objective: Objective) -> None:
    """A draft that is sure of the wrong token; a target that wants nothing of the draft vocabulary."""
    logits = torch.tensor([[[500.0, -500.0, 0.0]], [[0.0, 1.0, 2.0]]])
    target_logits = torch.tensor([[-500.0, 500.0, 0.0], [0.0, 0.0, 0.0]])
    logsumexp = torch.tensor([500.0, 900.0])
    got = diverge(logits, target_logits, logsumexp, objective, accept=True)
    assert torch.isfinite(got.losses).all()
    assert torch.isfinite(got.gradient).all()
