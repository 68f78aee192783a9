"""The `generate` section: everything that decides an answer, and the gates of the stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

DIALECTS = ("vllm", "sglang", "sglang-generate", "openai")

FIRST_BATCH = 8
"""Conversations that are asked and judged before all others."""


@dataclass(frozen=True)
class GenerateParams:
    """How the target is asked, and when the stage fails."""

    dialect: str
    """What the server speaks. vllm: chat completions with `return_token_ids` (vLLM 0.10.2 or later). sglang: the same
    of SGLang. sglang-generate: SGLang's own /generate, which is sent token ids. openai: any other server, text only."""
    stream: bool
    """Read answers while they are made; changes no answer. Not with sglang, which then gives no token ids."""
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
    """The target should think: the gates stop a run whose answers lack reasoning."""
    accept_unparsed_reasoning: bool
    """Go on if the server leaves thinking in the content (no reasoning parser); it is split here, and flagged."""
    gate_rows: int
    """The run is judged a second time at so many answers, at least 8."""
    gate_min_reasoning_share: float
    """With expect_reasoning: stop if the share of answers with reasoning is lower, beyond chance."""
    gate_max_truncated_share: float
    """Stop if the share of answers cut by max_tokens is larger, beyond chance. 1: never."""
    max_failed_share: float
    """The stage fails if a larger share of the prompts has no answer."""

    def __post_init__(self) -> None:
        if self.dialect not in DIALECTS:
            raise ValueError(f"dialect: {self.dialect!r} is not one of {', '.join(DIALECTS)}")
        if self.stream and self.dialect == "sglang":
            raise ValueError(
                "stream: True, but SGLang's chat endpoint gives token ids only without streaming; "
                "set it to false, or use dialect sglang-generate"
            )
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
        self._check_gates()

    def _check_gates(self) -> None:
        if self.gate_rows < FIRST_BATCH:
            raise ValueError(f"gate_rows: {self.gate_rows} is below {FIRST_BATCH}")
        for key in ("gate_min_reasoning_share", "gate_max_truncated_share"):
            if not 0 <= getattr(self, key) <= 1:
                raise ValueError(f"{key}: {getattr(self, key)} is not in 0..1")
