"""The `engine` section."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineParams:
    """How the drafter is measured in a real engine."""

    concurrency: list[int]
    """Requests in flight; each level is timed. Acceptance is counted at the highest."""
    prompts_at_concurrency_1: int
    """One request at a time is slow, so that level asks only so many prompts, spread over datasets and tasks."""
    rounds: int
    """The prompts are dealt out to so many rounds. Each round starts fresh servers, one without the drafter and one for
    each number of draft tokens, in the opposite order of the round before: a machine that becomes slower slows both."""
    sweep: list[int] | None
    """Numbers of draft tokens that are served beside speculation.draft_tokens, to find the fastest; null: none."""
    max_disagreement: float
    """Largest relative difference between measured and simulated acceptance, of the length and at each position."""
    max_sampled_disagreement: float
    """The same where answers are sampled, beyond what the sampling error explains."""

    def __post_init__(self) -> None:
        if not self.concurrency or min(self.concurrency) < 1:
            raise ValueError(f"concurrency: {self.concurrency} must hold numbers of at least 1")
        if len(set(self.concurrency)) != len(self.concurrency):
            raise ValueError(f"concurrency: {self.concurrency} names a level twice")
        for key in ("prompts_at_concurrency_1", "rounds"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key}: {getattr(self, key)} is below 1")
        if self.sweep is not None and (not self.sweep or min(self.sweep) < 1):
            raise ValueError(f"sweep: {self.sweep} must be null or hold numbers of at least 1")
        for key in ("max_disagreement", "max_sampled_disagreement"):
            if not 0 < getattr(self, key) < 1:
                raise ValueError(f"{key}: {getattr(self, key)} is not between 0 and 1")
