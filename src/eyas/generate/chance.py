"""Whether a count is worse than chance explains: the gates judge few rows, and a stopped run costs a person's time."""

from __future__ import annotations

from math import comb

SIGNIFICANCE = 0.01


def beyond_chance(count: int, total: int, share: float) -> bool:
    """Whether so many of `total` rows are improbable (below SIGNIFICANCE) if a row is one with probability `share`.

    With share 0 any row is, with share 1 none.
    """
    if count == 0:
        return False
    at_least = sum(comb(total, k) * share**k * (1 - share) ** (total - k) for k in range(count, total + 1))
    return at_least < SIGNIFICANCE
