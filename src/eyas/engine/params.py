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
    max_disagreement: float
    """Largest relative difference between measured and simulated acceptance length."""

    def __post_init__(self) -> None:
        if not self.concurrency or min(self.concurrency) < 1:
            raise ValueError(f"concurrency: {self.concurrency} must hold numbers of at least 1")
        if len(set(self.concurrency)) != len(self.concurrency):
            raise ValueError(f"concurrency: {self.concurrency} names a level twice")
        if self.prompts_at_concurrency_1 < 1:
            raise ValueError(f"prompts_at_concurrency_1: {self.prompts_at_concurrency_1} is below 1")
        if not 0 < self.max_disagreement < 1:
            raise ValueError(f"max_disagreement: {self.max_disagreement} is not between 0 and 1")
