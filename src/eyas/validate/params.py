"""The `validate` section of params.yaml."""

from __future__ import annotations

from dataclasses import dataclass

_SHARES = ("max_quarantined_share", "max_truncated_share")


@dataclass(frozen=True)
class ValidateParams:
    """Which responses are good enough, and when a dataset is not."""

    max_quarantined_share: float
    """The stage fails when a larger share of the responses breaks a rule; 0 to 1."""
    max_truncated_share: float
    """The stage fails when a larger share of the valid responses was cut; 0 to 1."""
    min_tokens: int
    """A response of fewer generated tokens is too short; at least 1."""
    expect_reasoning: bool
    """Every response must have reasoning: set it for thinking targets."""

    def __post_init__(self) -> None:
        for key in _SHARES:
            if not 0 <= getattr(self, key) <= 1:
                raise ValueError(f"{key}: {getattr(self, key)} is not between 0 and 1")
        if self.min_tokens < 1:
            raise ValueError(f"min_tokens: {self.min_tokens} is below 1")
