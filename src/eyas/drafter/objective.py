"""What training minimises: the loss of one row, and how rows, sequences and draft steps weigh in the total.

P is the target's distribution over its whole vocabulary, P~ its renormalised share on the draft vocabulary, q the
draft's distribution, alpha = sum over the draft vocabulary of min(P, q): the probability that a token sampled from q
is accepted (arXiv:2211.17192, theorem 3.5). What the target puts outside the draft vocabulary counts as rejected.

    soft_ce    -sum P~ log q                         EAGLE-3 and every trainer that follows it
    kl         sum P~ log(P~ / q)                    the same gradient; 0 is perfect
    tv         1 - alpha                             total variation, arXiv:2602.23881
    lk         -log alpha                            LK-alpha of arXiv:2602.23881
    lk_hybrid  w kl + (1 - w) tv, w = exp(-eta alpha), no gradient through w: LK-lambda of arXiv:2602.23881
    mixture    (1 - m) soft_ce + m lk                m is `mixture_weight`
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from eyas.tokenkinds import NAMES, PROMPT

LOSSES = ("soft_ce", "kl", "tv", "lk", "lk_hybrid", "mixture")
ACCEPTANCE_LOSSES = ("tv", "lk", "lk_hybrid", "mixture")
"""Losses that need alpha."""
NORMALISERS = ("token", "sequence")


@dataclass(frozen=True)
class Objective:
    """The training objective."""

    loss: str = "soft_ce"
    """soft_ce | kl | tv | lk | lk_hybrid | mixture (see the module)."""
    mixture_weight: float = 0.5
    """Weight of `lk` in `mixture`, 0 to 1; soft_ce has the rest."""
    lk_eta: float = 3.0
    """`lk_hybrid`: how fast the weight moves from KL to total variation as acceptance grows."""
    mask_out_of_vocab: bool = False
    """Don't train on labels whose target argmax is no draft token (EAGLE, SpecForge do not; speculators does)."""
    step_decay: float = 1.0
    """Draft step k has loss weight step_decay**k."""
    step_weights: list[float] | None = None
    """Loss weight of each draft step, in place of step_decay."""
    normaliser: str = "token"
    """token: each step's loss is a mean over its rows; sequence: over sequences, of the mean over the rows of each."""
    kind_weights: dict[str, float] = field(default_factory=dict)
    """Loss weight by kind of the predicted token (think_marker, reasoning, answer, tool_call, end_of_turn); 1 if not
    named."""

    def __post_init__(self) -> None:
        for name, known in (("loss", LOSSES), ("normaliser", NORMALISERS)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name}: {getattr(self, name)!r} is not one of {', '.join(known)}")
        if not 0 <= self.mixture_weight <= 1:
            raise ValueError(f"mixture_weight: {self.mixture_weight} is not in [0, 1]")
        if not 0 <= self.lk_eta < math.inf:
            raise ValueError(f"lk_eta: {self.lk_eta} is not a number of at least 0")
        if not 0 < self.step_decay < math.inf:
            raise ValueError(f"step_decay: {self.step_decay} is not a number above 0")
        _check_weights("step_weights", dict(enumerate(self.step_weights or [1.0])))
        unknown = sorted(set(self.kind_weights) - set(NAMES[PROMPT + 1 :]))
        if unknown:
            raise ValueError(f"kind_weights: {unknown[0]!r} is not one of {', '.join(NAMES[PROMPT + 1 :])}")
        _check_weights("kind_weights", {kind: self.kind_weight(kind) for kind in NAMES[PROMPT + 1 :]})

    @property
    def needs_acceptance(self) -> bool:
        """Whether the loss is made of alpha."""
        return self.loss in ACCEPTANCE_LOSSES

    def step_weight(self, step: int) -> float:
        """Loss weight of draft step `step`.

        Raises:
            ValueError: `step_weights` names fewer steps.
        """
        if self.step_weights is None:
            return float(self.step_decay**step)
        if step >= len(self.step_weights):
            raise ValueError(f"step_weights: {self.step_weights} has no weight for draft step {step}")
        return self.step_weights[step]

    def kind_weight(self, kind: str) -> float:
        """Loss weight of predicted tokens of this kind."""
        return self.kind_weights.get(kind, 1.0)

    def weights_by_kind(self) -> list[float]:
        """Loss weight by kind number (eyas.tokenkinds); a prompt token is never predicted, so it has none."""
        return [0.0 if kind == PROMPT else self.kind_weight(name) for kind, name in enumerate(NAMES)]


def _check_weights(name: str, weights: dict[int, float] | dict[str, float]) -> None:
    for key, weight in weights.items():
        if not 0 <= weight < math.inf:
            raise ValueError(f"{name}: {weight} for {key} is not a number of at least 0")
    if not any(weights.values()):
        raise ValueError(f"{name}: all are 0, so nothing would be trained")
