"""The `speculation` section: what the simulated and the real engine share."""

from __future__ import annotations

from dataclasses import dataclass

DRAFT_SAMPLING = ("greedy", "probabilistic")


@dataclass(frozen=True)
class SpeculationParams:
    """How the drafter drafts when it is evaluated and served."""

    draft_tokens: int
    """Tokens drafted for each target step (vLLM: num_speculative_tokens)."""
    draft_sampling: str
    """At temperature > 0. greedy: the drafter's most likely token is drafted, and accepted with the target's probability
    of it. probabilistic: a token is sampled from the drafter's distribution q at the same temperature, and accepted with
    probability min(1, p/q). vLLM calls it draft_sample_method and drafts greedily unless told otherwise."""

    def __post_init__(self) -> None:
        if self.draft_tokens < 1:
            raise ValueError(f"draft_tokens: {self.draft_tokens} is below 1")
        if self.draft_sampling not in DRAFT_SAMPLING:
            raise ValueError(
                f"draft_sampling: {self.draft_sampling!r} is not one of {', '.join(DRAFT_SAMPLING)}"
            )
