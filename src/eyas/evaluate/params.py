"""The `evaluate` section."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from eyas.speedup import RoundCost


@dataclass(frozen=True)
class EvaluateParams:
    """How far the simulation goes, and how the acceptance is broken down."""

    max_draft_tokens: int
    """Every number of draft tokens from 1 up to this one is simulated, and up to speculation.draft_tokens."""
    position_bins: list[int]
    """First answer positions of the bins, in tokens from the start of the answer; the first is 0, ascending."""
    context_bins: list[int]
    """The same in tokens of prompt and answer that are known before the draft."""
    bootstrap_resamples: int
    """Resamples of the sequences, for the confidence intervals."""
    cost_per_draft_token: float | None
    """What each drafted token adds to the time of a round, in target steps without drafting: the drafter's pass and the
    verification of one more token. Null: no speed-up is predicted."""
    cost_per_round: float
    """What a round takes longer than a target step whatever is drafted, in target steps."""

    def __post_init__(self) -> None:
        if self.max_draft_tokens < 1:
            raise ValueError(f"max_draft_tokens: {self.max_draft_tokens} is below 1")
        for key in ("position_bins", "context_bins"):
            bins = getattr(self, key)
            if not bins or bins[0] != 0 or any(left >= right for left, right in itertools.pairwise(bins)):
                raise ValueError(f"{key}: {bins} must start at 0 and ascend")
        if self.bootstrap_resamples < 100:
            raise ValueError(f"bootstrap_resamples: {self.bootstrap_resamples} is below 100")
        if self.cost_per_draft_token is not None and self.cost_per_draft_token < 0:
            raise ValueError(f"cost_per_draft_token: {self.cost_per_draft_token} is negative")
        if self.cost_per_round < 0:
            raise ValueError(f"cost_per_round: {self.cost_per_round} is negative")

    @property
    def cost(self) -> RoundCost | None:
        """Costs of a round; None where none were given."""
        if self.cost_per_draft_token is None:
            return None
        return RoundCost(self.cost_per_draft_token, self.cost_per_round)
