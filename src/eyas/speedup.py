"""What acceptance is worth in time: tokens per target step against what a step with a draft costs.

A round with k draft tokens takes as long as `1 + per_round + k * per_token` target steps without drafting, and gives AL
tokens instead of one, so

    speedup(k) = AL(k) / (1 + per_round + k * per_token)

`per_token` holds the drafter's own pass and what verifying one more token adds to the target's; `per_round` what the
engine does once a round. They belong to an engine, a machine and a load: with many requests in flight verification costs
more. What this leaves out: prefill, and that a batch waits for its slowest request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class RoundCost:
    """Costs in target steps without drafting."""

    per_token: float
    """Of each drafted token."""
    per_round: float = 0.0
    """Of each round, whatever is drafted."""

    @classmethod
    def measured(cls, speedups: Mapping[int, float], lengths: Mapping[int, float]) -> RoundCost:
        """The costs that explain measured speed-ups best (least squares of the length of a round).

        Args:
            speedups: by number of draft tokens; tokens/s with the drafter by tokens/s without.
            lengths: acceptance length of the same runs.

        Raises:
            ValueError: nothing was measured.
        """
        if not speedups:
            raise ValueError("no speed-up was measured")
        tokens = np.array(sorted(speedups), dtype=np.float64)
        excess = np.array([lengths[count] / speedups[count] - 1 for count in sorted(speedups)])
        if len(tokens) == 1:  # one number can't be told apart into two
            return cls(per_token=float(excess[0] / tokens[0]))
        slope, offset = np.polyfit(tokens, excess, deg=1)
        return cls(per_token=float(slope), per_round=float(offset))

    def speedup(self, length: float, draft_tokens: int) -> float:
        """Tokens per second with the drafter, by those without it."""
        return length / (1 + self.per_round + draft_tokens * self.per_token)


def best_draft_tokens(speedups: Mapping[int, float | None]) -> int | None:
    """The number of draft tokens with the largest speed-up, the smallest of equals; None without any speed-up."""
    known = {count: value for count, value in speedups.items() if value is not None}
    return min(known, key=lambda count: (-known[count], count)) if known else None


def break_even(length: float, draft_tokens: int) -> float:
    """The largest cost per drafted token, in target steps, with which drafting is not slower than no drafter."""
    return (length - 1) / draft_tokens
