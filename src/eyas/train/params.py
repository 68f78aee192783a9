"""The `train` section."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from eyas.drafter.objective import Objective

OPTIMIZERS = ("adamw", "muon")
SCHEDULES = ("cosine", "linear", "wsd", "constant")
PRECISIONS = ("32-true", "bf16-mixed")
PUBLISHED = ("best", "last")


@dataclass(frozen=True)
class DrafterFlags:
    """EAGLE-3 and 3.1 flags; what each does is in eyas.drafter.config, who can serve it in docs/architecture.md."""

    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_before_residual: bool = False
    norm_output: bool = False


@dataclass(frozen=True)
class TrainParams:
    """How the drafter is trained; docs/training.md has a table of all keys, their sources and effects."""

    ttt_steps: int
    """Draft steps unrolled per anchor; train at least as many as the engine will draft."""
    epochs: int
    """Passes over the train split; 0, with init_from only: that drafter is validated and published as it is."""
    batch_tokens: int
    """Tokens (prompt and generated) of one optimiser step, over all processes and passes."""
    optimizer: str
    """adamw: for everything; muon: for the matrices of the layer and fc, AdamW for the rest."""
    lr: float
    schedule: str
    """After the warm-up: cosine | linear, down to zero; wsd: constant, then linear to zero; constant."""
    warmup_share: float
    """Share of all steps over which the learning rate rises linearly."""
    weight_decay: float
    """Decoupled, on matrices only."""
    betas: list[float]
    """AdamW's."""
    clip_norm: float
    """Gradients are scaled down to this norm."""
    freeze_lm_head: bool
    """Keep the drafter's head at the target's rows, from which it starts either way."""
    seed: int
    """Of the first weights and of the order of sequences."""
    decay_share: float = 0.2
    """Share of all steps over which wsd falls to zero; other schedules do not use it."""
    precision: str = "32-true"
    """32-true | bf16-mixed: matrix products in bfloat16, weights and optimiser state in float32."""
    ema: float = 0.0
    """Decay of an exponential moving average of the weights, which is then validated and published; 0: none."""
    bucket_steps: int = 16
    """Sequences are shuffled, then sorted by length within windows of about so many steps, so that a step holds similar
    lengths; 1: a step holds whatever lengths come."""
    val_every_steps: int | None = None
    """Validate every so many steps and after each epoch; null: after each epoch."""
    val_sequences: int | None = None
    """Validate on so many sequences of the val split, chosen by their ids; null: on all."""
    early_stopping: int | None = None
    """Stop after so many validations in a row without a better acceptance length; null: never."""
    publish: str = "best"
    """best: the weights with the highest val acceptance length | last."""
    init_from: str | None = None
    """Folder of a drafter to start from; null: new weights."""
    objective: Objective = field(default_factory=Objective)
    drafter: DrafterFlags = field(default_factory=DrafterFlags)

    def __post_init__(self) -> None:
        for name, known in (
            ("optimizer", OPTIMIZERS),
            ("schedule", SCHEDULES),
            ("precision", PRECISIONS),
            ("publish", PUBLISHED),
        ):
            if getattr(self, name) not in known:
                raise ValueError(f"{name}: {getattr(self, name)!r} is not one of {', '.join(known)}")
        self._check_counts()
        self._check_ranges()
        weights = self.objective.step_weights
        if weights is not None and len(weights) < self.ttt_steps:
            raise ValueError(
                f"objective.step_weights: {weights} has no weight for each of {self.ttt_steps} steps"
            )
        if self.drafter.norm_before_fc and self.drafter.fc_norm:
            raise ValueError("drafter.norm_before_fc: true excludes drafter.fc_norm: true")

    def _check_counts(self) -> None:
        for name in ("ttt_steps", "batch_tokens", "bucket_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} is below 1")
        if self.epochs < (1 if self.init_from is None else 0):
            raise ValueError(f"epochs: {self.epochs} is below 1, and only with init_from may it be 0")
        for name in ("val_every_steps", "val_sequences", "early_stopping"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}: {value} is below 1 (null turns it off)")
        if not 0 <= self.seed < 1 << 32:
            raise ValueError(f"seed: {self.seed} is outside 0..{(1 << 32) - 1}")

    def _check_ranges(self) -> None:
        for name in ("lr", "clip_norm"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name}: {getattr(self, name)} is not a number above 0")
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"weight_decay: {self.weight_decay} is not a number of at least 0")
        for name in ("warmup_share", "ema"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} is not in [0, 1)")
        room = 1 - self.warmup_share if self.schedule == "wsd" else 1
        if not 0 < self.decay_share <= room:
            raise ValueError(
                f"decay_share: {self.decay_share} is not in (0, {room:g}], what the warm-up leaves"
            )
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas: {self.betas} must be two numbers in [0, 1)")
