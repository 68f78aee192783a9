"""Optimisers, the learning rate, and the moving average of the weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from eyas.drafter.model import Drafter
from eyas.train.params import TrainParams


def build_optimizers(drafter: Drafter, params: TrainParams) -> list[Optimizer]:
    """AdamW for everything, or Muon for the matrices between embedding and head and AdamW for the rest.

    Muon (Jordan et al. 2024) orthogonalises each matrix update; `match_rms_adamw` (arXiv:2502.16982) scales it so
    that one learning rate serves both. Norm weights do not decay: they are scales, not directions.
    """
    trained = {name: weight for name, weight in drafter.named_parameters() if weight.requires_grad}
    muons: list[nn.Parameter] = []
    if params.optimizer == "muon":
        muons = [
            weight for name, weight in trained.items() if weight.dim() == 2 and not name.startswith("lm_head")
        ]
    chosen = {id(weight) for weight in muons}
    others = [weight for weight in trained.values() if id(weight) not in chosen]
    groups = [
        {"params": [weight for weight in others if weight.dim() > 1], "weight_decay": params.weight_decay},
        {"params": [weight for weight in others if weight.dim() == 1], "weight_decay": 0.0},
    ]
    betas = (params.betas[0], params.betas[1])
    adamw = torch.optim.AdamW([group for group in groups if group["params"]], lr=params.lr, betas=betas)
    if not muons:
        return [adamw]
    muon = torch.optim.Muon(
        muons, lr=params.lr, weight_decay=params.weight_decay, adjust_lr_fn="match_rms_adamw"
    )
    return [muon, adamw]


def lr_factor(params: TrainParams, total_steps: int) -> Callable[[int], float]:
    """Learning-rate factor of each step (from 0): linear warm-up, then the schedule. A function of the step alone."""
    warmup = max(1, round(params.warmup_share * total_steps))
    decay = max(1, round(params.decay_share * total_steps))

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        done = min(1.0, (step - warmup) / max(1, total_steps - warmup))
        if params.schedule == "cosine":
            return 0.5 * (1 + math.cos(math.pi * done))
        if params.schedule == "linear":
            return 1 - done
        if params.schedule == "wsd":
            return min(1.0, max(0, total_steps - step) / decay)
        return 1.0

    return factor


class WeightAverage:
    """Exponential moving average of a drafter's trained weights.

    The decay of update n (from 0) is min(decay, (1 + n) / (10 + n)), so that the first weights do not linger in a short run.
    """

    def __init__(self, drafter: Drafter, decay: float) -> None:
        self.decay = decay
        self.tensors = {
            name: weight.detach().clone()
            for name, weight in drafter.named_parameters()
            if weight.requires_grad
        }

    @torch.no_grad()
    def update(self, drafter: Drafter, step: int) -> None:
        """Take in the weights after optimiser step `step`, from 0."""
        decay = min(self.decay, (1 + step) / (10 + step))
        weights = dict(drafter.named_parameters())
        torch._foreach_lerp_(  # one launch instead of one per weight
            list(self.tensors.values()), [weights[name].detach() for name in self.tensors], 1 - decay
        )

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over stored averages."""
        for name, tensor in self.tensors.items():
            tensor.copy_(tensors[name])

    @contextmanager
    def applied(self, drafter: Drafter) -> Iterator[None]:
        """The drafter has the averaged weights within, its own again behind."""
        weights = dict(drafter.named_parameters())
        own = {name: weights[name].data for name in self.tensors}
        for name, tensor in self.tensors.items():
            weights[name].data = tensor
        try:
            yield
        finally:
            for name, tensor in own.items():
                weights[name].data = tensor
