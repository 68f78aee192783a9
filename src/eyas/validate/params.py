"""The `validate` section of params.yaml."""

from __future__ import annotations

from dataclasses import dataclass

EXAMPLES = 3
"""Rows named for each problem."""

_SHARES = (
    "max_quarantined_share",
    "max_truncated_share",
    "max_unreasoned_share",
    "max_short_share",
    "max_text_difference_share",
)


@dataclass(frozen=True)
class ValidateParams:
    """Which responses are good enough, and when a dataset is not. Shares are from 0 to 1."""

    min_tokens: int
    """A response of fewer generated tokens is too short; at least 1."""
    expect_reasoning: bool
    """Every response must have reasoning: set it for thinking targets."""
    allow_repeated_markers: bool
    """Keep answers with more think markers than one pair, flagged: with token ids the first end marker ends the
    thinking, and the others are answer. Else they are quarantined."""
    text_sample: int
    """So many answers, chosen by prompt hash, are decoded and compared with their texts; 0 for none."""
    max_quarantined_share: float
    """The stage fails when a larger share of the responses breaks a rule."""
    max_truncated_share: float
    """The stage fails when a larger share of the valid responses was cut."""
    max_unreasoned_share: float
    """With expect_reasoning: the stage fails when a larger share of the responses has no reasoning."""
    max_short_share: float
    """The stage fails when a larger share of the responses is too short."""
    max_text_difference_share: float
    """The stage fails when the texts of a larger share of the sample say something else than the tokens; white space
    apart."""

    def __post_init__(self) -> None:
        for key in _SHARES:
            if not 0 <= getattr(self, key) <= 1:
                raise ValueError(f"{key}: {getattr(self, key)} is not between 0 and 1")
        if self.min_tokens < 1:
            raise ValueError(f"min_tokens: {self.min_tokens} is below 1")
        if self.text_sample < 0:
            raise ValueError(f"text_sample: {self.text_sample} is below 0")
