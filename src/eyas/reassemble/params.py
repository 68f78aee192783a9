"""The `reassemble` section of params.yaml."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

SOURCES = ("ids", "text")
TOO_LONG = ("drop", "cut")


@dataclass(frozen=True)
class ReassembleParams:
    """Which sequences are kept, what they are made of, and which of them are held back for validation."""

    val_share: float
    """Share of the training prompts that goes to `val`, chosen by prompt hash; above 0, below 1."""
    max_length: int
    """Longest sequence (prompt and answer) in tokens, for evaluation too; at least 2."""
    keep_truncated: bool
    """Keep sequences whose answer was cut (they have no end-of-turn token), or drop them."""
    too_long: str = "drop"
    """drop: sequences above max_length are dropped | cut: their answers are cut at the end, and count as truncated."""
    source: str = "ids"
    """ids: only the server's own ids | text: answers without ids are tokenised from their text, where text allows it."""
    drift_rows: int = 500
    """Answers with ids that are tokenised from their text too, to measure how far text is from the truth; at least 0."""
    max_drift_share: float = 0.0
    """With `source: text` the stage fails when a larger share of the measured answers comes out with other ids; 0 to 1."""
    max_refused_share: float = 0.05
    """The stage fails when more of the answers can't become sequences, for other reasons than length; 0 to 1."""
    weights: dict[str, float] = field(default_factory=dict)
    """Weight of each sequence of a dataset in training; 1.0 for datasets that are not named."""

    def __post_init__(self) -> None:
        if not 0 < self.val_share < 1:
            raise ValueError(f"val_share: {self.val_share} is not between 0 and 1")
        if self.max_length < 2:
            raise ValueError(f"max_length: {self.max_length} is below 2")
        for key, known in (("too_long", TOO_LONG), ("source", SOURCES)):
            if getattr(self, key) not in known:
                raise ValueError(f"{key}: {getattr(self, key)!r} is not one of {', '.join(known)}")
        if self.too_long == "cut" and not self.keep_truncated:
            raise ValueError("too_long: cut makes truncated sequences, which keep_truncated: false drops")
        if self.drift_rows < 0:
            raise ValueError(f"drift_rows: {self.drift_rows} is below 0")
        for key in ("max_drift_share", "max_refused_share"):
            if not 0 <= getattr(self, key) <= 1:
                raise ValueError(f"{key}: {getattr(self, key)} is not between 0 and 1")
        self._check_weights()

    def _check_weights(self) -> None:
        for name, weight in self.weights.items():
            if not (math.isfinite(weight) and weight > 0):
                raise ValueError(f"weights.{name}: {weight} is not a number above 0")
