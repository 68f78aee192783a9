"""The `evaluate` section."""

from __future__ import annotations

import itertools
from dataclasses import dataclass


@dataclass(frozen=True)
class EvaluateParams:
    """How the simulated acceptance is broken down."""

    position_bins: list[int]
    """First answer positions of the bins, in tokens from the start of the answer; the first is 0, ascending."""

    def __post_init__(self) -> None:
        bins = self.position_bins
        if not bins or bins[0] != 0 or any(left >= right for left, right in itertools.pairwise(bins)):
            raise ValueError(f"position_bins: {bins} must start at 0 and ascend")
