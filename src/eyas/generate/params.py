"""The `generate` section: everything that decides an answer, and the gates of the stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

DIALECTS = ("vllm",)


@dataclass(frozen=True)
class GenerateParams:
    """How the target is asked, and when the stage fails."""

    dialect: str
    """What the server speaks. vllm: chat completions with `return_token_ids` (vLLM 0.10.2 or later)."""
    temperature: float
    """0 is greedy."""
    top_p: float
    top_k: int
    """0: no limit."""
    max_tokens: int
    """Most tokens of an answer, thinking included."""
    seed: int
    """With temperature > 0 every request gets its own seed made from this one and its messages."""
    chat_template_kwargs: dict[str, Any]
    """Arguments of the target's chat template, for example {enable_thinking: true}."""
    expect_reasoning: bool
    """Stop at once if the first answers carry no reasoning."""
    max_failed_share: float
    """The stage fails if a larger share of the prompts has no answer."""

    def __post_init__(self) -> None:
        if self.dialect not in DIALECTS:
            raise ValueError(f"dialect: {self.dialect!r} is not one of {', '.join(DIALECTS)}")
        if not 0 <= self.temperature <= 10:
            raise ValueError(f"temperature: {self.temperature} is not in 0..10")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p: {self.top_p} is not in (0, 1]")
        if self.top_k < 0:
            raise ValueError(f"top_k: {self.top_k} is below 0")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens: {self.max_tokens} is below 1")
        if not 0 <= self.max_failed_share < 1:
            raise ValueError(f"max_failed_share: {self.max_failed_share} is not in [0, 1)")
