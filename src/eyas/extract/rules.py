"""What generated tokens are held against, and how much of a difference rounding explains."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, log, sqrt

import torch
from torch import Tensor

from eyas.extract.tally import Suspect
from eyas.sampling import Sampling

NEAR_TIE = {"float32": 128.0, "bfloat16": 8.0, "float16": 8.0}
"""Largest margin of a near-tie, in units of the rounding of the largest logit.

Measured on SmolLM2-135M: two attention kernels differ by up to 10 units in float32 and 4 in bfloat16 (7,000 tokens),
another engine by up to 3 in bfloat16, and by ten times more than kernels in float32. Wrong states: 92 to 98 % of the
disagreements are larger than 4 units of bfloat16.
"""
BIAS = {"float32": 1e-4, "bfloat16": 1e-2, "float16": 3e-3}
"""Largest mean surprise of sampled tokens that rounding explains, nats per token at temperature 1.

Logits that are off by s on average, at random, raise it by about s^2 / 2; bfloat16 has s = 0.12 on SmolLM2-135M.
"""
OUTSIDE = {"float32": 1e-3, "bfloat16": 5e-3, "float16": 2e-3}
"""Share of sampled tokens that rounding may put beyond the border of top_k and top_p, at temperature 1.

Where the last token that is kept ends a hair below top_p, rounding decides whether the next one is kept too. Measured
with bfloat16, top_k 50 and top_p 0.9: 0.0011; with float32: none of 6,000.
"""
MIN_VARIANCE = 100.0
"""Below this sum of varentropies (nats squared) a sum of surprises is not near enough to normal to be judged."""
ODD_NATS = 30.0
"""Evidence against one sequence from which it is odd: chance gives it in one of 1e13 sequences."""
ODD_SHARE = 0.5
"""A greedy sequence is odd only if more of its tokens than this are not the argmax."""
MIN_DISAGREED_SHARE = 0.02
"""So many tokens may differ before a greedy sequence counts as evidence, however few the dataset may have."""


@dataclass(frozen=True)
class Rules:
    """The limits of a run."""

    sampling: Sampling
    dtype: str
    """Of the target: float32, bfloat16 or float16."""
    min_agreement: float
    """Of greedy tokens, per dataset; 0: no check."""
    max_sampling_z: float
    """Of sampled tokens, per dataset; inf: no check."""

    @property
    def checks(self) -> bool:
        """Whether anything is gated."""
        return self.min_agreement > 0 if self.sampling.greedy else isfinite(self.max_sampling_z)

    @property
    def bias(self) -> float:
        """Largest mean surprise that rounding explains, nats per token."""
        return BIAS[self.dtype] / self._sharpness

    def rounding(self, logsumexp: Tensor) -> Tensor:
        """[G] largest margins of near-ties; rounding grows with the size of the logits."""
        unit: float = torch.finfo(getattr(torch, self.dtype)).eps
        return NEAR_TIE[self.dtype] * unit * logsumexp.abs().clamp_min(1.0)

    def outside_limit(self, tokens: int) -> float:
        """Tokens beyond the border of top_k and top_p that rounding and chance explain."""
        mean = tokens * OUTSIDE[self.dtype] / self._sharpness
        return mean + 5 * sqrt(mean) + 3

    def evidence(self, suspect: Suspect) -> float:
        """Evidence (nats) against a sequence: above ODD_NATS it is odd."""
        if suspect.evidence is not None:
            return suspect.evidence
        return self._greedy_evidence(suspect.tokens, suspect.disagreed)

    def _greedy_evidence(self, tokens: int, disagreed: int) -> float:
        """Chernoff's bound on the probability of so many disagreements."""
        usual = max(1 - self.min_agreement, MIN_DISAGREED_SHARE)
        seen = disagreed / tokens if tokens else 0.0
        if seen <= max(usual, ODD_SHARE):
            return 0.0
        rest = (1 - seen) * log((1 - seen) / (1 - usual)) if seen < 1 else 0.0
        return tokens * (seen * log(seen / usual) + rest)

    @property
    def _sharpness(self) -> float:
        """Rounding acts on logits / temperature."""
        return min(self.sampling.divisor, 1.0)
