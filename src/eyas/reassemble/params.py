"""The `reassemble` section of params.yaml."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ReassembleParams:
    """Which sequences are kept, and which of them are held back for validation."""

    val_share: float
    """Share of the training prompts that goes to `val`, chosen by prompt hash; above 0, below 1."""
    max_length: int
    """Longer sequences (prompt and answer, in tokens) are dropped, those for evaluation too; at least 2."""
    keep_truncated: bool
    """Keep sequences whose answer was cut (they have no end-of-turn token), or drop them."""

    def __post_init__(self) -> None:
        if not 0 < self.val_share < 1:
            raise ValueError(f"val_share: {self.val_share} is not between 0 and 1")
        if self.max_length < 2:
            raise ValueError(f"max_length: {self.max_length} is below 2")
