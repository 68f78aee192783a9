"""Optimisers and the learning-rate schedule."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn
from torch.optim import Optimizer

from eyas.drafter.model import Drafter
from eyas.train.params import TrainParams


def build_optimizers(drafter: Drafter, params: TrainParams) -> list[Optimizer]:
    """AdamW for everything, or Muon for the matrices between embedding and head and AdamW for the rest.

    Muon (Jordan et al. 2024) orthogonalises each matrix update; `match_rms_adamw` (arXiv:2502.16982) scales it so
    that one learning rate serves both.
    """
    trained = {name: weight for name, weight in drafter.named_parameters() if weight.requires_grad}
    matrices: list[nn.Parameter] = []
    if params.optimizer == "muon":
        matrices = [
            weight for name, weight in trained.items() if weight.dim() == 2 and not name.startswith("lm_head")
        ]
    chosen = {id(weight) for weight in matrices}
    others = [weight for weight in trained.values() if id(weight) not in chosen]
    adamw = torch.optim.AdamW(
        others, lr=params.lr, betas=(params.betas[0], params.betas[1]), weight_decay=params.weight_decay
    )
    if not matrices:
        return [adamw]
    muon = torch.optim.Muon(
        matrices, lr=params.lr, weight_decay=params.weight_decay, adjust_lr_fn="match_rms_adamw"
    )
    return [muon, adamw]


def lr_factor(params: TrainParams, total_steps: int) -> Callable[[int], float]:
    """Learning-rate factor of each step: linear warm-up from 0, then the schedule down to 0 at the end."""
    warmup = max(1, round(params.warmup_share * total_steps))

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        done = (step - warmup) / max(1, total_steps - warmup)
        if params.schedule == "cosine":
            return 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
        if params.schedule == "linear":
            return max(0.0, 1 - done)
        return 1.0

    return factor
