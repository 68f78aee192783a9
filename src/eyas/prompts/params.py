"""The `prompts` section of params.yaml."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PromptsParams:
    """How rows of every source become prompts."""

    system: str | None = None
    """System message put before every prompt that has none; null: nothing is added."""
    max_characters: int = 20000
    """A prompt with more characters over all its messages is rejected as `too_long`; at least 1."""

    def __post_init__(self) -> None:
        if self.max_characters < 1:
            raise ValueError(f"max_characters: {self.max_characters} is below 1")
        if self.system is not None and not self.system.strip():
            raise ValueError("system: an empty message; use null to add none")
