"""The `train` section."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

OPTIMIZERS = ("adamw", "muon")
SCHEDULES = ("cosine", "linear", "constant")


@dataclass(frozen=True)
class DrafterFlags:
    """EAGLE-3 and 3.1 flags; what each does is in eyas.drafter.config, who can serve it in docs/architecture.md."""

    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_before_residual: bool = False
    norm_output: bool = False


@dataclass(frozen=True)
class TrainParams:
    """How the drafter is trained."""

    ttt_steps: int
    """Draft steps unrolled per anchor; train at least as many as the engine will draft."""
    epochs: int
    batch_tokens: int
    """Tokens (prompt and generated, padding included) of one optimiser step."""
    optimizer: str
    """adamw: for everything; muon: for the matrices of the layer and fc, AdamW for the rest."""
    lr: float
    schedule: str
    """Decay after the warm-up, to zero: cosine | linear | constant."""
    warmup_share: float
    """Share of all steps over which the learning rate rises linearly."""
    weight_decay: float
    betas: list[float]
    """AdamW's."""
    clip_norm: float
    """Gradients are scaled down to this norm."""
    step_decay: float
    """Draft step k has loss weight step_decay**k."""
    mask_out_of_vocab: bool
    """Don't train on labels whose target argmax is no draft token."""
    freeze_lm_head: bool
    """Keep the drafter's head at the target's rows, from which it starts either way."""
    seed: int
    drafter: DrafterFlags = field(default_factory=DrafterFlags)

    def __post_init__(self) -> None:
        for name, known in (("optimizer", OPTIMIZERS), ("schedule", SCHEDULES)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name}: {getattr(self, name)!r} is not one of {', '.join(known)}")
        for name in ("ttt_steps", "epochs", "batch_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} is below 1")
        self._check_ranges()
        if self.drafter.norm_before_fc and self.drafter.fc_norm:
            raise ValueError("drafter.norm_before_fc: true excludes drafter.fc_norm: true")

    def _check_ranges(self) -> None:
        for name in ("lr", "clip_norm", "step_decay"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name}: {getattr(self, name)} is not a number above 0")
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"weight_decay: {self.weight_decay} is not a number of at least 0")
        if not 0 <= self.warmup_share < 1:
            raise ValueError(f"warmup_share: {self.warmup_share} is not in [0, 1)")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas: {self.betas} must be two numbers in [0, 1)")
