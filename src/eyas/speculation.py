"""The `speculation` section: what the simulated and the real engine share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SpeculationParams:
    """How far the drafter drafts when it is evaluated and served."""

    draft_tokens: int
    """Tokens drafted for each target step (vLLM: num_speculative_tokens)."""

    def __post_init__(self) -> None:
        if self.draft_tokens < 1:
            raise ValueError(f"draft_tokens: {self.draft_tokens} is below 1")
